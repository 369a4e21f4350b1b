"""Class expressions and key patterns: what they match, which errors they raise, and linear matching."""

from __future__ import annotations

import pickle
import re
from re import _parser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfence.policy.patterns import matching, regular
from keyfence.policy.patterns.expressions import escape
from keyfence.policy.patterns.matching import Simulation
from keyfence.policy.patterns.patterns import (
    Hole,
    Literal,
    Mismatch,
    PatternError,
    exact_pattern,
    literal_class,
    parse_class,
    parse_pattern,
    prefix_pattern,
)
from keyfence.policy.patterns.regular import UNBOUNDED

CLASSES = {
    "id": parse_class("[A-Za-z0-9_.-]{1,128}"),
    "sha256": parse_class("[0-9a-f]{64}"),
    "date": parse_class("[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    "state": parse_class("running|paused"),
    "name": parse_class("[a-z]+(_[a-z]+)*"),
    "any": parse_class(".+"),
    "short": parse_class("[ab]{2,3}"),
    "maybe": parse_class("[0-9]*"),
    "port": parse_class("[0-9]{1,5}"),
    "ARGV.1": parse_class("[0-9]+"),
}


def pattern(text: str):
    return parse_pattern(text, CLASSES)


# -- class expressions


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("[A-Za-z0-9_.-]{1,128}", [b"a", b"7c8f", b"a" * 128, b"-"], [b"", b"a" * 129, b"a:b", b"\xc3\xa9"]),
        ("[0-9]+", [b"0", b"0123456789" * 30], [b"", b"1a"]),
        ("running|paused", [b"running", b"paused"], [b"", b"runningpaused", b"run"]),
        ("v[0-9]+", [b"v1", b"v22"], [b"v", b"1", b"vv1"]),
        ("[a-z]+(_[a-z]+)*", [b"a", b"user_profile_x"], [b"_a", b"a_", b"a__b"]),
        ("(?:ab){2,3}", [b"abab", b"ababab"], [b"ab", b"abababab", b"aba"]),
        ("[^:]", [b"a", b"\xff", b"\n"], [b":", b"", b"ab"]),
        (".", [b":", b"\r", b"\x00"], [b"", b"ab"]),
        (r"\.\x41\d\w\{", [b".A7_{"], [b"xA7_{"]),
        (r"[\x00-\x1f\]\-^]", [b"\x00", b"]", b"-", b"^"], [b"a", b"\x20"]),
        ("[-a]", [b"-", b"a"], [b"b"]),
        ("[a-]", [b"-", b"a"], [b"b"]),
        ("é?x", ["éx".encode(), b"x"], [b"\xa9x"]),
        ("a{3}", [b"aaa"], [b"aa", b"aaaa"]),
        ("a{2,}", [b"aa", b"a" * 50], [b"a"]),
        ("a{0,2}b", [b"b", b"ab", b"aab"], [b"aaab"]),
        ("(a?b?)*", [b"", b"abba"], [b"c"]),
        ("(a|b?){2}", [b"", b"a", b"ab", b"bb"], [b"aba"]),
    ],
)
def test_a_class_matches_only_these_values(text, inside, outside):
    expression = parse_class(text)
    for value in inside:
        assert expression.matches(value), value
        assert Simulation(expression.node).matches(value), value
    for value in outside:
        assert not expression.matches(value), value
        assert not Simulation(expression.node).matches(value), value


