# cython: annotation_typing=False
"""Counts of commands that are alike: those that are admitted, and those of which the same is wrong.

Rule: both are plain counts. Whoever tells of the commands takes the count away from time to time; a repeat
that is no longer live isn't counted on.
"""

from __future__ import annotations


class Admitted:
    """Commands of one name that were admitted."""

    def __init__(self, name: str) -> None:
        self.name = name  # of the command, in upper case
        self.times = 0  # that nobody was told of yet
        self.is_gathered = False  # somebody is going to take that count over


class Repeat:
    """The findings that commands of one kind share, whatever their keys and values."""

    def __init__(self, rows: object) -> None:
        """`rows` is where the findings are counted, for whoever tells of them."""
        self.rows = rows
        self.times = 0  # commands that nobody was told of yet
        self.live = True  # False: the next one is to be judged and told of in full
        self.found = 0  # what each means for its key's time to live (`ttl.outcome`)
        # Where they are refused: the reply, cut where the key stands in it. None where they pass.
        self.refusal: tuple[bytes, ...] | None = None


class Revocable:
    """An answer that holds as long as the policy and the command table that it was drawn from."""

    def __init__(self) -> None:
        self.is_current = True  # False: draw it anew
