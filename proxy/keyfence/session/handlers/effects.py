"""How a handler learns from Redis' reply what a command has done.

Rule: only the reply changes the session. If later evaluations depend on a reply, it is awaited, and believed
only if no text of the client could have shaped it.
"""

from __future__ import annotations

from collections.abc import Callable

from keyfence.session.conversation.conversation import Doubt
from keyfence.session.conversation.executor import Executor
from keyfence.session.conversation.reply_queue import ON

Edit = Callable[[bytes], bytes] | None


def inspect(executor: Executor, seen: Callable[[bytes], None], edit: Edit = None) -> None:
    """Send the current request upstream. The reply goes to `seen`, and to the client: as it is, or as `edit`
    returns it."""
    conversation = executor.conversation
    replies = conversation.replies
    executor.count_forwarded()
    conversation.to_upstream.append(executor.request)
    if edit is None or replies.mode != ON:
        replies.inspect(seen, len(executor.request))
        return

    def edited(reply: bytes) -> bytes:
        seen(reply)
        return edit(reply)

    replies.edit(edited)


def hold_for(executor: Executor, seen: Callable[[bytes], None], edit: Edit = None) -> None:
    """As `inspect`, but nothing more is evaluated until the reply has arrived."""

    def release(reply: bytes) -> None:
        executor.conversation.release()
        seen(reply)

    inspect(executor, release, edit)
    executor.conversation.hold()


def ask_redis(
    executor: Executor, request: bytes, seen: Callable[[bytes], None], *, answers: bool = False
) -> None:
    """Send a request of keyfence's own. The reply goes to `seen` only, and nothing more is evaluated until
    it has arrived. `answers`: it then answers the client."""
    conversation = executor.conversation

    def release(reply: bytes) -> None:
        conversation.release()
        seen(reply)

    conversation.hold()
    conversation.to_upstream.append(request)
    conversation.replies.drop(release, answers=answers)


def hold_for_proof(
    executor: Executor, seen: Callable[[bytes], None], missing: int = 0, edit: Edit = None
) -> None:
    """As `hold_for`, but the reply is believed only once a barrier after it is passed.

    The reply may be an array that lacks `missing` elements; then barriers fill their places.
    """
    replies: list[bytes] = []

    def answered(reply: bytes) -> None:
        replies.append(reply)
        if barrier.nonce in reply:
            executor.conversation.fall_out_of_step()

    inspect(executor, answered, edit)
    barrier = executor.conversation.send_barrier(lambda: seen(replies[0]), 1 + missing)


def change(executor: Executor, seen: Callable[[bytes], None], *, is_login: bool = False) -> None:
    """Send the current request, which changes the client's user, database or protocol. Nothing more is
    evaluated until `seen` has its reply; inside MULTI, EXEC's reply brings it."""
    conversation = executor.conversation
    if conversation.transaction is None:
        conversation.when_sure(lambda: hold_for(executor, seen), is_login=is_login)
    else:
        inspect_effect(executor, seen, is_login=is_login, must_know=True)


def inspect_effect(
    executor: Executor, seen: Callable[[bytes], None], *, is_login: bool = False, must_know: bool = False
) -> None:
    """Send the current request. `seen` gets its reply: at once, or after EXEC.

    If the client's text may have shaped an earlier reply, the text can take this reply's place within
    EXEC's reply and make the real one look like text. No barrier shows that, so the reply is not
    believed. `must_know`: later evaluations or the reading of replies depend on it, so the session cannot be
    followed without it.
    """
    transaction = executor.conversation.transaction
    if transaction is None:
        inspect(executor, seen)
    elif executor.conversation.doubt == Doubt.OPEN or transaction.is_shapeable:
        if must_know:
            executor.become_opaque("its effect inside MULTI cannot be known after a script")
        else:
            executor.forward_one()
    elif transaction.is_full:
        executor.become_opaque("the transaction has too many such commands")
    else:
        transaction.logins += is_login
        transaction.when_executed(seen)
        executor.forward_one()
