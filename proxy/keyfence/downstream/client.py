# cython: annotation_typing=False
"""One client's transport, between its session and its links to Redis.

Rule: the transport passes bytes to the session, and the session's output goes to the client and to Redis.
What may happen at all follows from the state of the connection's life (`life`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

from keyfence.identity.certificates import with_certificate
from keyfence.identity.client_facts import Evidence
from keyfence.net.closures import HALF_CLOSED, OUTPUT, SERVICE_CONNECTIONS, SHUTDOWN, Closure
from keyfence.net.host_port import host_port
from keyfence.policy.verdict import Peer
from keyfence.resp.profile import Profile
from keyfence.resp.replies import ErrorPart
from keyfence.session.conversation.context import ClientOrigin
from keyfence.session.conversation.conversation import Conversation
from keyfence.session.conversation.identity import Identity
from keyfence.session.conversation.known_client import KnownClient
from keyfence.session.conversation.reply_slots import Confirm
from keyfence.session.passthrough import Passthrough, Unread
from keyfence.session.session import Session
from keyfence.telemetry.operator_log import notice, report_fault
from keyfence.telemetry.traffic import Traffic
from keyfence.upstream.dedicated import DedicatedLink, Owner

from .context import ServerContext
from .dismissal import end_then_close, send_with_end
from .flow import Flow, Leaving
from .half_closed import HalfClosed
from .life import Event, Life, next_state, states_where
from .quotas import ConnectionQuota, too_many
from .timing import FIRST_TIMED, RETRIED_AFTER, TIMED_EACH, Phase, TimedRequest

# States and events as integers, which compiled code uses without a look-up.
_ARRIVING = int(Life.ARRIVING)
_HALF_CLOSED = int(Life.HALF_CLOSED)
_DISMISSED = int(Life.DISMISSED)
_CLOSING = int(Life.CLOSING)
# A client that is closed gets what was written for it. It is cut off if it reads nothing for so many seconds.
CLOSING_SECONDS = 10.0
_SERVE, _REJECT, _END = int(Event.SERVE), int(Event.REJECT), int(Event.END)
_DISMISS, _LEAVE, _LOSE = int(Event.DISMISS), int(Event.LEAVE), int(Event.LOSE)
# What states admit, as bits.
_TAKES_REQUESTS = states_where(lambda admits: admits.requests)
_TAKES_REPLIES = states_where(lambda admits: admits.replies)
_IS_CLIENT = states_where(lambda admits: admits.is_client)

_UNIDENTIFIED = Passthrough(Identity(""), Unread())  # stands for the session until the client is identified

# Makes the session of a client of this service and origin.
OpensSession = Callable[[str, str], Passthrough]


class Client(Owner):
    """One client's connection (an `asyncio.Protocol`), and its links to Redis."""

    def __init__(
        self,
        context: ServerContext,
        listener: str,
        known: Evidence,
        host: str,
        port: int,
        quota: ConnectionQuota,
        opens: OpensSession | None = None,
    ) -> None:
        """`host` and a non-zero `port` show the client's origin in logs. `quota` is released when the client
        goes. `opens` makes the session of a client that does not speak to Redis."""
        self._context = context
        self._listener = listener
        self._known: Evidence | None = known  # until the client is identified
        self._host = host
        self._port = port
        self._quota = quota
        self._opens = opens
        self._counted_as = ""
        self._counters = context.counters
        self._traffic = Traffic()  # its service's, once the client is identified
        self._life = _ARRIVING
        self._transport: asyncio.Transport | None = None
        self._session: Passthrough = _UNIDENTIFIED
        self._links = context.links(self)
        self._flow = Flow()
        self._half_closed: HalfClosed | None = None
        # For `idle`, in the loop's time.
        self.active = True  # since the last check
        self.idle_since = 0.0
        self.partial_since = 0.0  # when the incomplete request began; 0.0: there is none
        self._unread = -1  # CLOSING: bytes that the client had not read when seen last; -1: not seen yet
        self._until_timed = FIRST_TIMED
        self._timed: TimedRequest | None = None
        self._asks = False  # whether a question of the session awaits its answer
        self._must_renew = False  # its dedicated connection, as soon as it would not notice
        self.connected_at = 0.0  # in the loop's time

    @property
    def service(self) -> str:
        return self._session.client.service

    @property
    def speaks_to_redis(self) -> bool:
        return self._opens is None

    @property
    def peer(self) -> Peer:
        """Who the client is, as logs show it."""
        client = self._session.client
        return client.peer if isinstance(client, KnownClient) else Peer(self.shown)

    @property
    def host(self) -> str:
        return self._host  # empty for a unix socket

    @property
    def shown(self) -> str:
        """The client's origin, as logs show it."""
        return host_port(self._host, self._port) if self._port else self._host

    # -- the client's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        context = self._context
        self._transport = transport
        service, known_by, names = self._identify(transport)
        if not self._quota.serve(service):
            self._counters.connection_rejected(self._listener, "service")
            transport.write(too_many(service))
            self._life = next_state(self._life, _REJECT)
            transport.close()
            return
        context.clients.add(self)
        self._life = next_state(self._life, _SERVE)
        if self._opens is not None:
            self._session = self._opens(service, self.shown)
        elif context.sessions is None:
            self._session = Passthrough(Identity(service), Unread(context.upstream.address.database))
        else:
            origin = ClientOrigin(service, self._host, self._port, names, known_by)
            self._session = Session(context.sessions, origin)
        if self._opens is None:
            context.serve_by(self._links, service, self)
        self._counted_as = service
        self._traffic = self._counters.meter(service)
        self.connected_at = asyncio.get_running_loop().time()
        self._counters.connection_opened(service, self._listener)

    def _identify(self, transport: asyncio.Transport) -> tuple[str, str, Sequence[str]]:
        """The client's service, the source that knows it, and the names in the client's certificate."""
        known, self._known = self._known, None
        assert known is not None
        known = with_certificate(known, transport.get_extra_info("peercert"))
        return *self._context.common.identities.identify(known), known.names

    def data_received(self, data: bytes) -> None:
        if not _TAKES_REQUESTS >> self._life & 1:
            return
        self._traffic.client_in += len(data)
        self.active = True
        if self._must_renew:
            self.renew()
        before = self._session.conversation.backlog()
        self._until_timed -= 1
        if self._until_timed < 0:
            self._begin_timing()
        try:
            self._session.from_client(data)
            self._flush()
        except Exception as exc:
            self._failed(exc)
        if self._timed is not None and self._timed.phase is Phase.READ:
            self._timed = None
        if self.partial_since or self._session.conversation.backlog():
            self._note_partial(before, len(data))

    def _note_partial(self, before: int, came: int) -> None:
        """Note when the incomplete request began: now, unless all new bytes belong to an earlier one."""
        if not self._context.quotas.limits.request_time:
            return
        after = self._session.conversation.backlog()
        if not after:
            self.partial_since = 0.0
        elif not before or after != before + came:
            self.partial_since = asyncio.get_running_loop().time()

    def eof_received(self) -> bool:
        """The client sends no more. It has gone, or waits for its last replies. If they wait for the end of
        an outage, it has gone: it has run out of patience, and may ask again."""
        if self._life == _DISMISSED:
            self._leave()
            return False
        self._life = next_state(self._life, _END)
        conversation = self._session.conversation
        can_answer = self._links.is_open or conversation.wants_turn or self._asks
        if self._links.is_open and self._links.is_held:
            can_answer = False
        if can_answer and conversation.awaits_more and not conversation.replies.closing:
            self._pass_end()
            return True
        self._close(None)
        return False

    def _pass_end(self) -> None:
        """Tell Redis that no more requests will come."""
        if self._half_closed is None:
            self._half_closed = HalfClosed(self._waited_too_long)
        self._half_closed.pass_end(self._session.conversation, self._links)

    def _waited_too_long(self) -> None:
        self._close_at_once(HALF_CLOSED)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._transport = None
        if self._half_closed is not None:
            self._half_closed.stop()
            self._half_closed = None
        self._quota.leave()
        if _IS_CLIENT >> self._life & 1:
            self._context.clients.discard(self)
            self._counters.connection_closed(self._counted_as, self._listener)
        self._life = next_state(self._life, _LOSE)
        self._session.client.leave()
        self._links.close()

    def pause_writing(self) -> None:
        """The client reads too slowly. Pause reading from Redis for it, if possible."""
        self._settle_full(full=True)

    def resume_writing(self) -> None:
        self._settle_full(full=False)

    def _settle_full(self, *, full: bool) -> None:
        self._flow.is_full = full
        self._flow.settle_upstream(self._session.conversation, self._links)
        self._settle_reading()

    # -- the upstream's side

    def upstream_data(self, _link: object, data: bytes) -> None:
        self._traffic.upstream_in += len(data)
        if self._timed is not None:
            self._reply_begins()
        try:
            self._session.from_upstream(data)
            self._flush()
        except Exception as exc:
            self._failed(exc)

    def upstream_unasked(self, _link: object, data: bytes) -> None:
        self._traffic.upstream_in += len(data)
        self._guarded(self._session.from_kept, data)

    def upstream_refused(self, _link: object, reason: str) -> None:
        self._guarded(self._session.upstream_refused, reason)

    def upstream_lost(self, _link: object, reason: str) -> None:
        if self._life == _HALF_CLOSED:
            self._close(None)  # Redis learned that the client is gone, and closed the connection
        else:
            self._guarded(self._session.conversation.upstream_lost, reason)

    def current_profile(self) -> Profile:
        return self._session.conversation.profile

    def listens(self) -> bool:
        replies = self._session.conversation.replies
        return bool(replies.subscriptions) or replies.monitoring

    def confirmation(self) -> object:
        head = self._session.conversation.replies.slots.head
        return head if isinstance(head, Confirm) else None

    def upstream_full(self, _link: object, full: bool) -> None:
        self._flow.upstream_is_full = full
        self._settle_reading()

    def shared_replies(self, _link: object, data: bytes, completed: int, whole: bool) -> None:
        """Redis sent `data` on a shared connection. `shared_turn` follows at the end of this turn."""
        self._traffic.upstream_in += len(data)
        if self._timed is not None:
            self._reply_begins()
        try:
            self._session.from_shared(data, completed, whole)
        except Exception as exc:
            self._failed(exc)

    def shared_errors(self, _link: object, data: bytes, errors: list[ErrorPart], at: int) -> bytes:
        return self._session.client.errors_came(data, errors, at)

    def shared_sent(self, _link: object) -> None:
        self._request_written(may_block=False)

    def shared_turn(self, _link: object) -> None:
        try:
            self._flush()
        except Exception as exc:
            self._failed(exc)

    def shared_failed(self, _link: object, exc: Exception) -> None:
        self._failed(exc)

    def shared_lost(self, _link: object, reason: str) -> None:
        self._guarded(self._session.conversation.upstream_lost, reason)

    def _begin_timing(self) -> None:
        """The request in hand is timed, if nothing else of the client is under way."""
        conversation = self._session.conversation
        if conversation.waits or conversation.in_transaction:
            self._timed = None
            self._until_timed = RETRIED_AFTER - 1
        else:
            self._until_timed = TIMED_EACH - 1
            conversation.route.took_others = False
            self._timed = TimedRequest()

    def _request_written(self, *, may_block: bool) -> None:
        """The timed request was written. Its reply is timed too, unless it is one that may wait in Redis."""
        if self._timed is not None and self._timed.phase is Phase.SENT:
            self._timed.written(self._counters, self._counted_as)
            if may_block:
                self._timed = None

    def _reply_begins(self) -> None:
        """The next reply from Redis has begun, and a request is timed."""
        if self._timed is not None and self._timed.phase is Phase.WRITTEN:
            self._timed.answered(self._counters, self._counted_as)
            self._timed = None

    # -- between client and upstream

    def _guarded(self, step: Callable[[Any], None], argument: str | bytes) -> None:
        """Call a method of the session and write its output. An internal error ends only this client."""
        try:
            step(argument)
            self._flush()
        except Exception as exc:
            self._failed(exc)

    def _failed(self, exc: Exception) -> None:
        self._counters.internal_error("relay")
        self._leave(at_once=True)
        report_fault(exc)

    def _flush(self) -> None:
        session, transport = self._session, self._transport
        if transport is None or not _TAKES_REPLIES >> self._life & 1:
            return
        conversation = session.conversation
        if session.client.service != self._counted_as and not self._become():
            return
        if conversation.turn_ends or conversation.wants_turn:
            self._context.turns.follow(self, conversation)
        outlet = conversation.replies
        if outlet.to_client:
            self.active = True
            chunks = outlet.to_client
            data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            chunks.clear()
            self._traffic.client_out += len(data)
            if self._flow.leaving and self.is_idle and self._life != _HALF_CLOSED:
                send_with_end(transport)
            transport.write(data)
            if self._flow.is_full and transport.get_write_buffer_size() > self._context.quotas.limits.output:
                notice(
                    "output",
                    f"{self.shown} ({session.client.service}) is closed: it does not read its replies",
                )
                self._close_at_once(OUTPUT)
                return
        if conversation.route.reopen:
            self._drop_own_if_asked()
        if conversation.to_upstream and not outlet.closing:
            self._send(conversation)
        if self._flow.is_full:
            self._flow.settle_upstream(conversation, self._links)
        if conversation.question is not None:
            self._ask(session)
        ended = self._life == _HALF_CLOSED
        if outlet.closing or (ended and not conversation.awaits_more):
            self._close(outlet.closing.closure)
        elif ended and self._links.is_open:
            self._pass_end()
        elif self._flow.leaving and self.is_idle:
            self.dismiss()
        else:
            self._settle_reading()

    def take_turn(self) -> None:
        """Go on with the requests that waited for other clients' turns."""
        if not _TAKES_REPLIES >> self._life & 1:
            return
        try:
            self._session.take_turn()
            self._flush()
        except Exception as exc:
            self._failed(exc)

    def _send(self, conversation: Conversation) -> None:
        """Send the conversation's output for Redis on the link of its route."""
        profile, route = conversation.profile, conversation.route
        if route.is_shared and not self._links.may_share(profile):
            conversation.take_own(for_good=not self._links.may_ever_share(profile))
        chunks, counts = conversation.to_upstream, conversation.counts
        for chunk in chunks:
            self._traffic.upstream_out += len(chunk)
        timed = self._timed if self._timed is not None and self._timed.phase is Phase.READ else None
        if route.is_shared:
            if timed is not None and not conversation.shapeable:
                timed.sent()
                self._links.time_shared()
            self._links.send_shared(chunks, counts, conversation.shapeable)
            conversation.shapeable = False
        else:
            self._links.send_own(profile, chunks)
            if timed is not None and not self._links.unsent():
                timed.sent()
                self._request_written(may_block=route.took_others)
        if timed is not None and timed.phase is Phase.READ:
            self._timed = None
        chunks.clear()
        counts.clear()

    def _ask(self, session: Passthrough) -> None:
        """Have the session's question answered, in a later turn. The session continues with the answer."""
        question, session.conversation.question = session.conversation.question, None
        assert question is not None

        def answered(answer: Any) -> None:
            self._asks = False
            if _TAKES_REPLIES >> self._life & 1:
                self._guarded(lambda _: session.take_answer(question, answer), "")

        self._asks = True
        self._context.common.ask(question._replace(answered=answered))

    def policy_replaced(self) -> None:
        self._session.forget_policy()

    def upstream_moved(self, reason: str, held: Collection[str]) -> None:
        self._guarded(lambda why: self._links.move(why, held), reason)

    def renew(self) -> None:
        """Replace the dedicated connection; if the client would notice, close it if that leads to a replica.
        If a reply is due, or the connection is not used now, do so later."""
        conversation = self._session.conversation
        self._must_renew = self._links.has_own and not conversation.give_up_own()
        self._drop_own_if_asked()
        if self._must_renew and conversation.route.is_shared:
            self._must_renew = False
            self._links.doubt_own()
        elif self._must_renew and conversation.may_ask_on_own():
            self._must_renew = not self._links.ask_role()

    @property
    def own(self) -> tuple[DedicatedLink | None, Conversation]:
        """The client's own connection to Redis, if it is open, and its conversation."""
        return self._links.own, self._session.conversation

    def tick(self, now: float) -> None:
        """Close the dedicated connection if the client no longer needs it; otherwise keep it alive."""
        conversation = self._session.conversation
        try:
            if not conversation.route.is_shared:
                conversation.settle()
                self._drop_own_if_asked()
            self._links.keep_alive(now)
        except Exception as exc:
            self._failed(exc)

    def _drop_own_if_asked(self) -> None:
        route = self._session.conversation.route
        if route.reopen:
            route.reopen = False
            self._links.drop_own()

    def _become(self) -> bool:
        """The client has authenticated as another service. Returns False, and closes the client, if the
        service has too many connections."""
        counters, service = self._counters, self._session.client.service
        if not self._quota.serve(service):
            assert self._transport is not None
            outlet = self._session.conversation.replies
            self._transport.writelines([*outlet.to_client, too_many(service)])
            outlet.to_client = []
            self._close(SERVICE_CONNECTIONS)
            return False
        counters.connection_identified(self._counted_as, service, self._listener)
        self._counted_as = service
        self._traffic = counters.meter(service)
        self._context.serve_by(self._links, service, self)
        return True

    def _settle_reading(self) -> None:
        if self._transport is not None:
            self._flow.settle_reading(self._transport, self._session.conversation, self._links)

    def _close(self, why: Closure | None) -> None:
        """Close once all written bytes have reached the client. None: the client itself has ended."""
        if self._transport is not None and not self._transport.is_closing():
            if why is not None:
                self._counters.closed_for(why.label)
            self._leave()
            self._links.close()  # reading the written bytes may take the client a while; no more will follow

    def _close_at_once(self, why: Closure) -> None:
        self._counters.closed_for(why.label)
        self._leave(at_once=True)

    def _leave(self, *, at_once: bool = False) -> None:
        """Close the transport, after all written bytes were sent or `at_once`."""
        self._life = next_state(self._life, _LEAVE)
        if self._transport is not None:
            if at_once:
                self._transport.abort()
            else:
                self._transport.close()

    @property
    def waits(self) -> bool:
        """Whether the client waits for a reply, or for messages of its subscriptions."""
        return self._session.conversation.waits

    @property
    def holds_back(self) -> bool:
        """Whether keyfence delays requests that the client has sent."""
        return self._session.conversation.holds_back or not self._flow.is_reading

    def leaves(self, now: float) -> bool:
        """Whether the client is closed already. One that reads nothing of what was written is cut off."""
        if self._life != _CLOSING or self._transport is None:
            return False
        unread = self._transport.get_write_buffer_size()
        if self._unread < 0 or unread < self._unread:
            self._unread, self.idle_since = unread, now
        elif now - self.idle_since >= CLOSING_SECONDS:
            self._transport.abort()
        return True

    def give_up(self, why: Closure) -> None:
        """Close the client, because it has exceeded a time limit, or Redis is gone."""
        self._close(why)

    @property
    def is_idle(self) -> bool:
        """Whether no reply is due, no request is delayed, and no transaction is open."""
        conversation = self._session.conversation
        return not (conversation.outstanding or conversation.in_transaction or conversation.holds_back)

    def leave(self, how: Leaving) -> None:
        """The process ends, and the client's time to leave has come."""
        self._flow.leaving = int(how)
        if how is Leaving.AT_REST and self.is_idle:
            self.dismiss()
        else:
            self._settle_reading()

    def notify(self, notice: bytes, *, moves: bool = False) -> bool:
        """Send a maintenance notification; `moves`: a MOVING. Returns whether the client gets it."""
        session = self._session
        if moves and not session.client.can_move:
            return False
        if not _TAKES_REPLIES >> self._life & 1 or not session.conversation.replies.tell(notice):
            return False
        self._flush()
        return True

    def dismiss(self) -> None:
        """Close the client when the process ends, after its last reply.

        The bytes that it still sends are dropped: their commands do not run and get no reply. Until it has
        received everything, it is a client that remains, and the drain's deadline aborts it.
        """
        transport = self._transport
        if transport is None or transport.is_closing() or self._life == _DISMISSED:
            return
        self._life = next_state(self._life, _DISMISS)
        self._counters.closed_for(SHUTDOWN.label)
        self._links.close()
        end_then_close(transport)
        self._flow.read_on(transport)

    def abort(self) -> None:
        """Close at once and drop unsent bytes, because the process has no more time."""
        if self._transport is not None:
            if self._life != _DISMISSED:
                self._counters.closed_for(SHUTDOWN.label)
            self._leave(at_once=True)
