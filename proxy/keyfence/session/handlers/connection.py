"""Commands that concern the whole connection: RESET, SELECT, MONITOR, WAIT, QUIT, replication, SCRIPT DEBUG.

Rule: the session changes only when Redis' reply says so (see `table`).
"""

from __future__ import annotations

from keyfence.commands.arguments import integer, word
from keyfence.net.closures import HTTP, QUIT, UPSTREAM_LOST
from keyfence.resp import encode
from keyfence.resp.profile import unchanged
from keyfence.session.conversation.conversation import Doubt
from keyfence.session.conversation.executor import Argv, Executor
from keyfence.session.conversation.reply_queue import OFF, ON

from .effects import change, hold_for, hold_for_proof
from .transactions import OK


def reset(executor: Executor, argv: Argv) -> None:
    if len(argv) != 1:
        executor.forward_one()
        return

    conversation = executor.conversation

    def send() -> None:
        if conversation.replies.mode == OFF:
            conversation.replies.mode = ON  # RESET switches replies on before it answers
        if conversation.doubt == Doubt.OPEN:  # inside MULTI, where no barrier can stand before it
            hold_for_proof(executor, lambda reply: _was_reset(executor, reply))
        else:
            hold_for(executor, lambda reply: _was_reset(executor, reply))

    if conversation.transaction is None:
        conversation.when_sure(send)
    else:
        send()


def _was_reset(executor: Executor, reply: bytes) -> None:
    """The connection is like a new one. Send again what keyfence sends on a new connection."""
    if reply.startswith(b"-"):
        return
    client, conversation = executor.client, executor.conversation
    if reply != b"+RESET\r\n":
        conversation.fall_out_of_step()
        return
    conversation.transaction = None
    client.become(client.origin.service)
    conversation.replies.reset()
    conversation.profile = unchanged(client.context.database)
    conversation.route.watching = False

    def greeted(reply: bytes) -> None:
        if reply.startswith(b"-") and not (client.context.selects_later and reply.startswith(b"-NOAUTH")):
            conversation.end(UPSTREAM_LOST.because("upstream refused keyfence's login after RESET"))

    for command in client.context.greeting():
        conversation.to_upstream.append(command)
        conversation.replies.drop(greeted)


def select(executor: Executor, argv: Argv) -> None:
    number = integer(argv[1]) if len(argv) == 2 else None
    if number is None:
        executor.forward_one()
        return

    def answered(reply: bytes) -> None:
        if reply == OK:
            executor.conversation.note(database=number)

    change(executor, answered)


def monitor(executor: Executor, argv: Argv) -> None:
    if executor.conversation.transaction is not None:
        executor.forward_one()  # Redis queues it, and refuses it in EXEC's reply
    elif executor.conversation.replies.monitoring and len(argv) == 1:
        executor.count_forwarded()  # Redis does not answer a second one
        executor.conversation.to_upstream.append(executor.request)
    else:
        hold_for(executor, lambda reply: _monitoring(executor, reply))


def _monitoring(executor: Executor, reply: bytes) -> None:
    if reply == OK:
        executor.conversation.replies.follow_monitor()


def wait(executor: Executor, _argv: Argv) -> None:
    """WAIT concerns the writes of its own connection (`src/replication.c`, waitCommand: `c->woff`), but a
    client may have made its writes on a shared one. Any command brings its connection up to the newest
    write."""
    conversation = executor.conversation
    if conversation.route.is_behind and conversation.transaction is None:
        conversation.to_upstream.append(_PING)
        conversation.replies.drop()
    executor.forward_one()


_PING = encode.command(b"PING")


def quit(executor: Executor, _argv: Argv) -> None:
    executor.forward_one()
    executor.conversation.close_after_replies(QUIT.because("QUIT"))


def quit_shared(executor: Executor, _argv: Argv) -> bool:
    """Answers QUIT here, because Redis must not close a connection that other clients use."""
    executor.count_forwarded()
    executor.conversation.replies.local(b"+OK\r\n")
    executor.conversation.close_after_replies(QUIT.because("QUIT"))
    return True


def hang_up(executor: Executor, _argv: Argv) -> None:
    """Redis regards such a command as an attack through a browser and closes at once (server.c,
    processCommand)."""
    executor.conversation.close_after_replies(HTTP.because("HTTP sent to a Redis port"))


def replication(executor: Executor, _argv: Argv) -> None:
    executor.become_opaque("its replies cannot be followed")


def script_debug(executor: Executor, argv: Argv) -> None:
    """With YES or SYNC, the next EVAL opens a debugger that reads all further input (`ldbStartSession` in
    `src/eval.c`). Inside MULTI Redis refuses the command."""
    conversation = executor.conversation
    if conversation.transaction is not None or len(argv) != 3 or word(argv[2]) not in (b"YES", b"SYNC"):
        conversation.mark_shapeable(True)
        executor.forward_one()
    else:
        executor.become_opaque("its debugger reads lines that are not commands")
