"""Commands that wait."""

from __future__ import annotations

import time

from keyfence.resp import encode
from tests.conformance.check import all_same, check, holds, is_cross_slot, same, supported
from tests.conformance.trial import Trial
from tests.conformance.wire import NIL_ARRAY, OK, PONG, QUEUED, Connection, array, bulk, bulks, integer

GROUP = "blocking commands"
_PAUSE = 0.1  # so that a command that waits has reached Redis before another client's


def _waits(one: Connection, *words: str | int) -> None:
    """Sends a command that has no reply yet."""
    one.send(*words)
    came = one.nothing_for(_PAUSE)
    holds(not came, f"no reply to {words[0]} while there is nothing", came)


@check(GROUP)
def _(trial: Trial) -> None:
    """BLPOP gets what another client pushes later."""
    one, other = trial.connect(), trial.connect()
    for key in trial.keys(4):
        _waits(one, "BLPOP", key, 4)
        same(other.ask("RPUSH", key, "x"), integer(1))
        same(one.reply(), bulks(key, "x"))


@check(GROUP)
def _(trial: Trial) -> None:
    """A client that waits in BLPOP stalls no other."""
    one, other, keys = trial.connect(), trial.connect(), trial.keys(30)
    _waits(one, "BLPOP", trial.key("list"), 4)
    asked = time.monotonic()
    all_same(other.pipeline([("SET", key, 1) for key in keys]), [OK] * 30)
    same(trial.connect().ask("GET", keys[0]), bulk(1))
    took = time.monotonic() - asked
    holds(took < 1, "replies to others at once", f"replies after {took:.1f} s")


@check(GROUP)
def _(trial: Trial) -> None:
    """Sixty clients that wait stall no other, and all get theirs."""
    waiting = [(trial.connect(), key) for key in trial.keys(60)]
    for one, key in waiting:
        one.send("BLPOP", key, 4)
    other = trial.connect()
    came = waiting[0][0].nothing_for(_PAUSE)
    holds(not came, "no reply to BLPOP while there is nothing", came)
    for _, key in waiting:
        same(other.ask("RPUSH", key, key), integer(1))
    all_same([one.reply() for one, _ in waiting], [bulks(key, key) for _, key in waiting])


@check(GROUP)
def _(trial: Trial) -> None:
    """Commands behind BLPOP in a pipeline wait for it."""
    one, other, key = trial.connect(), trial.connect(), trial.key()
    one.send_bytes(encode.command("BLPOP", key, 4) + encode.command("LLEN", key) + encode.command("PING"))
    came = one.nothing_for(_PAUSE)
    holds(not came, "no reply while BLPOP waits", came)
    same(other.ask("RPUSH", key, "a", "b", "c"), integer(3))
    all_same(one.replies(3), [bulks(key, "a"), integer(2), PONG])


@check(GROUP)
def _(trial: Trial) -> None:
    """BLPOP gets nil when its time is over, and not before."""
    one = trial.connect()
    asked = time.monotonic()
    same(one.ask("BLPOP", trial.key(), "0.2"), NIL_ARRAY)
    took = time.monotonic() - asked
    holds(0.15 < took < 2, "nil after 0.2 s", f"nil after {took:.2f} s")
    same(one.ask("PING"), PONG)


@check(GROUP)
def _(trial: Trial) -> None:
    """Who waits first is served first."""
    waiting, other, key = [trial.connect() for _ in range(3)], trial.connect(), trial.key()
    for one in waiting:
        _waits(one, "BLPOP", key, 4)
    for number, one in enumerate(waiting):
        same(other.ask("RPUSH", key, number), integer(1))
        same(one.reply(), bulks(key, number))


@check(GROUP)
def _(trial: Trial) -> None:
    """A client that leaves while it waits takes no element with it."""
    one, other, key = trial.connect(), trial.connect(), trial.key()
    _waits(one, "BLPOP", key, 4)
    one.close()
    time.sleep(0.3)  # until the proxy and Redis have noticed
    same(other.ask("RPUSH", key, "x"), integer(1))
    same(other.ask("LRANGE", key, 0, -1), bulks("x"))


@check(GROUP)
def _(trial: Trial) -> None:
    """BLMOVE, BZPOPMIN and XREAD BLOCK get what comes."""
    one, other = trial.connect(), trial.connect()
    source, target, scores, stream = (trial.key(name, "t") for name in "abcd")
    _waits(one, "BLMOVE", source, target, "LEFT", "RIGHT", 4)
    same(other.ask("RPUSH", source, "x"), integer(1))
    same(one.reply(), bulk("x"))
    _waits(one, "BZPOPMIN", scores, 4)
    same(other.ask("ZADD", scores, 1, "m"), integer(1))
    same(one.reply(), bulks(scores, "m", "1"))
    _waits(one, "XREAD", "BLOCK", 4000, "STREAMS", stream, "$")
    same(other.ask("XADD", stream, "1-1", "f", "v"), bulk("1-1"))
    same(one.reply(), array(array(bulk(stream), array(array(bulk("1-1"), bulks("f", "v"))))))


@check(GROUP)
def _(trial: Trial) -> None:
    """BLPOP of many hash slots gets what comes, or CROSSSLOT at once."""
    one, other, keys = trial.connect(), trial.connect(), trial.keys(8)
    one.send("BLPOP", *keys, 4)
    came = one.nothing_for(_PAUSE)
    if not is_cross_slot(came):
        supported(came)
        same(other.ask("RPUSH", keys[5], "x"), integer(1))
        same(one.reply(), bulks(keys[5], "x"))


@check(GROUP)
def _(trial: Trial) -> None:
    """BLPOP in a transaction does not wait."""
    one = trial.connect()
    same(one.ask("MULTI"), OK)
    all_same(one.pipeline([("BLPOP", trial.key(), 0), ("EXEC",)]), [QUEUED, array(NIL_ARRAY)])


@check(GROUP)
def _(trial: Trial) -> None:
    """CLIENT UNBLOCK ends the waiting of another client."""
    one, other = trial.connect(), trial.connect()
    came = one.ask("CLIENT", "ID")
    holds(came.startswith(b":"), "a number for CLIENT ID", came)
    one.send("BLPOP", trial.key(), 4)
    came_too_early = one.nothing_for(_PAUSE)
    holds(not came_too_early, "no reply to BLPOP while there is nothing", came_too_early)
    same(other.ask("CLIENT", "UNBLOCK", came.strip(b":\r\n")), integer(1))
    same(one.reply(), NIL_ARRAY)
