"""The commands of one client that nodes refuse for another node to run, from the refusal to the reply.

Rule: what is sent again has provably not run. `again` says when it is sent and where; this takes it out of
the client's order of replies, and puts it back.
"""

from __future__ import annotations

from typing import Any

from keyfence.upstream.cluster.fan_out import NOT_SERVED

from .again import Again, Round
from .cutting import NO_NODE, keys_of, requests_in
from .masters import Masters
from .refusals import MOVING, error_for, refusal_in
from .sides import Sent, Side
from .turns import Order, Turn, new_turn


class Retries:
    """Those of one client."""

    def __init__(self, shares: Any, masters: Masters, order: Order) -> None:
        """`shares`: the client's `ClusterShares`, whose `sends_again` says whether there are any."""
        self._shares = shares
        self._masters = masters
        self._order = order
        self._round = Round(masters, self._send, self._answer, self._went_on)

    def stop(self) -> None:
        self._round.stop()

    def begin(self, *, at_once: bool = False) -> None:
        """No reply is due: send what was refused, after a pause or `at_once`."""
        self._round.begin(at_once=at_once)

    def ran(self, requests: list[bytes], number: int) -> None:
        """Other requests, the first of them with this number, have run."""
        self._round.ran(keys_of(requests), number)

    def is_behind(self, request: bytes) -> bool:
        """Whether a key of this request is one of a command that is to be sent again."""
        return self._round.has(keys_of([request]))

    # -- what nodes refuse

    def is_refused(self, side: Side, reply: bytes) -> bool:
        """Whether a node has not run the next command, so that it is sent again."""
        sent, turn = side.sent, side.turn
        assert sent is not None
        assert turn is not None
        if sent.again is not None and sent.again.skips:
            return False
        request = sent.again.data if sent.again is not None else side.next_request()
        refusal = refusal_in(reply)
        if refusal is None or not self._round.counts(refusal, request, sent.shapeable):
            return False
        asked = side.master.number
        target = self._masters.target(refusal, asked)
        if refusal.is_redirect and (target == asked or (sent.shapeable and target == NO_NODE)):
            return False
        again: Again = sent.again if sent.again is not None else Again([request], turn.number, sent.shapeable)
        self._masters.refused(refusal, asked)
        again.refused(refusal, target, error_for(reply))
        again.turn = self._cut_out(side, turn)
        self._shares.due -= 1
        side.answered(1)
        self._add(again)
        return True

    def _cut_out(self, side: Side, turn: Turn) -> Turn:
        """Take the next reply of a turn out of what the side has to answer. Returns its own turn."""
        if turn.part is not None:
            side.next_turn()
            turn.side, turn.later = None, None
            return turn
        gap = self._order.split(turn, 0)
        rest = self._order.split(gap, 1) if gap.count > 1 else None
        side.replaced(turn, rest)
        gap.side, gap.later = None, None
        self._order.passed(turn)
        return gap

    def transaction_failed(
        self, sent: Sent, turn: Turn, replies: list[bytes], number: int, asked: int
    ) -> None:
        """All replies to a transaction have come, with an error among them. It has not run if Redis has
        refused one of its commands, or EXEC itself. `number` is that of its first request, and `asked` that
        of its node."""
        refusals = [one for one in map(refusal_in, replies) if one is not None]
        first = next((one for one in refusals if self._round.counts(one, sent.data, False)), None)
        is_aborted = replies[-1].startswith(b"-EXECABORT") or refusal_in(replies[-1]) is not None
        if first is None or not is_aborted:
            self._order.replace_held(turn, [self._round.hidden(one, sent.data) for one in replies])
            if self._shares.sends_again and not is_aborted:
                self.ran(requests_in(sent.data), number)
            self._order.all_came(turn)
            return
        again: Again = sent.again if sent.again is not None else Again(requests_in(sent.data), number, False)
        target = self._masters.target(first, asked)
        self._masters.refused(first, asked)
        again.refused(first, target, b"".join(map(error_for, replies)))
        self._order.replace_held(turn, [])
        turn.side, turn.later, turn.count, turn.number = None, None, sent.count, number
        again.turn, again.is_transaction = turn, True
        self._add(again)

    def part_not_served(self, request: bytes, turn: Turn) -> None:
        """No node has the hash slot of a part of a command. `turn` is its own. `wait` follows."""
        again = Again([request], turn.number, False)
        again.turn = turn
        again.not_served(NOT_SERVED)
        self._add(again)

    def not_served(self, data: bytes, shapeable: bool, is_transaction: bool = False) -> None:
        """No node has the hash slot of these requests. `shapeable`: the client's text might shape a reply."""
        requests = requests_in(data)
        for group in [requests] if is_transaction else [[one] for one in requests]:
            again = Again(group, self._shares.number, shapeable)
            turn = new_turn(None, len(group), self._shares.number, group[-1] is requests[-1], is_transaction)
            again.turn, again.is_transaction = turn, is_transaction
            again.not_served(NOT_SERVED * len(group))
            self._order.add(turn)
            self._shares.number += len(group)
            self._add(again)
        self.wait()

    def wait(self) -> None:
        """Wait for a node that has a hash slot. If no reply is due, none that comes begins the next round."""
        self._masters.not_served()
        self._masters.later(0.0, self._shares.after_replies)

    def _add(self, again: Again) -> None:
        self._shares.sends_again = True
        self._round.add(again)

    # -- what was not sent

    def read_again(self, side: Side, reply: bytes) -> None:
        """A replica's reply to the next command does not count alone, so its master is asked. b"": not all of
        the reply is there."""
        turn = side.turn
        assert turn is not None
        again = Again([side.next_request()], turn.number, False)
        again.not_sent(error_for(reply) if reply else MOVING)
        again.confirms = reply
        again.turn = self._cut_out(side, turn)
        self._shares.due -= 1
        side.answered(1)
        self._add(again)

    def pull_back(self, side: Side) -> None:
        """The requests to a node that cannot be reached were not sent, or only read, and are sent to others
        in its place."""
        side.leave()
        turn, sent = side.turn, side.sent
        self._shares.due -= side.due
        side.forget()
        while sent is not None and turn is not None:
            if turn.is_whole or sent.again is not None:
                turn = self._pull_whole(turn, sent)
            else:
                for request in requests_in(sent.data)[sent.count - sent.left :]:
                    assert turn is not None
                    gap, turn = turn, (self._order.split(turn, 1) if turn.count > 1 else turn.later)
                    self._not_sent(Again([request], gap.number, sent.shapeable), gap)
            sent = sent.behind

    def _pull_whole(self, turn: Turn, sent: Sent) -> Turn | None:
        """The same for a transaction, or for a command that was sent again. Returns the side's next turn."""
        again: Again | None = sent.again
        if again is None:
            again = Again(requests_in(sent.data), turn.number, False)
            again.is_transaction = True
        later, turn.count = turn.later, len(again.requests)
        again.skips = False
        self._not_sent(again, turn)
        return later

    def _not_sent(self, again: Again, turn: Turn) -> None:
        turn.side, turn.later, again.turn = None, None, turn
        again.not_sent(NOT_SERVED * len(again.requests))
        self._add(again)

    # -- as `Round` calls it

    def _send(self, again: Again, node: int, asking: bool) -> None:
        turn = again.turn
        assert turn is not None
        again.turn = None
        again.skips = asking
        turn.later = None
        turn.count, turn.is_whole = len(again.requests) + asking, again.is_transaction
        self._shares.send_again(node, turn, again, again.data_asking if asking else again.data)

    def _answer(self, again: Again, reply: bytes) -> None:
        assert again.turn is not None
        self._shares.answer(again.turn, reply)

    def _went_on(self) -> None:
        """Some commands were answered that had been refused, or all of them."""
        self._shares.sends_again = self._round.is_open
        self._shares.went_on()
