# cython: annotation_typing=False
"""One client's shares of the connections to all nodes of a cluster, in place of one share of one Redis.

Rule: the client gets its replies in the order of its requests. A command that a node refuses because another
one has its key is sent there, and only that: it has provably not run. Nothing else of the client is sent
until it is answered. It is not sent again if a later command on one of its keys has run since, so what runs
on a key runs in the client's order.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from keyfence.net.closures import upstream_sent
from keyfence.resp import encode
from keyfence.resp.limits import MIB
from keyfence.resp.profile import Profile
from keyfence.resp.replies import ReplyFramer
from keyfence.upstream.exchange import Share, Sharer

from .again import Again
from .cutting import (
    ANY_NODE,
    ENDS,
    MOST_DEALT,
    NO_NODE,
    NODES,
    PARTS,
    SEVERAL,
    UNFIT,
    Run,
    end_of,
    new_run,
    requests_in,
)
from .dealing import Deals, new_deal
from .masters import Masters
from .refusals import LONGEST, error_for, may_begin
from .retries import Retries
from .sides import Receiver, Sent, Side, new_sent
from .splits import Splits
from .turns import Order, Turn, new_turn

# No more bytes of replies are asked for at once, by the sizes of the last ones. In the worst case, one node
# sends all of its own before the first of another one comes, and they are held here.
MOST_ASKED = 32 * MIB
FIRST_SIZE = MIB  # bytes that a reply may have while none has come
MAX_HELD = MIB  # bytes of replies that wait for their turn; with more, nothing more is sent for the client …
MOST_HELD = 64 * MIB  # … and with more than this, which is what was under way, the client is closed
# Bytes of whole replies that are merged at once. With more, they are assigned to turns as they come.
MOST_MERGED = 64 * 1024
MOST_SIDES = 256  # that a deal can name
_ERROR = ord("-")
_NOT_RUN = b"-CROSSSLOT "  # in answer to a command that has not run anywhere
_NO_NODE, _ANY_NODE, _SEVERAL, _UNFIT, _PARTS = NO_NODE, ANY_NODE, SEVERAL, UNFIT, PARTS
_MOST_SIDES = MOST_SIDES
_NODES, _ENDS = NODES, ENDS
_PLACES = bytearray(MOST_DEALT)  # of the requests that are dealt out


def most_at_once(size: int, due: int) -> int:
    """How many requests may be sent while so many are due, if replies have this size. At least one."""
    return max(MOST_ASKED // size - due, 1)


class ClusterShares(Receiver):
    """The shares of one client."""

    def __init__(self, client: Sharer, masters: Masters) -> None:
        self._client: Sharer | None = client
        self._masters = masters
        self._cutter = masters.cutter
        self._sides: dict[int, Side] = {}
        self._places: list[Side] = []  # the same, by their places
        self._deals = Deals(self._places)  # while nothing is refused; otherwise `_order` has turns
        self._near = _ANY_NODE  # the node that was used last
        self._profile: Profile | None = None
        self._version = masters.cutter.version  # of the topology by which the last request was sent
        self._order = Order(self._deliver)
        self._queue: deque[Any] = deque()  # what `_send` gets, as it was sent together
        self.due = 0  # replies
        self._size = FIRST_SIZE  # bytes of a reply, as the next ones may be
        self._received = 0  # bytes since one ended
        self.number = 0  # of the next request
        self.retries = Retries(self, masters, self._order)
        self._splits: Splits | None = None  # None: no command is sent in parts
        self.sends_again = False  # whether any command is refused, or was sent again
        self._is_timed = False
        self._is_passed_on = False  # the client is about to get what has come
        self._is_behind = False  # it gets that if the rest takes long
        self._link: Any = None  # the one that has called last
        masters.know(self)

    # -- as `Links` uses it

    @property
    def is_open(self) -> bool:
        """Whether a request was sent."""
        return bool(self._sides)

    @property
    def is_held(self) -> bool:
        """Whether nothing that the client waits for has left keyfence, because nodes cannot be reached."""
        return all(not one.due or one.is_unsent for one in self._places)

    def split(self, names: frozenset[bytes]) -> None:
        """Send these commands in parts if their keys are in several hash slots. No reply may be due."""
        self._cutter = self._masters.cutter_for(names)
        self._splits = Splits(self, self._masters, self._order) if names else None

    def may_share(self, profile: Profile) -> bool:
        """Whether there is a connection of this kind to share."""
        self._profile = profile
        return True

    def send(self, chunks: list[bytes], counts: list[int], shapeable: bool) -> None:
        """Send chunks with `counts` requests each. `shapeable`: the client's text might shape a reply."""
        for index in range(len(chunks)):
            if self._queue or not self._may_send():
                self._queue.append((chunks[index], counts[index], shapeable))
            else:
                self._send(chunks[index], counts[index], shapeable)
        if self._queue:
            self._go_on()

    def works_elsewhere(self) -> None:
        """The client has used connections of its own since the last request."""

    def tick(self) -> None:
        """Call this about once a second."""

    def time_next(self) -> None:
        """`Sharer.shared_sent` is called once the next requests are written."""
        self._is_timed = True

    def close(self) -> None:
        """The client no longer uses this. No callback comes after this."""
        self._client = None
        self.retries.stop()
        self._queue.clear()
        self._order.clear()
        self._deals.clear()
        self._masters.forget(self)
        for one in self._places:
            one.leave()
        self._sides.clear()
        self._places.clear()

    # -- sending

    def _may_send(self) -> bool:
        if self.sends_again or self._order.held + self._deals.held > MAX_HELD:
            return False
        if self.due and (self.due + 1) * self._size > MOST_ASKED:
            return False
        if self._version != self._cutter.version:
            if self.due:
                return False  # a later command must not overtake an earlier one that has the former node
            self._version = self._cutter.version
            self._leave_gone()
        return True

    def _leave_gone(self) -> None:
        """Let go of nodes that have left. Nothing is due."""
        self._merge()
        for number in [number for number, one in self._sides.items() if one.master.has_left]:
            self._sides.pop(number).leave()
        self._places[:] = self._sides.values()
        for place, side in enumerate(self._places):
            side.place = place

    def _go_on(self) -> None:
        while self._queue and self._client is not None and self._may_send():
            self._send(*self._queue.popleft())

    def _send(self, data: bytes, count: int, shapeable: bool) -> None:
        """Send as many of these requests as may be asked for at once. The others come next."""
        if (self.due + count) * self._size > MOST_ASKED:
            most = most_at_once(self._size, self.due)
            end = end_of(data, most)
            if end < len(data):
                self._queue.appendleft((data[end:], count - most, shapeable))
                data, count = data[:end], most
        if not shapeable and self._order.head is None and self._deal(data, count):
            return
        self._hand_over()
        cutter = self._cutter
        runs = cutter.cut(data, count)
        run = runs[0]
        if len(runs) == 1 and run.node != _PARTS:
            self._send_run(run.node, data, count, shapeable, cutter.is_transaction)
            return
        parts: dict[int, list[bytes]] = {}
        totals: dict[int, int] = {}
        for run in runs:
            if run.node == _ANY_NODE:
                run.node = self._any()
            elif run.node == _PARTS:
                self._send_parts(parts, totals, shapeable)
                assert self._splits is not None
                self._splits.send(data[run.begin : run.end], run is runs[-1], shapeable)
                continue
            self._expect(run, run is runs[-1])
            if run.node != _NO_NODE:
                parts.setdefault(run.node, []).append(data[run.begin : run.end])
                totals[run.node] = totals.get(run.node, 0) + run.count
            else:
                self.retries.not_served(data[run.begin : run.end], shapeable)
        self._send_parts(parts, totals, shapeable)

    def _send_parts(self, parts: dict[int, list[bytes]], totals: dict[int, int], shapeable: bool) -> None:
        """Send each node what goes there. The replies are expected."""
        for node, pieces in parts.items():
            self.send_to(self._sides[node], new_sent(b"".join(pieces), totals[node], shapeable, None))
        parts.clear()
        totals.clear()

    def _any(self) -> int:
        """The node for requests that any node may answer; NO_NODE: there is none."""
        return self._near if self._near in self._sides else int(self._masters.any())

    def _deal(self, data: bytes, count: int) -> bool:
        """Deal the requests out to the nodes. Returns whether that is possible."""
        node = self._cutter.deal(data, count)
        if node == _UNFIT:
            return False
        if node == _ANY_NODE:
            node = self._any()
            if node == _NO_NODE:
                return False
        if node != _SEVERAL:
            self._near = node
            side = self.side(node)
            self._deals.add(new_deal(None, side.place, count, self.number))
            self.number += count
            self.due += count
            side.due += count
            self.send_to(side, new_sent(data, count, False, None))
            return True
        return self._deal_to_several(data, count)

    def _deal_to_several(self, data: bytes, count: int) -> bool:
        """The same for requests that `Cutter.deal` has found to go to several nodes."""
        raw = data
        places = _PLACES
        begin = index = 0
        while index < count:
            node = _NODES[index]
            first = index
            while index < count and _NODES[index] == node:
                index += 1
            side = self.side(node)
            if side.place >= _MOST_SIDES:
                for one in self._places:
                    one.part_count = 0
                    one.parts.clear()
                return False
            for each in range(first, index):
                places[each] = side.place
            end = _ENDS[index - 1]
            side.parts.append(raw[begin:end])
            side.part_count += index - first
            begin = end
        self._deals.add(new_deal(bytes(places[:count]), 0, count, self.number))
        self.number += count
        self.due += count
        for side in self._places:
            if side.part_count:
                parts = side.parts
                part = parts[0] if len(parts) == 1 else b"".join(parts)
                sent = new_sent(part, side.part_count, False, None)
                side.due += side.part_count
                side.part_count = 0
                parts.clear()
                self.send_to(side, sent)
        return True

    def _send_run(self, node: int, data: bytes, count: int, shapeable: bool, is_transaction: bool) -> None:
        if node == _ANY_NODE:
            node = self._any()
        run = new_run(node, count, 0, len(data))
        self._expect(run, True, is_transaction)
        if node == _NO_NODE:
            self.retries.not_served(data, shapeable, is_transaction)
        else:
            self._near = node
            self.send_to(self._sides[node], new_sent(data, count, shapeable, None))

    def _expect(self, run: Run, ends: bool, is_transaction: bool = False) -> None:
        """The next turn is that of these requests."""
        if run.node == _NO_NODE:
            return
        side = self.side(run.node)
        turn = new_turn(side, run.count, self.number, ends, is_transaction)
        self._order.add(turn)
        side.expect(turn)
        self.number += run.count
        self.due += run.count

    def side(self, node: int) -> Side:
        for side in self._places:
            if side.number == node:
                return side
        made = self._sides[node] = Side(self, self._masters[node], len(self._places))
        self._places.append(made)
        return made

    def send_to(self, side: Side, sent: Sent) -> None:
        assert self._profile is not None
        if not side.may_share(self._profile):
            self._refuse_soon(side)
            return
        link = side.link
        assert link is not None
        if self._is_timed:
            self._is_timed, link.is_timed = False, True
        side.send(sent)

    def _refuse_soon(self, side: Side) -> None:
        why = "there are too many kinds of connections to share"
        self._masters.later(0.0, lambda: self.refused(side, why))

    # -- replies

    def came(self, side: Side, data: bytes, completed: int, whole: bool) -> None:
        """A side has received bytes, in which so many replies end."""
        self._link = side.link
        self._received += len(data)
        if completed:  # a large reply is remembered for a while
            size, self._received = self._received // completed, 0
            self._size = size if size > self._size else self._size - (self._size - size) // 16
        if self._deals.head is not None:
            if whole and self._deals.held + len(data) <= MOST_MERGED:
                self.due -= completed
                side.answered(completed)
                self._deals.take_in(side, data, completed)
                return
            self._hand_over()
        self._sort(side, data)
        head = self._order.head
        is_partial = False
        if head is not None and head.side is not None and not head.is_whole:
            other: Side = head.side
            is_partial = other.turn is head and other.is_partial
        self._order.settle(is_partial)
        if self._order.held > MOST_HELD and self._client is not None:
            self._client.shared_lost(self._link, upstream_sent("too many replies before an earlier one"))

    def error_came(self, side: Side) -> None:
        """An error was noted in what comes next from a side: it may have refused a command."""
        self._hand_over()
        side.is_looked_at = True

    def _hand_over(self) -> None:
        """Something unusual has happened, so each reply is assigned to its turn from now on."""
        if self._deals.head is not None:
            self._deals.hand_over(self._order)
            self._order.settle(False)

    def _merge(self) -> None:
        """Pass on what has come of the deals, as far as it is the client's turn."""
        data = self._deals.merged()
        while data is not None and self._client is not None:
            self._client.shared_replies(self._link, data, self._deals.completed, True)
            data = self._deals.merged()

    def _sort(self, side: Side, data: bytes) -> None:
        """Assign each reply in `data` to its turn."""
        framer = side.framer
        at = 0
        while at < len(data) and self._client is not None:
            turn = side.turn
            assert turn is not None
            begin = at
            begins = framer.at_boundary or bool(side.part)
            # One by one, if any of them may be a refusal: also behind a line of which a part was kept back.
            looks = side.is_looked_at or self.sends_again or turn.is_whole or turn.part is not None
            looks = looks or bool(side.part)
            at = framer.advance(data, begin, 1 if looks else turn.count)
            done = framer.completed
            if not looks and done and framer.at_boundary and not side.part:
                self.due -= done
                side.answered(done)
                if done == turn.count:
                    side.next_turn()
                self._order.came(turn, data[begin:at], done)
                continue
            if framer.errors is not None:
                framer.take_errors()
            end = at
            if not framer.at_boundary and framer.kind == _ERROR and not side.part:
                end = framer.frame_at
            piece = data[begin:end]
            if side.part:
                piece, side.part = side.part + piece, b""
            if end < at or (not framer.at_boundary and framer.kind == _ERROR):
                # An error's line whose end has not come is kept back while it may be a refusal.
                line = data[end:at] if end < at else piece
                if may_begin(line) and len(line) <= LONGEST:
                    side.part = line
                    piece = b"" if line is piece else piece
                elif line is not piece:
                    piece += line
            if piece:
                self._take(side, turn, piece, done, looks and begins)

    def _take(self, side: Side, turn: Turn, piece: bytes, done: int, looks: bool) -> None:
        """Take in replies of a turn, or a part of one. If it `looks`, that is at most one reply, from its
        beginning on."""
        is_error = looks and piece.startswith(b"-") and not turn.is_whole
        if is_error and done and self.retries.is_refused(side, piece):
            return
        request = side.next_request() if self.sends_again and done and not turn.is_whole else b""
        sent = side.sent
        if is_error:
            if piece.startswith(_NOT_RUN) and sent is not None and not sent.shapeable:
                request = b""
            piece = error_for(piece)
        number = turn.number
        if done:
            self.due -= done
            side.answered(done)
            if done == turn.count:
                side.next_turn()
        is_skipped = sent is not None and sent.again is not None and sent.again.skips
        if is_skipped:
            assert sent is not None
            sent.again.skips = not done  # the reply to ASKING
            turn.count -= done
        elif turn.part is not None:
            assert self._splits is not None
            self._splits.came(turn.part, piece, bool(done))
        else:
            self._order.came(turn, piece, done)
        if request and not is_skipped:
            self.retries.ran([request], number)
        if turn.is_whole and not turn.count:
            assert sent is not None
            self._transaction_came(side, turn, sent, number - sent.count + 1)

    def _transaction_came(self, side: Side, turn: Turn, sent: Sent, number: int) -> None:
        """All replies to a transaction have come."""
        held = turn.held or []
        if any(one.startswith(b"-") for one in held):
            self.retries.transaction_failed(sent, turn, _replies(held), number, side.number)
            return
        if self.sends_again:
            self.retries.ran(requests_in(sent.data), number)
        self._order.all_came(turn)

    # -- commands that are sent again

    def send_again(self, node: int, turn: Turn, again: Again, data: bytes) -> None:
        """Send a refused command to a node. `turn` has the replies."""
        side = self.side(node)
        turn.side = side
        side.expect(turn)
        self.due += turn.count
        side.is_looked_at = True
        self.send_to(side, new_sent(data, turn.count, again.shapeable, again))

    def answer(self, turn: Turn, reply: bytes) -> None:
        """Answer the rest of a turn. `Order.settle` follows."""
        if turn.part is None:
            self._order.answer(turn, reply)
        else:
            assert self._splits is not None
            self._splits.came(turn.part, reply, True)

    def went_on(self) -> None:
        """Some commands were answered that had been refused, or all of them."""
        self._order.settle(False)
        self._go_on()
        if self._client is not None:
            self._client.shared_turn(self._link)

    def topology_changed(self) -> None:
        """Some hash slot has another node: what was not sent yet need not wait for the former one."""
        for side in self._places:
            if side.due and side.is_unsent:
                self._hand_over()
                self.retries.pull_back(side)
        if not self.due:
            self.after_replies(at_once=True)

    # -- as sides call it

    def _deliver(self, data: bytes, completed: int, whole: bool) -> None:
        if self._client is not None:
            self._client.shared_replies(self._link, data, completed, whole)

    def was_sent(self, link: Share) -> None:
        if self._client is not None:
            self._client.shared_sent(link)

    def turn_is_over(self) -> None:
        """What the client has sent together is answered together, unless some of it takes longer than
        LATE_SECONDS."""
        if not self.due:
            self._pass_on()
        elif not self._is_passed_on:
            if self._deals.is_first_answered():
                self._is_passed_on = True
                self._masters.later(0.0, self.pass_on_some)
            elif not self._is_behind:
                self._is_behind = True
                self._masters.behind(self)
        if self.sends_again or self._queue:
            self.after_replies()

    def _pass_on(self) -> None:
        self._is_passed_on = self._is_behind = False
        self._merge()
        if self._client is not None:
            self._client.shared_turn(self._link)

    def pass_on_some(self) -> None:
        """Pass on what has come, unless the client has got it meanwhile."""
        if self._is_passed_on or self._is_behind:
            self._pass_on()

    def after_replies(self, *, at_once: bool = False) -> None:
        if self._client is None:
            return
        if self.sends_again:
            if not self.due:
                self.retries.begin(at_once=at_once)
        elif self._queue:
            self._go_on()

    def lost(self, link: Share, reason: str) -> None:
        self._merge()
        if self._client is not None:
            self._client.shared_lost(link, reason)

    def failed(self, exc: Exception) -> None:
        if self._client is not None:
            self._client.shared_failed(self._link, exc)

    def refused(self, side: Side, reason: str) -> None:
        """A node refuses the connection: nothing was sent there."""
        self._hand_over()
        error = encode.error(f"ERR keyfence: {reason}")
        turn, sent = side.turn, side.sent
        self.due -= side.due
        side.forget()
        while turn is not None:
            if sent is not None and sent.again is not None:  # then each has a turn of its own
                turn.count -= sent.again.skips  # the client has not asked for the reply to ASKING
                sent = sent.behind
            self.answer(turn, error * turn.count)
            turn = turn.later
        self._order.settle(False)
        if self._client is not None:
            self._client.shared_turn(self._link)
        self.after_replies()

    def is_full(self, link: object) -> None:
        if self._client is not None:
            self._client.upstream_full(link, any(one.is_full for one in self._places))


def _replies(held: list[bytes]) -> list[bytes]:
    """The replies that were held in pieces, one by one."""
    data, framer, at = b"".join(held), ReplyFramer(), 0
    replies = []
    while at < len(data):
        begin, at = at, framer.advance(data, at, 1)
        replies.append(data[begin:at])
    return replies
