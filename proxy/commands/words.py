"""Rule: an argument is read as Redis reads it: the same words, the same numbers, and nothing more.

A reading that is stricter or laxer than the server's would judge another command than the one that runs.
"""

from __future__ import annotations

import re

LONG_LONG_MAX = 2**63 - 1
LONG_LONG_MIN = -(2**63)
_LONGEST_WORD = 32  # longer than every option
_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")


def word(argument: bytes) -> bytes:
    """An argument as an option in upper case.

    Servers compare options with C's strcasecmp, which ends at a NUL byte: `STORE\\0x` is STORE to them.
    """
    folded = argument[:_LONGEST_WORD].upper()
    return folded if b"\0" not in folded else folded[: folded.index(b"\0")]


def function_name(name: bytes) -> bytes:
    """One spelling of a function's name: servers find it in any case, and may stop comparing at a NUL byte.

    `src/functions.c`, functionDictType: dictSdsCaseHash and dictSdsKeyCaseCompare (strcasecmp). Where two
    names hash to one bucket, `bump\\0x` runs `bump`.
    """
    return name.split(b"\0", 1)[0].lower()


def integer(argument: bytes) -> int | None:
    """The integer that Redis reads here, or None where it answers an error.

    As `src/util.c` string2ll: no plus sign, no leading zeros, no blanks, no more than 64 bits.
    """
    if _INTEGER.fullmatch(argument) is None:
        return None
    number = int(argument)
    return number if LONG_LONG_MIN <= number <= LONG_LONG_MAX else None
