"""Commands that do something to the session itself: login, transaction, subscription, replies, the end.

Rule: Redis decides whether such a command succeeds, and its reply is what changes the session. Until that
reply is in, nothing is judged that it would be judged differently by. What changes who the client is or its
database is sent only when nothing is due and no earlier request could have shaped the reply (`when_sure`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from keyfence.commands.arguments import integer, word
from keyfence.policy.services import UNKNOWN
from keyfence.resp import encode
from keyfence.session.reply_queue import OFF, ON, SKIP
from keyfence.session.shown_ids import redirections

from .auth import auth, auth_shared, hello, show_id
from .pubsub import Subscriptions, needs_names
from .transactions import OpenTransaction

if TYPE_CHECKING:
    from keyfence.session.actor import Actor

Argv = Sequence[bytes]


class Special(NamedTuple):
    """How a session carries out a command."""

    act: Callable[[Actor, Argv], None]
    # How without a connection of its own; False: it needs one.
    on_shared: Callable[[Actor, Argv], bool] = lambda _session, _argv: False


# -- transactions


def _multi(session: Actor, argv: Argv) -> None:
    if len(argv) != 1 or session.transaction is not None:
        _uncounted(session)
        return
    session.told_forwarded()
    open_transaction(session, OpenTransaction(session.current_judge()), session.request)


def open_transaction(session: Actor, transaction: OpenTransaction, multi: bytes) -> None:
    """Send a MULTI; what follows is queued in `transaction`."""

    def answered(reply: bytes) -> None:
        """Where Redis refused MULTI (NOAUTH, NOPERM) there is no transaction."""
        transaction.is_confirmed = True
        if reply.startswith(b"-") and session.transaction is transaction:
            session.transaction = None

    session.to_upstream.append(multi)
    session.answers.inspect(answered)
    session.transaction = transaction


def _uncounted(session: Actor) -> None:
    """Some commands are answered at once inside MULTI: EXEC's answer has none for them."""
    session.pass_one()
    if session.transaction is not None:
        session.transaction.queued -= 1


def _exec(session: Actor, argv: Argv) -> None:
    transaction = session.transaction
    if transaction is None:
        session.pass_one()
        return
    if len(argv) != 1:  # since 6.0.6 that ends the transaction too (server.c, rejectCommandFormat)
        session.hold_for(lambda reply: _leave(session) if reply.startswith(b"-EXECABORT") else None)
        return
    _leave(session)
    if transaction.is_shapeable:
        session.doubt_replies()
    if not transaction.has_effects:
        session.pass_one()
    elif session.is_doubtful or transaction.logins:
        # Redis 8.0 and Valkey 8.1 leave a login that failed without an answer (redis/redis#15640).
        session.hold_for_proof(transaction.executed, transaction.logins)
    else:
        session.hold_for(transaction.executed)


def _discard(session: Actor, argv: Argv) -> None:
    if session.transaction is None or len(argv) != 1:
        _uncounted(session)
        return
    session.hold_for(lambda reply: None if reply.startswith(b"-") else _leave(session))


def _leave(session: Actor) -> None:
    if session.transaction is not None:
        session.transaction = None
        session.route.watching = False


def _watch(session: Actor, _argv: Argv) -> None:
    _uncounted(session)


def _unwatch(session: Actor, _argv: Argv) -> None:
    """Where Redis refuses it, the keys stay watched."""

    def answered(reply: bytes) -> None:
        if reply == _OK:
            session.route.watching = False

    if session.transaction is None:
        session.inspect(answered)
    else:
        session.pass_one()  # EXEC and DISCARD end all watching anyway


# -- RESET and SELECT


def _reset(session: Actor, argv: Argv) -> None:
    if len(argv) != 1:
        session.pass_one()
        return

    def send() -> None:
        if session.answers.reply == OFF:
            session.answers.reply = ON  # RESET switches replies on before it answers
        if session.is_doubtful:  # inside MULTI, where no barrier can stand before it
            session.hold_for_proof(lambda reply: _was_reset(session, reply))
        else:
            session.hold_for(lambda reply: _was_reset(session, reply))

    if session.transaction is None:
        session.when_sure(send)
    else:
        send()


def _was_reset(session: Actor, reply: bytes) -> None:
    """The connection is as if new; what keyfence said when it was made is to be said again."""
    if reply.startswith(b"-"):
        return
    if reply != b"+RESET\r\n":
        session.fall_out_of_step()
        return
    session.transaction = None
    session.become(session.at_connect)
    session.answers.reset()
    session.profile = session.first_profile
    session.route.watching = False

    def greeted(reply: bytes) -> None:
        if reply.startswith(b"-") and not (session.selects_later and reply.startswith(b"-NOAUTH")):
            session.closing = "upstream refused keyfence's login after RESET"

    for command in session.greeting:
        session.to_upstream.append(command)
        session.answers.drop(greeted)


