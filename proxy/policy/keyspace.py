"""The channels on which Redis itself tells of changed keys.

Rule: the forms are Redis' own (docs: keyspace notifications; `src/notify.c`): `__keyspace@<db>__:<key>` and
`__keyevent@<db>__:<event>`, the database being a number. What else begins like them is nobody's: none may
publish there, so hearing it tells nothing.
"""

from __future__ import annotations

import re

from .patterns import Hole, KeyPattern, Literal, parse_class, prefix_pattern

KEYSPACE = b"__keyspace@"
# What stands before the key.
KEYSPACE_BEGINNING = KeyPattern(
    "__keyspace@<db>__:", (Literal(KEYSPACE), Hole("db", parse_class("[0-9]+")), Literal(b"__:"))
)
# The same in a name or a glob, where the number may be anything.
KEYSPACE_NAME = re.compile(rb"__keyspace@.{0,32}?__:", re.DOTALL)
KEYSPACE_NAMES = prefix_pattern(KEYSPACE)
KEYEVENT_NAMES = prefix_pattern(b"__keyevent@")
