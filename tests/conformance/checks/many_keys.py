"""Commands of many keys: their keys may be at several nodes.

Rule: where keys are in several hash slots, the clear error CROSSSLOT is right, and a half-done write never.
"""

from __future__ import annotations

from tests.conformance.check import Failed, all_same, check, holds, is_cross_slot, is_error, same
from tests.conformance.trial import Trial
from tests.conformance.wire import NIL, OK, Connection, bulk, bulks, integer, shown, value

GROUP = "commands of many keys"
_MANY = 30


def _write(one: Connection, keys: list[str]) -> None:
    all_same(one.pipeline([("SET", key, f"old {key}") for key in keys]), [OK] * len(keys))


def _values(one: Connection, keys: list[str]) -> list[bytes]:
    return one.pipeline([("GET", key) for key in keys])


def _unchanged(one: Connection, keys: list[str], wanted: list[bytes], reply: bytes) -> None:
    """After an error nothing may have been written."""
    changed = sum(is_now != was for is_now, was in zip(_values(one, keys), wanted, strict=True))
    if changed:
        raise Failed(
            f"nothing written after the reply {reply[:60]!r}", f"{changed} of {len(keys)} keys were written"
        )


@check(GROUP)
def _(trial: Trial) -> None:
    """MGET of many hash slots gets all values in order, or CROSSSLOT."""
    one, keys = trial.connect(), trial.keys(_MANY)
    _write(one, keys)
    came = one.ask("MGET", *keys)
    if not is_cross_slot(came):
        same(came, bulks(*(f"old {key}" for key in keys)))


@check(GROUP)
def _(trial: Trial) -> None:
    """MSET of many hash slots writes all keys or none."""
    one, keys = trial.connect(), trial.keys(_MANY)
    came = one.ask("MSET", *(word for key in keys for word in (key, f"new {key}")))
    if came == OK:
        all_same(_values(one, keys), [bulk(f"new {key}") for key in keys])
        return
    _unchanged(one, keys, [NIL] * _MANY, came)
    if not is_cross_slot(came):
        same(came, OK)


@check(GROUP)
def _(trial: Trial) -> None:
    """No other client sees a half-done MSET."""
    writer, reader, keys = trial.connect(), trial.connect(), trial.keys(_MANY)
    came = [writer.ask("MSET", *(word for key in keys for word in (key, 0))), reader.ask("MGET", *keys)]
    if any(map(is_cross_slot, came)):
        return
    all_same(came, [OK, bulks(*[0] * _MANY)])
    for number in range(200):
        writer.send("MSET", *(word for key in keys for word in (key, number)))
        seen = reader.ask("MGET", *keys)
        found = value(seen)
        is_one = isinstance(found, list) and len(set(found)) == 1
        holds(is_one, "one value in all keys", f"values of two MSETs: {shown(seen)}")
        same(writer.reply(), OK)


@check(GROUP)
def _(trial: Trial) -> None:
    """MSET that lacks its last value writes nothing."""
    one, keys = trial.connect(), trial.keys(5)
    came = one.ask("MSET", *(word for key in keys for word in (key, "new")), trial.key("last"))
    is_error(came)
    _unchanged(one, keys, [NIL] * 5, came)


@check(GROUP)
def _(trial: Trial) -> None:
    """MSETNX of many hash slots writes all keys or none."""
    one, keys = trial.connect(), trial.keys(10)
    _write(one, keys[-1:])
    came = one.ask("MSETNX", *(word for key in keys for word in (key, "new")))
    _unchanged(one, keys, [*[NIL] * 9, bulk(f"old {keys[-1]}")], came)
    if not is_cross_slot(came):
        same(came, integer(0))


def _counts(trial: Trial, name: str, *, removes: bool) -> None:
    one, keys = trial.connect(), trial.keys(_MANY)
    _write(one, keys)
    came = one.ask(name, *keys, trial.key("missing"))
    old = [bulk(f"old {key}") for key in keys]
    if came == integer(_MANY):
        all_same(_values(one, keys), [NIL] * _MANY if removes else old)
        return
    _unchanged(one, keys, old, came)
    if not is_cross_slot(came):
        same(came, integer(_MANY))


@check(GROUP)
def _(trial: Trial) -> None:
    """DEL of many hash slots removes and counts all keys, or none."""
    _counts(trial, "DEL", removes=True)


@check(GROUP)
def _(trial: Trial) -> None:
    """UNLINK of many hash slots removes and counts all keys, or none."""
    _counts(trial, "UNLINK", removes=True)


@check(GROUP)
def _(trial: Trial) -> None:
    """EXISTS of many hash slots counts all keys, or gets CROSSSLOT."""
    _counts(trial, "EXISTS", removes=False)


