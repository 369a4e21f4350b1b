# cython: annotation_typing=False
"""Carries out the plan for the current request: sends it on, refuses it, or calls its handler.

Rule: nothing is evaluated here. `plan` is carried out as soon as it is the request's turn. If a later
evaluation depends on a reply, it waits for that reply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from keyfence.net.closures import PROTOCOL_ERROR
from keyfence.resp import encode
from keyfence.resp.limits import ProtocolError, RequestTooLarge

from .conversation import ABORT_MARKER, Conversation
from .known_client import OTHER, KnownClient
from .owner_questions import Kind, Question
from .states import State

Argv = Sequence[bytes]


def _needs_own_connection(_executor: Executor, _argv: Argv) -> bool:
    return False


class Handler(NamedTuple):
    """How a command that changes the session itself is carried out."""

    act: Callable[[Executor, Argv], None]
    # Whether it can be carried out on a shared connection; otherwise it needs a dedicated one.
    on_shared: Callable[[Executor, Argv], bool] = _needs_own_connection
    is_immediate: bool = False  # at once, whatever is awaited and whichever connection the client uses
    awaits_multi: bool = True  # its effect depends on Redis' reply to an earlier MULTI


class Plan:
    """How the current request is carried out."""

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


_NO_REQUEST = Plan(None, None, "", True)


class Executor:
    """Carries out one client's current request."""

    def __init__(self, client: KnownClient, conversation: Conversation) -> None:
        self.client = client
        self.conversation = conversation
        self.request = b""  # the bytes of the current request
        self.plan = _NO_REQUEST

    def execute(self, argv: Argv) -> None:
        """Carry out the plan for the current request."""
        plan, handler = self.plan, self.plan.handler
        if plan.refusal is not None:
            self.refuse(plan.refusal)
        elif plan.stays or (handler is not None and handler.is_immediate):
            self._carry_out(handler, argv)
        elif handler is None or not handler.on_shared(self, argv):
            self.conversation.when_answered(lambda: self._carry_out_on_own(handler, argv))

    def _carry_out(self, handler: Handler | None, argv: Argv) -> None:
        if handler is None:
            self.forward_one()
        elif self._awaits_multi(handler):
            self.conversation.when_answered(lambda: handler.act(self, argv))
        else:
            handler.act(self, argv)
        self.conversation.partly_sent = False

    def _awaits_multi(self, handler: Handler) -> bool:
        """Whether the handler must know Redis' reply to MULTI, which has not arrived yet."""
        transaction = self.conversation.transaction
        if transaction is None or transaction.is_confirmed or self.conversation.partly_sent:
            return False
        return handler.awaits_multi

    def _carry_out_on_own(self, handler: Handler | None, argv: Argv) -> None:
        self.conversation.leave_shared()
        self._carry_out(handler, argv)

    def refuse(self, reply: bytes) -> None:
        """Refuse the current request."""
        if not self.plan.is_counted:
            self.client.observer.command(self.client.service, self.plan.command, "refused")
        if self.conversation.partly_sent:
            self.conversation.when_answered(lambda: self.conversation.refuse_streamed(reply))
        else:
            self.answer_refusal(reply)

    def answer_refusal(self, reply: bytes) -> None:
        """Answer the current request, which is refused as a whole. If it counts for Redis all the same (in
        MULTI, after ASKING), Redis gets another command in its place."""
        conversation = self.conversation
        if conversation.transaction is not None or conversation.route.marks_next:
            conversation.route.marks_next = False
            conversation.to_upstream.append(ABORT_MARKER)
            conversation.replies.replace(reply)
        else:
            conversation.replies.local(reply)

    def answer_protocol_error(self, exc: ProtocolError) -> None:
        """Answer as Redis does, and close. In observe, a request that is only too large passes unread."""
        conversation = self.conversation
        if (
            isinstance(exc, RequestTooLarge)
            and self.client.rule_on_opaque("request too large", OTHER) is None
        ):
            conversation.pass_unread(b"")
            return
        conversation.replies.local(encode.error(f"ERR {exc}"))
        conversation.close_after_replies(PROTOCOL_ERROR.because(f"protocol error: {exc}"))

    # -- for handlers

    def forward_one(self) -> None:
        """Send the current request upstream and await its one reply."""
        self.count_forwarded()
        self.conversation.send(self.request, 1)

    def count_forwarded(self) -> None:
        self.client.observer.command(self.client.service, self.plan.command, "forwarded")

    def forward_unless(self, refused: bytes | None) -> None:
        """Send the current request upstream, or refuse it with this reply."""
        if refused is None:
            self.forward_one()
        else:
            self.refuse(refused)

    def ask(self, kind: Kind, content: tuple[Any, ...], answered: Callable[[Any], None]) -> None:
        """Ask the owner; `answered` then continues with the current request. Call this only if no reply is
        due, so that nothing else can happen to the session."""
        conversation, request, plan = self.conversation, self.request, self.plan

        def go_on(answer: Any) -> None:
            if conversation.state == State.AWAITING_REPLY and not conversation.replies.closing:
                conversation.release()
                self.request, self.plan = request, plan
                answered(answer)

        conversation.hold()
        conversation.question = Question(kind, content, go_on)

    def become_opaque(self, reason: str) -> None:
        """keyfence cannot follow the session after the current request. Pass the request and everything after
        it unread if the mode admits that; otherwise refuse it."""
        refused = self.client.rule_on_opaque(reason, self.plan.command)
        if refused is None:
            self.count_forwarded()
            self.conversation.pass_unread(self.request)
        else:
            self.refuse(refused)
