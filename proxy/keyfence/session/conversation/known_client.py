# cython: annotation_typing=False
"""One client as the policy in force and the logs know it: who asks, and what is ruled and reported about it.

Rule: a transaction keeps the authorizer that it began with. Until the client logs in, selects a database,
opens a transaction or gets another policy, it is the same asker.
"""

from __future__ import annotations

from collections.abc import Sequence

from keyfence.commands.addresses import NOTICES
from keyfence.commands.model import Touches
from keyfence.policy.compiled.tenants import NOBODY, Caller
from keyfence.policy.engine.asker import Asker, Said
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.services import UNKNOWN
from keyfence.policy.verdict import Peer, Ruling
from keyfence.resp import encode
from keyfence.resp.limits import UNIDENTIFIED
from keyfence.resp.profile import Profile
from keyfence.resp.replies import REDIRECTS, ErrorPart

from .context import ClientOrigin, SessionContext
from .conversation import Conversation
from .identity import Identity
from .observer import Sent
from .redirects import Exchange, without_redirects
from .refusal import refusal

# Counts all commands that are not in the table, because a client can send any name.
OTHER = "other"

_NEVER_ASKED = Asker(0)
# What most clients say of themselves. One object for all of them.
_NOTHING_SAID: Said = (b"", b"", b"", b"")


def label_of(touches: Touches) -> str:
    """Returns the name under which a command is counted."""
    return touches.command.name if touches.command is not None else OTHER