# -- the connection


def _select(session: Actor, argv: Argv) -> None:
    number = integer(argv[1]) if len(argv) == 2 else None
    if number is None:
        session.pass_one()
        return

    def answered(reply: bytes) -> None:
        if reply == _OK:
            session.profile = session.profile._replace(database=number)

    if session.transaction is None:
        session.when_sure(lambda: session.hold_for(answered))
    else:
        session.effect(answered, decides=True)


def _client(session: Actor, argv: Argv) -> None:
    subcommand = word(argv[1]) if len(argv) > 1 else b""
    if subcommand == b"REPLY" and len(argv) == 3:
        _client_reply(session, argv)
    elif subcommand == b"SETNAME" and len(argv) == 3:
        session.effect(lambda reply: _if_ok(session, reply, name=argv[2]))
    elif subcommand == b"SETINFO" and len(argv) == 4:
        _client_setinfo(session, argv)
    elif subcommand == b"MAINT_NOTIFICATIONS":
        session.effect(lambda reply: _notified(session, reply))
    elif subcommand in (b"ID", b"INFO"):
        show_id(session)
    elif subcommand == b"TRACKING":
        _client_tracking(session, argv)
    else:
        session.pass_one()


def _client_tracking(session: Actor, argv: Argv) -> None:
    """What it asks for may be sent to another connection, but not to a stranger's."""
    ids = session.ids
    # Where tenants share a service, a client of the service may be another's.
    caller = session.caller if session.values else None
    strangers = [
        (position, number)
        for position, number in redirections(argv)
        if not ids.is_own(session, number) and not ids.is_of(session.service, number, caller)
    ]
    if not strangers:
        session.pass_one()
    elif ids.is_all or caller is not None or session.service == UNKNOWN or len(strangers) > 1:
        session.names_a_strangers(strangers[0][0])
    else:
        session.when_answered(lambda: _ask_others(session, *strangers[0]))


def _ask_others(session: Actor, position: int, number: int) -> None:
    def answered(is_own: bool) -> None:
        if is_own:
            session.pass_one()
        else:
            session.names_a_strangers(position)

    session.ask_others(number, answered)


def _if_ok(session: Actor, reply: bytes, name: bytes) -> None:
    if reply.startswith(b"+"):
        session.profile = session.profile._replace(name=name)


def _client_setinfo(session: Actor, argv: Argv) -> None:
    if word(argv[2]) == b"LIB-NAME":
        session.says_library(name=argv[3])
    elif word(argv[2]) == b"LIB-VER":
        session.says_library(version=argv[3])

    def answered(reply: bytes) -> None:
        name, version = session.profile.library
        if not reply.startswith(b"+"):
            return
        library = (argv[3], version) if word(argv[2]) == b"LIB-NAME" else (name, argv[3])
        session.profile = session.profile._replace(library=library)

    session.effect(answered)


def _notified(session: Actor, reply: bytes) -> None:
    """Most servers don't know it; from one that does, notices may come at any time."""
    if not reply.startswith(b"-"):
        session.route.pinned = "CLIENT MAINT_NOTIFICATIONS"


def _client_reply(session: Actor, argv: Argv) -> None:
    """Redis goes on answering, and the answers are dropped here: so every one can still be told from the
    next.

    Whether this client may use CLIENT REPLY at all, and as it has written it, Redis says to `CLIENT REPLY ON`
    in the place of the others.
    """
    mode = word(argv[2])
    changes = mode in (b"OFF", b"SKIP") or (mode == b"ON" and session.answers.reply != ON)
    if changes and session.transaction is not None:
        session.opaque_request("it changes which replies are sent inside MULTI")
    elif mode not in (b"OFF", b"SKIP"):
        if mode == b"ON":
            session.answers.reply = ON
        session.pass_one()
    elif session.answers.reply == OFF:
        session.told_forwarded()  # as it is already, and nothing is answered
    else:
        session.told_forwarded()
        session.to_upstream.append(encode.command(*argv[:2], b"ON"))
        session.held = True
        session.answers.drop_unless_error(lambda reply: _replies_switched(session, mode, reply))


def _replies_switched(session: Actor, mode: bytes, reply: bytes) -> None:
    session.held = False
    if not reply.startswith(b"-"):
        session.answers.reply = OFF if mode == b"OFF" else SKIP


_OK = b"+OK\r\n"


def _monitor(session: Actor, argv: Argv) -> None:
    if session.transaction is not None:
        session.pass_one()  # it is queued, and EXEC's answer says that it can't be run there
    elif session.answers.monitoring and len(argv) == 1:
        session.told_forwarded()  # Redis doesn't answer a second one
        session.to_upstream.append(session.request)
    else:
        session.hold_for(lambda reply: _monitoring(session, reply))


