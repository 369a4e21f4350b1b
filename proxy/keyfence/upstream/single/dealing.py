# cython: annotation_typing=False
"""Requests that were dealt out to several nodes, and their replies merged into the client's order again.

Rule: this is for the time in which nothing is refused. A deal is what a client has sent at once; it keeps one
byte for each request, and no object. Only whole replies are taken in. Whatever else comes, `hand_over` turns
the deals into turns (`turns`), which can be answered one by one. No I/O.
"""

from __future__ import annotations

from .sides import Side
from .turns import Order, new_turn


class Deal:
    """Requests that came together. Made without a call of `__init__`, as `Turn`."""

    order: bytes | None  # the place of the side that answers each request; None: `place` answers all
    place: int
    count: int
    at: int  # how many of their replies the client has
    number: int  # of the first request, among all of the client's
    behind: Deal | None


def new_deal(order: bytes | None, place: int, count: int, number: int) -> Deal:
    deal = Deal.__new__(Deal)
    deal.order, deal.place, deal.count, deal.number = order, place, count, number
    deal.at, deal.behind = 0, None
    return deal


class Deals:
    """All deals of one client that are not answered yet."""

    def __init__(self, sides: list[Side]) -> None:
        """`sides`: by their places."""
        self.head: Deal | None = None
        self.held = 0  # bytes of replies that were taken in and not merged
        self.completed = 0  # replies in what `merged` has returned
        self._last: Deal | None = None
        self._sides = sides

    def add(self, deal: Deal) -> None:
        if self._last is None:
            self.head = deal
        else:
            self._last.behind = deal
        self._last = deal

    def take_in(self, side: Side, data: bytes, completed: int) -> None:
        """A side has received whole replies."""
        side.put(data, completed)
        self.held += len(data)

    def is_first_answered(self) -> bool:
        """Whether all replies of the first deal have come, or there is none."""
        deal = self.head
        if deal is None:
            return True
        order = deal.order
        if order is None:
            return self._sides[deal.place].stock >= deal.count - deal.at
        for side in self._sides:
            side.counted = 0
        for at in range(deal.at, deal.count):
            side = self._sides[order[at]]
            side.counted += 1
            if side.counted > side.stock:
                return False
        return True

    def merged(self) -> bytes | None:
        """What the client gets next, all of one deal; None: it has to wait."""
        deal = self.head
        if deal is None:
            return None
        only = b""
        pieces: list[bytes] | None = None
        begin = at = deal.at
        while at < deal.count:
            side: Side = self._sides[deal.place if deal.order is None else deal.order[at]]
            if not side.stock:
                break
            count = min(self._adjacent(deal, at), side.stock)
            piece = side.get(count)
            self.held -= len(piece)
            if at == begin:
                only = piece
            elif pieces is None:
                pieces = [only, piece]
            else:
                pieces.append(piece)
            at += count
        if at == begin:
            return None
        self.completed = at - begin
        deal.at = at
        if at == deal.count:
            self.head = deal.behind
            if self.head is None:
                self._last = None
        return only if pieces is None else b"".join(pieces)

    def _adjacent(self, deal: Deal, at: int) -> int:
        """How many adjacent requests one side answers."""
        order = deal.order
        if order is None:
            return deal.count - at
        end = at + 1
        while end < deal.count and order[end] == order[at]:
            end += 1
        return end - at

    def hand_over(self, order: Order) -> None:
        """Make turns of all deals, and give them what was taken in."""
        deal = self.head
        while deal is not None:
            while deal.at < deal.count:
                side: Side = self._sides[deal.place if deal.order is None else deal.order[deal.at]]
                count = self._adjacent(deal, deal.at)
                ends = deal.at + count == deal.count
                turn = new_turn(side, count, deal.number + deal.at, ends, False)
                order.add(turn)
                side.queue(turn)
                deal.at += count
            deal = deal.behind
        self.clear()
        for side in self._sides:
            while side.stock:
                first = side.turn
                assert first is not None
                count = min(first.count, side.stock)
                if count == first.count:
                    side.next_turn()
                order.came(first, side.get(count), count)

    def clear(self) -> None:
        self.head = self._last = None
        self.held = 0
