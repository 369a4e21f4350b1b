"""Commands that concern the whole connection: RESET, SELECT, MONITOR, WAIT, QUIT, replication, SCRIPT DEBUG.

Rule: the session changes only when Redis' reply says so (see `table`).
"""

from __future__ import annotations

from keyfence.commands.arguments import integer, word
from keyfence.net.closures import HTTP, QUIT, UPSTREAM_LOST
from keyfence.resp import encode
from keyfence.resp.profile import unchanged
from keyfence.session.conversation.executor import Argv, Executor
from keyfence.session.conversation.reply_queue import OFF, ON

from .effects import hold_for, hold_for_proof, inspect_effect
from .transactions import OK


def reset(session: Executor, argv: Argv) -> None:
    if len(argv) != 1:
        session.forward_one()
        return

    def send() -> None:
        if session.replies.mode == OFF:
            session.replies.mode = ON  # RESET switches replies on before it answers
        if session.is_doubtful:  # inside MULTI, where no barrier can stand before it
            hold_for_proof(session, lambda reply: _was_reset(session, reply))
        else:
            hold_for(session, lambda reply: _was_reset(session, reply))

    if session.transaction is None:
        session.when_sure(send)
    else:
        send()


def _was_reset(session: Executor, reply: bytes) -> None:
    """The connection is like a new one. Send again what keyfence sends on a new connection."""
    if reply.startswith(b"-"):
        return
    if reply != b"+RESET\r\n":
        session.fall_out_of_step()
        return
    session.transaction = None
    session.become(session.origin.service)
    session.replies.reset()
    session.profile = unchanged(session.context.database)
    session.route.watching = False

    def greeted(reply: bytes) -> None:
        if reply.startswith(b"-") and not (session.context.selects_later and reply.startswith(b"-NOAUTH")):
            session.closing = UPSTREAM_LOST.because("upstream refused keyfence's login after RESET")

    for command in session.context.greeting():
        session.to_upstream.append(command)
        session.replies.drop(greeted)


def select(session: Executor, argv: Argv) -> None:
    number = integer(argv[1]) if len(argv) == 2 else None
    if number is None:
        session.forward_one()
        return

    def answered(reply: bytes) -> None:
        if reply == OK:
            session.profile = session.profile._replace(database=number)

    if session.transaction is None:
        session.when_sure(lambda: hold_for(session, answered))
    else:
        inspect_effect(session, answered, decides=True)


def monitor(session: Executor, argv: Argv) -> None:
    if session.transaction is not None:
        session.forward_one()  # Redis queues it, and refuses it in EXEC's reply
    elif session.replies.monitoring and len(argv) == 1:
        session.count_forwarded()  # Redis does not answer a second one
        session.to_upstream.append(session.request)
    else:
        hold_for(session, lambda reply: _monitoring(session, reply))


def _monitoring(session: Executor, reply: bytes) -> None:
    if reply == OK:
        session.replies.follow_monitor()


def wait(session: Executor, _argv: Argv) -> None:
    """WAIT concerns the writes of its own connection (`src/replication.c`, waitCommand: `c->woff`), but a
    client may have made its writes on a shared one. Any command brings its connection up to the newest
    write."""
    if session.is_behind and session.transaction is None:
        session.to_upstream.append(_PING)
        session.replies.drop()
    session.forward_one()


_PING = encode.command(b"PING")


def quit(session: Executor, _argv: Argv) -> None:
    session.forward_one()
    session.close_after_replies(QUIT.because("QUIT"))


def quit_shared(session: Executor, _argv: Argv) -> bool:
    """Answers QUIT here, because Redis must not close a connection that other clients use."""
    session.count_forwarded()
    session.replies.local(b"+OK\r\n")
    session.close_after_replies(QUIT.because("QUIT"))
    return True


def hang_up(session: Executor, _argv: Argv) -> None:
    """Redis regards such a command as an attack through a browser and closes at once (server.c,
    processCommand)."""
    session.close_after_replies(HTTP.because("HTTP sent to a Redis port"))


def replication(session: Executor, _argv: Argv) -> None:
    session.become_opaque("its replies cannot be followed")


def script_debug(session: Executor, argv: Argv) -> None:
    """With YES or SYNC, the next EVAL opens a debugger that reads all further input (`ldbStartSession` in
    `src/eval.c`). Inside MULTI Redis refuses the command."""
    if session.transaction is not None or len(argv) != 3 or word(argv[2]) not in (b"YES", b"SYNC"):
        session.mark_shapeable(True)
        session.forward_one()
    else:
        session.become_opaque("its debugger reads lines that are not commands")
