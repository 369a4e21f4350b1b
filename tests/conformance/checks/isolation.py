"""No client sees anything of another, though they may share connections to Redis."""

from __future__ import annotations

import asyncio

from tests.conformance.check import Failed, all_same, check, holds, same, supported
from tests.conformance.trial import Trial
from tests.conformance.wire import NIL, OK, QUEUED, Connection, array, bulk, bulks, integer
from tests.differential.isolation import PLAIN, STATEFUL, Astray, Load, Streams

GROUP = "isolation of clients"
_CLIENTS = 30
_COMMANDS = 3000


def _others(trial: Trial) -> list[Connection]:
    """Several clients: a proxy may put some of them on one connection."""
    return [trial.connect() for _ in range(8)]


@check(GROUP)
def _(trial: Trial) -> None:
    """SELECT of one client does not move others."""
    one, others, key = trial.connect(), _others(trial), trial.key()
    same(one.ask("SET", key, "zero"), OK)
    same(one.ask("SELECT", 1), OK)
    for other in (*others, *_others(trial)):
        same(other.ask("GET", key), bulk("zero"))
    same(one.ask("GET", key), NIL)


@check(GROUP)
def _(trial: Trial) -> None:
    """The name of one client is not another's."""
    one, others = trial.connect(), _others(trial)
    same(one.ask("CLIENT", "SETNAME", "conf-mine"), OK)
    for other in (*others, *_others(trial)):
        holds((came := other.ask("CLIENT", "GETNAME")) in (NIL, bulk("")), "no name", came)
    same(one.ask("CLIENT", "GETNAME"), bulk("conf-mine"))


@check(GROUP)
def _(trial: Trial) -> None:
    """MULTI of one client does not queue the commands of others."""
    one, others, key = trial.connect(), _others(trial), trial.key()
    all_same(one.pipeline([("MULTI",), ("GET", key)]), [OK, QUEUED])
    for number, other in enumerate((*others, *_others(trial)), 1):
        same(other.ask("INCR", key), integer(number))
    same(one.ask("EXEC"), array(bulk(16)))


@check(GROUP)
def _(trial: Trial) -> None:
    """WATCH of one client does not abort the transactions of others."""
    one, others, key = trial.connect(), _others(trial), trial.key()
    same(one.ask("WATCH", key), OK)
    for number, other in enumerate(others, 1):
        came = other.pipeline([("MULTI",), ("INCR", key), ("EXEC",)])
        all_same(came, [OK, QUEUED, array(integer(number))])


@check(GROUP)
def _(trial: Trial) -> None:
    """A client that leaves with MULTI or WATCH leaves nothing to the next."""
    key = trial.key()
    for number in range(8):
        one = trial.connect()
        all_same(one.pipeline([("WATCH", key), ("MULTI",), ("SET", key, "never")]), [OK, OK, QUEUED])
        one.close()
        same(trial.connect().ask("INCR", key), integer(number + 1))


@check(GROUP)
def _(trial: Trial) -> None:
    """Messages for one client do not reach others."""
    one, others, channel = trial.connect(), _others(trial), trial.name("mine")
    same(one.ask("SUBSCRIBE", channel), array(bulk("subscribe"), bulk(channel), integer(1)))
    came = others[0].ask("PUBLISH", channel, "text")
    holds(came.startswith(b":"), "a number", came)
    same(one.reply(), bulks("message", channel, "text"))
    for other in others:
        same(other.ask("GET", trial.key()), NIL)


@check(GROUP)
def _(trial: Trial) -> None:
    """RESP3 of one client does not change the replies of others."""
    one, others, key = trial.connect(), _others(trial), trial.key()
    supported(one.ask("HELLO", 3))
    same(one.ask("HSET", key, "f", "v"), integer(1))
    for other in (*others, *_others(trial)):
        same(other.ask("HGETALL", key), bulks("f", "v"))
    same(one.ask("HGETALL", key), b"%1\r\n" + bulk("f") + bulk("v"))


@check(GROUP)
def _(trial: Trial) -> None:
    """CLIENT REPLY OFF of one client does not silence others."""
    one, others, key = trial.connect(), _others(trial), trial.key()
    same(one.ask("CLIENT", "REPLY", "ON"), OK)
    one.send("CLIENT", "REPLY", "OFF")
    one.send("SET", key, 1)
    for other in (*others, *_others(trial)):
        holds((came := other.ask("GET", key)) in (NIL, bulk(1)), "a reply", came)


def _nothing_goes_astray(trial: Trial, kinds: tuple[str, ...]) -> None:
    """Clients whose requests and replies are recognizable work at once; some leave in the middle."""
    target = trial.place.target

    async def connect() -> Streams:
        reader, writer = await asyncio.open_connection(target.host, target.port, limit=1 << 20)
        if target.login:
            writer.write(target.login)
            await reader.readline()
        return reader, writer

    async def run() -> Load:
        load = Load(connect, _COMMANDS, seed=7, kinds=kinds)
        async with asyncio.timeout(trial.left()):
            await load.run(_CLIENTS)
        return load

    try:
        load = asyncio.run(run())
    except* Astray as astray:
        raise Failed("each client its own replies", str(astray.exceptions[0])) from None
    except* TimeoutError:
        raise Failed("replies to all clients in time", "clients that wait") from None
    holds(
        load.answered > _COMMANDS / 2,
        "replies to most commands",
        f"{load.answered} replies to {_COMMANDS} commands, and {load.lost} errors or ends",
    )


@check(GROUP, seconds=10)
def _(trial: Trial) -> None:
    """No reply goes astray among thirty clients with plain commands."""
    _nothing_goes_astray(trial, PLAIN)


@check(GROUP, seconds=10)
def _(trial: Trial) -> None:
    """Nor with ECHO, transactions, blocking commands and large replies."""
    one, key = trial.connect(), trial.key()
    same(one.ask("ECHO", "a"), bulk("a"))
    all_same(one.pipeline([("MULTI",), ("RPUSH", key, 1), ("EXEC",)]), [OK, QUEUED, array(integer(1))])
    same(one.ask("BLPOP", key, 1), bulks(key, 1))
    _nothing_goes_astray(trial, STATEFUL)
