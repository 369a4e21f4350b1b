from __future__ import annotations

import ipaddress
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.policy.patterns.classes import class_named
from keyfence.policy.patterns.determinize import classify
from keyfence.policy.patterns.expressions import parse_class
from keyfence.policy.patterns.value_forms import BUILTIN, MAX_PARSED, parse_form, parse_range

UUID = b"123e4567-e89b-12d3-a456-426614174000"

# form: values with the form, values without it
TABLE: dict[str, tuple[list[bytes], list[bytes]]] = {
    "any": ([b"", b"\xff\0"], []),
    "integer": (
        [b"0", b"-5", b"007", b"9" * 20],
        [b"", b"+5", b"5.0", b"5 ", b"5\n", b"9" * 21, "٣".encode(), b"-"],
    ),
    "number": (
        [b"0", b"-5", b"+5", b"41.5", b".5", b"5.", b"1e9", b"-1.5E-3"],
        [b"", b".", b"e5", b"1e", b"0x1", b"nan", b"inf", b"1,5", b" 1", b"1\n"],
    ),
    "ip": (
        [b"10.0.0.7", b"255.255.255.255", b"::1", b"2001:db8::1", b"::ffff:10.0.0.1"],
        [b"", b"10.0.0", b"10.0.0.777", b"10.0.0.07", b"10.0.0.7/8", b"10.0.0.7:80", b"[::1]", b"h", b"\xff"],
    ),
    "json": (
        [b"{}", b"[1, null]", b'"x"', b"5", b" {} ", '{"ä": 1}'.encode()],
        [
            b"",
            b"{",
            b"{'a': 1}",
            b"{}{}",
            b"x",
            b"\xff",
            b"[" * 100_000,
            b"NaN",
            b"[-Infinity]",
            "{}".encode("utf-16"),
        ],
    ),
    "msgpack": (
        [b"\x00", b"\xc0", b"\xa1x", b"\x82\xa1a\x01\xa1b\x90", b"\xdc\x00\x02\x01\xff", b"\xd4\x01\x02"],
        [b"", b"\xc1", b"\xa2x", b"\x00\x00", b"\x81\x01", b"\xdd\xff\xff\xff\xff\x00", b"\xc4", b"true"],
    ),
    "uuid": ([UUID, UUID.upper()], [b"", UUID[:-1], UUID + b"0", UUID.replace(b"-", b""), UUID + b"\n"]),
    "sha256": ([b"0123456789abcdef" * 4], [b"", b"A" * 64, b"a" * 63, b"a" * 65, b"a" * 64 + b"\n"]),
    "base64": ([b"", b"aGk=", b"aGVsbG8h"], [b"aGk", b"a===", b"aG k=", b"aGk=\n", b"\xff"]),
    "date": (
        [b"20240229", b"19991231"],
        [b"", b"20230229", b"20241301", b"2024-02-29", b"00000101", b"202402290"],
    ),
    "epoch": (
        [b"1732000000", b"1732000000123"],
        [b"", b"173200000", b"17320000001", b"-1732000000", b"1.7e9"],
    ),
}


def test_every_built_in_form_is_tested() -> None:
    assert TABLE.keys() == BUILTIN.keys()


@pytest.mark.parametrize("name", TABLE)
def test_a_built_in_form_accepts_only_its_values(name: str) -> None:
    form = parse_form(name, {})
    yes, no = TABLE[name]
    assert [value for value in yes if not form.accepts(value)] == []
    assert [value for value in no if form.accepts(value)] == []
    assert form.text


@pytest.mark.parametrize("name", sorted(set(BUILTIN) - {"any", "msgpack"}))
def test_every_value_of_a_forms_regular_part_has_the_form(name: str) -> None:
    pattern = BUILTIN[name].pattern()
    assert pattern is not None
    automaton = classify([pattern])
    values = [value for good, bad in TABLE.values() for value in (*good, *bad)]
    found = {value for value in values if automaton.first(value) == 0}
    having = {value for value in values if BUILTIN[name].accepts(value)}
    assert found <= having
    assert len(found) >= 0.4 * len(having)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_encoded_json_is_json(value: object) -> None:
    assert BUILTIN["json"].accepts(json.dumps(value).encode())