@pytest.mark.parametrize(
    ("text", "message", "offset"),
    [
        (r"(a)\1", "back-references", 3),
        (r"\k<a>", "back-references", 0),
        ("a(?=b)", "not regular", 1),
        ("(?P<n>a)", "not regular", 0),
        ("^a", "there are no anchors", 0),
        ("a$", "there are no anchors", 1),
        (r"\bx", "there are no anchors", 0),
        (r"\q", "unknown escape", 0),
        ("é\\", "unknown escape", 1),
        (r"\xg0", "hexadecimal", 0),
        ("a+?", "only one counter", 2),
        ("a++", "only one counter", 2),
        ("a{1}{2}", "only one counter", 4),
        ("*a", "nothing precedes", 0),
        ("a{2,1}", "below its lower", 1),
        ("a{x}", "a counter is", 1),
        ("a{", "a counter is", 1),
        ("a{,3}", "a counter is", 1),
        ("a}", "unbalanced", 1),
        ("a]", "unbalanced", 1),
        ("a)", "without", 1),
        ("(a", "never closed", 0),
        ("x[a", "never closed", 1),
        ("x[", "never closed", 1),
        ("[]", "the set is empty", 0),
        (r"[^\x00-\xff]", "the set is empty", 0),
        ("[z-a]", "range is empty", 1),
        (r"[a-\d]", "one byte to another", 1),
        ("[[:alpha:]]", "literal '['", 1),
        ("[é]", "beyond ASCII", 1),
        ("", "empty expression", 0),
        ("a|", "empty expression", 2),
        ("()", "empty expression", 1),
        ("a{5000}", "too large", 0),
        ("(a{100}){100}", "too large", 0),
        ("(" * 40 + "a" + ")" * 40, "nested groups", 30),
    ],
)
def test_an_invalid_expression_is_an_error_with_an_offset(text, message, offset):
    with pytest.raises(PatternError, match=re.escape(message)) as caught:
        parse_class(text)
    assert caught.value.offset == offset


def test_a_class_knows_its_lengths_and_bytes():
    assert CLASSES["id"].lengths == (1, 128)
    assert CLASSES["name"].lengths[0] == 1
    assert CLASSES["name"].lengths[1] >= UNBOUNDED
    assert not CLASSES["id"].alphabet >> ord(":") & 1
    assert CLASSES["any"].alphabet >> ord(":") & 1


@given(st.lists(st.binary(max_size=6), min_size=1, max_size=4))
@settings(deadline=None)
def test_a_class_of_values_matches_only_these_and_has_an_expression(values):
    expression = literal_class(values)
    assert all(expression.matches(value) for value in values)
    assert not expression.matches(b"".join(values) + b"?")
    for value in values:
        if value:
            assert parse_class(escape(value)).matches(value)


# -- key patterns


def test_a_pattern_is_parsed_into_literals_and_holes():
    read = pattern("registry:{repository:<id>:<sha256>}:pull")
    assert read.parts == (
        Literal(b"registry:{repository:"),
        Hole("id", CLASSES["id"]),
        Literal(b":"),
        Hole("sha256", CLASSES["sha256"]),
        Literal(b"}:pull"),
    )
    assert read.literal_prefix == b"registry:{repository:"
    assert not read.is_literal
    assert pattern("a:b").is_literal
    assert pattern("<id>").literal_prefix == b""


@pytest.mark.parametrize(
    ("text", "message", "offset", "name"),
    [
        ("cube:<sandboxId>", "not declared", 5, "sandboxId"),
        ("a:<id>:<id>", "appears twice", 7, "id"),
        ("a<id", "does not open a placeholder", 1, None),
        ("a<>", "does not open a placeholder", 1, None),
        ("a<1x>", "does not open a placeholder", 1, None),
        ("a<id..>", "does not open a placeholder", 1, None),
        ("a>b", "does not close a placeholder", 1, None),
        ("a\\n", "unknown escape", 1, None),
        ("a\\", "unknown escape", 1, None),
        ("a\\x1", "unknown escape", 1, None),
        ("", "empty", 0, None),
    ],
)
def test_an_invalid_pattern_is_an_error_with_offset_and_placeholder(text, message, offset, name):
    with pytest.raises(PatternError, match=re.escape(message)) as caught:
        pattern(text)
    assert (caught.value.offset, caught.value.name) == (offset, name)


def test_a_variadic_placeholder_with_only_empty_segments_is_an_error():
    with pytest.raises(PatternError, match="empty segments"):
        parse_pattern("<x...>", {"x": parse_class("a{0}")})


