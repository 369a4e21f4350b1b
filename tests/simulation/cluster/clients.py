"""Models of clients that know nothing of the cluster behind keyfence's one address.

Rule: an error is right only where keyfence may give up. Redirects are no client's business, and no reply
names a node's address.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from keyfence.policy.compiled.hash_slots import hash_slot
from keyfence.upstream.single.refusals import MOST_HOPS
from tests.simulation.clients import Client, Due, Subscriber, Worker
from tests.simulation.cluster.shards import Cluster
from tests.simulation.invariants import Witness
from tests.simulation.keyfence_under_test import CONNECT_SECONDS
from tests.simulation.network import End, Host, Network

NODES = "10.0.0."  # how the addresses of nodes begin
KEYS = 3  # of each kind
# What a request is part of. After SUBSCRIBE, a pipeline stays at one node.
ALONE, WHOLE, PIECES, WATCHED, ACROSS, FOREIGN = "alone", "whole", "pieces", "watched", "across", "foreign"
STAYING, STAYING_ACROSS = "staying", "staying across"
HELD = (PIECES, WATCHED, STAYING, STAYING_ACROSS)  # by one node
# What stands for a redirect that is not followed. Its first bytes may have been passed on already.
_AGAIN = re.compile("([-MOVEDASK]+: |-)?TRYAGAIN ")
_ELSEWHERE = re.compile(
    "([-MOVEDASK]+: |-)?(ERR a key or channel of another node is not supported here|TRYAGAIN )"
)
_CROSSSLOT = "CROSSSLOT Keys in request don't hash to the same slot"


class Mark(NamedTuple):
    """What a client notes of a request."""

    kind: str  # alone, or part of a transaction that is sent as a whole, in pieces, or after WATCH
    key: bytes
    request: bytes  # that a node may refuse: of a transaction the one with a key
    refused: int  # how often nodes had refused the same one before …
    ran: int  # … and how many commands on the key they had not refused


class PlainClient(Client):
    """What the clients of both kinds have in common."""

    cluster: Cluster
    is_calm = False  # nothing goes wrong in this schedule that a client may notice
    is_excused = False  # it has ended its connection itself, or may be closed because it does not read

    def connection_made(self, end: End) -> None:
        self.is_excused = False
        super().connection_made(end)

    def connection_lost(self, exc: Exception | None) -> None:
        is_excused = self.is_excused or self.is_leaving or self.cluster.has_ended_nodes
        if self.is_calm and not is_excused:
            self.journal.breaks(f"{self.name} was closed, and {len(self.due)} replies were due")
        super().connection_lost(exc)

    def hang_up(self, how: str) -> None:
        self.is_excused = True
        super().hang_up(how)

    def take(self, reply: Any) -> None:
        if NODES in repr(reply):
            self.journal.breaks(f"{self.name} is told a node's address: {reply!r:.80}")
        super().take(reply)

    def is_troubled(self, due: Due) -> bool:
        """Whether some hash slot may not have been served while this was due."""
        self.cluster.look()
        return not self.is_calm and self.cluster.troubled_at >= due.since - 1.0

    def _is_right_error(self, due: Due, text: str) -> bool:
        if text.startswith("CLUSTERDOWN"):
            return self.is_troubled(due)
        if text.startswith("UNBLOCKED") or (text.startswith("LOADING") and due.request.startswith(b"ECHO")):
            return super()._is_right_error(due, text)
        if text.startswith(("LOADING", "ERR upstream")):
            return not self.is_calm and super()._is_right_error(due, text)
        return False


class PlainSubscriber(PlainClient, Subscriber):
    """A client that listens to one channel."""

    def __init__(self, number: int, network: Network, host: Host, witness: Witness, cluster: Cluster) -> None:
        super().__init__(number, network, host, witness)
        self.cluster = cluster
        self.database = 0
        self.is_patient = False  # it does not connect anew

    def hang_up(self, how: str) -> None:
        if self.is_leaving or not self.is_patient:
            super().hang_up(how)


class PlainWorker(PlainClient, Worker):
    """A worker with keys in many hash slots."""

    def __init__(self, number: int, network: Network, host: Host, witness: Witness, cluster: Cluster) -> None:
        super().__init__(number, network, host, witness)
        self.cluster = cluster
        self.database = 0
        self.splits = False  # whether MGET is sent in parts
        self.sends_whole = False  # whether what it sends at once arrives at once, and is read at once
        self.served: set[bytes] = set()  # keys of requests that were answered without an error
        self.only_asks_all = False
        self._kind = ALONE  # of the requests that are made now
        self._lead = b""  # of these, the one that a node may refuse
        self._aborts = False  # a command of the open transaction was refused
        self._has_large = False  # some of its values may be large
        self._stays = False  # it has subscribed, so all requests go to one node until none is due
        self._first = 0  # number of the first value of this connection
        self._seen: dict[bytes, int] = {}  # the number of the last value that this connection saw, by key
        self.patterns = (*self.patterns, *(self._pair, self._pair, self._many, self._across, self._foreign))

    def begin(self) -> None:
        if self.only_asks_all:
            return
        self._stays = self._stays and bool(self.due)
        self._choose(self.dice.randrange(KEYS))
        super().begin()

    def _choose(self, number: int) -> None:
        """Use these keys."""
        self._value, self._list, self._counter, self._queue = (
            b"sim:%b:%b:%d" % (kind, self.name.encode(), number)
            for kind in (b"value", b"list", b"counter", b"queue")
        )

    def ask_all(self) -> None:
        """Use all keys at once."""
        if self.end is None or self.end.is_closing() or self.due:
            return
        self._stays = False
        out = []
        for number in range(KEYS):
            self._choose(number)
            out += [*self._increment(), *self._set(), *self._push(), *self._pair()]
        self.send(*out)

    @property
    def all_keys(self) -> set[bytes]:
        """What `ask_all` asks for."""
        found = set()
        for number in range(KEYS):
            self._choose(number)
            found |= {self._value, self._list, self._counter, self._pair_keys(number)[0]}
        return found

    def greet(self) -> None:
        self._first, self._aborts, self._stays = self._count + 1, False, False
        self._seen.clear()
        super().greet()

    def _stop_reading(self, end: End) -> None:
        self.is_excused = True
        super()._stop_reading(end)

    def _set_large(self) -> list[bytes]:
        self._has_large = True
        return super()._set_large()

    def _visit(self) -> list[bytes]:
        self._stays = True
        return super()._visit()

    def mark_of(self, words: Sequence[bytes]) -> Mark:
        key = words[1] if len(words) > 1 else b""
        own = b" ".join(words)
        request = own if words[0] in (b"WATCH", b"GET") else self._lead or own
        kind = self._kind
        if self._stays and kind != FOREIGN:
            kind = STAYING_ACROSS if kind == ACROSS else STAYING
        ran = sum(self.cluster.runs[one] for one in _keys(kind, key, request))
        return Mark(kind, key, request, self._refusals(kind, request), ran)

    def _refusals(self, kind: str, request: bytes) -> int:
        """How often nodes have refused a request, or a part of it."""
        if kind != ACROSS or not self.splits:
            return self.cluster.refusals[request]
        name, *keys = request.split()
        parts: dict[int, list[bytes]] = {}
        for key in keys:
            parts.setdefault(hash_slot(key), []).append(key)
        return sum(self.cluster.refusals[b" ".join([name, *one])] for one in parts.values())

    def take(self, reply: Any) -> None:
        due = self.due[0] if self.due else None
        super().take(reply)
        if due is not None and due.mark is not None:
            if isinstance(reply, Exception):
                self._aborts = True
            elif due.request == b"MULTI":
                self._aborts = False
            else:
                self.served.add(due.mark.key)

    def _is_right_error(self, due: Due, text: str) -> bool:
        mark = due.mark
        if mark is None or mark.kind == ALONE:
            return self._may_try_again(due, text) or super()._is_right_error(due, text)
        if text == _CROSSSLOT:
            return mark.kind == STAYING_ACROSS or (mark.kind == ACROSS and not self.splits)
        if mark.kind == FOREIGN:
            return text.startswith("NOPERM")
        if mark.kind in (ACROSS, STAYING_ACROSS) and self.splits and text.startswith("LOADING "):
            return text.encode().rpartition(b" ")[2] in mark.request.split()
        if text.startswith("EXECABORT"):
            return due.request == b"EXEC" and self._aborts
        return self._may_try_again(due, text) or super()._is_right_error(due, text)

    def is_troubled(self, due: Due) -> bool:
        mark = due.mark
        if mark is not None and self._refusals(mark.kind, mark.request) > mark.refused:
            waited = self.network.loop.now - due.since
            if mark.kind in HELD or waited >= CONNECT_SECONDS:  # perhaps at a node that has left
                return True
        return super().is_troubled(due) or (mark is not None and self._may_be_overtaken(mark))

    def _may_try_again(self, due: Due, text: str) -> bool:
        """Whether keyfence may have given up to follow the nodes' errors."""
        mark = due.mark
        if mark is None:
            return False
        if not (_ELSEWHERE.match(text) if mark.kind == STAYING else _AGAIN.match(f"-{text}")):
            return False
        refused = self._refusals(mark.kind, mark.request) - mark.refused
        # Of a command in parts it is not looked at which one was given up, and why.
        if refused and (mark.kind in HELD or (mark.kind == ACROSS and self.splits)):
            return True
        if refused > MOST_HOPS and (mark.kind == WHOLE or self.cluster.has_bounced(mark.request)):
            return True
        return self._may_be_overtaken(mark)

    def _may_be_overtaken(self, mark: Mark) -> bool:
        """Whether a node has refused a request, and may have run a later one on one of its keys since."""
        keys = _keys(mark.kind, mark.key, mark.request)
        is_followed = any(key in one.request.split() for key in keys for one in self.due)
        is_refused = self.cluster.refusals[mark.request] > mark.refused
        return is_refused and is_followed and sum(self.cluster.runs[key] for key in keys) > mark.ran

    # -- what it asks

    def _set(self) -> list[bytes]:
        key, value = self._value, self.unique()
        confirms = self._confirms(value, lambda got: got == b"OK" and self._is_rising(key, value))
        return [
            self.ask(b"SET", key, value, is_right=confirms),
            self.ask(b"GET", key, is_right=partial(self._is_rising, key)),
        ]

    def _is_rising(self, key: bytes, got: Any) -> bool:
        """Whether a value is no older than those seen. What an earlier connection has left behind may come
        late."""
        if got is None or not isinstance(got, bytes):
            return got is None
        number = int(got.split(b":")[1])
        before, self._seen[key] = self._seen.get(key, 0), number
        is_fall = self._first <= number < before
        return got.startswith(self._prefix) and (not is_fall or self.witness.may_lose)

    def _pair_keys(self, number: int) -> tuple[bytes, bytes]:
        tag = b"sim:{%b:pair:%d}" % (self.name.encode(), number)
        return tag + b":a", tag + b":b"

    def _pair(self) -> list[bytes]:
        """Two keys of one hash slot, which always have the same value."""
        one, other = self._pair_keys(int(self._value[-1:]))
        value = self.unique()

        def are_alike(got: Any) -> bool:
            is_pair = isinstance(got, list) and len(got) == 2 and got[0] == got[1]
            return is_pair and self._is_rising(one, got[0])

        confirms = self._confirms(value, lambda got: got == b"OK" and self._is_rising(one, value))
        return [
            self.ask(b"MSET", one, value, other, value, is_right=confirms),
            self.ask(b"MGET", one, other, is_right=are_alike),
        ]

    def _many(self) -> list[bytes]:
        """Keys of several hash slots in one pipeline."""
        out, here = [], int(self._value[-1:])
        for number in range(KEYS):
            self._choose(number)
            out += [*self._increment(), *self._push()]
        self._choose(here)
        return out

    def _across(self) -> list[bytes]:
        """Several hash slots in one command."""
        keys = [b"sim:value:%b:%d" % (self.name.encode(), number) for number in range(KEYS)]
        assert len({*map(hash_slot, keys)}) > 1
        if self.splits and self._has_large:
            self.is_excused = True  # one reply may be longer than a client may leave unread

        def are_right(got: Any) -> bool:
            return self.splits and isinstance(got, list) and len(got) == KEYS and all(map(self._is_own, got))

        return [self._as(ACROSS, b"", lambda: self.ask(b"MGET", *keys, is_right=are_right))]

    def _foreign(self) -> list[bytes]:
        """A key that the policy refuses."""
        request = lambda: self.ask(b"SET", b"foreign:1", b"x", is_right=lambda _got: False)  # noqa: E731
        return [self._as(FOREIGN, b"", request)]

    def _as(self, kind: str, lead: bytes, ask: Callable[[], Any]) -> Any:
        """Make requests of this kind."""
        self._kind, self._lead = kind, lead
        try:
            return ask()
        finally:
            self._kind, self._lead = ALONE, b""

    def _transaction(self) -> list[bytes]:
        is_whole = self._kind != PIECES and not self.due and self.sends_whole
        kind = WHOLE if is_whole else PIECES
        lead = b"RPUSH %b %b:%d" % (self._list, self.name.encode(), self._count + 1)
        made: list[bytes] = self._as(kind, lead, super()._transaction)
        return made

    def _begin_transaction(self) -> None:
        self._kind = PIECES
        try:
            super()._begin_transaction()
        finally:
            self._kind = ALONE

    def _watch(self) -> list[bytes]:
        lead = b"SET %b %b:%d" % (self._value, self.name.encode(), self._count + 1)
        made: list[bytes] = self._as(WATCHED, lead, super()._watch)
        return made


def _keys(kind: str, key: bytes, request: bytes) -> list[bytes]:
    """The keys of a request whose first key is this one."""
    return request.split()[1:] if kind in (ACROSS, STAYING_ACROSS) else [key]
