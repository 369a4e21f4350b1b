from __future__ import annotations

import hashlib

from keyfence.identity.passwords import Login, Password
from keyfence.identity.resolver import make_resolver


def digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()


def test_a_user_that_keyfence_checks_needs_one_of_its_passwords() -> None:
    known = make_resolver(
        frozenset({"A", "B"}),
        passwords={
            "app": Password((digest(b"old"), digest(b"new")), "A"),
            "default": Password((digest(b""),), "B"),
        },
    )
    assert known.check(b"app", b"old") == known.check(b"app", b"new") == "A"
    assert known.check(b"app", b"") is Login.WRONG
    assert known.check(b"app", b"ol\xff") is Login.WRONG
    assert known.check(b"default", b"") == "B"
    assert known.check(b"APP", b"old") is Login.NOT_MINE
    assert known.check(b"\xff\xfe", b"old") is Login.NOT_MINE


def test_a_password_is_not_part_of_any_representation() -> None:
    assert "sha256" not in repr(Password((digest(b"old"),), "A"))
