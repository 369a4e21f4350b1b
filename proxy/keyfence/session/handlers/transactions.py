"""MULTI, EXEC, DISCARD, WATCH and UNWATCH.

Rule: Redis decides whether a transaction is open and whether it runs; its replies open and end it here.
"""

from __future__ import annotations

from keyfence.session.conversation.conversation import Conversation, Doubt
from keyfence.session.conversation.executor import Argv, Executor
from keyfence.session.conversation.transactions import OpenTransaction

from .effects import hold_for, hold_for_proof, inspect

OK = b"+OK\r\n"


def multi(executor: Executor, argv: Argv) -> None:
    if len(argv) != 1 or executor.conversation.transaction is not None:
        _uncounted(executor)
        return
    executor.count_forwarded()
    transaction = OpenTransaction(executor.client.current_authorizer())
    open_transaction(executor.conversation, transaction, executor.request)


def open_transaction(conversation: Conversation, transaction: OpenTransaction, multi: bytes) -> None:
    """Sends a MULTI. The commands after it are queued in `transaction`."""

    def answered(reply: bytes) -> None:
        """If Redis refuses MULTI (NOAUTH, NOPERM), there is no transaction: what was to be queued has run."""
        transaction.is_confirmed = True
        if reply.startswith(b"-") and conversation.transaction is transaction:
            conversation.transaction = None
            if transaction.is_shapeable:
                conversation.doubt_replies()

    conversation.to_upstream.append(multi)
    conversation.replies.inspect(answered)
    conversation.transaction = transaction


def _uncounted(executor: Executor) -> None:
    """Forwards a command that Redis answers at once inside MULTI, so that EXEC's reply has no element for
    it."""
    executor.forward_one()
    if executor.conversation.transaction is not None:
        executor.conversation.transaction.queued -= 1


def execute(executor: Executor, argv: Argv) -> None:
    transaction = executor.conversation.transaction
    if transaction is None:
        executor.forward_one()
        return
    if len(argv) != 1:  # since 6.0.6 this ends the transaction too (server.c, rejectCommandFormat)
        hold_for(
            executor, lambda reply: _leave(executor.conversation) if reply.startswith(b"-EXECABORT") else None
        )
        return
    _leave(executor.conversation)
    if transaction.is_shapeable:
        executor.conversation.doubt_replies()
    edit = transaction.edited if transaction.has_edits else None
    if not transaction.has_effects and edit is None:
        executor.forward_one()
    elif executor.conversation.doubt == Doubt.OPEN or transaction.logins:
        # Redis 8.0 and Valkey 8.1 do not answer a login that fails (redis/redis#15640).
        hold_for_proof(executor, transaction.executed, transaction.logins, edit)
    else:
        hold_for(executor, transaction.executed, edit)


def discard(executor: Executor, argv: Argv) -> None:
    if executor.conversation.transaction is None or len(argv) != 1:
        _uncounted(executor)
        return
    hold_for(executor, lambda reply: None if reply.startswith(b"-") else _leave(executor.conversation))


def _leave(conversation: Conversation) -> None:
    if conversation.transaction is not None:
        conversation.transaction = None
        conversation.route.watching = False


def watch(executor: Executor, _argv: Argv) -> None:
    _uncounted(executor)


def unwatch(executor: Executor, _argv: Argv) -> None:
    """If Redis refuses UNWATCH, the keys stay watched."""

    def answered(reply: bytes) -> None:
        if reply == OK:
            executor.conversation.route.watching = False

    if executor.conversation.transaction is None:
        inspect(executor, answered)
    else:
        executor.forward_one()  # EXEC and DISCARD end all watches anyway
