"""The channels on which Redis itself publishes changes of keys.

Rule: the forms are those of Redis (docs: keyspace notifications; `src/notify.c`): `__keyspace@<db>__:<key>`
and `__keyevent@<db>__:<event>`, where the database is a number. No service may publish on other channels that
begin like them, so subscribing to those reveals nothing.
"""

from __future__ import annotations

from collections.abc import Collection

from keyfence.policy.patterns.patterns import Hole, KeyPattern, Literal, parse_class, prefix_pattern

# The channel for changes of keys that a RESP2 client read under CLIENT TRACKING. Redis sends these messages
# only to the connection that a tracking client redirects to (`src/tracking.c`). Other subscribers get none.
INVALIDATIONS = b"__redis__:invalidate"
KEYSPACE = b"__keyspace@"
NOTIFICATIONS = b"__key"  # the beginning of all of them
# The part before the key.
KEYSPACE_BEGINNING = KeyPattern(
    "__keyspace@<db>__:", (Literal(KEYSPACE), Hole("db", parse_class("[0-9]+")), Literal(b"__:"))
)
KEYSPACE_NAMES = prefix_pattern(KEYSPACE)
KEYEVENT_NAMES = prefix_pattern(b"__keyevent@")


def notifications_elsewhere(databases: Collection[int]) -> list[KeyPattern]:
    """Returns patterns for the beginnings of notifications about keys in other databases than these."""
    number = parse_class(_other_numbers({str(one) for one in databases}))
    return [
        KeyPattern(text, (Literal(text.encode()), Hole("db", number), Literal(b"__:")))
        for text in ("__keyspace@", "__keyevent@")
    ]


def _other_numbers(numbers: Collection[str], beginning: str = "") -> str:
    """Returns an expression for all numbers that begin with `beginning`, except these."""
    choices = [beginning] if beginning and beginning not in numbers else []
    for digit in "0123456789":
        longer = beginning + digit
        inside = [one for one in numbers if one.startswith(longer)]
        choices.append(_other_numbers(inside, longer) if inside else longer + "[0-9]*")
    return "(" + "|".join(choices) + ")"
