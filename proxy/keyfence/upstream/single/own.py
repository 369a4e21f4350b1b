"""One client's own connections to the nodes of a cluster, for what does not go on shared ones.

Rule: one request is under way at a time, but for those of a transaction, which go to one node. So replies
come in the client's order, and a request that a node refuses for another one can be sent there. A connection
is kept and used again for its node. What a client subscribes to or monitors, it does at one node.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from keyfence.policy.compiled.hash_slots import SLOTS
from keyfence.resp import encode
from keyfence.resp.profile import Profile
from keyfence.resp.replies import ReplyError, ReplyFramer
from keyfence.telemetry.operator_log import report_fault
from keyfence.upstream.cluster.fan_out import NOT_QUEUED, NOT_SERVED, NOT_WHOLE, Join, Reach, asked, fan_out
from keyfence.upstream.cluster.joining import UNREACHABLE, Joined, without_cluster
from keyfence.upstream.cluster.scanning import Step
from keyfence.upstream.cluster.splitting import split
from keyfence.upstream.dedicated import DedicatedLink, Owner

from .again import Again
from .cutting import NO_NODE, NO_SLOT, arguments
from .kept import KeptLink, KeptLinks
from .masters import Masters
from .refusals import CROSSSLOT, LONGEST, error_for, may_begin, pause_before, refusal_in
from .splits import AtOnce, OneByOne, Whole
from .spreading import Spread
from .transaction import Subscriptions, Transaction
from .waiting import Request, Waiting, refused_request

IDLE_SECONDS = 60.0  # after which a connection is closed
_PUSH, _ERROR = ord(">"), ord("-")
MAX_EDITED = 1024 * 1024  # bytes of a reply that is edited
_PING = encode.command(b"PING")
_SPREAD = (Reach.SHARDS, Reach.NODES, Reach.SCAN, Reach.NOBODY)
_SHAPING = (b"EVAL", b"FCALL", b"SCRIPT", b"FUNCTION")  # of commands whose replies a script words
_NO_LINK: Any = None  # of an answer of keyfence's own


class OwnConnections(Owner):
    """All own connections of one client."""

    def __init__(self, owner: Owner, masters: Masters) -> None:
        self._owner: Owner | None = owner
        self._masters = masters
        self.splits: frozenset[bytes] = frozenset()  # commands that are sent in parts if they have to
        self._owns = KeptLinks()
        self._at = NO_NODE  # the node that was used last
        self._waiting = Waiting()
        self._profile: Profile | None = None
        self._due = 0  # replies
        self._dropped = 0  # of these, the first ones that the client does not get
        self._again: Again | None = None  # the request under way, if it may be sent again
        self._subscriptions = Subscriptions()
        self._transaction = Transaction()
        self._spread: Spread | AtOnce | None = None  # the command that several nodes answer
        self._scan: Step | None = None  # that is a SCAN
        self._in_parts: OneByOne | None = None  # the command of which a part is under way
        self._instead = b""  # the text of the error in place of the next reply
        self._collects = ""  # INFO or HELLO, whose reply is edited
        self._framer = ReplyFramer()
        self._part = b""  # the beginning of an error's line, of which the client has nothing yet
        self._timer: object = None
        self._is_paused = False  # the client reads too slowly …
        self._full: set[object] = set()  # … and so do the nodes of these connections
        self._now = 0.0

    # -- as `ClusterLinks` uses it

    @property
    def is_open(self) -> bool:
        return bool(self._owns)

    @property
    def current(self) -> DedicatedLink | None:
        """The connection in use, if it is open."""
        own = self._owns.get(self._at)
        return own.link if own is not None and own.link.is_open and not own.link.is_closed else None

    @property
    def is_held(self) -> bool:
        """Whether nothing that the client waits for has left keyfence, because a node cannot be reached."""
        own = self._owns.get(self._at)
        if own is None or not self._due or self._spread is not None:
            return not self._due
        return own.link.is_held and self._masters.is_away(self._at)

    @property
    def due(self) -> int:
        """The number of replies due."""
        return self._due

    def unsent(self) -> int:
        """The number of bytes that wait here."""
        own = self._owns.get(self._at)
        return self._waiting.size + (own.link.unsent() if own is not None else 0)

    def send(self, profile: Profile, chunks: Sequence[bytes]) -> None:
        """Send requests. `profile` is what a new connection is given first."""
        self._take(profile)
        for chunk in chunks:
            self._waiting.add(chunk)
        self._send_on()

    def _take(self, profile: Profile) -> None:
        if profile is not self._profile:
            own = self._owns.get(self._at)
            if own is not None:
                own.profile = profile  # it has changed by what was sent there
            self._profile = profile

    def rest(self) -> None:
        """Nothing of the client is under way here, and it uses shared connections."""
        own = self._owns.get(self._at)
        if own is None or own.link.is_kept:
            return
        if self._due or self._waiting.is_within or self._transaction.is_open:
            self._owns.drop(self._at)  # what was sent there is not to have a reply
        else:
            own.link.is_kept = True
            if own.is_in_doubt:
                own.prove(lambda: self._owns.pop(self._owns.number_of(own.link), None))
        self._forget()

    def tick(self, now: float) -> None:
        """Close connections that were idle for a while. Call this about once a second."""
        self._now = now
        for number, own in list(self._owns.items()):
            is_used = number == self._at and not own.link.is_kept
            is_used = is_used or number == self._transaction.watches_at
            is_used = is_used or (self._spread is not None and self._spread.awaits(number))
            if is_used or not own.used_at:  # 0: since before the first call
                own.used_at = now
            elif now - own.used_at > IDLE_SECONDS or number not in self._masters:
                self._owns.drop(number)
        if self._due and self._masters.has_left(self._at):
            self.topology_changed()  # its connection may have been lost only since

    def _forget(self) -> None:
        self._waiting = Waiting()
        self._due = self._dropped = 0
        self._again = None
        self._transaction, self._subscriptions = Transaction(), Subscriptions()
        self._spread = self._scan = self._in_parts = None
        self._instead, self._collects = b"", ""
        self._framer, self._part = ReplyFramer(), b""

    def pause(self) -> None:
        self._is_paused = True
        for own in self._owns.values():
            own.link.pause()

    def resume(self) -> None:
        self._is_paused = False
        for own in self._owns.values():
            own.link.resume()

    def end(self) -> bool:
        """Tell the node that the client sends no more. Returns False if that is not possible."""
        own = self._owns.get(self._at)
        is_sent = own is not None and not self._waiting and not own.link.is_closed and not own.link.is_kept
        return is_sent and own is not None and own.link.end()

    def close(self) -> None:
        self._owner = None
        self._masters.forget(self)
        for own in self._owns.values():
            own.link.close()
        self._owns.clear()
        self._forget()

    # -- requests

    def _go_on(self) -> None:
        """Something has come, or some time has passed: send what may be sent now. If the client is not read
        because of what has waited here, it is again."""
        if self._waiting and self._owner is not None:
            self._take(self._owner.current_profile())  # HELLO may have been answered
            self._send_on()
            if self._owner is not None:
                self._owner.upstream_full(_NO_LINK, bool(self._full))

    def _send_on(self) -> None:
        """Send what may be sent now."""
        while self._waiting and self._owner is not None and self._timer is None:
            if not self._subscriptions.are_confirmed(self._owner):
                return
            request = self._waiting.first
            is_in_transaction = self._transaction.is_open
            if request.begins and self._due and not is_in_transaction and not self._is_raw:
                return
            if request.is_whole and request.slot == NO_SLOT and request.name and not self._is_raw:
                argv = arguments(request.data)
                if fan_out(argv).reach in _SPREAD:
                    if self._due:
                        return
                    self._waiting.take()
                    self._spread_out(request, argv)
                    continue
            if self._divide(request):
                continue
            node = self._node_of(request)
            is_elsewhere = node != self._at or self._transaction.is_discarded
            has_to_know = is_elsewhere or self._transaction.may_be_none_for(request)
            if is_in_transaction and self._due and request.begins and has_to_know:
                return
            if node == NO_NODE:
                self._wait_for_node(request)
                return
            if is_in_transaction and request.begins and is_elsewhere:
                self._begin_anew(node)
                return
            self._waiting.take()
            self._send(request, node)

    @property
    def _is_raw(self) -> bool:
        """Whether replies are not counted, because messages cannot be told from them."""
        is_resp2 = self._profile is not None and self._profile.resp == 2
        return self._subscriptions.is_held and is_resp2

    def _divide(self, request: Request) -> bool:
        """Send a command in parts, if its keys are in several hash slots."""
        may_divide = request.name in self.splits and not (
            self._transaction.is_open or self._subscriptions.is_held
        )
        cut = split(arguments(request.data)) if may_divide else None
        if cut is None:
            return False
        self._waiting.take()
        self._spread = at_once = AtOnce(Whole(cut), self._masters.owners)
        self._due = 1
        for number, requests in at_once.requests.items():
            self._to(number, [requests])
        if at_once.is_complete:
            self._spread_is_over(at_once)
        return True

    def _node_of(self, request: Request) -> int:
        """The node that a request goes to; NO_NODE: none has its hash slot."""
        again = self._again
        if again is not None and again.word and again.is_for(request.data):
            return again.node(self._masters)
        if not request.begins or self._subscriptions.is_held:
            return self._at
        transaction = self._transaction
        if transaction.binds(request):
            return self._at if transaction.is_open else transaction.watches_at
        if transaction.is_open:
            return self._masters.of_slot(request.slot)
        slot = request.slot
        if request.name == b"MULTI":
            slot = self._waiting.slot_within()
        if slot != NO_SLOT:
            return self._masters.of_slot(slot)
        own = self._owns.get(self._at)
        is_away = self._masters.is_away(self._at) and (own is None or own.link.is_held)
        return self._masters.any() if is_away or self._masters.has_left(self._at) else self._at

    def _wait_for_node(self, request: Request) -> None:
        """No node has the hash slot of a request: look again after a pause, but not for ever."""
        again = self._again
        if again is None:
            again = self._again = Again([request.data], 0, request.name.startswith(_SHAPING))
        again.not_served(NOT_SERVED)
        self._masters.not_served()
        if not again.ends(self._masters.patience):
            self._later(pause_before(again.word, again.hops))
            return
        self._again = None
        self._waiting.take()
        if request.ends and self._transaction.is_open:
            self._refuse(NOT_SERVED[1:-2])
        elif request.ends:
            self._give_soon(NOT_SERVED)
        else:
            self._lose("no node has its hash slot")

    def _later(self, pause: float) -> None:
        def go_on() -> None:
            self._timer = None
            self._go_on()

        if self._again is not None:
            self._again.has_waited(pause)
        self._timer = self._masters.later(pause, go_on)

    def _begin_anew(self, node: int) -> None:
        """The first key of an open transaction is at another node, and all replies have come: end it where it
        is, and then begin it there. The client does not see the replies."""
        self._at = node if self._transaction.is_discarded else self._at
        chunks = self._transaction.begun_anew()
        self._due += len(chunks)
        self._dropped += len(chunks)
        self._to(self._at, chunks)

    def _send(self, request: Request, node: int) -> None:
        self._at = node
        is_alone = not self._transaction.is_open  # EXEC is not: replies to what is in it come first
        again = self._again
        is_new = again is None or not again.is_for(request.data)
        subscribes = is_alone and self._owner is not None and self._subscriptions.sent(request, self._owner)
        if request.name == b"RESET":
            self._leave_all_but(node)
        if request.name != b"MULTI" or not self._is_raw:  # a subscriber's is refused
            self._transaction.sent(request, node, is_new=is_new)
        chunks = [request.data]
        is_alone = is_alone and not self._transaction.is_open and not self._subscriptions.is_held
        if request.is_whole and is_alone:
            if again is None or is_new:
                self._again = Again(chunks, 0, request.name.startswith(_SHAPING))
            elif again.is_asking:
                chunks = [again.data_asking]
                self._due, self._dropped = self._due + 1, self._dropped + 1
        elif request.begins:
            self._again = None
        self._collects = request.name.decode() if request.name in (b"INFO", b"HELLO") else ""
        self._due += request.begins and not self._is_raw and not subscribes
        self._to(self._at, chunks)
        if request.name.startswith(_SHAPING):
            self._owns[node].is_in_doubt = True

    def _to(self, number: int, chunks: list[bytes]) -> None:
        own = self._owns.get(number)
        assert self._profile is not None
        if own is not None and (own.link.is_closed or own.profile != self._profile):
            own.link.close()
            own = None
        if own is None:
            link = DedicatedLink(self._masters[number].upstream, self, self._profile.commands())
            own = self._owns[number] = KeptLink(link, self._profile)
            if self._is_paused:
                link.pause()
            self._masters.know(self)
        own.used_at = self._now
        own.link.send(chunks)

    def _leave_all_but(self, node: int) -> None:
        """RESET ends what the client has left anywhere."""
        for number in [one for one in self._owns if one != node]:
            self._owns.drop(number)

    def topology_changed(self) -> None:
        """Some hash slot has another node: what was not sent yet need not wait for the former one."""
        for one in [one for number, one in self._owns.items() if self._masters.is_dead(number)]:
            one.link.move("its node is dead")
        own, again = self._owns.get(self._at), self._again
        if own is None:
            return
        is_away = own.link.is_held and self._masters.is_away(self._at)
        waits = is_away and self._due > 0
        has_lost_its_node = self._subscriptions.is_held and (is_away or self._masters.has_left(self._at))
        if has_lost_its_node or (waits and again is None):  # what it waits for cannot go to another node
            own.link.close()
            self.upstream_lost(own.link, "its node has left the cluster, or is away")
        elif waits and again is not None and not self._transaction.is_open:
            self._owns.drop(self._at)
            self._due = self._dropped = 0
            if self._transaction.watches_at == self._at:
                self._transaction.forget_watch()
            self._waiting.put_back([refused_request(again.requests[0], again.slot)])
            self._go_on()

    # -- replies

    def upstream_data(self, link: DedicatedLink, data: bytes) -> None:
        owner = self._owner
        if owner is None:
            return
        own = self._owns.get(self._at)
        if self._spread is not None:
            number = self._owns.number_of(link)
            if self._spread.awaits(number):
                self._spread_came(number, data)
                return
        if own is None or own.link is not link:
            owner.upstream_unasked(link, data)
        elif self._is_raw:
            owner.upstream_data(link, data)
            self._go_on()
        else:
            try:
                passed = self._sorted(data)
            except ReplyError:
                passed = data  # the session reports it
            if passed:
                owner.upstream_data(link, passed)
            if not self._due or self._transaction.is_open:
                self._go_on()

    def _sorted(self, data: bytes) -> bytes:
        """What the client gets of the bytes of the node in use. Raises ReplyError."""
        framer, at = self._framer, 0
        passed: list[bytes] = []
        while at < len(data):
            begin = at
            begins = framer.at_boundary or bool(self._part)
            at = framer.advance(data, begin, 1, True)
            framer.take_errors()
            piece = self._part + data[begin:at]
            self._part = b""
            if framer.kind == _PUSH or not self._due:
                passed.append(piece)
            elif not framer.at_boundary:
                may_be_refusal = framer.kind == _ERROR and len(piece) <= LONGEST and may_begin(piece)
                if may_be_refusal or (self._collects and len(piece) <= MAX_EDITED):
                    self._part = piece
                elif not self._dropped:
                    passed.append(self._passed(piece, False))
            else:
                self._due -= 1
                passed.append(self._passed(self._reply(piece, begins), True))
        return b"".join(passed)

    def _passed(self, data: bytes, is_end: bool) -> bytes:
        """What the client gets of a piece of a reply: nothing of one to a part, but all of the last one's."""
        if self._in_parts is None or not data:
            return data
        reply = self._in_parts.came(data, is_end)
        self._in_parts = None if reply else self._in_parts
        return reply

    def _reply(self, reply: bytes, begins: bool) -> bytes:
        """What the client gets of the last part of a reply; b"": nothing. `begins`: it is all of it."""
        transaction, is_error = self._transaction, self._framer.kind == _ERROR
        if self._dropped:
            self._dropped -= 1
            if transaction.is_open and transaction.has_failed(is_error):
                self._lose("a transaction cannot be begun at the node of its keys")
            return b""
        transaction.answered(is_error)
        again, self._again = self._again, None
        instead, self._instead = self._instead, b""
        if instead:
            return encode.error(instead.decode())
        refusal = refusal_in(reply) if begins else None
        if refusal is None:
            return without_cluster(self._collects, reply) if self._collects and begins else reply
        if again is None or transaction.watches_more:
            if refusal.is_redirect:
                self._masters.seems_old()
            if self._subscriptions.is_held:
                return reply  # the session says why it is not followed
            is_other = refusal.is_redirect and transaction.is_elsewhere(refusal.slot)
            return CROSSSLOT if is_other else error_for(reply)
        target = self._masters.target(refusal, self._at)
        if refusal.is_redirect:
            is_sure = refusal.slot == again.slot and target != self._at
            is_sure = is_sure and not (again.shapeable and target == NO_NODE)
        else:
            is_sure = not again.shapeable
        if not is_sure:
            return error_for(reply)
        self._masters.refused(refusal, self._at)
        again.refused(refusal, target, error_for(reply))
        if again.ends(self._masters.patience):
            return error_for(reply)
        self._again = again
        self._waiting.put_back([refused_request(again.requests[0], again.slot)])
        self._later(pause_before(again.word, again.hops))
        return b""

    def _give_soon(self, reply: bytes) -> None:
        """The client gets an answer of keyfence's own, and nothing else is sent until then."""
        self._due = 1
        self._masters.later(0.0, lambda: self._give(reply))

    def _give(self, reply: bytes) -> None:
        self._due = 0
        if self._owner is not None and (passed := self._passed(reply, True)):
            self._owner.upstream_data(_NO_LINK, passed)
        self._go_on()

    # -- commands that several nodes answer

    def _spread_out(self, request: Request, argv: Sequence[bytes]) -> None:
        """Have a command answered by the nodes that it concerns. No reply is due."""
        name = request.name.decode("ascii", "replace")
        row, topology = fan_out(argv), self._masters.topology
        if self._transaction.is_open or self._subscriptions.is_held:
            text = NOT_QUEUED if self._transaction.is_open else NOT_WHOLE
            self._refuse(row.refusal.encode() or text % request.name)
        elif row.reach is Reach.NOBODY:
            self._give_soon(encode.error(row.refusal))
        elif row.reach is Reach.SCAN:
            self._scan = Step(argv, topology) if topology.covered == SLOTS else None
            if self._scan is None or self._scan.answer:
                self._give_soon(self._scan.answer if self._scan is not None else NOT_SERVED)
            else:
                self._ask([self._scan.node], self._scan.request, Join.FIRST, name)
        else:
            self._ask([one.id for one in asked(row, topology)], request.data, row.join, name)

    def _refuse(self, error: bytes) -> None:
        """The client gets this error in place of a node's reply: so a transaction is aborted, and no message
        to a subscriber is cut. No reply is due."""
        self._instead, self._due = error, 1
        self._to(self._at, [self._transaction.abort()])

    def _ask(self, node_ids: Sequence[str], request: bytes, join: Join, name: str) -> None:
        numbers = {self._masters.number_of(one): one for one in node_ids}
        if NO_NODE in numbers or not numbers:
            self._give_soon(NOT_SERVED)
            return
        # WAIT concerns the writes of its own connection. Any command before it brings that up to the newest.
        is_wait = name in ("WAIT", "WAITAOF")
        self._spread = Spread(Joined(name, join, node_ids), numbers, int(is_wait))
        self._due = 1
        for number in numbers:
            self._to(number, [_PING, request] if is_wait else [request])

    def _spread_came(self, number: int, data: bytes) -> None:
        """A node has sent a part of its reply."""
        spread = self._spread
        assert spread is not None
        try:
            others = spread.came(number, data)
        except ReplyError as exc:
            self._lose(f"a node's reply cannot be followed: {exc}")
            return
        if others and self._owner is not None:
            self._owner.upstream_unasked(_NO_LINK, others)
        if spread.is_complete:
            self._spread_is_over(spread)

    def _spread_is_over(self, spread: Spread | AtOnce) -> None:
        self._spread = None
        if isinstance(spread, AtOnce) and spread.left:
            # These have not run: each is sent again as a command of its own.
            self._in_parts, self._due = OneByOne(spread.whole, spread.left), 0
            again = [spread.whole.cut.parts[place] for place in spread.left]
            self._waiting.put_back([Request(one.request, b"", one.slot) for one in again])
            self._go_on()
            return
        reply, scan = spread.reply(), self._scan
        if scan is not None:
            page = scan.answered(reply)
            if page is None:
                self._masters.ask_nodes(scan.owner, partial(self._confirmed, scan))
                return
            reply = page
        self._scan = None
        self._give(reply)

    def _confirmed(self, scan: Step, text: bytes, host: str) -> None:
        """A node has told its view of the cluster after the last page of its keys. b"": it has not."""
        if scan is self._scan:
            self._scan = None
            reply = scan.confirmed(text, host) if text else UNREACHABLE
            if scan.is_stale:
                self._masters.seems_old()
            self._give(reply)

    def _lose(self, reason: str) -> None:
        if self._owner is not None:
            self._owner.upstream_lost(_NO_LINK, reason)

    def failed(self, exc: Exception) -> None:
        report_fault(exc)
        self._lose("keyfence has an internal error")

    # -- as connections use it

    def upstream_unasked(self, link: DedicatedLink, data: bytes) -> None:
        if self._owner is not None:
            self._owner.upstream_unasked(link, data)

    def upstream_lost(self, link: DedicatedLink, reason: str) -> None:
        """A connection has ended. The client ends with it if it has left anything there."""
        number, spread = self._owns.number_of(link), self._spread
        self._owns.pop(number, None)
        is_asked = spread is not None and spread.awaits(number)
        is_bound = self._transaction.is_open or self._subscriptions.is_held or (spread is None and self._due)
        is_left = (number == self._at and is_bound) or number == self._transaction.watches_at != NO_NODE
        if is_asked and isinstance(spread, Spread) and not is_left:
            spread.lost(number)
            if spread.is_complete:
                self._spread_is_over(spread)
        elif self._owner is not None and (is_left or is_asked):
            self._owner.upstream_lost(link, reason)

    def upstream_refused(self, link: object, reason: str) -> None:
        """A node has refused a connection, and the client gets that error for all that it waits for. So what
        other nodes still owe must not come."""
        for number, own in list(self._owns.items()):
            is_asked = self._spread is not None and self._spread.awaits(number)
            if own.link is link or is_asked or (number == self._at and self._due):
                self._owns.drop(number)
        self._forget()
        if self._owner is not None:
            self._owner.upstream_refused(link, reason)

    def upstream_full(self, link: object, full: bool) -> None:
        (self._full.add if full else self._full.discard)(link)
        if self._owner is not None:
            self._owner.upstream_full(link, bool(self._full))
