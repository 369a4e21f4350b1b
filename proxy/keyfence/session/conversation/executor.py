# cython: annotation_typing=False
"""Carries out what was decided about the request in hand: send it on, refuse it, or have a handler do it.

Rule: nothing is decided here. What `decided` says is done as soon as the turn of the request has come, and a
reply is seen before anything is evaluated that depends on it.

`Session` reads and decides, and builds on this. The commands in `handlers` use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from keyfence.identity.resolver import Resolver
from keyfence.net.host_port import host_port
from keyfence.policy.compiled.tenants import Caller, Values
from keyfence.policy.engine.authorizer import Authorizer, InForce
from keyfence.policy.services import UNKNOWN
from keyfence.policy.show import printable
from keyfence.policy.verdict import Peer, Ruling
from keyfence.resp import encode
from keyfence.resp.limits import UNIDENTIFIED, ProtocolError, RequestLimits, RequestTooLarge
from keyfence.resp.profile import Profile

from .conversation import ABORT_MARKER, Conversation
from .observer import Observer, Sent
from .refusal import refusal
from .routing import Route
from .shown_ids import Question, ShownIds
from .states import State

# The name under which commands are counted that are not in the table: what a client sends could be anything.
OTHER = "other"
MAX_SAID = 64  # bytes of a name that a client gives itself, as logs show it

Argv = Sequence[bytes]


def _needs_own_connection(_session: Executor, _argv: Argv) -> bool:
    return False


class Handler(NamedTuple):
    """How a session carries out a command that changes the session itself."""

    act: Callable[[Executor, Argv], None]
    # Carries the command out while the client shares a connection. False: it needs one of its own.
    on_shared: Callable[[Executor, Argv], bool] = _needs_own_connection
    is_immediate: bool = False  # whatever is awaited, and wherever the client is
    awaits_multi: bool = True  # what it does depends on Redis' reply to an earlier MULTI


class Decided:
    """What was decided about the request in hand."""

    def __init__(self, handler: Handler | None, refusal: bytes | None, command: str, stays: bool) -> None:
        self.handler = handler  # carries it out; None: it goes upstream as it is
        self.refusal = refusal  # the reply that refuses it; None: it is not refused
        self.command = command  # its name where commands are counted
        self.stays = stays  # it may go on the connection that the client uses now


UNDECIDED = Decided(None, None, "", True)


class Executor(Conversation):
    """A conversation with a client: who it is, which policy applies to it, and what is done for it."""

    def __init__(
        self,
        in_force: InForce,
        identities: Resolver,
        at_connect: str,
        client: str,
        observer: Observer,
        limits: RequestLimits,
        greeting: Sequence[bytes],
        *,
        profile: Profile,
        route: Route,
        selects_later: bool,
        port: int,
        ids: ShownIds | None,
        names: Sequence[str],
    ) -> None:
        """The arguments are those of `Session`; `profile` is the one that the client begins with."""
        super().__init__(at_connect, profile, route, limits)
        self.first_profile = profile
        self.at_connect = at_connect
        self.identities = identities
        self.greeting = greeting
        self.selects_later = selects_later
        self.request = b""  # the bytes of the request in hand
        self.ids = ids if ids is not None else ShownIds()
        self._peer: Peer | None = None  # made on demand, of this profile:
        self._peer_of: Profile | None = None
        self._library = (b"", b"")  # name and version that the client has given, known to Redis or not
        self._sender: object = None  # made on demand
        self._origin = client  # where it comes from; `client` adds the port on demand
        self._port = port
        self._in_force = in_force
        self.observer = observer
        self._full_limits = limits
        self.caller = Caller(None, tuple(names))
        self.values: Values = ()  # the caller's, for the authorizer that was asked for last
        self._valued_as = self.caller
        self._number = 0  # of the service, for the authorizer and by the name that it was asked for last
        self._numbered_by: Authorizer | None = None
        self._numbered_as = ""
        self.decided = UNDECIDED  # about the request in hand
        self._apply_limits()

    @property
    def client(self) -> str:
        """Where the client comes from, as logs show it."""
        if self._port:
            self._origin, self._port = host_port(self._origin, self._port), 0
        return self._origin

    @property
    def peer(self) -> Peer:
        """Who the client is, as logs show it."""
        profile = self.profile
        if self._peer is None or self._peer_of is not profile:
            said = (profile.user, profile.name, *self._library)
            self._peer = Peer(self.client, *(printable(text, MAX_SAID) for text in said))
            self._peer_of = profile
        return self._peer

    def set_library(self, *, name: bytes | None = None, version: bytes | None = None) -> None:
        """Note what CLIENT SETINFO says. Servers before Redis 7.2 refuse it."""
        known, of_version = self._library
        self._library = (known if name is None else name, of_version if version is None else version)
        self._peer = None

    @property
    def sender(self) -> object:
        """Tells this client's commands from those of other connections."""
        if self._sender is None:
            self._sender = object()
        return self._sender

    # -- the request in hand

    def _execute(self, argv: Argv) -> None:
        """Carry out what was decided."""
        decided, handler = self.decided, self.decided.handler
        if decided.refusal is not None:
            self._refuse(decided.refusal)
        elif decided.stays or (handler is not None and handler.is_immediate):
            self._carry_out(handler, argv)
        elif handler is None or not handler.on_shared(self, argv):
            self.when_answered(lambda: self._carry_out_on_own(handler, argv))

    def _carry_out(self, handler: Handler | None, argv: Argv) -> None:
        if handler is None:
            self.forward_one()
        elif self._awaits_multi(handler):
            self.when_answered(lambda: handler.act(self, argv))
        else:
            handler.act(self, argv)
        self.partly_sent = False

    def _awaits_multi(self, handler: Handler) -> bool:
        """Whether the handler must know Redis' reply to MULTI, which isn't in yet."""
        transaction = self.transaction
        if transaction is None or transaction.is_confirmed or self.partly_sent:
            return False
        return handler.awaits_multi

    def _carry_out_on_own(self, handler: Handler | None, argv: Argv) -> None:
        self._leave_shared()
        self._carry_out(handler, argv)

    def _report(self, ruling: Ruling, command: str, authorizer: Authorizer, sent: Sent | None = None) -> str:
        """Report the findings of a ruling. Returns the decision's id; "" where there is no finding."""
        if not ruling.findings:
            return ""
        revision = authorizer.policy.revision
        return self.observer.violations(
            self.service, self.peer, command, ruling.findings, revision, sent=sent
        )

    def authorizer_and_number(self) -> tuple[Authorizer, int]:
        """The authorizer for the next request, and the number under which it knows this client's service."""
        authorizer = self.current_authorizer()
        if (
            self._numbered_by is not authorizer
            or self._numbered_as != self.service
            or self._valued_as is not self.caller
        ):
            self._number = authorizer.number(self.service)
            self.values = authorizer.policy.values(self.caller)
            self._numbered_by, self._numbered_as, self._valued_as = authorizer, self.service, self.caller
        return authorizer, self._number

    def current_authorizer(self) -> Authorizer:
        """The authorizer in force. A transaction keeps the one that it began with."""
        return self.transaction.authorizer if self.transaction is not None else self._in_force.authorizer

    def _refuse(self, reply: bytes) -> None:
        """Refuse the request in hand."""
        self.observer.command(self.service, self.decided.command, "refused")
        if self.partly_sent:
            self.when_answered(lambda: self._refuse_streamed(reply))
        elif self.transaction is not None:
            self.to_upstream.append(ABORT_MARKER)
            self.replies.replace(reply)
        else:
            self.replies.local(reply)

    # -- what handlers use

    def forward_one(self) -> None:
        """Send the request in hand upstream and await its one reply."""
        self.count_forwarded()
        self._to_upstream(self.request, 1)

    def count_forwarded(self) -> None:
        self.observer.command(self.service, self.decided.command, "forwarded")

    def count_failed_login(self) -> None:
        self.observer.login_failed(self.service)

    def inspect(self, seen: Callable[[bytes], None], request: bytes = b"") -> None:
        """Send the request in hand (or `request` in its place) upstream. `seen` is called with its reply,
        which goes to the client too."""
        self.count_forwarded()
        self.to_upstream.append(request or self.request)
        self.replies.inspect(seen, len(self.request))

    def hold_for(self, seen: Callable[[bytes], None], request: bytes = b"") -> None:
        """As `inspect`; nothing more is evaluated until the reply is in."""

        def release(reply: bytes) -> None:
            self.release()
            seen(reply)

        self.inspect(release, request)
        self.hold()

    def hold_for_proof(self, seen: Callable[[bytes], None], missing: int = 0) -> None:
        """As `hold_for`; but the reply is believed only once a barrier behind it is passed.

        The reply may be an array that lacks `missing` elements. Then barriers fill their places.
        """
        replies: list[bytes] = []

        def answered(reply: bytes) -> None:
            replies.append(reply)
            if barrier.nonce in reply:
                self.fall_out_of_step()

        self.inspect(answered)
        barrier = self.send_barrier(lambda: seen(replies[0]), 1 + missing)

    def inspect_effect(
        self, seen: Callable[[bytes], None], *, is_login: bool = False, decides: bool = False
    ) -> None:
        """Send the request in hand. `seen` is called with its reply: at once, or after EXEC.

        If the client's text may have shaped an earlier reply, that text can stand for this reply within
        EXEC's reply, and make the real one look like text. No barrier shows that. So the reply isn't
        believed; and where it `decides` how requests are evaluated or replies are read, the session can't be
        followed.
        """
        transaction = self.transaction
        if transaction is None:
            self.inspect(seen)
        elif self.is_doubtful or transaction.is_shapeable:
            if decides:
                self.become_opaque("what it does inside MULTI can't be told behind a script")
            else:
                self.forward_one()
        elif transaction.is_full:
            self.become_opaque("too many such commands are queued in one transaction")
        else:
            transaction.logins += is_login
            transaction.when_executed(seen)
            self.forward_one()

    def show_id(self, reply: bytes) -> None:
        """The client gets a reply that may contain its connection's id."""
        self.ids.show(self, reply)

    def ask_others(self, number: int, answered: Callable[[bool], None]) -> None:
        """Have the owner ask other processes whose connection has this id. `answered` then goes on with the
        request in hand. Only while no reply is due, so that nothing else can happen to the session."""
        request, decided = self.request, self.decided

        def go_on(is_own: bool) -> None:
            if self.state == State.AWAITING_REPLY and not self.closing:
                self.release()
                self.request, self.decided = request, decided
                answered(is_own)
                self._read_requests()

        self.hold()
        self.question = Question(self.service, number, go_on)

    def rule_on_foreign_connection(self, position: int) -> None:
        """The request in hand names a connection that isn't the client's to name. What the modes say about
        that is done."""
        authorizer, number = self.authorizer_and_number()
        command = self.decided.command
        ruling = authorizer.strangers_connection(number, command, position)
        decision = self._report(ruling, command, authorizer)
        if ruling.refused_by is None:
            self.forward_one()
        else:
            self._refuse(refusal(ruling.refused_by, authorizer.policy.contact, decision))

    def become(self, service: str, user: bytes | None = None) -> None:
        """From here on the client is another service, logged in as `user` (None: as no user)."""
        self.service = service
        self.caller = self.caller._replace(user=user)
        self._apply_limits()

    def _apply_limits(self) -> None:
        """A client that is refused most things anyway may not fill memory with long requests (as in
        Redis)."""
        authorizer, number = self.authorizer_and_number()
        strict = self.service == UNKNOWN and authorizer.enforces(number)
        self.reader.limits = UNIDENTIFIED if strict else self._full_limits

    # -- sessions that can't be followed

    def become_opaque(self, reason: str) -> None:
        """keyfence can't read on behind the request in hand. Pass it and all that follows unread, where the
        mode admits it; else refuse it."""
        command = self.decided.command
        if self._may_become_opaque(reason, command, refuse=True):
            self.count_forwarded()
            self._pass_unread(self.request)

    def _may_become_opaque(self, reason: str, command: str, *, refuse: bool = False) -> bool:
        authorizer, number = self.authorizer_and_number()
        ruling = authorizer.opaque(number, command, reason)
        decision = self._report(ruling, command, authorizer)
        if ruling.refused_by is None:
            self.observer.opaque(self.service, reason)
            self.opaque_as = self.service
            return True
        if refuse:
            self._refuse(refusal(ruling.refused_by, authorizer.policy.contact, decision))
        return False

    def _protocol_error(self, exc: ProtocolError) -> None:
        """Answer as Redis does and close. In observe, a request that is only too large passes unread."""
        if isinstance(exc, RequestTooLarge) and self._may_become_opaque("request too large", OTHER):
            self._pass_unread(b"")
            return
        self.replies.local(encode.error(f"ERR {exc}"))
        self.close_after_replies(f"protocol error: {exc}")
