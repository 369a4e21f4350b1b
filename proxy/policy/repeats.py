# cython: annotation_typing=False
"""What was found wrong with one command and is wrong with each one like it.

Rule: a repeat is a plain count. Whoever tells of the commands takes the count away from time to time; a
repeat that is no longer live isn't counted on.
"""

from __future__ import annotations


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
