# cython: annotation_typing=False
"""One client's transport, and the flow control between the client and Redis.

Rule: the transport passes bytes to the session and writes the session's output. A side that reads too slowly
pauses the reading from the other side, so that no buffer here exceeds its limit.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, cast

from keyfence.config.limits import ClientLimits
from keyfence.identity.certificates import with_certificate
from keyfence.identity.evidence import Evidence
from keyfence.identity.resolver import Resolver
from keyfence.net.host_port import host_port
from keyfence.policy.engine.authorizer import InForce
from keyfence.policy.verdict import Peer
from keyfence.resp.limits import RequestLimits
from keyfence.resp.replies import ErrorPart
from keyfence.session.conversation.base import SessionBase
from keyfence.session.conversation.context import ClientOrigin, SessionContext
from keyfence.session.conversation.questions import Question
from keyfence.session.conversation.shown_ids import ShownIds
from keyfence.session.passthrough import Passthrough
from keyfence.session.session import Session
from keyfence.telemetry.operator_log import notice, report_fault
from keyfence.telemetry.telemetry import Telemetry
from keyfence.telemetry.traffic import Traffic
from keyfence.upstream.health import Upstream, send_with_end
from keyfence.upstream.links import Links, Owner
from keyfence.upstream.pools import Pools

from .closures import closure_label
from .dismissal import end_then_close
from .quotas import ConnectionQuota, ConnectionQuotas, too_many
from .turns import Turns

# The bytes that may be received while a request waits for its connection to open.
MAX_UNSENT = 1024 * 1024
_MAX_UNSENT = MAX_UNSENT  # as a C integer when compiled
# While a client does not read, keyfence does not read from the client's dedicated connection either, so that
# the rest of a large reply waits in Redis. With more than this number of replies due it keeps reading, so
# that the output limit applies.
MOST_LEFT_WAITING = 64
# How long a client that sends no more may wait for replies, if Redis cannot be told that it sends no more.
LINGER_SECONDS = 5.0
TIMED_EACH = 64  # a request of one read in this many is timed, because taking the time costs something
RETRIED_AFTER = 8  # it is timed this many reads later, if something of the client is under way then


def _not_answered(question: Question) -> None:
    asyncio.get_running_loop().call_soon(question.answered, None)


class ServerContext:
    """The objects that all clients of a process share."""

    def __init__(
        self,
        in_force: InForce | None,
        identities: Resolver,
        upstream: Upstream,
        telemetry: Telemetry,
        limits: RequestLimits,
        client_limits: ClientLimits,
        shared_connections: int = 0,
    ) -> None:
        """`in_force`: None passes everything on unread. `shared_connections`: the number of shared upstream
        connections of one kind; with 0 each client has a dedicated one."""
        self.upstream = upstream
        self.telemetry = telemetry
        self.counters = telemetry.counters  # kept, because asking for them gathers all counts
        self.quotas = ConnectionQuotas(client_limits)
        self.clients: set[Client] = set()
        self.ids = ShownIds()
        self.ask: Callable[[Question], None] = _not_answered  # takes the questions of sessions
        self.draining = False  # whether clients without due replies are dismissed
        self.reads_on = True  # while draining: whether requests are still read
        self.sharing = shared_connections > 0 and in_force is not None
        self.pools = Pools(upstream, shared_connections)
        self.turns = Turns()
        self.identities = identities
        self.sessions: SessionContext | None = None
        if in_force is not None:
            selects = upstream.address.database, upstream.address.selects_later
            self.sessions = SessionContext(
                in_force, identities, telemetry, limits, self._greeting, *selects, self.sharing, self.ids
            )

    def admit(self, identities: Resolver, limits: RequestLimits) -> None:
        """From now on, new clients are identified by `identities`, and their requests have these limits."""
        self.identities = identities
        if self.sessions is not None:
            self.sessions = dataclasses.replace(self.sessions, identities=identities, limits=limits)

    def _greeting(self) -> Sequence[bytes]:
        return self.upstream.address.greeting()

    def tick(self) -> None:
        """Close connections that are no longer needed. Call this about once a second."""
        self.pools.tick()
        if self.sharing:
            now = asyncio.get_running_loop().time()
            for client in list(self.clients):
                client.tick(now)


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
    ) -> None:
        """`host` and a non-zero `port` show the client's origin in logs. `quota` is released when the client
        goes."""
        self._context = context
        self._listener = listener
        self._known: Evidence | None = known  # until the client is identified
        self._host = host
        self._port = port
        self._quota = quota
        self._counted_as = ""
        self._counters = context.counters
        self._traffic = Traffic()  # its service's, once the client is identified
        self._is_served = False  # whether it is among the context's clients
        self._transport: asyncio.Transport | None = None
        self._session: SessionBase = Passthrough("")
        self._links = Links(context.upstream, context.pools, self)
        self._upstream_full = False
        self._reading = True
        self._full = False  # whether the client reads too slowly …
        self._upstream_paused = False  # … so that its dedicated connection is not read
        self._closing = False  # whether its transport accepts no more bytes
        self._ended = False  # whether the client has sent its last byte
        self._linger: asyncio.TimerHandle | None = None
        # For `idle`, in the loop's time.
        self.active = True  # since the last check
        self.idle_since = 0.0
        self.partial_since = 0.0  # when the incomplete request began; 0.0: there is none
        self._dismissed = False
        # A client's second read is timed, and then each 64th. The first one may wait for a connection.
        self._until_timed = 1
        self._read_at = 0.0  # when the bytes in hand were read; 0.0: they are not timed
        self._timed_from = 0.0  # the same of the timed request, until it is written
        self._sent_at = 0.0  # when it was written; 0.0: no reply to it is due
        self._asks = False  # whether a question of the session awaits its answer
        self.connected_at = 0.0  # in the loop's time

    @property
    def service(self) -> str:
        return self._session.service

    @property
    def peer(self) -> Peer:
        """Who the client is, as logs show it."""
        session = self._session
        return session.peer if isinstance(session, Session) else Peer(self.shown)

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
            self._leave()
            return
        context.clients.add(self)
        self._is_served = True
        if context.sessions is None:
            self._session = Passthrough(service, context.upstream.address.database)
        else:
            origin = ClientOrigin(service, self._host, self._port, names, known_by)
            self._session = Session(context.sessions, origin)
        self._counted_as = service
        self._traffic = self._counters.meter(service)
        self.connected_at = asyncio.get_running_loop().time()
        self._counters.connection_opened(service, self._listener)

    def _identify(self, transport: asyncio.Transport) -> tuple[str, str, Sequence[str]]:
        """The client's service, the source that knows it, and the names in the client's certificate."""
        known, self._known = self._known, None
        assert known is not None
        known = with_certificate(known, transport.get_extra_info("peercert"))
        return *self._context.identities.identify(known), known.names

    def data_received(self, data: bytes) -> None:
        if not self._is_served or self._dismissed:
            return
        self._traffic.client_in += len(data)
        self.active = True
        before = self._session.backlog()
        self._until_timed -= 1
        if self._until_timed < 0:
            self._begin_timing()
        try:
            self._session.from_client(data)
            self._flush()
        except Exception as exc:
            self._failed(exc)
        self._read_at = 0.0
        if self.partial_since or self._session.backlog():
            self._note_partial(before, len(data))

    def _note_partial(self, before: int, came: int) -> None:
        """Note when the incomplete request began: now, unless all new bytes belong to an earlier one."""
        if not self._context.quotas.limits.request_time:
            return
        after = self._session.backlog()
        if not after:
            self.partial_since = 0.0
        elif not before or after != before + came:
            self.partial_since = asyncio.get_running_loop().time()

    def eof_received(self) -> bool:
        """The client sends no more. It has gone, or waits for its last replies. If they wait for the end of
        an outage, it has gone: it has run out of patience, and may ask again."""
        self._ended = True
        if self._dismissed:
            self._leave()
            return False
        can_answer = self._links.is_open or self._session.wants_turn or self._asks
        if self._links.is_open and self._links.is_held:
            can_answer = False
        if can_answer and self._session.awaits_more and not self._session.closing:
            self._pass_end()
            return True
        self._close("")
        return False

    def _pass_end(self) -> None:
        """Tell Redis that no more requests will come, once all are sent.

        Redis then answers the requests that it has read, but ends a blocked BLPOP, which would otherwise take
        an element for a client that has gone.
        """
        if not self._session.holds_back and self._links.end():
            self._stop_lingering()
        elif self._linger is None and not self._session.wants_turn:
            loop = asyncio.get_running_loop()
            self._linger = loop.call_later(LINGER_SECONDS, self._close_at_once, "half_closed")

    def _stop_lingering(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    def connection_lost(self, _exc: Exception | None) -> None:
        self._transport = None
        self._stop_lingering()
        self._quota.leave()
        if self._is_served:
            self._is_served = False
            self._context.clients.discard(self)
            self._counters.connection_closed(self._counted_as, self._listener)
            if self._session.opaque_as:
                self._context.telemetry.opaque_ended(self._session.opaque_as)
        self._context.ids.forget(self._session)
        self._links.leave()

    def pause_writing(self) -> None:
        """The client reads too slowly. Pause reading from Redis for it, if possible."""
        self._full = True
        self._settle_upstream()
        self._settle_reading()

    def resume_writing(self) -> None:
        self._full = False
        self._settle_upstream()
        self._settle_reading()

    def _settle_upstream(self) -> None:
        paused = self._full and self._session.outstanding <= MOST_LEFT_WAITING
        if paused != self._upstream_paused:
            self._upstream_paused = paused
            if paused:
                self._links.pause()
            else:
                self._links.resume()

    # -- the upstream's side

    def upstream_data(self, _link: object, data: bytes) -> None:
        self._traffic.upstream_in += len(data)
        if self._sent_at:
            self._end_timing()
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
        if self._ended:
            self._close("")  # Redis learned that the client is gone, and closed the connection
        else:
            self._guarded(self._session.upstream_lost, reason)

    def upstream_full(self, _link: object, full: bool) -> None:
        self._upstream_full = full
        self._settle_reading()

    def shared_replies(self, _link: object, data: bytes, completed: int, whole: bool) -> None:
        """Redis sent `data` on a shared connection. `shared_turn` follows at the end of this turn."""
        self._traffic.upstream_in += len(data)
        if self._sent_at:
            self._end_timing()
        try:
            self._session.from_shared(data, completed, whole)
        except Exception as exc:
            self._failed(exc)

    def shared_errors(self, _link: object, data: bytes, errors: list[ErrorPart], at: int) -> bytes:
        return self._session.errors_came(data, errors, at)

    def shared_sent(self, _link: object) -> None:
        self._request_written(may_block=False)

    def shared_turn(self, _link: object) -> None:
        try:
            self._flush()
        except Exception as exc:
            self._failed(exc)

    def shared_lost(self, _link: object, reason: str) -> None:
        self._guarded(self._session.upstream_lost, reason)

    def _begin_timing(self) -> None:
        """The bytes in hand are timed, if nothing else of the client is under way."""
        session = self._session
        self._timed_from = self._sent_at = 0.0
        if session.waits or session.in_transaction:
            self._until_timed = RETRIED_AFTER - 1
        else:
            self._until_timed = TIMED_EACH - 1
            session.route.took_others = False
            self._read_at = perf_counter()

    def _request_written(self, *, may_block: bool) -> None:
        """The timed request was written. Its reply is timed too, unless it is one that may wait in Redis."""
        if self._timed_from:
            now = perf_counter()
            self._counters.took("request", self._counted_as, now - self._timed_from)
            self._timed_from = 0.0
            self._sent_at = 0.0 if may_block else now

    def _end_timing(self) -> None:
        """The reply to the timed request has begun."""
        self._counters.took("upstream", self._counted_as, perf_counter() - self._sent_at)
        self._sent_at = 0.0

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
        if transport is None or self._closing:
            return
        if session.service != self._counted_as and self._is_served and not self._become():
            return
        if session.turn_ends or session.wants_turn:
            self._context.turns.follow(self, session)
        outlet = session.outlet
        if outlet.to_client:
            self.active = True
            chunks = outlet.to_client
            data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            chunks.clear()
            self._traffic.client_out += len(data)
            if self._context.draining and self.is_idle and not self._ended:
                send_with_end(transport)
            transport.write(data)
            if self._full and transport.get_write_buffer_size() > self._context.quotas.limits.output:
                notice("output", f"{self.shown} ({session.service}) is closed: it does not read its replies")
                self._close_at_once("output")
                return
        if session.reopen:
            self._drop_own_if_asked()
        if session.to_upstream and not outlet.closing:
            self._send(session)
        if self._full:
            self._settle_upstream()
        if session.question is not None:
            self._ask(session)
        if outlet.closing or (self._ended and not session.awaits_more):
            self._close(outlet.closing)
        elif self._ended and self._links.is_open:
            self._pass_end()
        elif self._context.draining and self.is_idle:
            self.dismiss()
        else:
            self._settle_reading()

    def take_turn(self) -> None:
        """Go on with the requests that waited for other clients' turns."""
        if self._transport is None or self._closing:
            return
        try:
            self._session.take_turn()
            self._flush()
        except Exception as exc:
            self._failed(exc)

    def _send(self, session: SessionBase) -> None:
        """Send the session's output for Redis on the link of its route."""
        profile, route = session.profile, session.route
        if route.is_shared and not self._links.may_share(profile):
            session.take_own(for_good=not self._links.may_ever_share(profile))
        chunks, counts = session.to_upstream, session.counts
        for chunk in chunks:
            self._traffic.upstream_out += len(chunk)
        if route.is_shared:
            if self._read_at and not session.shapeable:
                self._timed_from = self._read_at
                self._links.time_shared()
            self._links.send_shared(chunks, counts, session.shapeable)
            session.shapeable = False
        else:
            self._links.send_own(profile, chunks)
            if self._read_at and not self._links.unsent():
                self._timed_from = self._read_at
                self._request_written(may_block=route.took_others)
        self._read_at = 0.0
        chunks.clear()
        counts.clear()

    def _ask(self, session: SessionBase) -> None:
        """Have the session's question answered, in a later turn. The session continues with the answer."""
        question, session.question = session.question, None
        assert question is not None
        go_on = question.answered

        def answered(answer: Any) -> None:
            self._asks = False
            if self._transport is not None and not self._closing:
                self._guarded(lambda _: go_on(answer), "")

        self._asks = True
        self._context.ask(question._replace(answered=answered))

    def policy_replaced(self) -> None:
        self._session.forget_policy()

    def tick(self, now: float) -> None:
        """Close the dedicated connection if the client no longer needs it; otherwise keep it alive."""
        try:
            self._settle()
            self._links.keep_alive(now)
        except Exception as exc:
            self._failed(exc)

    def _settle(self) -> None:
        if not self._session.route.is_shared:
            self._session.settle()
            self._drop_own_if_asked()

    def _drop_own_if_asked(self) -> None:
        if self._session.reopen:
            self._session.reopen = False
            self._links.drop_own()

    def _become(self) -> bool:
        """The client has authenticated as another service. Returns False, and closes the client, if the
        service has too many connections."""
        counters, service = self._counters, self._session.service
        if not self._quota.serve(service):
            assert self._transport is not None
            self._transport.writelines([*self._session.to_client, too_many(service)])
            self._session.to_client = []
            self._close("service_connections")
            return False
        counters.connection_identified(self._counted_as, service, self._listener)
        self._counted_as = service
        self._traffic = counters.meter(service)
        return True

    def _settle_reading(self) -> None:
        """Read from the client only while its requests can be sent."""
        if self._transport is None:
            return
        wanted = (
            self._session.wants_input() and not self._upstream_full and self._links.unsent() < _MAX_UNSENT
        )
        # Replies on a shared connection cannot be paused, so no more requests are read.
        wanted = wanted and not (self._full and self._session.route.is_shared)
        wanted = wanted and (self._context.reads_on or self._session.in_transaction)
        if wanted != self._reading and not self._transport.is_closing():
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _close(self, reason: str) -> None:
        """Close once all written bytes have reached the client."""
        if self._transport is not None and not self._transport.is_closing():
            if reason:
                self._counters.closed_for(closure_label(reason))
            self._leave()
            self._links.close()  # reading the written bytes may take the client a while; no more will follow

    def _close_at_once(self, reason: str) -> None:
        self._counters.closed_for(reason)
        self._leave(at_once=True)

    def _leave(self, *, at_once: bool = False) -> None:
        """Close the transport, after all written bytes were sent or `at_once`."""
        self._closing = True
        if self._transport is not None:
            if at_once:
                self._transport.abort()
            else:
                self._transport.close()

    @property
    def waits(self) -> bool:
        """Whether the client waits for a reply, or for messages of its subscriptions."""
        return self._session.waits

    @property
    def holds_back(self) -> bool:
        """Whether keyfence delays requests that the client has sent."""
        return self._session.holds_back or not self._reading

    def give_up(self, reason: str) -> None:
        """Close the client, because it has exceeded a time limit."""
        self._close(reason)

    @property
    def is_idle(self) -> bool:
        """Whether no reply is due, no request is delayed, and no transaction is open."""
        session = self._session
        return not session.outstanding and not session.in_transaction and not session.holds_back

    def stop_reading(self) -> None:
        """Stop reading requests, according to `ServerContext.reads_on`."""
        self._settle_reading()

    def dismiss(self) -> None:
        """Close the client when the process ends, after its last reply.

        The bytes that it still sends are dropped: their commands do not run and get no reply. Until it has
        received everything, it is a client that remains, and the drain's deadline aborts it.
        """
        transport = self._transport
        if transport is None or transport.is_closing() or self._dismissed:
            return
        self._dismissed = self._closing = True
        self._counters.closed_for("shutdown")
        self._links.close()
        end_then_close(transport)
        if not self._reading and not transport.is_closing():
            self._reading = True
            transport.resume_reading()

    def abort(self) -> None:
        """Close at once and drop unsent bytes, because the process has no more time."""
        if self._transport is not None:
            if not self._dismissed:
                self._counters.closed_for("shutdown")
            self._leave(at_once=True)
