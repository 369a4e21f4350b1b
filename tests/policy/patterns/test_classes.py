"""Each built-in class agrees with the standard library."""

from __future__ import annotations

import base64
import binascii
import datetime
import ipaddress
import pickle
import re
import uuid

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keyfence.policy.loading.load import parse_policy
from keyfence.policy.patterns.classes import NAMES, builtin_class, class_named
from keyfence.policy.patterns.determinize import classify
from keyfence.policy.patterns.patterns import PatternError, parse_pattern
from keyfence.policy.patterns.value_forms import BUILTIN

ALPHABETS = {
    "base64": b"ABab01+/=",
    "date": b"0123456789",
    "epoch": b"0123456789",
    "ip": b"0125:.af",
    "ipv4": b"0125.9",
    "sha256": b"0f",
    "uuid": b"0fA-",
}


def _is_date(value: bytes) -> bool:
    if re.fullmatch(rb"[0-9]{8}", value) is None:
        return False
    try:
        datetime.date(int(value[:4]), int(value[4:6]), int(value[6:]))
    except ValueError:
        return False
    return True


def _is_ip(value: bytes, read: type = ipaddress.ip_address) -> bool:  # type: ignore[assignment]
    try:
        read(value.decode())
    except ValueError:
        return False
    return True


def _is_base64(value: bytes) -> bool:
    try:
        decoded = base64.b64decode(value, validate=True)
    except binascii.Error:
        return False
    # Python 3.11 also accepts a superfluous "=".
    return value != b"" and len(base64.b64encode(decoded)) == len(value)


def _is_uuid(value: bytes) -> bool:
    return len(value) == 36 and str(uuid.UUID(value.decode())) == value.decode().lower()


NAIVE = {
    "base64": _is_base64,
    "date": _is_date,
    "epoch": lambda value: value.isdigit() and len(value) in (10, 13),
    "ip": _is_ip,
    "ipv4": lambda value: _is_ip(value, ipaddress.IPv4Address),
    "sha256": lambda value: len(value) == 64 and set(value) <= set(b"0123456789abcdef"),
    "uuid": _is_uuid,
}


def in_automaton(name: str):
    """Whether the automaton, with confirmed lengths, classifies a key as `k:<x>`."""
    classifier = classify([parse_pattern("k:<x>", {"x": builtin_class(name)})])
    return lambda value: classifier.first(b"k:" + value) == 0


IN_AUTOMATON = {name: in_automaton(name) for name in NAMES}


def agree(name: str, value: bytes) -> bool:
    expected = NAIVE[name](value)
    assert builtin_class(name).matches(value) == expected, value
    assert IN_AUTOMATON[name](value) == expected, value
    return expected


def test_every_class_has_an_oracle() -> None:
    assert set(NAIVE) == set(ALPHABETS) == set(NAMES)


@pytest.mark.slow
def test_exactly_the_days_of_nine_centuries_are_dates() -> None:
    """The years 1600 to 2499 contain every rule of the calendar twice."""
    matches = IN_AUTOMATON["date"]
    for year in range(1600, 2500):
        for month in (0, 1, 2, 4, 9, 11, 12, 13):
            for day in (0, 1, 28, 29, 30, 31, 32):
                value = b"%04d%02d%02d" % (year, month, day)
                assert matches(value) == _is_date(value), value


@given(st.dates())
def test_every_date_of_the_calendar_is_a_date(day: datetime.date) -> None:
    assert agree("date", b"%04d%02d%02d" % (day.year, day.month, day.day))


@given(st.integers(0, 99_999_999))
@example(2290229)
@example(20230229)
@example(20240229)
@example(19000229)
@example(20000229)
@example(229)
@example(101)
@example(40229)
def test_eight_digits_are_a_date_if_the_calendar_has_it(number: int) -> None:
    agree("date", b"%08d" % number)


@given(st.integers(0, 9999), st.integers(0, 13), st.integers(27, 32))
def test_ends_of_months_follow_the_calendar(year: int, month: int, day: int) -> None:
    agree("date", b"%04d%02d%02d" % (year, month, day))


@given(st.ip_addresses(), st.booleans())
def test_every_address_of_the_library_is_an_address(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, long: bool
) -> None:
    text = address.exploded if long else str(address)
    assert agree("ip", text.encode())
    assert agree("ipv4", text.encode()) == (address.version == 4)


GROUP = st.sampled_from(["0", "db8", "ffff", "00a1"])


@given(
    st.lists(GROUP, max_size=8), st.lists(GROUP, max_size=8), st.sampled_from(["::", ":", ""]), st.booleans()
)
@example(["1"] * 7, [], "::", False)
@example([], ["1"] * 7, "::", False)
@example(["1"] * 3, ["1"] * 5, "::", False)
@example([], [], "::", True)
def test_nearly_valid_addresses_are_read_as_by_the_library(
    left: list[str], right: list[str], between: str, mapped: bool
) -> None:
    tail = [*right, "10.0.0.7"] if mapped else right
    agree("ip", (":".join(left) + between + ":".join(tail)).encode())


@given(st.data())
@pytest.mark.parametrize("name", NAMES)
def test_nearly_valid_values_are_read_as_by_the_library(name: str, data: st.DataObject) -> None:
    sample = data.draw(st.from_regex(re.compile(rb"\A[%s]*\Z" % re.escape(ALPHABETS[name]))), "sample")
    good = builtin_class(name).example()
    at = data.draw(st.integers(0, len(good)))
    cut = data.draw(st.integers(0, 3))
    for value in (sample, good[:at] + sample[:2] + good[at + cut :]):
        try:
            expected = NAIVE[name](value)
        except ValueError:
            expected = False
        assert builtin_class(name).matches(value) == expected, value
        assert IN_AUTOMATON[name](value) == expected, value


@pytest.mark.parametrize("name", NAMES)
def test_an_example_matches_its_class_also_after_pickling(name: str) -> None:
    expression = builtin_class(name)
    assert agree(name, expression.example())
    again = pickle.loads(pickle.dumps(expression))
    assert (again, again.example(), again.text) == (expression, expression.example(), name)


# The form accepts what Python accepts, including a superfluous "=" and empty text.
@pytest.mark.parametrize("name", sorted((set(NAMES) & set(BUILTIN)) - {"base64"}))
@given(st.data())
def test_a_value_of_the_class_has_the_form_of_the_same_name(name: str, data: st.DataObject) -> None:
    value = builtin_class(name).example()
    at = data.draw(st.integers(0, len(value) - 1))
    value = value[:at] + bytes([data.draw(st.sampled_from(ALPHABETS[name]))]) + value[at + 1 :]
    assert bool(BUILTIN[name].accepts(value)) is builtin_class(name).matches(value)


def test_a_text_that_is_not_a_name_is_an_expression() -> None:
    assert class_named("[0-9]+").matches(b"12")
    assert class_named("dates").matches(b"dates")
    with pytest.raises(PatternError):
        class_named("[")


def test_a_placeholder_may_have_a_built_in_class() -> None:
    policy = parse_policy(
        "policy: p\nservices: [a]\nplaceholders: {day: date, h: {is: sha256, secret: true}}\n"
        'keys: {k: {key: "k:<day>", writers: a}, l: {key: "l:<h>", writers: a}}\n'
    )
    assert policy.target(b"k:20240229").kind == "entry"
    assert policy.target(b"k:20230229").kind == "malformed"
    assert policy.target(b"l:" + b"0" * 64).secrets == {"h"}
