"""Tokens for tests."""

from __future__ import annotations

from keyfence.admin.token import Token


def tokens(secret: bytes | None) -> tuple[Token, ...]:
    """The token of `token_file`; none for no secret."""
    return (Token("", "operate", secret),) if secret else ()
