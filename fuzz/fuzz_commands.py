#!/usr/bin/env python3
"""Guided fuzzing of `extract`: any argv, with coverage feedback that property tests lack.

Rule: an input is one argv. Its first two bytes choose the command. Each further byte is a known option, or
the length of a literal argument.
"""

from __future__ import annotations

from harness import fuzz, instrumented

with instrumented("keyfence.commands"):
    from keyfence.commands.extract import extract
    from keyfence.commands.model import DELETE, GROUP, READ, WRITE, Problem
    from keyfence.commands.table import COMMANDS

NAMES = sorted(name.split() for name in COMMANDS)
WORDS = [
    *b"STORE STOREDIST GET BY LIMIT ASC ALPHA STREAMS GROUP COUNT BLOCK NOACK KEYS COPY REPLACE AUTH".split(),
    *b"AUTH2 EX PX EXAT PXAT KEEPTTL NX XX PERSIST INCR CH SET INCRBY OVERFLOW WITHDIST ANY DB LEFT".split(),
    *b"MIN WEIGHTS AGGREGATE SUM LCS STRINGS IDX MINMATCHLEN JUSTID MKSTREAM MAXLEN MATCH ON BCAST".split(),
    *b"PREFIX REDIRECT STORE\0x streams 0 1 2 3 -1 +1 01 9223372036854775808 # * w_* $ > 0-0 a b".split(),
]
LITERAL = 200  # a byte from this on starts an argument of (byte - LITERAL) bytes


def argv_of(data: bytes) -> list[bytes]:
    """Decodes the input to a command."""
    if len(data) < 2:
        return [data]
    argv = list(NAMES[(data[0] << 8 | data[1]) % len(NAMES)])
    at = 2
    while at < len(data):
        code = data[at]
        at += 1
        if code < LITERAL:
            argv.append(WORDS[code % len(WORDS)])
        else:
            argv.append(data[at : at + code - LITERAL])
            at += code - LITERAL
    return argv


def what(problem: Problem | None) -> object:
    """Returns a problem without the names in it, whose case matters."""
    if problem is None:
        return None
    return problem.rule, problem.position, problem.reason, [unseen.needs for unseen in problem.unseen]


def check(data: bytes) -> None:
    """Checks the accesses of one command, and that the case of its arguments does not change them."""
    argv = argv_of(data)
    touches = extract(argv)
    for access in touches.accesses:
        assert 0 < access.position < len(argv), argv
        assert access.key == argv[access.position], argv
        assert access.needs & ~(READ | WRITE | DELETE | GROUP) == 0, argv
        assert not access.needs & (DELETE | GROUP) or access.needs & WRITE, argv
    swapped = extract([argument.swapcase() for argument in argv])
    assert [(a.position, a.needs) for a in swapped.accesses] == [
        (a.position, a.needs) for a in touches.accesses
    ], argv
    assert what(swapped.problem) == what(touches.problem), argv


if __name__ == "__main__":
    fuzz(check)
