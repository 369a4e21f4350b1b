"""The checks of written values in place, compared with the forms and ranges themselves."""

from __future__ import annotations

import dataclasses
import json
import pickle
from array import array
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfence.commands import cache_forms
from keyfence.commands.cache_forms import ELEMENTS, FIELDS, PLAIN, VALUE, Layout
from keyfence.commands.effects import effect_of
from keyfence.commands.families import FACTS
from keyfence.commands.table import COMMANDS
from keyfence.policy.compiled.policy import Entry
from keyfence.policy.compiled.written import MOST_FAULTS, Arrangement, WrittenCheck
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.patterns.determinize import classify
from keyfence.policy.patterns.value_forms import BUILTIN, Form, parse_form, parse_range

LAYOUTS = {name: facts.layout for name, facts in FACTS.items() if facts.layout != PLAIN}
FORMS: dict[str, Form] = {
    **BUILTIN,
    **{
        text: parse_form(text, {})
        for text in ("[a-z]{1,3}(x|yz)?", "[0-9]{10}([0-9]{3})?", ".{2,300}", "(ab)*")
    },
    "words": parse_form(["running", "paused", "run", ""], {}),
}
# Examples of each form, from which values near its edges are made.
EXAMPLES = [
    *(b"0 -5 007 41.5 .5 5. -1.5E-3 1e9 10.0.0.7 255.255.255.255 ::1 20240229 19991231 1732000000".split()),
    *(b"1732000000123 aGk= aGVsbG8h 123e4567-e89b-12d3-a456-426614174000 running run abc abcyz abab".split()),
    *(b"9" * size for size in (19, 20, 21, 63, 64, 65)),
    *(b"0123456789abcdef" * 4, b"0123456789abcdef" * 5, b"x" * 299, b"x" * 301),
    *(b"{}", b"[]", b'{"a": [1, {"b": null}]}', b"[[1]]", b'{"a":{"b":"\\u0041\\n"}}', '{"ä": "ö"}'.encode()),
    *(b"\x82\xa1a\x01\xa1b\x90", b"\xc0"),
]
NEAR = st.builds(
    lambda value, at, cut, more: value[: at % (len(value) + 1)] + more + value[at % (len(value) + 1) + cut :],
    st.sampled_from(EXAMPLES),
    st.integers(0, 400),
    st.integers(0, 2),
    st.sampled_from(
        [b"", b"\r\n", b"\0", b"\xff", b"0", b"9", b"-", b".", b"a", b"F", b" ", b'"', b"{", b"]", b"\\"]
    ),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
).map(lambda value: json.dumps(value).encode())
VALUES = st.sampled_from(EXAMPLES) | NEAR | JSON | st.binary(max_size=8)


@cache
def entry_of(text: str) -> Entry:
    """Returns the requirements of an entry, written as in a policy."""
    policy = parse_policy(
        "policy: p\nservices: [app]\nplaceholders: {id: '[a-z]{1,8}', port: '[0-9]{1,5}'}\n"
        f"scopes: {{s: {{prefix: 'k:', writers: [app]}}}}\nkeys: {{one: {{key: 'k:<id>', {text}}}}}\n"
    )
    [found] = [one.entry for one in policy.targets if one.kind == "entry" and one.entry is not None]
    return found


def faults(check: WrittenCheck, argv: list[bytes], layout: Layout, at: int = 0) -> int:
    """Returns the faults of a command that lies between other bytes."""
    data, places = b"$3\r\n", array("q")
    for argument in argv:
        places.extend((len(data), len(data) + len(argument)))
        data += argument + b"\r\n$7\r\n"
    first = at or layout.content_at or 2
    return check.faults(data, places, len(argv), first, Arrangement(layout))


