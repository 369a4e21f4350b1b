"""MULTI, EXEC, DISCARD, WATCH."""

from __future__ import annotations

import threading

from tests.conformance.check import Failed, all_same, check, holds, is_cross_slot, is_error, same
from tests.conformance.trial import Trial
from tests.conformance.wire import EMPTY, NIL, NIL_ARRAY, OK, PONG, QUEUED, array, bulk, integer, value

GROUP = "transactions"


@check(GROUP)
def _(trial: Trial) -> None:
    """EXEC gets the replies of all queued commands."""
    one, key = trial.connect(), trial.key()
    same(one.ask("MULTI"), OK)
    same(one.ask("SET", key, 1), QUEUED)
    same(one.ask("INCR", key), QUEUED)
    same(one.ask("GET", key), QUEUED)
    same(one.ask("EXEC"), array(OK, integer(2), bulk(2)))
    same(one.ask("GET", key), bulk(2))


@check(GROUP)
def _(trial: Trial) -> None:
    """A transaction may come in one piece, with commands around it."""
    one, key, other = trial.connect(), trial.key("a", "t"), trial.key("b", "t")
    commands = [("SET", other, 5), ("MULTI",), ("INCR", key), ("PING",), ("GET", other), ("EXEC",)]
    wanted = [OK, OK, QUEUED, QUEUED, QUEUED, array(integer(1), PONG, bulk(5))]
    all_same(one.pipeline([*commands, ("GET", key)]), [*wanted, bulk(1)])


@check(GROUP)
def _(trial: Trial) -> None:
    """Transactions run wherever their keys are, one after another."""
    one = trial.connect()
    for key in trial.keys(12):
        came = one.pipeline([("MULTI",), ("SET", key, 1), ("INCR", key), ("EXEC",)])
        all_same(came, [OK, QUEUED, QUEUED, array(OK, integer(2))])


@check(GROUP)
def _(trial: Trial) -> None:
    """A transaction without commands gets an empty array."""
    one = trial.connect()
    all_same(one.pipeline([("MULTI",), ("EXEC",), ("PING",)]), [OK, EMPTY, PONG])


@check(GROUP)
def _(trial: Trial) -> None:
    """DISCARD runs nothing, and ends the transaction."""
    one, key = trial.connect(), trial.key()
    all_same(one.pipeline([("MULTI",), ("SET", key, 1), ("DISCARD",)]), [OK, QUEUED, OK])
    same(one.ask("GET", key), NIL)
    is_error(one.ask("EXEC"), "ERR")


@check(GROUP)
def _(trial: Trial) -> None:
    """An error in queueing aborts the transaction: EXECABORT, nothing done."""
    one, key = trial.connect(), trial.key()
    all_same(one.pipeline([("MULTI",), ("SET", key, 1)]), [OK, QUEUED])
    is_error(one.ask("SET", key))
    is_error(one.ask("EXEC"), "EXECABORT")
    same(one.ask("GET", key), NIL)


@check(GROUP)
def _(trial: Trial) -> None:
    """An error in running stands among the replies, and the rest is done."""
    one, key = trial.connect(), trial.key()
    wrong = b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"
    commands = [("MULTI",), ("SET", key, 1), ("LPUSH", key, 1), ("INCR", key), ("EXEC",)]
    all_same(one.pipeline(commands), [OK, *[QUEUED] * 3, array(OK, wrong, integer(2))])


@check(GROUP)
def _(trial: Trial) -> None:
    """EXEC and DISCARD without MULTI, MULTI in MULTI: an error each."""
    one = trial.connect()
    is_error(one.ask("EXEC"), "ERR")
    is_error(one.ask("DISCARD"), "ERR")
    same(one.ask("MULTI"), OK)
    is_error(one.ask("MULTI"), "ERR")
    same(one.ask("DISCARD"), OK)
    same(one.ask("PING"), PONG)


@check(GROUP)
def _(trial: Trial) -> None:
    """A write of another client to a watched key aborts the transaction."""
    one, other = trial.connect(), trial.connect()
    for key in trial.keys(6):
        same(one.ask("WATCH", key), OK)
        same(one.ask("GET", key), NIL)
        same(other.ask("SET", key, "other"), OK)
        came = one.pipeline([("MULTI",), ("SET", key, "mine"), ("EXEC",)])
        all_same(came, [OK, QUEUED, NIL_ARRAY])
        same(one.ask("GET", key), bulk("other"))