def test_a_very_long_json_text_is_accepted_unparsed() -> None:
    assert BUILTIN["json"].accepts(b"{" * (MAX_PARSED + 1))


@given(st.binary(max_size=40))
def test_every_form_handles_any_bytes(value: bytes) -> None:
    for form in BUILTIN.values():
        form.accepts(value)  # must not raise


@given(st.lists(st.integers(0, 300).map(str) | st.text("0123456789.: a", max_size=4), min_size=3, max_size=5))
def test_an_address_is_read_as_by_the_library(parts: list[str]) -> None:
    text = ".".join(parts)
    try:
        ipaddress.ip_address(text)
    except ValueError:
        assert not BUILTIN["ip"].accepts(text.encode())
    else:
        assert BUILTIN["ip"].accepts(text.encode())


@pytest.mark.parametrize("value", [b"::1", b"::1%eth0", b"fe80::1%a b\n<script>", b"::1%", b"10.0.0.7%1"])
def test_a_value_is_an_address_where_a_key_is_one(value: bytes) -> None:
    in_key = parse_form("<ip>", {"ip": class_named("ip")})
    assert bool(BUILTIN["ip"].accepts(value)) == bool(in_key.accepts(value)) == (b"%" not in value)


def test_a_list_of_words_is_a_form() -> None:
    form = parse_form(["running", "paused"], {})
    assert form.accepts(b"paused")
    assert not form.accepts(b"PAUSED")
    assert not form.accepts(b"")
    assert form.text == "one of running, paused"


def test_a_placeholder_is_a_form() -> None:
    form = parse_form("<port>", {"port": parse_class("[0-9]{1,5}")})
    assert form.accepts(b"8080")
    assert not form.accepts(b"http")
    assert form.text == "a port"


def test_a_class_is_a_form() -> None:
    form = parse_form("[0-9]{1,3}", {})
    assert form.accepts(b"42")
    assert not form.accepts(b"4242")
    assert form.text == "of the form [0-9]{1,3}"


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ([], "an empty list allows nothing; list the words"),
        ("<prt>", "<prt> is not declared under placeholders; did you mean port?"),
        ("inteer", "did you mean integer?"),
        (
            "running",
            "'running' is not a form; write a built-in one (any, base64, date, epoch, integer, ",
        ),
        ("", "'' is not a form"),
        ("[0-9", "'[0-9': '[' is never closed (at offset 0)"),
        ("(?=x)", "'(?=x)': not regular"),
    ],
)
def test_an_invalid_form_is_an_error(spec: str | list[str], told: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_form(spec, {"port": parse_class("[0-9]")})
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("0..100", [b"0", b"100", b"1e2", b"50.5", b"0x10"], [b"-1", b"100.1", b"inf", b"-inf", b"0xff"]),
        ("0..", [b"0", b"inf", b"1e308"], [b"-0.1", b"-inf"]),
        ("..1", [b"1", b"-inf"], [b"2", b"+inf"]),
        ("-1.5..1.5", [b"-1.5", b"0"], [b"-2", b"2"]),
    ],
)
def test_a_range_accepts_only_its_numbers(text: str, inside: list[bytes], outside: list[bytes]) -> None:
    numbers = parse_range(text)
    assert [number for number in inside if not numbers.accepts(number)] == []
    assert [number for number in outside if numbers.accepts(number)] == []
    assert numbers.accepts(b"no number")  # Redis refuses it


@pytest.mark.parametrize(
    ("text", "told"),
    [("0..100", "a number from 0 to 100"), ("5..", "a number 5 or more"), ("..5", "a number 5 or less")],
)
def test_a_range_describes_itself(text: str, told: str) -> None:
    assert parse_range(text).text == told


@pytest.mark.parametrize("text", ["", "..", "5", "1...", "a..b", "5..1", "nan..1", "1..nan", "1-2"])
def test_an_invalid_range_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a range|contains no number"):
        parse_range(text)
