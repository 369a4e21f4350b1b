"""Commands of one client that nodes have refused to run, and when they are sent again.

Rule: they are sent again once no reply is due, in the client's order, and nothing else is sent until then. A
command is answered with its error if a later one on one of its keys has run since, or if it was refused too
often. No I/O: the time is counted in pauses, as far as they have passed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from keyfence.policy.compiled.hash_slots import hash_slot
from keyfence.resp import encode

from .cutting import NO_NODE, NO_SLOT, arguments, keys_of, requests_in, slot_of
from .masters import Masters
from .refusals import (
    ASK,
    CLUSTERDOWN,
    CROSSSLOT,
    MOST_HOPS,
    MOVED,
    TRYAGAIN,
    Refusal,
    error_for,
    pause_before,
    refusal_in,
)
from .turns import Turn

_ASKING = encode.command(b"ASKING")


class Again:
    """A refused command, or a transaction as a whole."""

    def __init__(self, requests: Sequence[bytes], number: int, shapeable: bool) -> None:
        """`number` is that of its first request. `shapeable`: the client's text might shape a reply."""
        self.requests = requests
        self.number = number
        self.shapeable = shapeable
        self.is_transaction = len(requests) > 1
        self.keys = _ordered(requests)
        self.slot = slot_in(requests)
        self.turn: Turn | None = None  # its place in the client's order, while it is not sent
        self.skips = False  # the next reply is that to ASKING
        self.error = b""  # what the client gets if it is not sent again
        self.confirms = b""  # the reply of a replica that this shows to be right, if it is the same
        self.word = ""  # of the last error
        self.hops = 0  # how often it was refused in a row
        self._waited: dict[str, float] = {}  # how long it has waited for each reason, in seconds
        self._target = NO_NODE  # where the last error leads

    @property
    def data(self) -> bytes:
        return b"".join(self.requests)

    def is_for(self, request: bytes) -> bool:
        """Whether this request is the refused one itself, not another one with the same bytes."""
        return self.requests[0] is request

    @property
    def data_asking(self) -> bytes:
        """The command with ASKING before it, which then stands next to it on its connection."""
        return _ASKING + self.data

    def refused(self, refusal: Refusal, target: int, error: bytes) -> None:
        """A node has refused it for one that may be known as `target`."""
        has_waited = self._waits_for
        self.word, self._target, self.error = refusal.word, target, error
        self.hops = 1 if has_waited and not self._waits_for else self.hops + 1

    def not_served(self, error: bytes) -> None:
        """No node has its hash slot."""
        self.hops += 1
        self.word, self._target, self.error = CLUSTERDOWN, NO_NODE, error

    def not_sent(self, error: bytes) -> None:
        """The node to which it was to be sent cannot be reached, and another one has the hash slot now."""
        self.word, self._target, self.error = MOVED, NO_NODE, error
        self.hops = max(self.hops, 1)

    @property
    def is_asking(self) -> bool:
        """Whether it goes to a node that does not have the hash slot yet. MULTI queues ASKING, so a
        transaction waits until the node has it."""
        return self.word == ASK and self._target != NO_NODE and not self.is_transaction

    def node(self, masters: Masters) -> int:
        """Where it is sent now. A node that has left the cluster since it was named is none."""
        if masters.has_left(self._target):
            self._target = NO_NODE
        if self.is_asking or (self.word == MOVED and self._target != NO_NODE):
            return self._target
        return masters.of_slot(self.slot) if self.slot != NO_SLOT else masters.any()

    def has_waited(self, seconds: float) -> None:
        """A pause has passed."""
        reason = self._waits_for
        self._waited[reason] = self._waited.get(reason, 0.0) + seconds

    def ends(self, patience: float) -> bool:
        """Whether it has waited for too long for the same reason, or was refused too often since. A failover
        may end while a new node is not known yet, so each reason has its own patience."""
        reason = self._waits_for
        return self._waited.get(reason, 0.0) >= patience if reason else self.hops > MOST_HOPS

    @property
    def _waits_for(self) -> str:
        """Why it waits: no node has its hash slot, a node is not known yet, or a transaction needs all of its
        hash slot. "": it does not wait."""
        if self.word == CLUSTERDOWN:
            return CLUSTERDOWN
        if self.word in (MOVED, ASK) and self._target == NO_NODE:
            return MOVED
        return TRYAGAIN if self.is_transaction else ""