def _monitoring(session: Actor, reply: bytes) -> None:
    if reply == _OK:
        session.answers.follow_monitor()


def _wait(session: Actor, _argv: Argv) -> None:
    """WAIT is about the writes of its connection (`src/replication.c`, waitCommand: `c->woff`), and those of
    a client that shared one were made on another. Any command carries its connection to the newest write."""
    if session.is_behind and session.transaction is None:
        session.to_upstream.append(_PING)
        session.answers.drop()
    session.pass_one()


_PING = encode.command(b"PING")


def _quit(session: Actor, _argv: Argv) -> None:
    session.pass_one()
    session.close_after_answers("QUIT")


def _quit_shared(session: Actor, _argv: Argv) -> bool:
    """A connection that others use must not be told to end."""
    session.told_forwarded()
    session.answers.local(b"+OK\r\n")
    session.close_after_answers("QUIT")
    return True


def _hang_up(session: Actor, _argv: Argv) -> None:
    """Redis takes these for an attack through a browser and closes at once (server.c, processCommand)."""
    session.close_after_answers("HTTP sent to a Redis port")


# -- messages


def _subscription(session: Actor, argv: Argv) -> None:
    """Follow it, once every reply is in that is due: then what comes next can't be mistaken."""
    subscriptions = session.answers.subscriptions or Subscriptions()
    if session.transaction is not None and len(argv) == 1 and needs_names(argv):
        session.pass_one()  # too few arguments: Redis says so, and EXEC will abort
    elif session.transaction is not None:
        session.opaque_request("what it subscribes to inside MULTI can't be followed")
    elif not subscriptions.have_room_for(argv):
        session.opaque_request("so many subscriptions can't be followed")
    else:
        session.told_forwarded()
        session.when_answered(lambda: _subscribe(session, argv))


def _subscribe(session: Actor, argv: Argv) -> None:
    subscriptions = session.answers.follow_subscriptions()
    session.to_upstream.append(session.request)
    if len(argv) == 1 and needs_names(argv):
        session.answers.forward(1)  # too few arguments: an error
    else:
        session.answers.confirm(subscriptions.expect(argv))


def _replication(session: Actor, _argv: Argv) -> None:
    session.opaque_request("its replies can't be followed")


def _script_debug(session: Actor, argv: Argv) -> None:
    """With YES or SYNC the next EVAL opens a debugger, and what follows is for that (`ldbStartSession`
    in `src/eval.c`). Inside MULTI Redis refuses it."""
    if session.transaction is not None or len(argv) != 3 or word(argv[2]) not in (b"YES", b"SYNC"):
        session.mark_shapeable(True)
        session.pass_one()
    else:
        session.opaque_request("what its debugger is told isn't commands")


hang_up = Special(_hang_up)
_subscribing = Special(_subscription)
_replicating = Special(_replication)

SPECIALS: dict[bytes, Special] = {
    b"AUTH": Special(auth, auth_shared),
    b"CLIENT": Special(_client),
    b"DISCARD": Special(_discard),
    b"EXEC": Special(_exec),
    b"HELLO": Special(hello),
    b"HOST:": hang_up,
    b"MONITOR": Special(_monitor),
    b"MULTI": Special(_multi),
    b"POST": hang_up,
    b"PSUBSCRIBE": _subscribing,
    b"PSYNC": _replicating,
    b"PUNSUBSCRIBE": _subscribing,
    b"QUIT": Special(_quit, _quit_shared),
    b"REPLCONF": _replicating,
    b"RESET": Special(_reset),
    b"SELECT": Special(_select),
    b"SSUBSCRIBE": _subscribing,
    b"SUBSCRIBE": _subscribing,
    b"SUNSUBSCRIBE": _subscribing,
    b"SYNC": _replicating,
    b"UNSUBSCRIBE": _subscribing,
    b"UNWATCH": Special(_unwatch),
    b"WAIT": Special(_wait),
    b"WAITAOF": Special(_wait),
    b"WATCH": Special(_watch),
}
LONGEST_SPECIAL = max(map(len, SPECIALS))
# Subcommands of which the container isn't special, by their full names.
SPECIAL_SUBCOMMANDS: dict[str, Special] = {"SCRIPT DEBUG": Special(_script_debug)}

TOO_LARGE = Special(
    lambda session, _argv: session.opaque_request("what it depends on is too long to be judged")
)
# Its name has a NUL in it (`words.fold`), and if Redis knows it, the session is another one from here on.
UNCERTAIN = Special(lambda session, _argv: session.opaque_request("only Redis knows what command it is"))
