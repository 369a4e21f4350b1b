"""SCAN and its relatives."""

from __future__ import annotations

from collections import Counter

from tests.conformance.check import Failed, all_same, check, holds, same, supported
from tests.conformance.trial import Trial
from tests.conformance.wire import OK, Connection, array, bulk, integer, shown, value

GROUP = "SCAN"
_STEPS = 2000  # more is no cycle


def _step(one: Connection, *words: str | int) -> tuple[bytes, list[bytes]]:
    came = one.ask(*words)
    supported(came)
    found = value(came)
    if not (isinstance(found, list) and len(found) == 2 and isinstance(found[1], list)):
        raise Failed("a cursor and elements", shown(came))
    return found[0], found[1]


def _cycle(ones: list[Connection], before: tuple[str, ...], *after: str | int) -> list[bytes]:
    """Returns what a whole cycle finds; the connections take turns."""
    cursor, found = b"0", []
    for number in range(_STEPS):
        cursor, elements = _step(ones[number % len(ones)], *before, cursor.decode(), *after)
        found += elements
        if cursor == b"0":
            return found
    raise Failed("the cursor 0 at the end of the cycle", f"no end after {_STEPS} calls")


def _write(one: Connection, keys: list[str]) -> set[bytes]:
    all_same(one.pipeline([("SET", key, 1) for key in keys]), [OK] * len(keys))
    return {key.encode() for key in keys}


def _all_found(found: list[bytes], wanted: set[bytes]) -> None:
    missing = wanted - set(found)
    holds(
        not missing, f"all {len(wanted)} keys", f"{len(missing)} are missing, such as {sorted(missing)[:1]}"
    )


@check(GROUP)
def _(trial: Trial) -> None:
    """A whole cycle finds each key, over all nodes."""
    one = trial.connect()
    wanted = _write(one, trial.keys(1000))
    _all_found(_cycle([one], ("SCAN",)), wanted)


@check(GROUP)
def _(trial: Trial) -> None:
    """COUNT and MATCH hold for the whole cycle."""
    one = trial.connect()
    wanted = _write(one, trial.keys(500))
    others = _write(one, [trial.key(f"other{number}") for number in range(200)])
    pattern = sorted(wanted)[0].decode().rpartition(":")[0] + ":k*"
    found = _cycle([one], ("SCAN",), "MATCH", pattern, "COUNT", 100)
    _all_found(found, wanted)
    holds(not others.intersection(found), "keys that match only", "keys that do not match")


@check(GROUP)
def _(trial: Trial) -> None:
    """TYPE chooses the keys of one type."""
    one = trial.connect()
    _write(one, trial.keys(100))
    lists = [trial.key(f"list{number}") for number in range(50)]
    all_same(one.pipeline([("RPUSH", key, 1) for key in lists]), [integer(1)] * 50)
    found = _cycle([one], ("SCAN",), "COUNT", 50, "TYPE", "list")
    holds(set(found) == {key.encode() for key in lists}, "the 50 lists", f"{len(set(found))} keys")


@check(GROUP)
def _(trial: Trial) -> None:
    """A cursor may be used on another connection."""
    ones = [trial.connect() for _ in range(3)]
    wanted = _write(ones[0], trial.keys(500))
    _all_found(_cycle(ones, ("SCAN",), "COUNT", 20), wanted)


@check(GROUP)
def _(trial: Trial) -> None:
    """Cycles of two clients do not disturb each other."""
    one, other = trial.connect(), trial.connect()
    wanted = _write(one, trial.keys(300))
    first, second = _step(one, "SCAN", 0, "COUNT", 20), _step(other, "SCAN", 0, "COUNT", 70)
    found = [list(first[1]), list(second[1])]
    cursors = [first[0], second[0]]
    for _ in range(_STEPS):
        for number, (connection, count) in enumerate(((one, 20), (other, 70))):
            if cursors[number] != b"0":
                cursors[number], more = _step(connection, "SCAN", cursors[number].decode(), "COUNT", count)
                found[number] += more
        if cursors == [b"0", b"0"]:
            break
    _all_found(found[0], wanted)
    _all_found(found[1], wanted)


@check(GROUP)
def _(trial: Trial) -> None:
    """A cycle finds each key that stays, while others come and go."""
    one = trial.connect()
    wanted = _write(one, trial.keys(300))
    passing = [trial.key(f"passing{number}") for number in range(300)]
    cursor, found = b"0", []
    for number in range(_STEPS):
        cursor, elements = _step(one, "SCAN", cursor.decode(), "COUNT", 20)
        found += elements
        if cursor == b"0":
            break
        key = passing[number % 300]
        all_same(one.pipeline([("SET", key, 1), ("DEL", passing[(number - 5) % 300])])[:1], [OK])
    _all_found(found, wanted)


@check(GROUP)
def _(trial: Trial) -> None:
    """Without changes a cycle finds no key twice."""
    one = trial.connect()
    _write(one, trial.keys(500))
    twice = [key for key, count in Counter(_cycle([one], ("SCAN",), "COUNT", 50)).items() if count > 1]
    holds(not twice, "each key once", f"{len(twice)} keys twice")


@check(GROUP)
def _(trial: Trial) -> None:
    """An empty server's cycle ends at once, or after a few calls."""
    one = trial.connect()
    _step(one, "SCAN", 0)
    found = _cycle([one], ("SCAN",), "MATCH", trial.name("nosuch"))
    holds(not found, "no key", f"{len(found)} keys")


@check(GROUP)
def _(trial: Trial) -> None:
    """HSCAN, SSCAN and ZSCAN find each element."""
    one = trial.connect()
    fields, members, scores = trial.key("h"), trial.key("s"), trial.key("z")
    names = [f"m{number}" for number in range(300)]
    same(one.ask("HSET", fields, *(word for name in names for word in (name, 1))), integer(300))
    same(one.ask("SADD", members, *names), integer(300))
    same(one.ask("ZADD", scores, *(word for name in names for word in (1, name))), integer(300))
    for command, key, width in (("HSCAN", fields, 2), ("SSCAN", members, 1), ("ZSCAN", scores, 2)):
        found = _cycle([one], (command, key), "COUNT", 50)[::width]
        _all_found(found, {name.encode() for name in names})
    same(one.ask("HSCAN", trial.key("none"), 0), array(bulk("0"), array()))
