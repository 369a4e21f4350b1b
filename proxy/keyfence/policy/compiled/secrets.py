"""What a policy's patterns say of its secrets: which values are secret, and which text is none.

Rule: only literal text of the policy is known not to be a secret.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from keyfence.policy.patterns.patterns import ClassExpression, Hole, KeyPattern
from keyfence.policy.patterns.regular import UNBOUNDED
from keyfence.shapes.secrecy import SEPARATORS, Known, Secrecy, secrecy_of


def policy_secrecy(
    secrets: Iterable[tuple[ClassExpression, int]], patterns: Iterable[tuple[KeyPattern, frozenset[str]]]
) -> Secrecy | None:
    """Returns the secrecy of a policy, or None if it has no secrets.

    `secrets` are the classes of secret placeholders, each with the minimum length of a secret in bytes.
    `patterns` are all patterns with the names of their secret placeholders.
    """
    kinds = dict.fromkeys(
        (one.alphabet, max(min(one.lengths[0], UNBOUNDED), least)) for one, least in secrets
    )
    known = Known(set(), set(), set(), set())
    for pattern, of_secrets in patterns if kinds else ():
        _take(known, pattern, of_secrets)
    return secrecy_of(kinds, known)


def leading_to_secret(pattern: KeyPattern, secrets: Collection[str]) -> bytes:
    """Returns the literal beginning of a pattern's keys after which everything may be a secret; b"" if there
    is none.

    If a word is between the first placeholder and the secret (`pc:<env>:session:<token>`), the word leads to
    the secret, and keys without secrets have the same beginning. Then the result is b"".
    """
    for part in pattern.parts:
        if isinstance(part, Hole):
            if part.name in secrets:
                return pattern.literal_prefix
        elif part is not pattern.parts[0] and any(SEPARATORS.split(part.text)[2:-1:2]):
            return b""
    return b""


def _take(known: Known, pattern: KeyPattern, secrets: frozenset[str]) -> None:
    """Adds the pieces of a pattern's literal text."""
    if beginning := leading_to_secret(pattern, secrets):
        known.begun.add(beginning)
    piece = last = b""
    is_whole = True  # the piece so far has only literal text
    for part in pattern.parts:
        if isinstance(part, Hole):
            if is_whole and piece:
                known.beginnings.add(piece)
            if part.name in secrets:
                known.leading.add(last.lower())
            is_whole = False
            continue
        first, *more = SEPARATORS.split(part.text)[::2]
        piece += first
        for following in more:
            if is_whole and piece:
                known.words.add(piece)
                last = piece
            piece, is_whole = following, True
    if is_whole and piece:
        known.words.add(piece)
