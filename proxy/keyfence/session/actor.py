# cython: annotation_typing=False
"""What one client's session does with a request once it is judged: it is sent on, refused, or carried out.

Rule: nothing is decided here. What `_ruled` says about the request in hand is done as soon as its turn has
come, and a reply is seen before anything is judged that depends on it.

`Session` reads and judges, and builds on this. The commands in `specials` use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
from keyfence.session.handlers.specials import SPECIALS, Special, hang_up

from .conversation import ABORT_MARKER, Conversation
from .observer import Observer
from .refusal import refusal
from .routing import Route
from .shown_ids import Question, ShownIds

# What a command that isn't in the table is called where names are counted: its own is the client's to word.
OTHER = "other"
MAX_SAID = 64  # bytes of a name that a client gives itself, as logs show it


class Actor(Conversation):
    """A conversation with somebody: who it is, by whose rules, and what is done for it."""

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
        self.request = b""  # the bytes of the request that a special has in hand
        self.ids = ids if ids is not None else ShownIds()
        self._peer: Peer | None = None  # made when it is asked for, of this profile:
        self._peer_of: Profile | None = None
        self._library = (b"", b"")  # name and version that the client has given, known to Redis or not
        self._sender: object = None  # tells its commands from those of other connections, once it is needed
        self._origin = client  # where it comes from; `client` adds the port, once it is asked
        self._port = port
        self._in_force = in_force
        self._observer = observer
        self._full_limits = limits
        self.caller = Caller(None, tuple(names))
        self.values: Values = ()  # the caller's, for the judge that was asked for last
        self._valued_as = self.caller
        self._number = 0  # of the service, for the judge and by the name that it was asked for last
        self._numbered_by: Authorizer | None = None
        self._numbered_as = ""
        # About the request in hand: how it is carried out, if not as most; what refuses it; what it is
        # called where names are counted; whether it may stay on the connection where the client is.
        self._ruled: tuple[Special | None, bytes | None, str, bool] = (None, None, "", True)
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

    def says_library(self, *, name: bytes | None = None, version: bytes | None = None) -> None:
        """CLIENT SETINFO, which servers before Redis 7.2 refuse."""
        known, of_version = self._library
        self._library = (known if name is None else name, of_version if version is None else version)
        self._peer = None

    @property
    def sender(self) -> object:
        """What tells this client's commands from those of others."""
        if self._sender is None:
            self._sender = object()
        return self._sender

    # -- what was decided

    def _do(self, argv: Sequence[bytes]) -> None:
        special, refused, _, stays = self._ruled
        if refused is not None:
            self._refuse(refused)
        elif special is hang_up or stays:
            self._carry_out(special, argv)
        elif special is None or not special.on_shared(self, argv):
            self.when_answered(lambda: self._carry_out_on_own(special, argv))

    def _carry_out(self, special: Special | None, argv: Sequence[bytes]) -> None:
        if special is None:
            self.pass_one()
        elif self._awaits_multi(special):
            self.when_answered(lambda: special.act(self, argv))
        else:
            special.act(self, argv)
        self._streaming = False

    def _awaits_multi(self, special: Special) -> bool:
        """Whether it depends on Redis' answer to MULTI, which isn't in yet, what the command does."""
        transaction = self.transaction
        if transaction is None or transaction.is_confirmed or self._streaming:
            return False
        return special is not SPECIALS[b"EXEC"] and special is not hang_up

    def _carry_out_on_own(self, special: Special | None, argv: Sequence[bytes]) -> None:
        self._leave_shared()
        self._carry_out(special, argv)

    def _tell(self, ruling: Ruling, command: str, judge: Authorizer) -> str:
        if not ruling.findings:
            return ""
        return self._observer.violations(
            self.service, self.peer, command, ruling.findings, judge.policy.revision
        )

    def _judge(self) -> tuple[Authorizer, int]:
        """The judge for the next request, and the number under which it knows this client's service."""
        judge = self.current_judge()
        if (
            self._numbered_by is not judge
            or self._numbered_as != self.service
            or self._valued_as is not self.caller
        ):
            self._number = judge.number(self.service)
            self.values = judge.policy.values(self.caller)
            self._numbered_by, self._numbered_as, self._valued_as = judge, self.service, self.caller
        return judge, self._number

    def current_judge(self) -> Authorizer:
        """A transaction keeps the one that it began with."""
        return self.transaction.judge if self.transaction is not None else self._in_force.judge

    def _refuse(self, reply: bytes) -> None:
        """Refuse the request in hand."""
        self._observer.command(self.service, self._ruled[2], "refused")
        if self._streaming:
            self.held = True
            self.when_answered(lambda: self._refuse_streamed(reply))
        elif self.transaction is not None:
            self.to_upstream.append(ABORT_MARKER)
            self.answers.replace(reply)
        else:
            self.answers.local(reply)

    # -- what specials do

    def pass_one(self) -> None:
        """Send the request in hand upstream and await its one reply."""
        self.told_forwarded()
        self._to_upstream(self.request, 1)

    def told_forwarded(self) -> None:
        self._observer.command(self.service, self._ruled[2], "forwarded")

    def told_login_failed(self) -> None:
        self._observer.login_failed(self.service)

    def inspect(self, seen: Callable[[bytes], None], request: bytes = b"") -> None:
        """Send the request in hand (or another in its place) upstream and have its reply seen on its way to
        the client."""
        self.told_forwarded()
        self.to_upstream.append(request or self.request)
        self.answers.inspect(seen, len(self.request))

    def hold_for(self, seen: Callable[[bytes], None], request: bytes = b"") -> None:
        """The same; nothing more is judged before the reply was seen."""

        def release(reply: bytes) -> None:
            self.held = False
            seen(reply)

        self.inspect(release, request)
        self.held = True

    def hold_for_proof(self, seen: Callable[[bytes], None], missing: int = 0) -> None:
        """As `hold_for`; but the reply is believed only once a barrier behind it is passed.

        The reply may be an array that lacks so many elements (`missing`). Then barriers fill their places.
        """
        replies: list[bytes] = []

        def answered(reply: bytes) -> None:
            replies.append(reply)
            if barrier.nonce in reply:
                self.fall_out_of_step()

        self.inspect(answered)
        barrier = self.send_barrier(lambda: seen(replies[0]), 1 + missing)

    def effect(self, seen: Callable[[bytes], None], *, is_login: bool = False, decides: bool = False) -> None:
        """Send the request in hand, and have `seen` called with its reply: at once, or after EXEC.

        If an earlier reply might be shaped, its text may answer for this request within EXEC's answer, and
        take the real reply for a text: no barrier shows that. So the reply isn't believed, and the session
        can't be followed if it `decides` how requests are judged or replies are read.
        """
        transaction = self.transaction
        if transaction is None:
            self.inspect(seen)
        elif self.is_doubtful or transaction.is_shapeable:
            if decides:
                self.opaque_request("what it does inside MULTI can't be told behind a script")
            else:
                self.pass_one()
        elif transaction.is_full:
            self.opaque_request("too many such commands are queued in one transaction")
        else:
            transaction.logins += is_login
            transaction.when_executed(seen)
            self.pass_one()

    def shown(self, reply: bytes) -> None:
        """The client gets a reply that may tell its connection's id."""
        self.ids.show(self, reply)

    def ask_others(self, number: int, answered: Callable[[bool], None]) -> None:
        """Have the owner ask other processes whose an id is, and go on with the request in hand then. To be
        called when nothing is awaited, so that nothing else can happen to it meanwhile."""
        request, ruled = self.request, self._ruled

        def go_on(is_own: bool) -> None:
            if self.held and not self.closing:
                self.held = False
                self.request, self._ruled = request, ruled
                answered(is_own)
                self._read_requests()

        self.held = True
        self.question = Question(self.service, number, go_on)

    def names_a_strangers(self, position: int) -> None:
        """The request in hand names a connection that isn't the client's to name: refuse it, or only tell."""
        judge, number = self._judge()
        command = self._ruled[2]
        ruling = judge.strangers_connection(number, command, position)
        decision = self._tell(ruling, command, judge)
        if ruling.refused_by is None:
            self.pass_one()
        else:
            self._refuse(refusal(ruling.refused_by, judge.policy.contact, decision))

    def become(self, service: str, user: bytes | None = None) -> None:
        """The client is another service from here on, and has logged in as this user; None: as none."""
        self.service = service
        self.caller = self.caller._replace(user=user)
        self._apply_limits()

    def _apply_limits(self) -> None:
        """Who is refused most things anyway may not fill memory with long requests (as in Redis)."""
        judge, number = self._judge()
        strict = self.service == UNKNOWN and judge.enforces(number)
        self._reader.limits = UNIDENTIFIED if strict else self._full_limits

    # -- sessions that can't be followed

    def opaque_request(self, reason: str) -> None:
        """The request in hand makes the session one that can't be read: pass it and all that follows, where
        the mode admits it; else refuse it."""
        command = self._ruled[2]
        if self._may_become_opaque(reason, command, refuse=True):
            self.told_forwarded()
            self._splice(self.request)

    def _may_become_opaque(self, reason: str, command: str, *, refuse: bool = False) -> bool:
        judge, number = self._judge()
        ruling = judge.opaque(number, command, reason)
        decision = self._tell(ruling, command, judge)
        if ruling.refused_by is None:
            self._observer.opaque(self.service, reason)
            return True
        if refuse:
            self._refuse(refusal(ruling.refused_by, judge.policy.contact, decision))
        return False

    def _protocol_error(self, exc: ProtocolError) -> None:
        """Say what Redis would say and close; in observe, a request only too large passes unread."""
        if isinstance(exc, RequestTooLarge) and self._may_become_opaque("request too large", OTHER):
            self._splice(b"")
            return
        self.answers.local(encode.error(f"ERR {exc}"))
        self.close_after_answers(f"protocol error: {exc}")