@cache
def check_of(name: str) -> WrittenCheck:
    entry = dataclasses.replace(entry_of("type: string, values: any"), values=FORMS[name])
    return WrittenCheck(entry, VALUE)


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=300)
@given(value=VALUES)
def test_a_value_has_a_form_in_place_exactly_if_the_form_accepts_it(name: str, value: bytes) -> None:
    found = faults(check_of(name), [b"SET", b"k", value], LAYOUTS["SET"])
    assert found == (0 if FORMS[name].accepts(value) else 1)


@pytest.mark.parametrize("name", [name for name in FORMS if name not in ("any", "msgpack")])
def test_most_values_of_a_form_are_found_by_its_automaton(name: str) -> None:
    """Otherwise the comparison above would compare a function with itself."""
    pattern = FORMS[name].pattern()
    assert pattern is not None
    automaton = classify([pattern])
    accepted = [value for value in EXAMPLES if FORMS[name].accepts(value)]
    found = [value for value in accepted if automaton.first(value) == 0]
    assert len(found) / len(accepted) > 0.4, (name, set(accepted) - set(found))
    assert not [value for value in EXAMPLES if automaton.first(value) == 0 and value not in accepted]


@given(
    st.integers(-(10**17), 10**17).map(str)
    | st.floats(allow_nan=False).map(repr)
    | st.decimals(-1000, 1000, places=3).map(str)
    | st.sampled_from(
        ["", "-", ".", "1.", "-.5", "--1", "1.2.3", "0x10", "inf", "-inf", "nan", "1e2", "+5", " 1"]
    )
)
@settings(max_examples=500)
def test_a_score_is_in_range_exactly_if_the_range_accepts_it(score: str) -> None:
    for text in ("0..100", "-1.5..1.5", "..0", "0.1.."):
        entry = entry_of(f"type: zset, scores: '{text}'")
        found = faults(WrittenCheck(entry, ELEMENTS), [b"ZADD", b"k", score.encode(), b"m"], LAYOUTS["ZADD"])
        assert (found == 0) == parse_range(text).accepts(score.encode()), text


def test_faults_are_counted_by_kind() -> None:
    entry = entry_of("type: hash, fields: {a: integer, b: ip, '<port>': '<port>'}, max_value: 20")
    check = WrittenCheck(entry, FIELDS)

    def found(text: bytes) -> int:
        return faults(check, text.split(), LAYOUTS["HSET"])

    assert found(b"HSET k a 1 b 10.0.0.7 8080 9090") == 0
    assert found(b"HSET k a x") == 1
    assert found(b"HSET k a x b y c z") == (MOST_FAULTS + 1) + 2
    assert found(b"HSET k c 1 d 2") == 2 * (MOST_FAULTS + 1)
    assert found(b"HSET k " + b"c 1 " * (MOST_FAULTS + 1)) == -1
    assert found(b"HSET k a " + b"1" * 21) == -1  # too long
    assert found(b"HSET k a") == found(b"HSET k") == 0  # Redis refuses it
    assert faults(check, [b"HINCRBY", b"k", b"a", b"1"], LAYOUTS["HINCRBY"]) == 0
    assert faults(check, [b"HINCRBY", b"k", b"c", b"1"], LAYOUTS["HINCRBY"]) == MOST_FAULTS + 1


def test_numbers_and_lengths_of_elements_are_limited() -> None:
    check = WrittenCheck(
        entry_of("type: [list, set], members: '[a-z]+', max_members: 2, max_value: 3"), ELEMENTS
    )
    for text, expected in (
        (b"SADD k a b", 0),
        (b"SADD k a b c", -1),
        (b"SADD k abcd", -1),
        (b"SADD k 1", -1),
        (b"LSET k 0 a", 0),
        (b"LSET k 0 1", -1),
        (b"LINSERT k BEFORE pivot a", 0),
        (b"LINSERT k BEFORE pivot 1", -1),
    ):
        argv = text.split()
        assert faults(check, argv, LAYOUTS[argv[0].decode()]) == expected, text


