"""Reads option names, command names and integers from arguments.

Rule: these functions read an argument exactly as Redis does. With a stricter or laxer reading, keyfence would
evaluate a different command from the one that runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from .model import Streamed

LONG_LONG_MAX = 2**63 - 1
LONG_LONG_MIN = -(2**63)
LONGEST_WORD = 64  # bytes; all names of options, commands and subcommands are shorter
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")


def word(argument: bytes) -> bytes:
    """An argument read as an option or subcommand name, in upper case. No other code compares such names.

    Servers compare them with C's strcasecmp, which folds only ASCII letters and stops at a NUL byte. So they
    read `STORE\\0x` as STORE. Redis 7.0 finds subcommands in a hash table, where `REPLY\\0x` matches REPLY or
    nothing, by chance; an unknown subcommand runs nothing.
    """
    folded = argument[: LONGEST_WORD + 1].upper()
    return folded if b"\0" not in folded else folded[: folded.index(b"\0")]


# Options are read up to this argument of a command. Reading more would stop all clients, and no client sends
# so many.
MOST_OPTIONS = 5_000


class TooManyOptions(Exception):
    """A command has more options than are read."""


def option(argv: Sequence[bytes], index: int) -> bytes:
    """The argument at `index`, read as an option's name. Raises TooManyOptions."""
    if index > MOST_OPTIONS:
        raise TooManyOptions
    return word(argv[index])


def options(argv: Sequence[bytes], start: int) -> Iterator[bytes]:
    """All arguments from `start` on, read as names of options. Raises TooManyOptions."""
    return (option(argv, index) for index in range(start, len(argv)))


def each_option(argv: Sequence[bytes], start: int, takes: Mapping[bytes, int]) -> Iterator[tuple[bytes, int]]:
    """Each argument from `start` on, read as the name of an option, and its position. `takes` says how many
    arguments belong to an option; they are skipped. An option that lacks them has an empty name. Raises
    TooManyOptions."""
    index = start
    while index < len(argv):
        name = option(argv, index)
        taken = takes.get(name, 0)
        if index + taken < len(argv):
            yield name, index
            index += taken
        else:
            yield b"", index
        index += 1


def fold(name: bytes) -> bytes:
    """A command's name in upper case, or empty if the argument cannot be a command's name.

    Servers find the command in a hash table. A name with a NUL byte matches the text before the NUL or
    nothing, by chance; here it is never a name, because an unknown command is a violation. Names that are too
    long, and `XGROUP CREATE` sent as one argument, are not names either.
    """
    return b"" if len(name) > LONGEST_WORD or b" " in name or b"\0" in name else name.upper()


def function_name(name: bytes) -> bytes:
    """The normalized name of a function: in lower case, up to the first NUL byte.

    Servers ignore case, and may stop comparing at a NUL byte (`src/functions.c`, functionDictType:
    dictSdsCaseHash and dictSdsKeyCaseCompare, which is strcasecmp). If two names hash to the same bucket,
    `bump\\0x` runs `bump`.
    """
    return name.split(b"\0", 1)[0].lower()


def glob_escape(text: bytes) -> bytes:
    """A glob that matches only this text (`src/util.c`, stringmatchlen)."""
    return b"".join(b"\\" + bytes([c]) if c in b"*?[]\\" else bytes([c]) for c in text)


def literal_of(glob: bytes) -> bytes:
    """The inverse of `glob_escape`: the text that a glob without wildcards matches."""
    return _ESCAPED.sub(rb"\1", glob)


def may_hold(argument: bytes, part: bytes) -> bool:
    """Whether an argument may contain `part`. Of a streamed argument only the beginning is available."""
    return part in argument or isinstance(argument, Streamed)


def integer(argument: bytes) -> int | None:
    """The integer that Redis reads from an argument, or None if Redis answers with an error.

    Same as `src/util.c` string2ll: no plus sign, no leading zeros, no blanks, at most 64 bits.
    """
    if _INTEGER.fullmatch(argument) is None:
        return None
    number = int(argument)
    return number if LONG_LONG_MIN <= number <= LONG_LONG_MAX else None