@pytest.mark.parametrize(
    ("text", "key", "captured"),
    [
        ("cube:<id>", b"cube:a.b", {"id": b"a.b"}),
        ("cube:<id>", b"cube:" + b"x" * 129, None),
        ("cube:<id>", b"cube:", None),
        ("cube:<id>", b"cube:a:b", None),
        ("{<id>}:x", b"{cosky}:x", {"id": b"cosky"}),
        (r"a\<b\>\\\x0a<id>", b"a<b>\\\nx", {"id": b"x"}),
        ("é:<id>", "é:x".encode(), {"id": b"x"}),
        ("a:<id...>", b"a:x:y:z", {"id": b"x:y:z"}),
        ("a:<id...>", b"a:x::z", None),
        ("a:<id...>", b"a:x:", None),
        ("a:<id...>:<name>", b"a:x:y:z", {"id": b"x:y", "name": b"z"}),
        ("a:<id...>:end", b"a:x:end:end", {"id": b"x:end"}),
        ("a:<id...>:z:<name>", b"a:x:z:y:z:z", {"id": b"x:z:y", "name": b"z"}),
        ("a:<id...>:z:<name>", b"a:z:z", None),
        ("a:<id...>:<name>", b"a:x:" + b"y" * 129 + b":z", None),
        ("a:<id...>:<name>", b"a:x", None),
        ("<id...>", b"x:" + b"y" * 129, None),
        ("<any>:<id>", b"a:b:c", {"any": b"a:b", "id": b"c"}),
        ("<short><id>", b"ababab", {"short": b"aba", "id": b"bab"}),
        ("<short><short2>", b"ababa", None),
        ("<maybe...>", b"", None),
        ("<maybe...>", b"1:22", {"maybe": b"1:22"}),
        ("<maybe>x", b"x", {"maybe": b""}),
        ("<ARGV.1>", b"12", {"ARGV.1": b"12"}),
        ("a:<sha256>", b"a:" + b"0" * 64, {"sha256": b"0" * 64}),
        ("a:<sha256>", b"a:" + b"0" * 63, None),
        ("exact", b"exact", {}),
        ("exact", b"exactly", None),
    ],
)
def test_capture_is_exact(text, key, captured):
    read = parse_pattern(text, {**CLASSES, "short2": parse_class("[ab]")})
    assert read.capture(key) == captured
    assert read.matches(key) == (captured is not None)
    assert (read.mismatch(key) is None) == (captured is not None)


@pytest.mark.parametrize(
    ("text", "key", "mismatch"),
    [
        ("cube:v1:<id>", b"cube:v1:a:b", Mismatch("byte", 9, "id")),
        ("cube:v1:<id>", b"cube:v2:a", Mismatch("byte", 6, None)),
        ("cube:v1:<id>", b"cube:v1:", Mismatch("end", 8, "id")),
        ("cube:v1:<id>", b"cube:", Mismatch("end", 5, None)),
        ("a:<id>:<sha256>", b"a:x:00", Mismatch("length", 4, "sha256")),
        ("a:<id>:<sha256>", b"a:x:0g", Mismatch("byte", 5, "sha256")),
        ("a:<id>:z", b"a:" + b"x" * 200 + b":z", Mismatch("length", 2, "id")),
    ],
)
def test_a_mismatch_has_the_offset_and_the_placeholder(text, key, mismatch):
    assert pattern(text).mismatch(key) == mismatch


@pytest.mark.parametrize(
    ("text", "example"),
    [
        ("cube:<id>", b"cube:x1"),
        ("cube:<id>:<name>", b"cube:x1:x"),
        ("a:<id...>", b"a:x1:x2"),
        ("a:<sha256>", b"a:" + b"1" * 64),
        ("a:<date>", b"a:1111-11-11"),
        ("a:<state>", b"a:paused"),
        ("a:<maybe>", b"a:1"),
        ("a:b", b"a:b"),
    ],
)
def test_an_example_is_readable_and_matches(text, example):
    assert pattern(text).example() == example
    assert pattern(text).matches(example)


def test_specificity_compares_segment_by_segment():
    ordered = [
        exact_pattern(b"cube:v1:lock:a"),
        pattern("cube:v1:lock:x-<id>"),
        pattern("cube:v1:lock:<id>"),
        pattern("cube:v1:lock:<id>:z"),
        pattern("cube:v1:lock:<id...>"),
        prefix_pattern(b"cube:v1:lock:"),
        pattern("cube:v1:<id>:a"),
        prefix_pattern(b"cube:v1:"),
        prefix_pattern(b"cube:"),
        pattern("<id>"),
        prefix_pattern(b""),
    ]
    keys = [read.specificity for read in ordered]
    assert keys == sorted(keys)
    assert pattern("a:<id>").specificity == pattern("b:<name>").specificity


def test_a_prefix_pattern_matches_every_byte_string_under_it():
    owned = prefix_pattern(b"cube:")
    assert owned.is_prefix
    assert owned.literal_prefix == b"cube:"
    assert owned.text == "cube:*"
    for key in (b"cube:", b"cube:\x00\xff:\n", owned.example()):
        assert owned.matches(key)
    assert not owned.matches(b"cube")
    assert not owned.needs_verification
    assert prefix_pattern(b"a<\xff\n").text == r"a\<\xff\x0a*"