def test_a_form_without_an_automaton_is_checked_in_python() -> None:
    too_large = parse_form("(a|b)*a(a|b){13}", {})  # 2¹⁴ states
    entry = entry_of("type: string, values: any")
    check = WrittenCheck(dataclasses.replace(entry, values=too_large), VALUE)
    assert faults(check, [b"SET", b"k", b"a" + b"b" * 13], LAYOUTS["SET"]) == 0
    assert faults(check, [b"SET", b"k", b"b" * 14], LAYOUTS["SET"]) == 1


def test_a_check_without_requirements_says_so() -> None:
    assert not WrittenCheck(entry_of("type: string, values: any"), VALUE).requires
    assert WrittenCheck(entry_of("type: string, max_value: 1kb"), VALUE).requires
    assert not WrittenCheck(entry_of("type: hash, fields: {a: any}"), ELEMENTS).requires


def test_a_form_means_the_same_after_it_was_sent_to_a_worker() -> None:
    for form in FORMS.values():
        sent = pickle.loads(pickle.dumps(form))
        assert (sent.restricts, sent.text, sent.pattern()) == (form.restricts, form.text, form.pattern())


# A call of each command, with the positions of what it writes: (name or score, value) of each.
CALLS = {
    "APPEND": [b"v"],
    "EXPIRE": [b"60"],
    "GEOADD": [b"NX", b"1", b"2", b"m", b"3", b"4", b"n"],
    "GETEX": [b"EX", b"60"],
    "HINCRBY": [b"f", b"1"],
    "HINCRBYFLOAT": [b"f", b"1"],
    "HSETNX": [b"f", b"v"],
    "LINSERT": [b"BEFORE", b"p", b"v"],
    "LSET": [b"0", b"v"],
    "PEXPIRE": [b"60"],
    "PSETEX": [b"60", b"v"],
    "SETBIT": [b"5", b"1"],
    "SETEX": [b"60", b"v"],
    "SETRANGE": [b"5", b"v"],
    "XADD": [b"MAXLEN", b"~", b"5", b"*", b"f", b"v", b"g", b"w"],
    "ZADD": [b"CH", b"1", b"m", b"2", b"n"],
    "ZINCRBY": [b"1", b"m"],
}
OPTIONS = {"GEOADD": 1, "PSETEX": 1, "SETEX": 1, "XADD": 4, "ZADD": 1}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_names_what_the_evaluator_reads(name: str) -> None:
    """What XADD, ZADD and GEOADD write is described twice: as a layout and by a function."""
    layout = LAYOUTS[name]
    argv = [name.encode(), b"k", *CALLS.get(name, [b"v"] if layout.last == 0 else [b"f", b"v", b"g", b"w"])]
    at = layout.content_at or layout.options_at + OPTIONS.get(name, 0)
    count = 1 if layout.is_single else (len(argv) - at) // layout.step
    places = [(at + layout.step * one, at + layout.step * one + layout.last) for one in range(count)]
    content_of = effect_of(COMMANDS[name.encode()], 0).content_of
    found = content_of(argv, 1) if content_of is not None else None
    if layout.content == VALUE:
        assert found is not None
        assert [found.value_position] == [value for _, value in places]
    elif layout.content == FIELDS:
        assert found is not None
        values = [one.value_position for one in found.fields]
        assert [one.position for one in found.fields] == [first for first, _ in places]
        assert values == ([value for _, value in places] if layout.last else [0])
    elif layout.content == ELEMENTS and name != "APPEND":
        assert found is not None
        assert found.members is not None
        elements = range(found.members.position, len(argv), found.members.step)[: len(found.members.values)]
        assert list(elements) == [value for _, value in places]
        assert [argv[first] for first, _ in places if layout.is_scored] == list(found.members.scores)
    elif layout.content == cache_forms.LENGTH:
        assert found is not None
        assert found.least > 0
    elif layout.content == cache_forms.NOTHING:
        assert found is None