class Round:
    """The refused commands of one client."""

    def __init__(
        self,
        masters: Masters,
        send: Callable[[Again, int, bool], None],
        answer: Callable[[Again, bytes], None],
        went_on: Callable[[], None],
    ) -> None:
        """`send` sends a command to a node, after ASKING if that is said. `answer` answers it with an error.
        `went_on` is called after that, and when no command is refused any more."""
        self.is_open = False  # whether any command is refused, or was sent again
        self._masters = masters
        self._send = send
        self._answer = answer
        self._went_on = went_on
        self._refused: list[Again] = []
        self._ran: dict[bytes, int] = {}  # the last request that has run on each key, since it is open
        self._timer: Any = None
        self._pause = 0.0  # seconds of the last one …
        self._paused_at = 0.0  # … and when it began

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._refused.clear()

    def add(self, again: Again) -> None:
        """A command was refused."""
        self.is_open = True
        self._refused.append(again)

    def has(self, keys: frozenset[bytes]) -> bool:
        """Whether one of these keys is one of a refused command."""
        return any(not one.keys.isdisjoint(keys) for one in self._refused)

    def ran(self, keys: Collection[bytes], number: int) -> None:
        """Another command has run on these keys."""
        for key in keys:
            self._ran[key] = max(number, self._ran.get(key, -1))

    def counts(self, refusal: Refusal, data: bytes, shapeable: bool) -> bool:
        """Whether an error in place of a reply to these requests says that they have not run. If the client's
        text might shape it, it may be a script's own."""
        if not refusal.is_redirect:
            return not shapeable
        return refusal.slot == slot_in(requests_in(data))

    def hidden(self, reply: bytes, data: bytes) -> bytes:
        """What the client gets of a reply within a transaction that is not sent again."""
        refusal = refusal_in(reply)
        if refusal is not None and refusal.is_redirect and refusal.slot != slot_in(requests_in(data)):
            return CROSSSLOT
        return error_for(reply)

    def begin(self, *, at_once: bool = False) -> None:
        """No reply is due: send the refused commands again, after a pause or `at_once`."""
        if self._timer is not None:
            if not at_once:
                return
            self._timer.cancel()
            self._timer = None
            self._has_waited(min(self._masters.clock() - self._paused_at, self._pause))
        self._refused.sort(key=lambda one: one.number)
        left = []
        for one in self._refused:
            if one.ends(self._masters.patience) or self._was_overtaken(one):
                self._answer(one, one.error)
                self.ran(one.keys, one.number)
            else:
                left.append(one)
        has_answered = len(left) < len(self._refused)
        self._refused = left
        if not left:
            self.is_open = False
            self._ran.clear()
            self._went_on()
            return
        if has_answered:
            self._went_on()
        pause = 0.0 if at_once else max(pause_before(one.word, one.hops) for one in left)
        if pause:
            self._pause, self._paused_at = pause, self._masters.clock()
            self._timer = self._masters.later(pause, self._pause_is_over)
        else:
            self._send_all()

    def _pause_is_over(self) -> None:
        self._timer = None
        self._has_waited(self._pause)
        self._send_all()

    def _has_waited(self, seconds: float) -> None:
        for one in self._refused:
            one.has_waited(seconds)

    def _was_overtaken(self, one: Again) -> bool:
        return any(self._ran.get(key, -1) > one.number for key in one.keys)

    def _send_all(self) -> None:
        """Send what can be sent. On each key, commands go to one node, one after another."""
        refused, self._refused = self._refused, []
        node_of: dict[bytes, int] = {}
        sends = []
        for one in refused:
            node = one.node(self._masters)
            before = {node_of[key] for key in one.keys if key in node_of}
            if node == NO_NODE or before - {node}:
                one.word = CLUSTERDOWN if node == NO_NODE else one.word
                one.hops += node == NO_NODE
                node = NO_NODE
                self._refused.append(one)
            else:
                sends.append((one, node))
            node_of |= dict.fromkeys(one.keys, node)
        for one, node in sends:
            self._send(one, node, one.is_asking)
        if not sends:
            self._masters.not_served()
            self.begin()


def _ordered(requests: Sequence[bytes]) -> frozenset[bytes]:
    """The keys on which these requests keep their place in the client's order. No node runs what has keys of
    several hash slots, so that has no place."""
    keys = keys_of(requests)
    return keys if len({hash_slot(key) for key in keys}) == 1 else frozenset()


def slot_in(requests: Sequence[bytes]) -> int:
    """The hash slot of the first key in these requests; NO_SLOT: there is none."""
    found = (slot_of(arguments(one)) for one in requests)
    return next((slot for slot in found if slot != NO_SLOT), NO_SLOT)