def test_patterns_survive_pickling():
    read = pattern("a:<id...>:<name>")
    copy = pickle.loads(pickle.dumps(read))
    assert copy == read
    assert hash(copy) == hash(read)
    assert copy.capture(b"a:x:y") == read.capture(b"a:x:y")


def test_only_long_counters_need_verification():
    assert pattern("a:<id>").needs_verification
    assert pattern("a:<sha256>").needs_verification
    assert not pattern("a:<date>").needs_verification
    assert not pattern("a:<name>").needs_verification


# -- properties


def ends(source, value: bytes, starts: set[int]) -> set[int]:
    """The reference: Python's own parser, and a walk over its tree that tracks all offsets at once.

    Not its matcher: that backtracks, and some expressions that are tried here would keep it busy for hours.
    A repeat ends as soon as it reaches nothing new, or nested ones would keep this busy for as long.
    """
    for operation, argument in source:
        match str(operation):
            case "SUBPATTERN":
                starts = ends(argument[3], value, starts)
            case "BRANCH":
                starts = set().union(*(ends(branch, value, starts) for branch in argument[1]))
            case "MAX_REPEAT":
                least, most, inner = argument
                found: set[int] = set()
                for count in range(min(most, least + len(value)) + 1):
                    if count >= least:
                        starts = starts - found  # the others were reached with more repeats left
                        found |= starts
                    if not starts:
                        break
                    starts = ends(inner, value, starts)
                starts = found
            case _:
                starts = {
                    at + 1 for at in starts if at < len(value) and _takes(operation, argument, value[at])
                }
    return starts


def _takes(operation, argument, byte: int) -> bool:
    match str(operation):
        case "ANY":
            return True
        case "LITERAL":
            return byte == argument
        case "NOT_LITERAL":
            return byte != argument
        case "RANGE":
            return argument[0] <= byte <= argument[1]
        case "IN":
            negated = str(argument[0][0]) == "NEGATE"
            return negated != any(_takes(*member, byte) for member in argument[negated:])
    raise AssertionError(operation)


def matches(source: str, value: bytes) -> bool:
    return len(value) in ends(_parser.parse(source.encode()), value, {0})


LETTERS = st.sampled_from(["a", "b", "[ab]", "[^a:]", ".", "c"])


