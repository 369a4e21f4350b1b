"""Commands with keys of several hash slots, sent in parts, and the replies to the parts as one reply.

Rule: a part is a command of its own. It has its place among the requests to its node, and if the node refuses
it, it alone is sent again. The client's order has one turn for the whole, which is answered once all parts
are. What is held of the replies is bounded. No I/O.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from keyfence.resp.limits import MIB
from keyfence.resp.replies import ReplyFramer
from keyfence.upstream.cluster.joining import Joined
from keyfence.upstream.cluster.splitting import Split, in_order, split

from .cutting import NO_NODE, arguments
from .masters import Masters
from .refusals import LONGEST, refusal_in
from .sides import Side, new_sent
from .turns import Order, Turn, new_turn

_PUSH, _ERROR = ord(">"), ord("-")
MOST_JOINED = 16 * MIB  # bytes of the replies to the parts of one command


class Whole:
    """One command in parts, until all of them are answered."""

    def __init__(self, cut: Split, turn: Turn | None = None, limit: int | None = None) -> None:
        """`turn`: its place in the client's order, if it has one."""
        self.cut = cut
        self.turn = turn
        self._joined = Joined(
            cut.name, functools.partial(in_order, cut), range(len(cut.parts)), limit or MOST_JOINED
        )

    @property
    def held(self) -> int:
        """Bytes of replies."""
        return self._joined.held

    @property
    def is_complete(self) -> bool:
        return self._joined.is_complete

    def came(self, place: int, data: bytes, is_end: bool) -> None:
        """Take in a piece of the reply to a part."""
        self._joined.came(place, data, is_end)

    def reply(self) -> bytes:
        """What the client gets; all parts are answered."""
        return self._joined.reply()


class OneByOne:
    """Some parts of a command, which are sent one after another."""

    def __init__(self, whole: Whole, places: Sequence[int]) -> None:
        self._whole = whole
        self._places = deque(places)

    def came(self, data: bytes, is_end: bool) -> bytes:
        """Take in a piece of the reply to a part. Returns the reply to the command once it is complete."""
        self._whole.came(self._places.popleft() if is_end else self._places[0], data, is_end)
        return self._whole.reply() if self._whole.is_complete else b""


class AtOnce:
    """The parts of a command that are sent to all nodes at once, over a client's own connections."""

    def __init__(self, whole: Whole, owners: Sequence[int]) -> None:
        """`owners`: the number of the node of each hash slot."""
        self.whole = whole
        self.left: list[int] = []  # the places of the parts that have not run
        self._due: dict[int, deque[int]] = {}  # the places of the parts that each node has to answer
        self._framers: dict[int, ReplyFramer] = {}
        self._lines: dict[int, bytes] = {}  # of errors that have not come as a whole
        for place, part in enumerate(whole.cut.parts):
            if owners[part.slot] == NO_NODE:
                self.left.append(place)
            else:
                self._due.setdefault(owners[part.slot], deque()).append(place)

    @property
    def requests(self) -> dict[int, bytes]:
        """What each node gets."""
        parts = self.whole.cut.parts
        return {number: b"".join(parts[one].request for one in due) for number, due in self._due.items()}

    @property
    def is_complete(self) -> bool:
        return not any(self._due.values())

    def awaits(self, number: int) -> bool:
        """Whether replies of this node are due."""
        return bool(self._due.get(number))

    def came(self, number: int, data: bytes) -> bytes:
        """A node has sent this. Returns what does not belong to its replies. Raises ReplyError."""
        framer = self._framers.setdefault(number, ReplyFramer())
        due, at, others = self._due[number], 0, b""
        while at < len(data) and due:
            begin, begins = at, framer.at_boundary or number in self._lines
            at = framer.advance(data, begin, 1, True)
            framer.take_errors()
            piece = self._lines.pop(number, b"") + data[begin:at]
            if framer.kind == _PUSH:
                others += piece
            elif not framer.at_boundary:
                if framer.kind == _ERROR and begins and len(piece) <= LONGEST:
                    self._lines[number] = piece
                else:
                    self.whole.came(due[0], piece, False)
            elif begins and refusal_in(piece) is not None:
                self.left.append(due.popleft())
            else:
                self.whole.came(due.popleft(), piece, True)
        if self.is_complete:
            self.left.sort()
        return others + data[at:]

    def reply(self) -> bytes:
        """What the client gets, if no part is left."""
        return self.whole.reply()


class Part:
    """One of its parts."""

    def __init__(self, whole: Whole, place: int) -> None:
        self.whole = whole
        self.place = place


class Splits:
    """The commands of one client that are under way in parts."""

    def __init__(self, shares: Any, masters: Masters, order: Order) -> None:
        """`shares`: the client's `ClusterShares`."""
        self._shares = shares
        self._masters = masters
        self._order = order

    def send(
        self, request: bytes, ends: bool, shapeable: bool, sides: Mapping[int, Side] | None = None
    ) -> None:
        """Send the parts of a command. `ends`: it is the last one of those that came together. `sides`: where
        the parts are read in place of their nodes, by the nodes' numbers."""
        cut = split(arguments(request))
        assert cut is not None
        number = self._shares.number
        self._shares.number += 1
        turn = new_turn(None, 1, number, ends, False)
        self._order.add(turn)
        whole = Whole(cut, turn)
        requests: dict[Side, list[bytes]] = {}
        waits = False
        for place, part in enumerate(cut.parts):
            own = new_turn(None, 1, number, False, False)
            own.part = Part(whole, place)
            node = self._masters.of_slot(part.slot)
            if node == NO_NODE:
                self._shares.retries.part_not_served(part.request, own)
                waits = True
                continue
            side: Side = self._shares.side(node) if sides is None else sides[node]
            own.side = side
            side.expect(own)
            self._shares.due += 1
            requests.setdefault(side, []).append(part.request)
        for side, parts in requests.items():
            self._shares.send_to(side, new_sent(b"".join(parts), len(parts), shapeable, None))
        if waits:
            self._shares.retries.wait()

    def came(self, part: Part, data: bytes, is_end: bool) -> None:
        """A piece of the reply to a part. `Order.settle` follows."""
        whole = part.whole
        before = whole.held
        whole.came(part.place, data, is_end)
        self._order.hold(whole.held - before)
        if whole.is_complete:
            assert whole.turn is not None
            self._order.hold(-whole.held)
            self._order.answer(whole.turn, whole.reply())