class KnownClient(Identity):
    """One client, as the policy in force and the logs know it."""

    def __init__(self, context: SessionContext, origin: ClientOrigin, conversation: Conversation) -> None:
        super().__init__(origin.service)
        # The client's other known attributes.
        self.caller = Caller(None, tuple(origin.names)) if origin.names else NOBODY
        self.context = context
        self.origin = origin
        self.observer = context.observer
        self._in_force = context.in_force
        self._conversation = conversation  # for its transaction and its profile
        self._library = (b"", b"")  # the client library's name and version, even if Redis does not know them
        # Made on demand, for this authorizer, profile and library.
        self._asker = _NEVER_ASKED
        self._asked: Authorizer | None = None
        self._asked_as: Profile | None = None
        self._opaque_as = ""  # the service under which it is counted as opaque; "": it is not
        self._exchange: Exchange | None = None  # of the addresses in redirects; None: it has seen none
        self._redirect_hidden_by: bytes | None = None  # the error in place of the last MOVED or ASK
        self._apply_limits()

    @property
    def peer(self) -> Peer:
        """Who the client is, as logs show it."""
        return self.origin.peer(self._said())

    def _said(self) -> Said:
        """What the client says of itself."""
        profile = self._conversation.profile
        said = (profile.user, profile.name, *self._library)
        return said if any(said) else _NOTHING_SAID

    @property
    def can_move(self) -> bool:
        """Whether the client's library is known, and can follow a MOVING that names no address.

        node-redis (5.9) cannot: if it has asked for an address, it ends its process; if it has not, the new
        connection has neither its subscriptions nor its database.
        """
        library, _ = self._library
        return bool(library) and not library.lower().startswith(b"node-redis")

    def set_library(self, *, name: bytes | None = None, version: bytes | None = None) -> None:
        """Note what CLIENT SETINFO says. Servers before Redis 7.2 refuse it."""
        known, of_version = self._library
        self._library = (known if name is None else name, of_version if version is None else version)
        self._asked_as = None

    def become(self, service: str, user: bytes | None = None) -> None:
        """From now on the client is another service, logged in as `user` (None: as no user)."""
        self.service = service
        self.caller = self.caller._replace(user=user)
        self._asked = None
        self._apply_limits()

    def _apply_limits(self) -> None:
        """As in Redis before AUTH, an unidentified client may not fill memory with long requests where rules
        are enforced."""
        enforces = self.current_authorizer().enforces
        strict = self.service == UNKNOWN and enforces(self.asker().service)
        self._conversation.reader.limits = UNIDENTIFIED if strict else self.context.limits

    def is_named(self) -> None:
        """Another client may have Redis send messages to this client's connection from now on."""
        self._conversation.route.is_named = True

    def leave(self) -> None:
        if self._opaque_as:
            self.observer.opaque_ended(self._opaque_as)
        self.context.ids.forget(self)

    # -- for the policy

    def asker(self) -> Asker:
        """Who asks now, as the current authorizer knows the client."""
        authorizer, profile, asker = self.current_authorizer(), self._conversation.profile, self._asker
        current = self._conversation.transaction
        transaction = current.evaluated if current is not None else None
        is_known = self._asked is authorizer
        if not is_known or self._asked_as is not profile or asker.transaction is not transaction:
            number, values = asker.service, asker.values
            if not is_known:
                number, values = authorizer.number(self.service), authorizer.policy.values(self.caller)
                self._asked = authorizer
            asker = self._asker = Asker(
                number,
                values,
                database=profile.database,
                peer=self._said(),
                sender=self.origin,
                transaction=transaction,
            )
            self._asked_as = profile
        return asker

    def forget_policy(self) -> None:
        """Another policy is in force."""
        self._asked = None

    def current_authorizer(self) -> Authorizer:
        """The authorizer in force. A transaction keeps the one that it began with."""
        transaction = self._conversation.transaction
        return transaction.authorizer if transaction is not None else self._in_force.authorizer

    # -- what is ruled

    def report(self, ruling: Ruling, command: str, authorizer: Authorizer, sent: Sent | None = None) -> str:
        """Report the findings of a ruling. Returns the decision's id; "" if there is no finding."""
        if not ruling.findings:
            return ""
        peer, revision = self.origin.peer(self._said()), authorizer.policy.revision
        return self.observer.violations(self.service, peer, command, ruling.findings, revision, sent=sent)

    def refusal_by(self, ruling: Ruling, command: str, authorizer: Authorizer) -> bytes | None:
        """Report a ruling. Returns the error reply for the command; None if it is not refused."""
        decision = self.report(ruling, command, authorizer)
        if ruling.refused_by is None:
            return None
        return refusal(ruling.refused_by, authorizer.policy.contact, decision)

    def rule_on_address(self, command: str) -> bytes | None:
        """Redis answers the client with addresses, to this command or (MOVED, ASK) in place of an answer to
        any. Report it. Returns the refusal; None if the client may know them."""
        authorizer = self.current_authorizer()
        ruling = authorizer.address(self.asker().service, command)
        return self.refusal_by(ruling, OTHER if command in REDIRECTS else command, authorizer)

    def rule_on_opaque(self, reason: str, command: str) -> bytes | None:
        """The client's session cannot be followed after this command. Report it. Returns the refusal; None if
        the session may pass unread from now on. It may not if each command may have another node."""
        authorizer = self.current_authorizer()
        ruling = authorizer.opaque(self.asker().service, command, reason)
        refused = self.refusal_by(ruling, command, authorizer)
        if refused is None and self.context.roams:
            refused = encode.error(f"ERR {reason}, so keyfence cannot find the nodes of later commands")
        if refused is None:
            self.observer.opaque(self.service, reason)
            self._opaque_as = self.service
        return refused

    def errors_came(self, data: bytes, errors: Sequence[ErrorPart], at: int) -> bytes:
        """Report the noted errors. Those that name addresses are replaced, if the modes say so. All redirects
        that come together are one violation. Before a cluster, redirects name keyfence, and are none."""
        cluster = self.context.cluster
        if cluster is not None:
            if self._exchange is None:
                self._exchange = Exchange(cluster.redirect)
            data = self._exchange.take(data, errors, at)
        goes_on = errors[0].is_rest and errors[0].word in REDIRECTS  # one that was ruled on
        is_ruled = goes_on or cluster is not None
        for error in errors:
            if not error.is_rest:
                self.observer.upstream_error(error.word)
                self.context.seen(error.word)
            if error.word in REDIRECTS and not is_ruled:
                is_ruled = True
                self._redirect_hidden_by = self.rule_on_address(error.word)
        hides = self._redirect_hidden_by
        return data if hides is None else without_redirects(data, errors, at, hides)

    def upstream_shown(self, word: str) -> None:
        """Report what Redis has shown of itself (`Observer.upstream_shown`)."""
        self.observer.upstream_shown(word)
        self.context.seen(word)

    def hides_notice(self, word: bytes) -> bool:
        hides = not self.current_authorizer().admits_address(self.asker().service, NOTICES)
        if hides:
            self.observer.address_hidden(word.decode())
        return hides
