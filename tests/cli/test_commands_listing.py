from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from keyfence.cli.commands_listing import KINDS, Listed, as_markdown, listing, since
from keyfence.cli.main import cli
from keyfence.commands.table import ASKED_SERVERS, COMMANDS
from keyfence.policy.compiled.permissions import forbidden_by_default
from tests.servers import PROJECT

ROWS = {row.command: row for row in listing()}


def test_every_command_is_listed_in_order() -> None:
    assert list(ROWS) == sorted(row.command.name for row in COMMANDS.values())
    assert {row.kind for row in ROWS.values()} == set(KINDS)


def test_the_listed_default_is_the_verdict_without_a_policy() -> None:
    for row in COMMANDS.values():
        command = row.command
        reason = forbidden_by_default(command, command.names_keys)
        listed = ROWS[command.name].default
        assert listed.removeprefix("forbidden: ") == reason if reason else "forbidden" not in listed


def test_a_command_that_names_keys_lists_their_arguments() -> None:
    for row in COMMANDS.values():
        listed = ROWS[row.command.name]
        if row.command.names_keys and not row.subcommands:
            assert listed.keys, listed
            assert listed.access or row.problem, listed


def described(name: str) -> tuple[str, str, str, str]:
    row = ROWS[name]
    return row.keys, row.access, row.kind, row.default


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("GET", ("1", "read", "keys", "decided by keys")),
        ("DEL", ("1 to the last", "delete", "keys", "decided by keys")),
        ("EXISTS", ("1 to the last", "existence", "keys", "decided by keys")),
        ("MSET", ("1, 3 … to the last", "write", "keys", "decided by keys")),
        ("LCS", ("1 and 2", "read", "keys", "decided by keys")),
        ("BLPOP", ("1 to the last but 1", "read and write", "keys", "decided by keys")),
        ("XACK", ("1", "group", "keys", "decided by keys")),
        ("XGROUP CREATE", ("2", "group", "keys", "decided by keys")),
        ("RENAME", ("1; 2", "read and delete; write", "keys", "decided by keys")),
        (
            "ZUNIONSTORE",
            ("1; as many as argument 2 says, from 3 on", "write; read", "keys", "decided by keys"),
        ),
        ("PUBLISH", ("a channel in 1", "", "pub/sub", "decided by channels")),
        ("SELECT", ("the database in 1", "", "connection", "decided by database")),
        ("FLUSHALL", ("", "", "whole key space", "forbidden: it is @dangerous and names no key")),
        ("CONFIG SET", ("", "", "administrative", "forbidden: it is administrative (@admin)")),
        ("MULTI", ("", "", "transaction", "allowed")),
        ("PING", ("", "", "connection", "allowed")),
        ("TIME", ("", "", "no keys", "allowed")),
        ("XGROUP", ("", "", "container", "by subcommand")),
    ],
)
def test_a_row_lists_what_the_command_touches(name: str, expected: tuple[str, str, str, str]) -> None:
    assert described(name) == expected


@pytest.mark.parametrize(
    ("servers", "text"),
    [
        (tuple(sorted(ASKED_SERVERS)), "Redis 6.2, Valkey 8.1"),
        (("redis-7.0", "redis-8.0", "redis-8.6", "valkey-8.1", "valkey-9.1"), "Redis 7.0, Valkey 8.1"),
        (("redis-8.6",), "Redis 8.6"),
        (("redis-8.10",), "Redis 8.10"),
        (("redis-6.2",), "Redis 6.2 only"),
        (("redis-6.2", "redis-7.0"), "Redis 6.2 to 7.0"),
        (("valkey-9.1",), "Valkey 9.1"),
    ],
)
def test_the_servers_of_a_command_are_abbreviated(servers: tuple[str, ...], text: str) -> None:
    assert since(servers) == text


def test_the_commands_page_equals_the_listing() -> None:
    page = (PROJECT / "docs" / "commands.md").read_text()
    assert page == as_markdown(listing()), "stale: make commands"


def test_the_commands_page_lists_every_command_once() -> None:
    page = as_markdown([*ROWS.values()])
    assert [page.count(f"`{name}`") for name in ROWS] == [1] * len(ROWS)


def test_json_lists_the_same_commands() -> None:
    result = CliRunner().invoke(cli, ["commands", "--json"])
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    rows = [
        Listed(**({"kind": row.pop("class")} | row | {"servers": tuple(row["servers"])})) for row in answer
    ]
    assert rows == listing()


def test_a_pipe_gets_one_plain_line_per_command() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "keyfence", "commands"], capture_output=True, text=True, check=True
    )
    lines = [line.strip() for line in run.stdout.splitlines() if line.strip()]
    assert "\x1b" not in run.stdout
    assert [line.split("  ")[0] for line in lines[2:]] == list(ROWS)
