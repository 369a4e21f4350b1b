"""Refusals within random pipelines: each in its place, and no refused command runs.

`make soak` runs many more.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from keyfence.resp import encode
from tests.differential.differences import Difference
from tests.differential.pairs import LONG, Pair
from tests.differential.refusals import STAND_IN, with_refusals_marked
from tests.differential.sides import Step, first_difference

PIPELINES = 10_000 if LONG else 250
# The number of pipelines in one session, sent over three connections in turn.
IN_ONE_SESSION = 25

OTHERS = ["PING", "MULTI", "MULTI", "EXEC", "EXEC", "DISCARD", "UNWATCH", "NOSUCH x", "SELECT 1", "SELECT 0"]
OTHERS += ["ECHO e", "CLIENT SETNAME me", "GET", "EXEC x"]

Words = tuple[str, ...]
REFUSAL = Difference("", "a refusal", "Redis gets a stand-in.", with_refusals_marked)


class Maker:
    """Draws pipelines, in one form for keyfence and one for Redis directly."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        # A session has either these or SELECT inside MULTI, which keyfence does not follow after them.
        self.shapes = self.dice.random() < 0.5

    def key(self, refused: bool) -> str:
        return self.dice.choice(["no:a", "no:b", "no:"] if refused else ["k", "l", "h", "n", "no"])

    def command(self, refused: bool) -> Words:
        """Draws a command on one or several keys; if refused, at least one of them is under no:."""
        dice = self.dice
        kind = dice.randrange(12)
        mine = [refused, *(dice.random() < 0.3 and refused for _ in range(2))]
        dice.shuffle(mine)
        a, b, c = (self.key(one) for one in mine)
        one = self.key(refused)
        some: list[Words] = [
            ("GET", one),
            ("SET", one, dice.choice(["1", "v", "x" * 50])),
            ("INCR", one),
            ("RPUSH", one, "x"),
            ("HSET", one, "f", "v"),
            ("MGET", a, b, c),
            ("DEL", a, b, c),
            ("MSET", a, "1", b, "2", c, "3"),
            ("EVAL", "return redis.call('EXISTS', KEYS[1], KEYS[2])", "2", *(self.two(refused))),
            ("RENAME", *self.two(refused)),
            ("WATCH", a, b, c),
            ("LPUSH", one),  # of wrong arity, but evaluated like any other
        ]
        if (refused and kind == 11) or (kind == 8 and not self.shapes):
            kind = 0  # a command without its keys has none to refuse
        return some[kind]

    def two(self, refused: bool) -> tuple[str, str]:
        first = refused and self.dice.random() < 0.5
        return self.key(first), self.key(refused and not first)

    def other(self) -> Words:
        words = tuple(self.dice.choice(OTHERS).split())
        return ("PING",) if words[0] == ("SELECT" if self.shapes else "NOSUCH") else words

    def pipeline(self) -> tuple[bytes, bytes]:
        """Draws a pipeline: as sent through keyfence, and with stand-ins as sent directly."""
        through, direct = bytearray(), bytearray()
        odds = self.dice.choice([0.05, 0.3, 0.7])
        for _ in range(self.dice.choice([1, 3, 10, 10, 40])):
            if self.dice.random() < 0.3:
                words, refused = self.other(), False
            else:
                refused = self.dice.random() < odds
                words = self.command(refused)
            through += encode.command(*words)
            direct += encode.command(*(STAND_IN if refused else words))
        return bytes(through), bytes(direct)

    def pieces(self) -> tuple[int, ...]:
        return tuple(self.dice.choice([1, 2, 7, 30, 300]) for _ in range(self.dice.choice([0, 0, 2, 4])))

    def session(self) -> Iterator[tuple[Step, Step]]:
        names = itertools.cycle("abc")
        for name, _ in zip(names, range(IN_ONE_SESSION), strict=False):
            through, direct = self.pipeline()
            yield Step(name, (through,), (REFUSAL,), pieces=self.pieces()), Step(name, (direct,), (REFUSAL,))


@pytest.mark.timeout(7200 if LONG else 300)
def test_refusals_are_in_their_place_and_nothing_of_them_runs(refusing_pair: Pair) -> None:
    seeds = random.Random(7)
    refused = 0
    for _ in range(PIPELINES // IN_ONE_SESSION):
        seed = seeds.randrange(2**32) if LONG else seeds.randrange(1000)
        through, direct = zip(*Maker(seed).session(), strict=True)
        pair = refusing_pair.speaking(seed % 2 + 2)
        expected, data = pair.directly(direct)
        heard, data_through = pair.through(through, expected)
        report = list(first_difference(through, expected, heard))
        assert not report, "\n".join([f"answered otherwise with seed {seed}", *report])
        assert data == data_through, f"the data differ with seed {seed}"
        refused += sum(one[0].count(b"-NOPERM [scope.") for step in heard for one in step.values())
    assert refused > PIPELINES
