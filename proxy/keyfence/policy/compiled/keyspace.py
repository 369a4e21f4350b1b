"""The channels on which Redis itself tells of changed keys.

Rule: the forms are Redis' own (docs: keyspace notifications; `src/notify.c`): `__keyspace@<db>__:<key>` and
`__keyevent@<db>__:<event>`, the database being a number. What else begins like them is nobody's: none may
publish there, so hearing it tells nothing.
"""

from __future__ import annotations

from collections.abc import Collection

from keyfence.policy.patterns.patterns import Hole, KeyPattern, Literal, parse_class, prefix_pattern

# Where a RESP2 connection hears of keys that were read under CLIENT TRACKING and have changed since. Redis
# sends it to those alone whom a tracking client redirects to (`src/tracking.c`), whoever else listens.
INVALIDATIONS = b"__redis__:invalidate"
KEYSPACE = b"__keyspace@"
NOTIFICATIONS = b"__key"  # all of them begin so
# What stands before the key.
KEYSPACE_BEGINNING = KeyPattern(
    "__keyspace@<db>__:", (Literal(KEYSPACE), Hole("db", parse_class("[0-9]+")), Literal(b"__:"))
)
KEYSPACE_NAMES = prefix_pattern(KEYSPACE)
KEYEVENT_NAMES = prefix_pattern(b"__keyevent@")


def notifications_elsewhere(databases: Collection[int]) -> list[KeyPattern]:
    """What notifications about keys in other databases than these begin with."""
    number = parse_class(_other_numbers({str(one) for one in databases}))
    return [
        KeyPattern(text, (Literal(text.encode()), Hole("db", number), Literal(b"__:")))
        for text in ("__keyspace@", "__keyevent@")
    ]


def _other_numbers(numbers: Collection[str], beginning: str = "") -> str:
    """An expression for all numbers that go on from `beginning`, but these."""
    ways = [beginning] if beginning and beginning not in numbers else []
    for digit in "0123456789":
        longer = beginning + digit
        inside = [one for one in numbers if one.startswith(longer)]
        ways.append(_other_numbers(inside, longer) if inside else longer + "[0-9]*")
    return "(" + "|".join(ways) + ")"
