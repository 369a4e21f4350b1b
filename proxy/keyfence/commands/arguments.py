"""Rule: an argument is read as Redis reads it: the same words, the same numbers, and nothing more.

A reading that is stricter or laxer than the server's would judge another command than the one that runs.
"""

from __future__ import annotations

import re

from .model import Streamed

LONG_LONG_MAX = 2**63 - 1
LONG_LONG_MIN = -(2**63)
LONGEST_WORD = 64  # bytes; no option, and no command's or subcommand's name, is longer
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")


def word(argument: bytes) -> bytes:
    """An argument as an option or a subcommand, in upper case. Nothing else compares words of a request.

    Servers compare them with C's strcasecmp, which folds ASCII letters only and ends at a NUL byte:
    `STORE\\0x` is STORE to them. Redis 7.0 finds a subcommand in a hash table, where `REPLY\\0x` is REPLY or
    unknown, by chance; what is unknown runs nothing.
    """
    folded = argument[: LONGEST_WORD + 1].upper()
    return folded if b"\0" not in folded else folded[: folded.index(b"\0")]


def fold(name: bytes) -> bytes:
    """A command's own name in upper case; empty for what can't be one.

    Servers find it in a hash table, so with a NUL byte in it, it is the name before that or unknown, by
    chance. Here it is none: an unknown command is a violation. What can't be one either: a name longer than
    any, and the two words `XGROUP CREATE` sent as one.
    """
    return b"" if len(name) > LONGEST_WORD or b" " in name or b"\0" in name else name.upper()


def function_name(name: bytes) -> bytes:
    """One spelling of a function's name: servers find it in any case, and may stop comparing at a NUL byte.

    `src/functions.c`, functionDictType: dictSdsCaseHash and dictSdsKeyCaseCompare (strcasecmp). Where two
    names hash to one bucket, `bump\\0x` runs `bump`.
    """
    return name.split(b"\0", 1)[0].lower()


def glob_escape(text: bytes) -> bytes:
    """A glob that matches this text only (`src/util.c`, stringmatchlen)."""
    return b"".join(b"\\" + bytes([c]) if c in b"*?[]\\" else bytes([c]) for c in text)


def literal_of(glob: bytes) -> bytes:
    """The text that a glob without wildcards matches, as `glob_escape` writes it."""
    return _ESCAPED.sub(rb"\1", glob)


def may_hold(argument: bytes, part: bytes) -> bool:
    """Whether an argument, of which perhaps only the beginning is at hand, may have `part` in it."""
    return part in argument or isinstance(argument, Streamed)


def integer(argument: bytes) -> int | None:
    """The integer that Redis reads here, or None where it answers an error.

    As `src/util.c` string2ll: no plus sign, no leading zeros, no blanks, no more than 64 bits.
    """
    if _INTEGER.fullmatch(argument) is None:
        return None
    number = int(argument)
    return number if LONG_LONG_MIN <= number <= LONG_LONG_MAX else None
