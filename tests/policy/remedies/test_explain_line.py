"""The verdict on a line of the command log, as examples of findings have it."""

from __future__ import annotations

from typing import Any

import pytest

from keyfence.commands.extract import extract
from keyfence.policy.remedies.explain import explain, explain_line
from keyfence.policy.wording.command_log import as_line
from tests.session.sessions import ROUTE, policy


def line(service: str, *argv: bytes) -> dict[str, Any]:
    return as_line(policy(), service, list(argv), extract(list(argv)), 1)


COMMANDS = [
    (b"HSET", ROUTE, b"HostIP", b"10.0.0.7"),
    (b"HGETALL", ROUTE),
    (b"DEL", b"bypass_host_proxy:7c8f"),
    (b"SET", b"no:such:key", b"1"),
    (b"KEYS", b"*"),
    (b"PUBLISH", b"news", b"x"),
    (b"GET",),
    (b"NOSUCHCOMMAND", b"a"),
    (b"MGET", ROUTE, b"\xff\xfe"),
]


@pytest.mark.parametrize("service", ["CubeMaster", "CubeProxy"])
@pytest.mark.parametrize("argv", COMMANDS, ids=lambda argv: argv[0].decode())
def test_the_verdict_is_that_on_the_command(service: str, argv: tuple[bytes, ...]) -> None:
    live, kept = explain(policy(), service, list(argv)), explain_line(policy(), line(service, *argv))
    assert kept["rule"] == live["rule"]
    assert [one["rule"] for one in kept["violations"]] == [one["rule"] for one in live["violations"]]
    assert kept["accesses"] == live["accesses"]
    assert kept["service"] == service


def test_the_arguments_are_shown_without_values() -> None:
    kept = explain_line(policy(), line("CubeProxy", b"HSET", ROUTE, b"HostIP", b"10.0.0.7"))
    assert kept["argv"][:2] == ["HSET", ROUTE.decode()]
    assert "10.0.0.7" not in str(kept)


@pytest.mark.parametrize("broken", [{}, {"service": "CubeProxy"}, {"command": 7, "argv": 7, "service": "x"}])
def test_what_is_not_a_line_is_a_value_error(broken: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a line of a command log"):
        explain_line(policy(), broken)


def test_a_service_that_the_policy_lacks_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="'gone' is not a service"):
        explain_line(policy(), {**line("CubeProxy", b"GET", ROUTE), "service": "gone"})


def test_there_is_no_verdict_on_a_command_of_which_only_a_part_is_kept() -> None:
    keys = [b"cube:%d" % number for number in range(1000)]
    with pytest.raises(ValueError, match="only a part of the command is kept"):
        explain_line(policy(), line("CubeProxy", b"MGET", *keys))