def _counted(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    counters = st.sampled_from(["", "?", "*", "+", "{2}", "{1,3}", "{0,2}", "{2,}", "{3,11}", "{10}"])
    grouped = st.lists(inner, min_size=1, max_size=3).map("".join)
    either = st.lists(grouped, min_size=2, max_size=3).map("|".join)
    return st.tuples((grouped | either).map(lambda text: f"({text})"), counters).map("".join)


EXPRESSIONS = st.recursive(LETTERS, _counted, max_leaves=5)


@given(EXPRESSIONS, st.lists(st.text("abc:", max_size=14), min_size=1, max_size=8))
@settings(max_examples=300, deadline=None)
def test_a_class_matches_as_the_same_regular_expression(text, values):
    expression = parse_class(text)
    for value in (value.encode() for value in values):
        inside = matches(text, value)
        assert expression.matches(value) == inside
        assert Simulation(expression.node).matches(value) == inside
        assert Simulation(regular.reverse(expression.node)).matches(value[::-1]) == inside
        if inside:
            shortest, longest = expression.lengths
            assert shortest <= len(value) <= longest
            assert Simulation(regular.relax(expression.node)).matches(value)
        filled = regular.nonempty(expression.node)
        assert (filled is not None and Simulation(filled).matches(value)) == (inside and value != b"")
    if regular.nonempty(expression.node) is not None:
        assert expression.matches(expression.example())


PATTERN_PARTS = st.lists(
    st.sampled_from(["a", ":", "ab:", "b", "{"]) | st.tuples(EXPRESSIONS, st.booleans()),
    min_size=1,
    max_size=5,
)


def built(parts) -> tuple[str, dict, str]:
    """The pattern's text, its classes, and the equivalent regular expression."""
    text, classes, source = "", {}, ""
    for number, part in enumerate(parts):
        if isinstance(part, str):
            text += part
            source += re.escape(part)
            continue
        expression, variadic = part
        classes[f"p{number}"] = parse_class(expression)
        variadic = variadic and not regular.nullable(classes[f"p{number}"].node)
        text += f"<p{number}...>" if variadic else f"<p{number}>"
        source += f"((?:{expression})(?::(?:{expression}))*)" if variadic else f"((?:{expression}))"
    return text, classes, source


@given(PATTERN_PARTS, st.lists(st.text("ab:{c", max_size=14), min_size=1, max_size=6))
@settings(max_examples=300, deadline=None)
def test_capture_agrees_with_the_same_regular_expression(parts, keys):
    text, classes, source = built(parts)
    read = parse_pattern(text, classes)
    for key in [*(key.encode() for key in keys), read.example()]:
        inside = matches(source, key)
        captured = read.capture(key)
        assert (captured is not None) == inside
        assert read.matches(key) == inside
        assert (read._capture(key) is not None) == inside
        if captured is not None:
            assert captured == read._capture(key)
            whole = b"".join(
                part.text if isinstance(part, Literal) else captured[part.name] for part in read.parts
            )
            assert whole == key
            for part in read.parts:
                if isinstance(part, Hole):
                    assert Simulation(part.language.node).matches(captured[part.name])


@given(PATTERN_PARTS, st.lists(st.text("ab:{c", max_size=14), min_size=1, max_size=6))
@settings(max_examples=300, deadline=None)
def test_at_a_sure_length_the_relaxed_language_is_the_exact_one(parts, keys):
    text, classes, _ = built(parts)
    read = parse_pattern(text, classes)
    low, high = read.sure_lengths
    relaxed = Simulation(read.relaxed)
    for key in (key.encode() for key in keys):
        if low <= len(key) <= high and read.shortest <= len(key) <= read.longest:
            assert read.matches(key) == relaxed.matches(key)


@pytest.mark.parametrize(
    "text", ["a:<id...>", "a:<id...>:<port>", "{<id...>:x:<sha256>:<date>}", "a:<id>:<date>"]
)
def test_the_usual_patterns_are_matched_at_the_speed_of_a_linear_regular_expression(text):
    assert pattern(text)._regex is not None
    assert pattern(text).capture(pattern(text).example()) == pattern(text)._capture(pattern(text).example())


SEGMENTS = st.lists(
    st.sampled_from(["a", "b", ":", "<x>", "<y>", "<v...>", "<w...>"]), min_size=2, max_size=7
)


@given(SEGMENTS, st.lists(st.text("ab:", max_size=12).map(str.encode), min_size=1, max_size=8))
@settings(max_examples=300, deadline=None)
def test_both_matchers_agree_on_variadic_placeholders(parts, keys):
    named = {name: parts.count(name) for name in parts if name.startswith("<")}
    classes = {"x": "a{1,3}", "y": "[ab]+", "v": "[ab]{1,2}", "w": "b?a{2}"}
    if any(count > 1 for count in named.values()):
        return
    read = parse_pattern("".join(parts), {name: parse_class(text) for name, text in classes.items()})
    for key in [*keys, read.example()]:
        assert read.capture(key) == (read._capture(key) if read.shortest <= len(key) else None)


@pytest.mark.parametrize(
    "expression", ["(a*)*", "(a|a)*", "(a+)+", "(a?){30}a{30}", "(a|aa)+", "[ab]*a[ab]{30}", "(.*:)*"]
)
def test_the_steps_are_linear_for_hostile_keys(expression, monkeypatch):
    steps = 0
    step = Simulation.step

    def counting(self, state, byte):
        nonlocal steps
        steps += 1
        return step(self, state, byte)

    monkeypatch.setattr(matching.Simulation, "step", counting)
    read = parse_pattern("<x>:<y...>:!", {"x": parse_class(expression), "y": parse_class(expression)})
    for length in (100, 200, 400):
        key = b"a" * length + b":" + b"ab" * length + b":?"
        steps = 0
        assert read.capture(key) is None
        # At most two passes over the key for each part of the pattern.
        assert steps <= 2 * len(read.parts) * (len(key) + 1)


def test_the_cache_of_a_simulation_is_bounded(monkeypatch):
    monkeypatch.setattr(matching, "CACHED_STEPS", 16)
    simulation = Simulation(parse_class("[ab]*a[ab]{20}").node)
    assert simulation.matches(b"ab" * 300 + b"a" * 21)
    assert len(simulation._steps) <= 16