@check(GROUP)
def _(trial: Trial) -> None:
    """TOUCH of many hash slots counts all keys, or gets CROSSSLOT."""
    _counts(trial, "TOUCH", removes=False)


@check(GROUP)
def _(trial: Trial) -> None:
    """MGET has no value for a key of another type, and no error."""
    one = trial.connect()
    text, listed, missing = (trial.key(name, "t") for name in ("text", "list", "missing"))
    all_same(one.pipeline([("SET", text, 1), ("RPUSH", listed, 1)]), [OK, integer(1)])
    same(one.ask("MGET", text, listed, missing, text), b"*4\r\n" + bulk(1) + NIL * 2 + bulk(1))


@check(GROUP)
def _(trial: Trial) -> None:
    """MGET, MSET and DEL keep their places in a pipeline."""
    one, keys = trial.connect(), trial.keys(4, "t")
    came = one.pipeline(
        [
            ("MSET", keys[0], "a", keys[1], "b"),
            ("GET", keys[1]),
            ("MGET", *keys[:3]),
            ("SET", keys[2], "c"),
            ("DEL", *keys),
            ("GET", keys[0]),
        ]
    )
    wanted = [OK, bulk("b"), b"*3\r\n" + bulk("a") + bulk("b") + NIL, OK, integer(3), NIL]
    all_same(came, wanted)


@check(GROUP)
def _(trial: Trial) -> None:
    """MSET and MGET take 2,000 keys of one hash slot."""
    one, keys = trial.connect(), trial.keys(2000, "t")
    same(one.ask("MSET", *(word for key in keys for word in (key, key))), OK)
    same(one.ask("MGET", *keys), bulks(*keys))


@check(GROUP)
def _(trial: Trial) -> None:
    """SUNIONSTORE, ZINTERSTORE, BITOP, PFMERGE run in one hash slot."""
    one = trial.connect()
    first, second, result = (trial.key(name, "t") for name in ("a", "b", "c"))
    all_same(one.pipeline([("SADD", first, "x"), ("SADD", second, "x", "y")]), [integer(1), integer(2)])
    same(one.ask("SUNIONSTORE", result, first, second), integer(2))
    same(one.ask("ZINTERSTORE", result, 2, first, second), integer(1))
    texts = trial.key("d", "t"), trial.key("e", "t")
    all_same(one.pipeline([("SET", texts[0], "a"), ("SET", texts[1], "c")]), [OK, OK])
    same(one.ask("BITOP", "OR", result, *texts), integer(1))
    logs = trial.key("f", "t"), trial.key("g", "t")
    all_same(one.pipeline([("PFADD", logs[0], "a"), ("PFADD", logs[1], "b")]), [integer(1)] * 2)
    same(one.ask("PFMERGE", logs[0], logs[1]), OK)
    same(one.ask("PFCOUNT", *logs), integer(2))


@check(GROUP)
def _(trial: Trial) -> None:
    """RENAME, COPY, LMOVE and SORT … STORE run in one hash slot."""
    one = trial.connect()
    first, second, third = (trial.key(name, "t") for name in ("a", "b", "c"))
    same(one.ask("RPUSH", first, 3, 1, 2), integer(3))
    same(one.ask("RENAME", first, second), OK)
    same(one.ask("LMOVE", second, first, "LEFT", "RIGHT"), bulk(3))
    same(one.ask("SORT", second, "STORE", third), integer(2))
    same(one.ask("COPY", third, second, "REPLACE"), integer(1))
    same(one.ask("LRANGE", second, 0, -1), bulks(1, 2))


@check(GROUP)
def _(trial: Trial) -> None:
    """RENAME to another hash slot is done, or gets CROSSSLOT and is not."""
    one, keys = trial.connect(), trial.keys(8)
    for source, target in zip(keys[::2], keys[1::2], strict=True):
        _write(one, [source])
        came = one.ask("RENAME", source, target)
        if came == OK:
            all_same(_values(one, [source, target]), [NIL, bulk(f"old {source}")])
            continue
        _unchanged(one, [source, target], [bulk(f"old {source}"), NIL], came)
        if not is_cross_slot(came):
            same(came, OK)


@check(GROUP)
def _(trial: Trial) -> None:
    """SUNIONSTORE of many hash slots is right, or gets CROSSSLOT."""
    one, keys = trial.connect(), trial.keys(10)
    all_same(one.pipeline([("SADD", key, key) for key in keys]), [integer(1)] * 10)
    result = trial.key("result")
    came = one.ask("SUNIONSTORE", result, *keys)
    if is_cross_slot(came):
        same(one.ask("EXISTS", result), integer(0))
        return
    same(came, integer(10))
    holds(one.ask("SCARD", result) == integer(10), "ten elements", one.ask("SCARD", result))
