"""The channels on which Redis itself tells of changed keys.

Rule: the forms are Redis' own (docs: keyspace notifications; `src/notify.c`), with any database's number.
"""

from __future__ import annotations

from .patterns import Hole, KeyPattern, Literal, parse_class, prefix_pattern

_DIGITS = parse_class("[0-9]+")
KEYSPACE_BEGINNING = KeyPattern(
    "__keyspace@<db>__:", (Literal(b"__keyspace@"), Hole("db", _DIGITS), Literal(b"__:"))
)
KEYSPACE_EVENTS = KeyPattern("__keyspace@<db>__:*", (*KEYSPACE_BEGINNING.parts, *prefix_pattern(b"").parts))
KEYEVENT_EVENTS = KeyPattern(
    "__keyevent@<db>__:*",
    (Literal(b"__keyevent@"), Hole("db", _DIGITS), Literal(b"__:"), *prefix_pattern(b"").parts),
)
