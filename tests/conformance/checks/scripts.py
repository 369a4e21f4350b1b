"""Scripts and functions."""

from __future__ import annotations

from tests.conformance.check import all_same, check, holds, is_cross_slot, is_error, same, supported
from tests.conformance.trial import Trial
from tests.conformance.wire import EMPTY, NIL, OK, QUEUED, array, bulk, bulks, integer, shown

GROUP = "scripts and functions"
_SET = "redis.call('SET', KEYS[1], ARGV[1]) return {KEYS[1], redis.call('GET', KEYS[1])}"


@check(GROUP)
def _(trial: Trial) -> None:
    """EVAL runs with its keys and arguments, wherever the keys are."""
    one = trial.connect()
    for key in trial.keys(6):
        same(one.ask("EVAL", _SET, 1, key, "v"), bulks(key, "v"))
        same(one.ask("GET", key), bulk("v"))


@check(GROUP)
def _(trial: Trial) -> None:
    """EVAL without keys runs."""
    one = trial.connect()
    same(one.ask("EVAL", "return {1, ARGV[1], {}, false}", 0, "a"), b"*4\r\n:1\r\n" + bulk("a") + EMPTY + NIL)


@check(GROUP)
def _(trial: Trial) -> None:
    """EVALSHA of a script that is not loaded gets NOSCRIPT."""
    one = trial.connect()
    is_error(one.ask("EVALSHA", "0" * 40, 1, trial.key()), "NOSCRIPT")
    is_error(one.ask("EVALSHA", "0" * 40, 0), "NOSCRIPT")


def _load(trial: Trial, script: str) -> bytes:
    came = trial.connect().ask("SCRIPT", "LOAD", script)
    holds(came.startswith(b"$40\r\n"), "a SHA1 for SCRIPT LOAD", came)
    return came[5:45]


@check(GROUP)
def _(trial: Trial) -> None:
    """A loaded script runs by EVALSHA, wherever its keys are."""
    sha = _load(trial, f"{_SET} -- {trial.name('loaded')}")
    one = trial.connect()
    for key in trial.keys(8):
        same(one.ask("EVALSHA", sha, 1, key, "v"), bulks(key, "v"))


@check(GROUP)
def _(trial: Trial) -> None:
    """SCRIPT EXISTS knows what was loaded, and SCRIPT FLUSH removes it."""
    sha = _load(trial, f"return 1 -- {trial.name('exists')}")
    one = trial.connect()
    same(one.ask("SCRIPT", "EXISTS", sha, "0" * 40), array(integer(1), integer(0)))
    same(one.ask("SCRIPT", "FLUSH"), OK)
    same(one.ask("SCRIPT", "EXISTS", sha), array(integer(0)))
    for key in trial.keys(4):
        is_error(one.ask("EVALSHA", sha, 1, key), "NOSCRIPT")


@check(GROUP)
def _(trial: Trial) -> None:
    """The error of a script is the reply, and the connection goes on."""
    one, key = trial.connect(), trial.key()
    same(one.ask("EVAL", "return redis.error_reply('MINE text')", 1, key), b"-MINE text\r\n")
    is_error(one.ask("EVAL", "return nosuchvariable", 1, key), "ERR")
    is_error(one.ask("EVAL", "this is no Lua", 1, key), "ERR")
    same(one.ask("SET", key, 1), OK)


@check(GROUP)
def _(trial: Trial) -> None:
    """EVAL with keys of many hash slots runs, or gets a clear error."""
    one, keys = trial.connect(), trial.keys(6)
    came = one.ask("EVAL", "for _, key in ipairs(KEYS) do redis.call('SET', key, 1) end return 1", 6, *keys)
    done = sum(each == bulk(1) for each in one.pipeline([("GET", key) for key in keys]))
    if came == integer(1):
        holds(done == 6, "six keys written", f"{done} of 6 keys written")
        return
    holds(done == 0, f"nothing written after {shown(came)}", f"{done} of 6 keys written")
    if not is_cross_slot(came):
        same(came, integer(1))


@check(GROUP)
def _(trial: Trial) -> None:
    """A script runs in a transaction."""
    one, key = trial.connect(), trial.key()
    came = one.pipeline([("MULTI",), ("EVAL", _SET, 1, key, "v"), ("EXEC",)])
    all_same(came, [OK, QUEUED, array(bulks(key, "v"))])


@check(GROUP)
def _(trial: Trial) -> None:
    """Scripts in a pipeline keep their places."""
    one, key = trial.connect(), trial.key()
    commands: list[tuple[str | int, ...]] = []
    wanted = []
    for number in range(50):
        commands += [
            ("SET", key, number),
            ("EVAL", "return redis.call('INCR', KEYS[1])", 1, key),
            ("GET", key),
        ]
        wanted += [OK, integer(number + 1), bulk(number + 1)]
    all_same(one.pipeline(commands), wanted)


@check(GROUP)
def _(trial: Trial) -> None:
    """A function is loaded once and runs wherever its keys are."""
    one, name = trial.connect(), trial.name("f").replace("-", "_")
    body = f"redis.register_function('{name}', function(keys, args) return redis.call('INCR', keys[1]) end)"
    came = one.ask("FUNCTION", "LOAD", f"#!lua name={name}\n{body}")
    supported(came)
    same(came, bulk(name))
    for key in trial.keys(8):
        same(one.ask("FCALL", name, 1, key), integer(1))
    same(one.ask("FUNCTION", "DELETE", name), OK)
    is_error(one.ask("FCALL", name, 1, trial.key()), "ERR")
