"""How a handler learns from Redis' reply what a command has done.

Rule: only the reply changes the session. If later evaluations depend on a reply, it is awaited, and believed
only if no text of the client could have shaped it.
"""

from __future__ import annotations

from collections.abc import Callable

from keyfence.session.conversation.executor import Executor


def inspect(session: Executor, seen: Callable[[bytes], None]) -> None:
    """Send the current request upstream. The reply goes to `seen` and to the client."""
    session.count_forwarded()
    session.to_upstream.append(session.request)
    session.replies.inspect(seen, len(session.request))


def hold_for(session: Executor, seen: Callable[[bytes], None]) -> None:
    """As `inspect`, but nothing more is evaluated until the reply has arrived."""

    def release(reply: bytes) -> None:
        session.release()
        seen(reply)

    inspect(session, release)
    session.hold()


def hold_for_proof(session: Executor, seen: Callable[[bytes], None], missing: int = 0) -> None:
    """As `hold_for`, but the reply is believed only once a barrier after it is passed.

    The reply may be an array that lacks `missing` elements; then barriers fill their places.
    """
    replies: list[bytes] = []

    def answered(reply: bytes) -> None:
        replies.append(reply)
        if barrier.nonce in reply:
            session.fall_out_of_step()

    inspect(session, answered)
    barrier = session.send_barrier(lambda: seen(replies[0]), 1 + missing)


def inspect_effect(
    session: Executor, seen: Callable[[bytes], None], *, is_login: bool = False, decides: bool = False
) -> None:
    """Send the current request. `seen` gets its reply: at once, or after EXEC.

    If the client's text may have shaped an earlier reply, the text can take this reply's place within
    EXEC's reply and make the real one look like text. No barrier shows that, so the reply is not
    believed. If it `decides` how requests are evaluated or replies are read, the session cannot be
    followed.
    """
    transaction = session.transaction
    if transaction is None:
        inspect(session, seen)
    elif session.is_doubtful or transaction.is_shapeable:
        if decides:
            session.become_opaque("its effect inside MULTI cannot be known after a script")
        else:
            session.forward_one()
    elif transaction.is_full:
        session.become_opaque("the transaction has too many such commands")
    else:
        transaction.logins += is_login
        transaction.when_executed(seen)
        session.forward_one()
