"""Commands about the whole server, or about all nodes."""

from __future__ import annotations

from tests.conformance.check import all_same, check, holds, same, supported
from tests.conformance.trial import Trial
from tests.conformance.wire import NIL, OK, Connection, bulk, bulks, integer, value

GROUP = "server commands"


def _write(one: Connection, keys: list[str]) -> None:
    all_same(one.pipeline([("SET", key, 1) for key in keys]), [OK] * len(keys))


@check(GROUP)
def _(trial: Trial) -> None:
    """DBSIZE counts the keys of all nodes."""
    one = trial.connect()
    before = one.ask("DBSIZE")
    holds(before.startswith(b":"), "a number", before)
    _write(one, trial.keys(50))
    same(one.ask("DBSIZE"), integer(value(before) + 50))


@check(GROUP)
def _(trial: Trial) -> None:
    """KEYS finds the keys of all nodes."""
    one, keys = trial.connect(), trial.keys(50)
    _write(one, keys)
    came = one.ask("KEYS", keys[0].rpartition(":")[0] + ":*")
    supported(came)
    found = value(came)
    wanted = sorted(key.encode() for key in keys)
    holds(isinstance(found, list) and sorted(found) == wanted, "the 50 keys", came)


@check(GROUP)
def _(trial: Trial) -> None:
    """RANDOMKEY gives one of the keys."""
    one, keys = trial.connect(), trial.keys(20)
    _write(one, keys)
    came = [one.ask("RANDOMKEY") for _ in range(20)]
    for each in came:
        holds(each in map(bulk, keys), "one of the keys", each)


def _removes_all(trial: Trial, name: str) -> None:
    one, keys = trial.connect(), trial.keys(50)
    _write(one, keys)
    same(one.ask(name), OK)
    all_same(one.pipeline([("GET", key) for key in keys]), [NIL] * 50)


@check(GROUP)
def _(trial: Trial) -> None:
    """FLUSHALL removes the keys of all nodes."""
    _removes_all(trial, "FLUSHALL")


@check(GROUP)
def _(trial: Trial) -> None:
    """FLUSHDB removes the keys of all nodes."""
    _removes_all(trial, "FLUSHDB")


@check(GROUP)
def _(trial: Trial) -> None:
    """INFO has Redis' fields, in all sections and in one."""
    one = trial.connect()
    for words, fields in (
        (("INFO",), (b"redis_version:", b"used_memory:", b"role:")),
        (("INFO", "server"), (b"redis_version:",)),
    ):
        came = one.ask(*words)
        for field in fields:
            holds(field in came, f"the field {field.decode()[:-1]} for {' '.join(words)}", came)


@check(GROUP)
def _(trial: Trial) -> None:
    """TIME gives seconds and microseconds."""
    came = trial.connect().ask("TIME")
    supported(came)
    found = value(came)
    is_time = isinstance(found, list) and len(found) == 2 and all(each.isdigit() for each in found)
    holds(is_time and int(found[0]) > 1_600_000_000, "two numbers", came)


@check(GROUP)
def _(trial: Trial) -> None:
    """CONFIG GET gives a setting."""
    same(trial.connect().ask("CONFIG", "GET", "maxmemory-samples"), bulks("maxmemory-samples", 5))


@check(GROUP)
def _(trial: Trial) -> None:
    """COMMAND COUNT and COMMAND INFO describe Redis' commands."""
    one = trial.connect()
    came = one.ask("COMMAND", "COUNT")
    holds(came.startswith(b":") and value(came) > 200, "a number of commands", came)
    came = one.ask("COMMAND", "INFO", "get")
    supported(came)
    found = value(came)
    holds(isinstance(found, list) and found[0][:2] == [b"get", 2], "get with arity 2", came)


@check(GROUP)
def _(trial: Trial) -> None:
    """LASTSAVE, SLOWLOG LEN and LATENCY LATEST get replies."""
    one = trial.connect()
    for words, kind in ((("LASTSAVE",), b":"), (("SLOWLOG", "LEN"), b":"), (("LATENCY", "LATEST"), b"*")):
        came = one.ask(*words)
        holds(came.startswith(kind), f"a reply of the kind {kind.decode()} for {' '.join(words)}", came)


@check(GROUP)
def _(trial: Trial) -> None:
    """WAIT counts replicas, and comes at once for none."""
    one = trial.connect()
    same(one.ask("SET", trial.key(), 1), OK)
    came = one.ask("WAIT", 0, 100)
    holds(came.startswith(b":"), "a number", came)


@check(GROUP)
def _(trial: Trial) -> None:
    """OBJECT, MEMORY USAGE, DUMP and RESTORE find the key's node."""
    one = trial.connect()
    for key, copy in zip(trial.keys(6), [trial.key(f"copy{number}") for number in range(6)], strict=True):
        same(one.ask("SET", key, "text"), OK)
        same(one.ask("OBJECT", "ENCODING", key), bulk("embstr"))
        came = one.ask("MEMORY", "USAGE", key)
        holds(came.startswith(b":"), "a number for MEMORY USAGE", came)
        dumped = one.ask("DUMP", key)
        holds(dumped.startswith(b"$"), "bytes for DUMP", dumped)
        same(one.ask("RESTORE", copy, 0, value(dumped)), OK)
        same(one.ask("GET", copy), bulk("text"))
