# cython: annotation_typing=False
"""The order of one client's replies, which come from several nodes: whose turn is next.

Rule: a turn is some adjacent replies of one node. Replies whose turn has not come are held. A turn without a
node waits for a command that is sent again, or for an answer of keyfence's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Turn:
    """Adjacent replies. Made without a call of `__init__`, which costs a compiled module more than the rest
    of it."""

    side: Any  # the client's share of the node's connections; None: it is not known yet from where they come
    count: int  # replies still to come
    number: int  # of the request that the next of them answers, among all of the client's
    ends: (
        bool  # whether it is the last turn of requests that came together: the client's queue has a slot each
    )
    is_whole: bool  # a transaction, of which nothing is passed on until all of it has come
    held: list[bytes] | None  # replies that came before their turn …
    completed: int  # … and how many of them are complete
    behind: Turn | None  # the turn after it
    later: Turn | None  # the next turn of the same side
    part: Any  # the part of a command (`splits`) that the reply is to. It stands in its side's queue only


def new_turn(side: Any, count: int, number: int, ends: bool, is_whole: bool) -> Turn:
    turn = Turn.__new__(Turn)
    turn.side, turn.count, turn.number, turn.ends, turn.is_whole = side, count, number, ends, is_whole
    turn.held, turn.completed, turn.behind, turn.later, turn.part = None, 0, None, None, None
    return turn


class Order:
    """All turns of one client, and what it gets now."""

    def __init__(self, deliver: Callable[[bytes, int, bool], None]) -> None:
        """`deliver` gets bytes, how many replies end in them, and whether they end at the end of one."""
        self._deliver = deliver
        self.head: Turn | None = None
        self._last: Turn | None = None
        self.held = 0  # bytes of replies that wait for their turn
        self._out: list[bytes] = []
        self._completed = 0

    def add(self, turn: Turn) -> None:
        if self._last is None:
            self.head = turn
        else:
            self._last.behind = turn
        self._last = turn

    def split(self, turn: Turn, count: int) -> Turn:
        """Leave the turn its first `count` replies. Returns the turn of the others, behind it."""
        rest = new_turn(turn.side, turn.count - count, turn.number + count, turn.ends, turn.is_whole)
        turn.count, turn.ends = count, False
        rest.behind, turn.behind = turn.behind, rest
        rest.later = turn.later
        if self._last is turn:
            self._last = rest
        return rest

    def came(self, turn: Turn, data: bytes, completed: int) -> None:
        """Take in replies, or a part of one, of the first turn of a side. `settle` follows."""
        turn.count -= completed
        turn.number += completed
        if turn is self.head and not turn.is_whole:
            self._out.append(data)
            self._completed += completed
            if not turn.count:
                self._advance()
            return
        if turn.held is None:
            turn.held = []
        turn.held.append(data)
        turn.completed += completed
        self.held += len(data)

    def hold(self, size: int) -> None:
        """So many bytes more of replies are held elsewhere; negative: less."""
        self.held += size

    def answer(self, turn: Turn, data: bytes) -> None:
        """The rest of a turn is answered by keyfence. `settle` follows."""
        turn.is_whole = False
        self.came(turn, data, turn.count)

    def all_came(self, turn: Turn) -> None:
        """A whole transaction has come."""
        turn.is_whole = False
        if turn is self.head:
            self._advance()

    def passed(self, turn: Turn) -> None:
        """No more replies of this turn come. If it is the first in the client's order, the next one is."""
        if turn is self.head:
            self._advance()

    def replace_held(self, turn: Turn, replies: list[bytes]) -> None:
        """The transaction has other replies than those that have come. None: it did not run."""
        if turn.held is not None:
            self.held -= sum(map(len, turn.held))
        turn.held, turn.completed = (replies, len(replies)) if replies else (None, 0)
        self.held += sum(map(len, replies))

    def _advance(self) -> None:
        """Let out what was held, up to the first turn of which not all has come."""
        turn = self.head
        while turn is not None and not turn.is_whole:
            if turn.held is not None:
                self._out.extend(turn.held)
                self._completed += turn.completed
                self.held -= sum(map(len, turn.held))
                turn.held, turn.completed = None, 0
            if turn.count:
                break
            ends = turn.ends
            turn = turn.behind
            self.head = turn
            if turn is None:
                self._last = None
            if ends:
                self._let_out(True)

    def settle(self, is_partial: bool) -> bool:
        """Pass on what may be passed on. `is_partial`: it ends within a reply. Returns whether there was
        anything."""
        return self._let_out(not is_partial)

    def _let_out(self, whole: bool) -> bool:
        if not self._out:
            return False
        out, completed = self._out, self._completed
        self._out, self._completed = [], 0
        self._deliver(out[0] if len(out) == 1 else b"".join(out), completed, whole)
        return True

    def clear(self) -> None:
        self.head = self._last = None
        self._out.clear()
        self.held = self._completed = 0
