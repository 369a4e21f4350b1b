"""MULTI, EXEC, DISCARD, WATCH and UNWATCH.

Rule: Redis decides whether a transaction is open and whether it runs; its replies open and end it here.
"""

from __future__ import annotations

from keyfence.session.conversation.executor import Argv, Executor
from keyfence.session.conversation.transactions import OpenTransaction

from .effects import hold_for, hold_for_proof, inspect

OK = b"+OK\r\n"


def multi(session: Executor, argv: Argv) -> None:
    if len(argv) != 1 or session.transaction is not None:
        _uncounted(session)
        return
    session.count_forwarded()
    open_transaction(session, OpenTransaction(session.current_authorizer()), session.request)


def open_transaction(session: Executor, transaction: OpenTransaction, multi: bytes) -> None:
    """Sends a MULTI. The commands after it are queued in `transaction`."""

    def answered(reply: bytes) -> None:
        """If Redis refuses MULTI (NOAUTH, NOPERM), there is no transaction."""
        transaction.is_confirmed = True
        if reply.startswith(b"-") and session.transaction is transaction:
            session.transaction = None

    session.to_upstream.append(multi)
    session.replies.inspect(answered)
    session.transaction = transaction


def _uncounted(session: Executor) -> None:
    """Forwards a command that Redis answers at once inside MULTI, so that EXEC's reply has no element for
    it."""
    session.forward_one()
    if session.transaction is not None:
        session.transaction.queued -= 1


def execute(session: Executor, argv: Argv) -> None:
    transaction = session.transaction
    if transaction is None:
        session.forward_one()
        return
    if len(argv) != 1:  # since 6.0.6 this ends the transaction too (server.c, rejectCommandFormat)
        hold_for(session, lambda reply: _leave(session) if reply.startswith(b"-EXECABORT") else None)
        return
    _leave(session)
    if transaction.is_shapeable:
        session.doubt_replies()
    if not transaction.has_effects:
        session.forward_one()
    elif session.is_doubtful or transaction.logins:
        # Redis 8.0 and Valkey 8.1 do not answer a login that fails (redis/redis#15640).
        hold_for_proof(session, transaction.executed, transaction.logins)
    else:
        hold_for(session, transaction.executed)


def discard(session: Executor, argv: Argv) -> None:
    if session.transaction is None or len(argv) != 1:
        _uncounted(session)
        return
    hold_for(session, lambda reply: None if reply.startswith(b"-") else _leave(session))


def _leave(session: Executor) -> None:
    if session.transaction is not None:
        session.transaction = None
        session.route.watching = False


def watch(session: Executor, _argv: Argv) -> None:
    _uncounted(session)


def unwatch(session: Executor, _argv: Argv) -> None:
    """If Redis refuses UNWATCH, the keys stay watched."""

    def answered(reply: bytes) -> None:
        if reply == OK:
            session.route.watching = False

    if session.transaction is None:
        inspect(session, answered)
    else:
        session.forward_one()  # EXEC and DISCARD end all watches anyway
