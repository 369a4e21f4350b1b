"""The class of the values that were seen at one place."""

from __future__ import annotations

import pytest

from keyfence.authoring.learn.seen import MARK
from keyfence.authoring.learn.values import class_of, is_word

UUIDS = {"550e8400-e29b-41d4-a716-446655440000", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (UUIDS, "uuid"),
        ({"9f86d081" * 8}, "sha256"),
        ({"9f86d081884c7d65", "1f86d081884c7d65"}, "[0-9a-f]{16}"),
        ({"9f86d08", "1f86d081884c7d65"}, "[0-9a-f]{1,32}"),
        ({"20240229", "20251231"}, "date"),
        ({"20240229", "20251399"}, "[0-9]{1,20}"),
        ({"1692806400", "1692806400123"}, "epoch"),
        ({"1", "98765"}, "[0-9]{1,20}"),
        ({"2024-02-29"}, "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"),
        ({"10.0.0.7"}, "ipv4"),
        ({"10.0.0.7", "2001:db8::1"}, "ip"),
        ({"MTAuMC4wLjc=", "MTAuMC4xLjc="}, "base64"),
        ({"ann", "bob"}, "[a-z]{1,16}"),
        ({"ann-1", "Bob_2"}, "[A-Za-z0-9_-]{1,16}"),
        ({"a]b^c1"}, "[a-z0-9\\]\\^]{1,16}"),
        ({"user@http#10.0.0.7", "shop@http#10.0.0.8"}, "[a-z]{1,16}@[a-z]{1,16}#[0-9.]{1,16}"),
        ({"bob+news@a.org", "ann+shop@b.org"}, "[a-z]{1,16}\\+[a-z]{1,16}@[a-z.]{1,16}"),
        ({"größe"}, "[^:{}]{1,16}"),
        ({",".join(map(str, range(300)))}, "[0-9,]{1,2048}"),
        ({"größe:1"}, ".{1,16}"),
        ({f"{MARK}int{MARK}"}, "[0-9]{1,20}"),
        ({f"{MARK}uuid{MARK}", f"{MARK}int{MARK}"}, "[^:{}]{1,128}"),
    ],
)  # fmt: skip
def test_a_class_is_as_narrow_as_the_values_suggest(values: set[str], text: str) -> None:
    found = class_of(values)
    assert found.text == text
    assert all(found.matches(value) for value in values if MARK not in value)


def test_one_value_of_another_form_makes_the_class_wider_and_admits_all() -> None:
    values = {*UUIDS, "42", "x_y"}
    found = class_of(values)
    assert not found.is_exact
    assert all(found.matches(value) for value in values)


@pytest.mark.parametrize(
    "text", ["cart", "user_roles", "HostIP", "v1", "sha256", "oauth2", "", "swd-timeout"]
)
def test_words_of_a_convention_are_no_values(text: str) -> None:
    assert is_word(text)


@pytest.mark.parametrize("text", ["17", "c1", "7c8fbcd45ffe450f", "user-17", "x9Zq", f"{MARK}int{MARK}"])
def test_values_are_no_words(text: str) -> None:
    assert not is_word(text)
