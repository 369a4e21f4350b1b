"""What a plain admitted command costs, counted in interpreted functions and not timed.

Rule: counts are the same on every machine, so they may fail a build; times may not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from keyfence import _compiled
from keyfence.resp.limits import IDENTIFIED
from keyfence.resp.requests import RequestReader
from keyfence.session.whole import exec_follows
from tests.session.sessions import cmd, session

FEW, MANY = 100, 1100
HOT = {
    "keyfence.resp.requests",
    "keyfence.policy.patterns.automaton",
    "keyfence.policy.compiled.written",
    "keyfence.policy.engine.forms",
    "keyfence.policy.engine.decision_cache",
    "keyfence.session.fastpath",
    "keyfence.session.session",
}
COMMANDS = {
    "GET": cmd("GET", "cube:v1:master:instance:meta:a"),
    "SET": cmd("SET", "cube:v1:master:instance:meta:a", "x" * 64),
    "HGETALL": cmd("HGETALL", "cube:v1:shared:sandbox:proxy:7c8f"),
    "HSET": cmd("HSET", "cube:v1:shared:sandbox:proxy:7c8f", "HostIP", "10.0.0.7", "8080", "32001"),
    "HSET of JSON": cmd("HSET", "cube:v1:shared:sandbox:lifecycle:meta", "7c8f", '{"timeout": 300}'),
    "XADD": cmd(
        *("XADD", "cube:v1:shared:sandbox:lifecycle:events", "MAXLEN", "~", "100000", "*"),
        *("op", "create", "sandbox_id", "7c8f", "ts", "1790000000000"),
    ),
    "MGET": cmd("MGET", "cube:v1:master:instance:meta:a", "cube:v1:master:instance:meta:b"),
    "UNLINK": cmd("UNLINK", "cube:v1:shared:sandbox:proxy:7c8f", "cube:v1:shared:sandbox:proxy:7c90"),
    "EXPIRE": cmd("EXPIRE", "cube:v1:master:node:metric:n1", "600"),
}


def counted(run: Callable[[], object]) -> int:
    """How many interpreted functions run."""
    seen = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal seen
        seen += event == "call"

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return seen


def serving(request: bytes, times: int) -> int:
    """The same while a session takes in `times` requests, in one read."""
    it = session("CubeMaster", sharing=True)
    it.from_client(request * 3)  # what is worked out once is worked out
    it.from_shared(b"+OK\r\n" * 3, 3, True)
    it.to_upstream.clear()
    seen = counted(lambda: it.from_client(request * times))
    assert it.to_upstream == [request * times]
    return seen


def reading(request: bytes, times: int) -> int:
    """The same while they are only read."""
    reader = RequestReader(IDENTIFIED)
    reader.feed(request * times)
    return counted(lambda: [reader.next() for _ in range(times)])


@pytest.mark.parametrize("name", COMMANDS)
def test_an_admitted_command_runs_nothing_interpreted(name: str) -> None:
    """Where the hot modules are compiled: what is interpreted belongs to the read, not to the command."""
    if not all(compiled for module, compiled in _compiled.status().items() if module in HOT):
        pytest.skip("the hot modules are not compiled here")
    more = serving(COMMANDS[name], MANY) - serving(COMMANDS[name], FEW)
    timed = (MANY - FEW) / 64  # of these the time is taken
    assert more <= 2 * timed


@pytest.mark.parametrize("name", COMMANDS)
def test_an_admitted_command_takes_few_steps_where_nothing_is_compiled(name: str) -> None:
    """As a multiple of those that reading it takes."""
    if any(compiled for module, compiled in _compiled.status().items() if module in HOT):
        pytest.skip("the hot modules are compiled here")
    request = COMMANDS[name]
    ratio = (serving(request, MANY) - serving(request, FEW)) / (
        reading(request, MANY) - reading(request, FEW)
    )
    assert ratio < 3


@pytest.mark.parametrize("between", [["DISCARD"], [], ["SET a v", "DISCARD"], ["SET a v"] * 5])
def test_the_look_ahead_for_exec_looks_at_no_request_twice(between: list[str]) -> None:
    stream = (cmd("MULTI") + b"".join(map(cmd, between))) * 300 + cmd("EXEC")
    reader = RequestReader(IDENTIFIED)
    reader.feed(stream)
    looked_at = 0
    while argv := reader.next():
        if argv == [b"MULTI"]:
            start, end = reader.start, reader.end
            exec_follows(reader, len(stream), 10_000)
            looked_at += reader.end - end
            reader.return_to(start, end)
    assert looked_at <= len(stream)
