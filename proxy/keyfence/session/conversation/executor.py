# cython: annotation_typing=False
"""Carries out the decision about the current request: sends it on, refuses it, or calls its handler.

Rule: nothing is decided here. `decided` is carried out as soon as it is the request's turn. If a later
evaluation depends on a reply, it waits for that reply.

`Session` builds on this: it reads and decides. The handlers in `handlers` use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from keyfence.commands.addresses import NOTICES
from keyfence.net.closures import PROTOCOL_ERROR
from keyfence.net.host_port import host_port
from keyfence.policy.compiled.tenants import NOBODY, Caller
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.services import UNKNOWN
from keyfence.policy.show import printable
from keyfence.policy.verdict import Peer, Ruling
from keyfence.resp import encode
from keyfence.resp.limits import UNIDENTIFIED, ProtocolError, RequestTooLarge
from keyfence.resp.profile import Profile, unchanged
from keyfence.resp.replies import REDIRECTS, ErrorPart

from .context import ClientOrigin, SessionContext
from .conversation import ABORT_MARKER, Conversation
from .observer import Sent
from .questions import Kind, Question
from .redirects import without_redirects
from .refusal import refusal
from .routing import Route
from .states import State

# Counts all commands that are not in the table, because a client can send any name.
OTHER = "other"
MAX_SAID = 64  # the length of a client's own name in logs, in bytes

Argv = Sequence[bytes]


def _needs_own_connection(_session: Executor, _argv: Argv) -> bool:
    return False


class Handler(NamedTuple):
    """How a session carries out a command that changes the session itself."""

    act: Callable[[Executor, Argv], None]
    # Whether it can be carried out on a shared connection; otherwise it needs a dedicated one.
    on_shared: Callable[[Executor, Argv], bool] = _needs_own_connection
    is_immediate: bool = False  # at once, whatever is awaited and whichever connection the client uses
    awaits_multi: bool = True  # its effect depends on Redis' reply to an earlier MULTI


class Decided:
    """The decision about the current request."""

    def __init__(
        self,
        handler: Handler | None,
        refusal: bytes | None,
        command: str,
        stays: bool,
        is_counted: bool = False,
    ) -> None:
        self.handler = handler  # carries it out; None: it goes upstream as it is
        self.refusal = refusal  # the reply that refuses it; None: it is not refused
        self.command = command  # the name under which it is counted
        self.stays = stays  # it may go on the connection that the client uses now
        self.is_counted = is_counted  # the refused command is counted already, with its violations


_NEVER_ASKED = Asker(0)
UNDECIDED = Decided(None, None, "", True)


class Executor(Conversation):
    """A conversation with a client, with the client's identity, its policy, and the carrying out of
    decisions."""

    def __init__(self, context: SessionContext, origin: ClientOrigin) -> None:
        profile, route = unchanged(context.database), Route(context.sharing, context.clock)
        super().__init__(origin.service, profile, route, context.limits)
        self.context = context
        self.origin = origin
        self.observer = context.observer
        self._in_force = context.in_force
        self.request = b""  # the bytes of the current request
        self._client = ""  # made on demand
        self._peer: Peer | None = None  # made on demand, of this profile:
        self._peer_of: Profile | None = None
        self._library = (b"", b"")  # the client library's name and version, even if Redis does not know them
        self._sender = object()  # identifies this client's connection: its commands run in order
        self.caller = Caller(None, tuple(origin.names)) if origin.names else NOBODY
        self._asker = _NEVER_ASKED  # made on demand, for this authorizer, service and caller:
        self._asked: Authorizer | None = None
        self._asker_as = ""
        self._asker_of = NOBODY
        self.decided = UNDECIDED  # about the current request
        self._redirect_hidden_by: bytes | None = None  # the error in place of the last MOVED or ASK
        self._apply_limits()

    @property
    def client(self) -> str:
        """Where the client comes from, as logs show it."""
        if not self._client:
            _, address, port, *_ = self.origin
            self._client = host_port(address, port) if port else address
        return self._client

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

    # -- the current request

    def execute(self, argv: Argv) -> None:
        """Carry out what was decided."""
        decided, handler = self.decided, self.decided.handler
        if decided.refusal is not None:
            self.refuse(decided.refusal)
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
        """Whether the handler must know Redis' reply to MULTI, which has not arrived yet."""
        transaction = self.transaction
        if transaction is None or transaction.is_confirmed or self.partly_sent:
            return False
        return handler.awaits_multi

    def _carry_out_on_own(self, handler: Handler | None, argv: Argv) -> None:
        self.leave_shared()
        self._carry_out(handler, argv)

    def report(self, ruling: Ruling, command: str, authorizer: Authorizer, sent: Sent | None = None) -> str:
        """Report the findings of a ruling. Returns the decision's id; "" if there is no finding."""
        if not ruling.findings:
            return ""
        revision = authorizer.policy.revision
        return self.observer.violations(
            self.service, self.peer, command, ruling.findings, revision, sent=sent
        )

    def asker(self) -> Asker:
        """Who asks now, as the current authorizer knows the client."""
        authorizer, peer, asker = self.current_authorizer(), self.peer, self._asker
        transaction = self.transaction.evaluated if self.transaction is not None else None
        is_known = (
            self._asked is authorizer and self._asker_of is self.caller and self._asker_as == self.service
        )
        if not is_known or asker.peer is not peer or asker.transaction is not transaction:
            number, values = asker.service, asker.values
            if not is_known:
                number, values = authorizer.number(self.service), authorizer.policy.values(self.caller)
                self._asked, self._asker_as, self._asker_of = authorizer, self.service, self.caller
            asker = self._asker = Asker(
                number,
                values,
                database=self.profile.database,
                peer=peer,
                sender=self._sender,
                transaction=transaction,
            )
        return asker

    def forget_policy(self) -> None:
        self._asked = None

    def current_authorizer(self) -> Authorizer:
        """The authorizer in force. A transaction keeps the one that it began with."""
        return self.transaction.authorizer if self.transaction is not None else self._in_force.authorizer

    def refuse(self, reply: bytes) -> None:
        """Refuse the current request."""
        if not self.decided.is_counted:
            self.observer.command(self.service, self.decided.command, "refused")
        if self.partly_sent:
            self.when_answered(lambda: self._refuse_streamed(reply))
        else:
            self._answer_refusal(reply)

    def _answer_refusal(self, reply: bytes) -> None:
        """Answer the current request, which is refused as a whole."""
        if self.transaction is not None:
            self.to_upstream.append(ABORT_MARKER)
            self.replies.replace(reply)
        else:
            self.replies.local(reply)

    # -- for handlers

    def forward_one(self) -> None:
        """Send the current request upstream and await its one reply."""
        self.count_forwarded()
        self.send(self.request, 1)

    def count_forwarded(self) -> None:
        self.observer.command(self.service, self.decided.command, "forwarded")

    def ask(self, kind: Kind, content: tuple[Any, ...], answered: Callable[[Any], None]) -> None:
        """Ask the owner; `answered` then continues with the current request. Call this only if no reply is
        due, so that nothing else can happen to the session."""
        request, decided = self.request, self.decided

        def go_on(answer: Any) -> None:
            if self.state == State.AWAITING_REPLY and not self.closing:
                self.release()
                self.request, self.decided = request, decided
                answered(answer)
                self._read_requests()

        self.hold()
        self.question = Question(kind, content, go_on)

    def rule_on_address(self, command: str) -> bytes | None:
        """Redis answers the client with addresses, to this command or (MOVED, ASK) in place of an answer to
        any. Report it. Returns the refusal; None if the client may know them."""
        authorizer = self.current_authorizer()
        ruling = authorizer.address(self.asker().service, command)
        label = OTHER if command in REDIRECTS else command
        decision = self.report(ruling, label, authorizer)
        if ruling.refused_by is None:
            return None
        return refusal(ruling.refused_by, authorizer.policy.contact, decision)

    def errors_came(self, data: bytes, errors: Sequence[ErrorPart], at: int) -> bytes:
        """Report the noted errors. Those that name addresses are replaced, if the modes say so. All redirects
        that come together are one violation."""
        is_ruled = errors[0].is_rest
        for error in errors:
            if not error.is_rest:
                self.observer.upstream_error(error.word)
            if error.word in REDIRECTS and not is_ruled:
                is_ruled = True
                self._redirect_hidden_by = self.rule_on_address(error.word)
        hides = self._redirect_hidden_by
        return data if hides is None else without_redirects(data, errors, at, hides)

    def hides_notice(self, word: bytes) -> bool:
        hides = not self.current_authorizer().admits_address(self.asker().service, NOTICES)
        if hides:
            self.observer.address_hidden(word.decode())
        return hides

    def become(self, service: str, user: bytes | None = None) -> None:
        """From now on the client is another service, logged in as `user` (None: as no user)."""
        self.service = service
        self.caller = self.caller._replace(user=user)
        self._apply_limits()

    def _apply_limits(self) -> None:
        """As in Redis before AUTH, an unidentified client may not fill memory with long requests where rules
        are enforced."""
        enforces = self.current_authorizer().enforces
        strict = self.service == UNKNOWN and enforces(self.asker().service)
        self.reader.limits = UNIDENTIFIED if strict else self.context.limits

    # -- sessions that cannot be followed

    def become_opaque(self, reason: str) -> None:
        """keyfence cannot follow the session after the current request. Pass the request and everything after
        it unread if the mode admits that; otherwise refuse it."""
        command = self.decided.command
        if self._may_become_opaque(reason, command, refuse=True):
            self.count_forwarded()
            self._pass_unread(self.request)

    def _may_become_opaque(self, reason: str, command: str, *, refuse: bool = False) -> bool:
        authorizer = self.current_authorizer()
        ruling = authorizer.opaque(self.asker().service, command, reason)
        decision = self.report(ruling, command, authorizer)
        if ruling.refused_by is None:
            self.observer.opaque(self.service, reason)
            self.opaque_as = self.service
            return True
        if refuse:
            self.refuse(refusal(ruling.refused_by, authorizer.policy.contact, decision))
        return False

    def _protocol_error(self, exc: ProtocolError) -> None:
        """Answer as Redis does, and close. In observe, a request that is only too large passes unread."""
        if isinstance(exc, RequestTooLarge) and self._may_become_opaque("request too large", OTHER):
            self._pass_unread(b"")
            return
        self.replies.local(encode.error(f"ERR {exc}"))
        self.close_after_replies(PROTOCOL_ERROR.because(f"protocol error: {exc}"))
