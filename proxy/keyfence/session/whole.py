# cython: annotation_typing=False
"""Transactions that have arrived as a whole, from MULTI to EXEC: each is sent as one piece.

Rule: no other client's requests come between those of one piece, and EXEC undoes its effects on the
connection, so it may take a shared one. If something in it is not admitted, it is opened on the client's
dedicated connection, with the requests that were admitted.
"""

from __future__ import annotations

from collections.abc import Sequence

from keyfence.policy.engine.decision_cache import DecisionCache
from keyfence.resp.limits import ProtocolError
from keyfence.resp.requests import RequestReader
from keyfence.session.conversation.executor import Executor, Plan
from keyfence.session.conversation.reply_queue import ON
from keyfence.session.conversation.transactions import OpenTransaction
from keyfence.session.handlers.transactions import open_transaction

from .fastpath import AT_ONCE, EVALUATE, NOTHING, FastPath, is_named
from .slowpath import SlowPath

_EVALUATE, _NOTHING = EVALUATE, NOTHING  # as C integers, where this runs compiled


def sends_whole(
    executor: Executor, fast: FastPath, slow: SlowPath, cache: DecisionCache | None, argv: Sequence[bytes]
) -> bool:
    """Whether the current request is a MULTI whose transaction has arrived as a whole, and is sent."""
    conversation = executor.conversation
    if (
        cache is None
        or conversation.partly_sent  # then the name may be a `StreamedBulk`
        or len(argv) != 1
        or not is_named(argv[0], b"MULTI")
        or conversation.transaction is not None
        or conversation.route.watching
        or conversation.replies.mode != ON
        or not cache.admits_transactions
    ):
        return False
    fast.send_run()
    return _send_whole(executor, fast, slow, cache)


def _send_whole(executor: Executor, fast: FastPath, slow: SlowPath, cache: DecisionCache) -> bool:
    """Send the transaction that begins with the current MULTI as one piece, if all of it is admitted; open it
    otherwise. False: it has not arrived as a whole."""
    conversation = executor.conversation
    reader = conversation.reader
    start, end = reader.start, reader.end
    is_here = exec_follows(reader, conversation.room.shared_request, conversation.room.shared_requests)
    reader.return_to(start, end)
    if not is_here:
        return False
    fast.counted(cache.multi)
    fast.compare_transaction(b"MULTI")
    transaction = conversation.transaction = OpenTransaction(executor.client.current_authorizer())
    while True:
        found = fast.read(cache)
        if found.kind == _NOTHING:  # the client's turn is over, and the request is in the run
            _open_before(executor, fast, start, end, None)
            return True
        argv = found.argv
        if found.kind == _EVALUATE and len(argv) == 1 and is_named(argv[0], b"EXEC"):
            break
        if not slow.admits(found):
            _open_before(executor, fast, start, end, argv)
            conversation.yields()
            return True
        fast.join(reader)
        if conversation.yields():
            _open_before(executor, fast, start, end, None)
            return True
    conversation.transaction = None
    conversation.shapeable = conversation.shapeable or transaction.is_shapeable
    fast.counted(cache.execution)
    fast.compare_transaction(b"EXEC")
    count, fast.count = fast.count + 2, 0
    conversation.send(reader.span(start, reader.end), count)
    return True


def _open_before(
    executor: Executor, fast: FastPath, start: int, end: int, argv: Sequence[bytes] | None
) -> None:
    """Open the transaction, whose MULTI is at `start` to `end`, on the client's dedicated connection. The
    requests of the run were admitted. The current one was not; or (`argv` None) it is the last of the run,
    and other clients have their turn."""
    conversation = executor.conversation
    reader = conversation.reader
    multi = reader.span(start, end)
    count, fast.count = fast.count, 0
    admitted = reader.span(fast.start, fast.end) if count else b""
    request, plan = reader.span(reader.start, reader.end), executor.plan
    transaction, conversation.transaction = conversation.transaction, None
    conversation.route.stay()

    def begin() -> None:
        if conversation.route.is_shared:
            conversation.leave_shared()
        assert transaction is not None
        open_transaction(conversation, transaction, multi)
        if count:
            conversation.send(admitted, count)
        if argv is not None:
            executor.request = request
            executor.plan = Plan(plan.handler, plan.refusal, plan.command, True, plan.is_counted)
            executor.execute(argv)

    if conversation.route.is_shared:
        conversation.when_answered(begin)
    else:
        begin()


def exec_follows(reader: RequestReader, most_bytes: int, most_requests: int) -> bool:
    """Whether the transaction that begins with the current request has arrived up to its EXEC, with no more
    than this in between. It advances the reader; the caller sets it back.

    It looks no further than to a MULTI or DISCARD, so it looks at no request twice.
    """
    start = reader.start
    count = 0
    name = b""
    while True:
        if name:  # a request of one word
            if is_named(name, b"EXEC"):
                return True
            if is_named(name, b"DISCARD") or is_named(name, b"MULTI"):
                return False
        if reader.peek():
            name = reader.data()[reader.name_at : reader.name_end] if reader.count == 1 else b""
        else:
            try:
                argv = reader.next()
            except ProtocolError:
                return False  # it is found again after the requests before it
            if not argv or len(argv) > AT_ONCE:
                return False
            name = argv[0] if len(argv) == 1 else b""
        if reader.end - start > most_bytes or count > most_requests:
            return False
        count += 1
