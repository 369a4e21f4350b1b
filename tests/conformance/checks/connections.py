"""What a client asks of its own connection."""

from __future__ import annotations

from tests.conformance.check import all_same, check, holds, is_error, same, supported
from tests.conformance.trial import Trial
from tests.conformance.wire import NIL, OK, PONG, QUEUED, array, bulk, bulks, integer, push, value

GROUP = "connections"


@check(GROUP)
def _(trial: Trial) -> None:
    """PING and ECHO send back their text."""
    one = trial.connect()
    all_same(one.pipeline([("PING",), ("PING", "a\r\n"), ("ECHO", "")]), [PONG, bulk("a\r\n"), bulk("")])


@check(GROUP)
def _(trial: Trial) -> None:
    """Two hundred clients at once are all served."""
    clients, key = [trial.connect() for _ in range(200)], trial.key()
    for number, one in enumerate(clients):
        same(one.ask("INCR", key), integer(number + 1))


@check(GROUP)
def _(trial: Trial) -> None:
    """Three hundred clients, one after another, are all served."""
    key = trial.key()
    for number in range(300):
        one = trial.connect()
        same(one.ask("INCR", key), integer(number + 1))
        one.close()


@check(GROUP)
def _(trial: Trial) -> None:
    """A library's first commands leave a connection that works."""
    one, key = trial.connect(), trial.key()
    commands = [
        ("HELLO", 3),
        ("CLIENT", "SETINFO", "LIB-NAME", "conformance"),
        ("CLIENT", "SETINFO", "LIB-VER", "1"),
        ("CLIENT", "MAINT_NOTIFICATIONS", "ON"),
        ("CLIENT", "SETNAME", "worker"),
        ("CONFIG", "GET", "databases"),
        ("INCR", key),
    ]
    same(one.pipeline(commands)[-1], integer(1))


@check(GROUP)
def _(trial: Trial) -> None:
    """CLIENT ID is a number that stays, each client's own."""
    one, other = trial.connect(), trial.connect()
    came = one.ask("CLIENT", "ID")
    holds(came.startswith(b":"), "a number", came)
    same(one.pipeline([("SET", trial.key(), 1), ("MULTI",), ("EXEC",), ("CLIENT", "ID")])[-1], came)
    holds(other.ask("CLIENT", "ID") != came, "another number for another client", came)


@check(GROUP)
def _(trial: Trial) -> None:
    """CLIENT GETNAME gives the name that CLIENT SETNAME has set."""
    one = trial.connect()
    holds((came := one.ask("CLIENT", "GETNAME")) in (NIL, bulk("")), "no name at first", came)
    same(one.ask("CLIENT", "SETNAME", "conf-name"), OK)
    all_same(one.pipeline([("GET", trial.key()), ("CLIENT", "GETNAME")]), [NIL, bulk("conf-name")])
    is_error(one.ask("CLIENT", "SETNAME", "two words"), "ERR")


@check(GROUP)
def _(trial: Trial) -> None:
    """CLIENT LIST gets lines of clients."""
    one = trial.connect()
    came = one.ask("CLIENT", "LIST")
    holds(came.startswith(b"$") and b"id=" in came and b" addr=" in came, "lines with id and addr", came)


@check(GROUP)
def _(trial: Trial) -> None:
    """CLIENT INFO describes the client's own connection."""
    one = trial.connect()
    same(one.ask("CLIENT", "SETNAME", "conf-info"), OK)
    came = one.ask("CLIENT", "INFO")
    holds(b"id=" in came and b" name=conf-info " in came, "a line with the client's name", came)


@check(GROUP)
def _(trial: Trial) -> None:
    """SELECT gives each database keys of its own."""
    one, key = trial.connect(), trial.key()
    same(one.ask("SET", key, "zero"), OK)
    same(one.ask("SELECT", 1), OK)
    same(one.ask("GET", key), NIL)
    same(one.ask("SET", key, "one"), OK)
    same(one.ask("SELECT", 0), OK)
    same(one.ask("GET", key), bulk("zero"))
    all_same(one.pipeline([("SELECT", 1), ("GET", key), ("DEL", key)]), [OK, bulk("one"), integer(1)])


@check(GROUP)
def _(trial: Trial) -> None:
    """SELECT of no database gets an error and changes nothing."""
    one, key = trial.connect(), trial.key()
    same(one.ask("SET", key, 1), OK)
    for wrong in ("x", "-1", "100000"):
        is_error(one.ask("SELECT", wrong))
    same(one.ask("GET", key), bulk(1))


