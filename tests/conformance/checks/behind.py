"""The connections between the proxy and Redis, as Redis lists them."""

from __future__ import annotations

import time

from tests.conformance.check import Need, all_same, check, holds, same, supported
from tests.conformance.trial import Trial, primaries
from tests.conformance.wire import OK, PONG, QUEUED, Connection, Ended, Silence, array, integer

GROUP = "connections to Redis"
_NEEDS = (Need.DIRECT, Need.PROXY)
_SLACK = 12  # connections that may come and go for reasons of the proxy's own
_CLIENTS = 40


class _Counter:
    """Counts the connections at all primaries, without its own."""

    def __init__(self, trial: Trial) -> None:
        self._nodes = [trial.directly(address) for address in primaries(trial.place)]

    def __call__(self) -> int:
        lists = [node.ask("CLIENT", "LIST", "TYPE", "normal") for node in self._nodes]
        return sum(each.count(b" addr=") - 1 for each in lists)


def _transaction(one: Connection, key: str, number: int) -> None:
    came = one.pipeline([("WATCH", key), ("MULTI",), ("INCR", key), ("EXEC",)])
    all_same(came, [OK, OK, QUEUED, array(integer(number))])


@check(GROUP, *_NEEDS)
def _(trial: Trial) -> None:
    """They do not grow with the number of transactions of clients that stay."""
    count, clients, keys = _Counter(trial), [trial.connect() for _ in range(_CLIENTS)], trial.keys(_CLIENTS)
    before = 0
    for turn in range(5):
        for one, key in zip(clients, keys, strict=True):
            _transaction(one, key, turn + 1)
        before = before or count()
    trial.until(
        lambda: count() <= before + _SLACK, f"about {before} connections, as before", lambda: f"{count()}"
    )


@check(GROUP, *_NEEDS)
def _(trial: Trial) -> None:
    """They do not grow with transactions of clients that leave."""
    count, keys = _Counter(trial), trial.keys(12)
    same(trial.connect().ask("PING"), PONG)
    before = count()
    for number in range(144):
        one = trial.connect()
        _transaction(one, keys[number % 12], number // 12 + 1)
        one.close()
    trial.until(
        lambda: count() <= before + _SLACK, f"about {before} connections, as before", lambda: f"{count()}"
    )


@check(GROUP, *_NEEDS)
def _(trial: Trial) -> None:
    """They do not stay when clients have left in the middle of anything."""
    count, other = _Counter(trial), trial.connect()
    same(other.ask("PING"), PONG)
    before = count()
    key = trial.key()
    for words in ("MULTI",), ("WATCH", key), ("BLPOP", key, 0), ("SUBSCRIBE", key), ("MONITOR",):
        for _ in range(8):
            one = trial.connect()
            one.send(*words)
            one.send("PING")
            one.nothing_for(0.005)
            one.close()
    trial.until(
        lambda: count() <= before + _SLACK, f"about {before} connections, as before", lambda: f"{count()}"
    )
    same(other.ask("PING"), PONG)


@check(GROUP, *_NEEDS)
def _(trial: Trial) -> None:
    """A hundred clients of plain commands need fewer than a hundred."""
    count, key = _Counter(trial), trial.key()
    before = count()
    clients = [trial.connect() for _ in range(100)]
    for number, one in enumerate(clients):
        same(one.ask("INCR", key), integer(number + 1))
    more = count() - before
    holds(more < 100, "fewer than 100 connections for 100 clients", f"{more} more")


@check(GROUP, *_NEEDS, seconds=12)
def _(trial: Trial) -> None:
    """When Redis has closed them all, clients are served again."""
    key = trial.key()
    same(trial.connect().ask("SET", key, 1), OK)
    for address in primaries(trial.place):
        came = trial.directly(address).ask("CLIENT", "KILL", "TYPE", "normal")
        supported(came)

    def served() -> bool:
        try:
            one = trial.connect()
            return one.ask("SET", key, 2) == OK
        except (Ended, Silence, OSError):
            time.sleep(0.05)
            return False

    trial.until(served, "OK for a new client within 10 s", lambda: "errors or ends", 10)