@check(GROUP)
def _(trial: Trial) -> None:
    """A write between MULTI and EXEC aborts a watched transaction too."""
    one, other, key = trial.connect(), trial.connect(), trial.key()
    all_same(one.pipeline([("WATCH", key), ("MULTI",), ("SET", key, "mine")]), [OK, OK, QUEUED])
    same(other.ask("SET", key, "other"), OK)
    same(one.ask("EXEC"), NIL_ARRAY)
    same(one.ask("GET", key), bulk("other"))


@check(GROUP)
def _(trial: Trial) -> None:
    """A watched transaction runs if nobody else has written."""
    one, key = trial.connect(), trial.key()
    same(one.ask("WATCH", key), OK)
    came = one.pipeline([("MULTI",), ("INCR", key), ("EXEC",)])
    all_same(came, [OK, QUEUED, array(integer(1))])


@check(GROUP)
def _(trial: Trial) -> None:
    """UNWATCH, DISCARD and EXEC end the watching."""
    one, other, key = trial.connect(), trial.connect(), trial.key()
    for ends in (("UNWATCH",),), (("MULTI",), ("DISCARD",)), (("MULTI",), ("EXEC",)):
        all_same(one.pipeline([("WATCH", key), *ends])[:1], [OK])
        same(other.ask("SET", key, 1), OK)
        came = one.pipeline([("MULTI",), ("INCR", key), ("EXEC",)])
        all_same(came, [OK, QUEUED, array(integer(2))])


@check(GROUP)
def _(trial: Trial) -> None:
    """A client's own write to a watched key aborts its transaction."""
    one, key = trial.connect(), trial.key()
    all_same(one.pipeline([("WATCH", key), ("SET", key, 1)]), [OK, OK])
    came = one.pipeline([("MULTI",), ("INCR", key), ("EXEC",)])
    all_same(came, [OK, QUEUED, NIL_ARRAY])


@check(GROUP)
def _(trial: Trial) -> None:
    """Nobody sees a queued command's effect before EXEC."""
    one, other, key = trial.connect(), trial.connect(), trial.key()
    all_same(one.pipeline([("SET", key, "old"), ("MULTI",), ("SET", key, "new")]), [OK, OK, QUEUED])
    same(other.ask("GET", key), bulk("old"))
    same(one.ask("EXEC"), array(OK))
    same(other.ask("GET", key), bulk("new"))


@check(GROUP)
def _(trial: Trial) -> None:
    """A client that leaves before EXEC has done nothing."""
    one, other, key = trial.connect(), trial.connect(), trial.key()
    all_same(one.pipeline([("MULTI",), ("SET", key, 1)]), [OK, QUEUED])
    one.close()
    for _ in range(5):
        same(other.ask("GET", key), NIL)
        same(trial.connect().ask("PING"), PONG)


@check(GROUP)
def _(trial: Trial) -> None:
    """A transaction over many hash slots is done whole, or not at all."""
    one, keys = trial.connect(), trial.keys(10)
    came = one.pipeline([("MULTI",), *(("SET", key, 1) for key in keys), ("EXEC",)])
    same(came[0], OK)
    values = one.pipeline([("GET", key) for key in keys])
    if came[-1] == array(*[OK] * 10):
        all_same(values, [bulk(1)] * 10)
        return
    if any(each != NIL for each in values):
        raise Failed("nothing done, or all", f"{sum(each != NIL for each in values)} of 10 commands done")
    is_error(came[-1])
    clear = any(map(is_cross_slot, came)) or came[-1].startswith(b"-EXECABORT")
    holds(clear, "CROSSSLOT or EXECABORT", came[-1])


@check(GROUP)
def _(trial: Trial) -> None:
    """Four clients that count with WATCH lose no count."""
    key, failed = trial.key(), []

    def count() -> None:
        try:
            one = trial.connect()
            done = 0
            while done < 15:
                watched, got = one.pipeline([("WATCH", key), ("GET", key)])
                same(watched, OK)
                new = int(value(got) or 0) + 1
                came = one.pipeline([("MULTI",), ("SET", key, new), ("EXEC",)])
                all_same(came[:2], [OK, QUEUED])
                done += came[2] == array(OK)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=count, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    same(trial.connect().ask("GET", key), bulk(60))