@check(GROUP)
def _(trial: Trial) -> None:
    """A wrong password gets an error, and the connection goes on."""
    one = trial.connect()
    came = one.ask("AUTH", "nosuchuser", "wrong")
    holds(came.startswith(b"-"), "an error", came)
    same(one.ask("PING"), PONG)


@check(GROUP)
def _(trial: Trial) -> None:
    """ACL WHOAMI names the user."""
    one = trial.connect()
    same(one.ask("ACL", "WHOAMI"), bulk(trial.place.target.user or "default"))


@check(GROUP)
def _(trial: Trial) -> None:
    """QUIT gets OK after all replies before it, and the connection's end."""
    one, key = trial.connect(), trial.key()
    all_same(one.pipeline([("SET", key, 1), ("GET", key), ("QUIT",)]), [OK, bulk(1), OK])
    same(one.rest(), b"")


@check(GROUP)
def _(trial: Trial) -> None:
    """RESET ends a transaction, a subscription, a name and RESP3."""
    one, key, channel = trial.connect(), trial.key(), trial.name("reset")
    same(one.ask("RESET"), b"+RESET\r\n")
    all_same(one.pipeline([("CLIENT", "SETNAME", "conf-reset"), ("MULTI",)]), [OK, OK])
    all_same(one.pipeline([("SET", key, 1), ("RESET",), ("GET", key)]), [QUEUED, b"+RESET\r\n", NIL])
    holds((came := one.ask("CLIENT", "GETNAME")) in (NIL, bulk("")), "no name", came)
    supported(one.ask("HELLO", 3))
    one.send("SUBSCRIBE", channel)
    same(one.reply(), push(bulk("subscribe"), bulk(channel), integer(1)))
    same(one.ask("RESET"), b"+RESET\r\n")
    same(one.ask("GET", key), NIL)


@check(GROUP)
def _(trial: Trial) -> None:
    """CLIENT REPLY OFF, SKIP and ON hold back the right replies."""
    one, key = trial.connect(), trial.key()
    came = one.ask("CLIENT", "REPLY", "ON")
    same(came, OK)
    one.send("CLIENT", "REPLY", "SKIP")
    one.send("INCR", key)
    same(one.ask("INCR", key), integer(2))
    one.send("CLIENT", "REPLY", "OFF")
    for _ in range(5):
        one.send("INCR", key)
    same(one.ask("CLIENT", "REPLY", "ON"), OK)
    same(one.ask("INCR", key), integer(8))


@check(GROUP)
def _(trial: Trial) -> None:
    """CLIENT TRACKING tells of another client's write."""
    one, other, key = trial.connect(), trial.connect(), trial.key()
    supported(one.ask("HELLO", 3))
    same(one.ask("CLIENT", "TRACKING", "ON"), OK)
    same(one.ask("GET", key), b"_\r\n")
    same(other.ask("SET", key, 1), OK)
    same(one.reply(), push(bulk("invalidate"), bulks(key)))
    same(one.ask("GET", key), bulk(1))


@check(GROUP)
def _(trial: Trial) -> None:
    """MONITOR shows the commands of others."""
    one, other, key = trial.connect(), trial.connect(), trial.key()
    same(one.ask("MONITOR"), OK)
    same(other.ask("SET", key, 1), OK)
    wanted = f'"SET" "{key}" "1"\r\n'.encode()
    for _ in range(50):
        if (line := one.reply()).endswith(wanted):
            break
        holds(line.startswith(b"+"), "lines", line)
    else:
        holds(False, "the line of SET", "50 other lines")


@check(GROUP)
def _(trial: Trial) -> None:
    """A client's expiry times reach the keys' nodes."""
    one = trial.connect()
    for key in trial.keys(6):
        same(one.ask("SET", key, 1, "EX", 100), OK)
        came = one.ask("TTL", key)
        holds(came.startswith(b":") and 90 < value(came) <= 100, "a TTL of 100 s", came)
        same(one.pipeline([("PERSIST", key), ("TTL", key)])[-1], integer(-1))


@check(GROUP)
def _(trial: Trial) -> None:
    """A SELECT in a transaction lasts beyond EXEC."""
    one, key = trial.connect(), trial.key()
    all_same(one.pipeline([("SET", key, "zero"), ("SELECT", 1), ("SELECT", 0)]), [OK, OK, OK])
    came = one.pipeline([("MULTI",), ("SELECT", 1), ("GET", key), ("EXEC",), ("GET", key)])
    same(came[0], OK)
    same(came[1], QUEUED)
    all_same(came[2:], [QUEUED, array(OK, NIL), NIL])
