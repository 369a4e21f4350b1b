"""`keyfence scripts`: unregistered scripts that clients ran, and the section that registers them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from keyfence.policy.compiled.scripts import first_line
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy
from tests.cli.test_main import process
from tests.clients.running import decisions
from tests.servers import Keyfence, RedisServer, running_redis

POLICY = """policy: p
services: [app]
scopes: {s: {prefix: "p:", writers: [app], unregistered: allow}}
"""
SECRET = """placeholders: {token: {is: "[A-Za-z0-9]{6,64}", secret: yes}}
keys: {session: {key: "p:session:<token>"}}
"""
UNLOCK = b"-- unlocks p:session:hunter2hunter2\nif redis.call('get', KEYS[1]) == ARGV[1] then return 1 end"
COUNT = b"\n\n return redis.call('incr', KEYS[1])"


def sha1(text: bytes) -> str:
    return hashlib.sha1(text, usedforsecurity=False).hexdigest()


@pytest.fixture(scope="module")
def redis_behind() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


def configure(folder: Path, upstream: str, *more: str) -> Path:
    (folder / "p.yaml").write_text(POLICY)
    lines = [
        "policy: p.yaml", f"upstream: {upstream}", "admin: 127.0.0.1:0", "modes: [{mode: enforce}]",
        'listeners: [{listen: "127.0.0.1:0", service: app}]', *(more or ["decision_log: decisions.jsonl"]),
    ]  # fmt: skip
    (folder / "keyfence.yaml").write_text("\n".join(lines) + "\n")
    return folder / "keyfence.yaml"


def refusal_of(client: redis.Redis, *command: str | bytes) -> str:
    with pytest.raises(redis.exceptions.NoPermissionError) as refused:
        client.execute_command(*command)
    return str(refused.value)


def run_some(client: redis.Redis) -> None:
    assert f"{{NAME: {{sha1: {sha1(UNLOCK)}, keys: 1}}}}" in refusal_of(client, "EVAL", UNLOCK, 1, "p:a", "x")
    for _ in range(2):
        assert sha1(COUNT) in refusal_of(client, "EVALSHA", client.script_load(COUNT), 2, "p:a", "p:b")
    assert "{bump: {keys: 1}}" in refusal_of(client, "FCALL", "bump", 1, "p:a")


def test_different_scripts_are_different_rows_and_the_section_registers_them(
    tmp_path: Path, redis_behind: RedisServer
) -> None:
    config = configure(tmp_path, redis_behind.url)
    with Keyfence("--config", config) as keyfence:
        with keyfence.client("app") as client:
            run_some(client)
        code, message, err = process("scripts", keyfence.ready.admin, "--format", "json")
        section = process("scripts", keyfence.ready.admin, "--format", "yaml").out
        table = process("scripts", keyfence.ready.admin).out
        report = process("report", keyfence.ready.admin).out
    assert (code, err) == (0, "")
    listed = {one["script"]: one for one in json.loads(message)}
    assert {
        name: (one["keys"], one["count"], one["refused"], one["line"]) for name, one in listed.items()
    } == {
        sha1(COUNT): (2, 2, 2, "return redis.call('incr', KEYS[1])"),
        sha1(UNLOCK): (1, 1, 1, "-- unlocks p:session:hunter2hunter2"),
        "bump": (1, 1, 1, ""),
    }
    for text in (table, report):
        assert sha1(COUNT) in text
        assert sha1(UNLOCK) in text
    evaluator = Evaluator(parse_policy(POLICY + section))
    for command in (["EVAL", UNLOCK, "1", "p:a"], ["EVALSHA", sha1(COUNT), "2", "p:a", "p:b"],
                    ["FCALL", "bump", "1", "p:a"]):  # fmt: skip
        argv = [word if isinstance(word, bytes) else word.encode() for word in command]
        assert evaluator.decide(0, argv).violations == ()
    lines = {line["script"]: line["script_line"] for line in decisions(tmp_path)}
    assert lines == {name: one["line"] for name, one in listed.items()}
    assert json.loads(process("scripts", str(tmp_path / "decisions.jsonl"), "--format", "json").out) == [
        one | {"last": pytest.approx(one["last"], abs=1)} for one in json.loads(message)
    ]


def test_where_keys_are_masked_no_script_line_is_shown(tmp_path: Path, redis_behind: RedisServer) -> None:
    config = configure(tmp_path, redis_behind.url, "decision_log: {path: decisions.jsonl, mask_keys: yes}")
    with Keyfence("--config", config) as keyfence:
        with keyfence.client("app") as client:
            run_some(client)
        message = process("scripts", keyfence.ready.admin, "--format", "json").out
    assert {one["line"] for one in json.loads(message)} == {""}
    assert {(one["script"], one["keys"]) for one in json.loads(message)} == {
        (sha1(COUNT), 2), (sha1(UNLOCK), 1), ("bump", 1),
    }  # fmt: skip
    assert {line["script_line"] for line in decisions(tmp_path)} == {""}


def line_of(policy: str, text: bytes) -> str:
    argv = [b"EVAL", text, b"0"]
    found = Evaluator(parse_policy(policy)).decide(0, argv).violations
    return next(one.shown for one in found if one.rule == "script.unregistered")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (UNLOCK, "-- <masked> <masked>"),
        (b"return redis.call('get', KEYS[1])", "return redis.call('get', KEYS[1])"),
        (b"local a = 'hunter2hunter2'", "local a = '<masked>'"),
        (b"local a = 'p:session:hunter2'..b", "local a = '<masked>'..b"),
        (b"local a = 1 -- " + b"h" * 5_000, "local a = 1 -- "),
    ],
)
def test_possible_secrets_in_a_script_line_are_masked(text: bytes, line: str) -> None:
    assert line_of(POLICY + SECRET, text) == line


def test_a_secret_that_may_hold_spaces_masks_the_whole_line() -> None:
    policy = POLICY + SECRET.replace("[A-Za-z0-9]{6,64}", "[a-z ]{6,64}")
    assert line_of(policy, b"local a = 1") == "<masked>"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"", b""),
        (b"--[[\n  Adds a job\n]]", b"Adds a job"),
        (b"#!lua flags=no-writes\nreturn 1", b"return 1"),
        (b"x" * 300, b""),
        (b"local x = '" + b"y" * 300, b"local x = '"),
    ],
)
def test_a_script_is_shown_by_its_first_meaningful_line(text: bytes, line: bytes) -> None:
    assert first_line(text) == line


def test_the_section_asks_for_the_keys_of_scripts_that_were_only_loaded(tmp_path: Path) -> None:
    line = {
        "time": "2026-01-01T00:00:00Z", "service": "app", "command": "SCRIPT LOAD", "action": "observed",
        "rule": "script.unregistered", "script": "0" * 40, "key": "", "script_line": "return 1\n",
        "hint": f"register it under scripts: {{NAME: {{sha1: {'0' * 40}, keys: 0}}}}",
    }  # fmt: skip
    other = line | {"script": "other", "merged": 4}
    (tmp_path / "log").write_text(json.dumps(line) + "\n" + json.dumps(other) + "\n")
    code, out, err = process("scripts", str(tmp_path / "log"), "--format", "yaml")
    assert (code, err) == (0, "keyfence: 5 calls left out: the script's SHA-1 is not known\n")
    assert "only loaded so far; set how many keys" in out
    parse_policy(POLICY + out)


def test_a_script_called_with_different_numbers_of_keys_takes_any(tmp_path: Path) -> None:
    lines = [
        {
            "time": "2026-01-01T00:00:00Z", "service": service, "command": "EVALSHA", "action": "observed",
            "rule": "script.unregistered", "script": "0" * 40, "key": "", "script_line": "",
            "hint": f"register it under scripts: {{NAME: {{sha1: {'0' * 40}, keys: {keys}}}}}",
        }
        for service, keys in (("web", 1), ("jobs", 3))
    ]  # fmt: skip
    (tmp_path / "log").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, out, _ = process("scripts", str(tmp_path / "log"), "--format", "yaml")
    assert code == 0
    assert "keys: any, declared: both" in out
    parse_policy(POLICY + out)


def test_no_unregistered_scripts_gives_one_line(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    assert process("scripts", str(tmp_path / "log"))[:2] == (0, "No unregistered scripts.\n")


def test_a_script_that_the_policy_registers_since_is_left_out(
    tmp_path: Path, redis_behind: RedisServer
) -> None:
    config = configure(tmp_path, redis_behind.url)
    with Keyfence("--config", config) as keyfence:
        with keyfence.client("app") as client:
            run_some(client)
        register = (
            f'scripts: {{count: {{sha1: "{sha1(COUNT)}", keys: 2}}}}\nfunctions: {{bump: {{keys: 1}}}}\n'
        )
        (tmp_path / "p.yaml").write_text(POLICY + register)
        assert process("reload", "--admin", keyfence.ready.admin).code == 0
        code, message, err = process("scripts", keyfence.ready.admin, "--format", "json")
    assert (code, err) == (0, "keyfence: 2 scripts left out: registered since\n")
    assert [one["script"] for one in json.loads(message)] == [sha1(UNLOCK)]
    log = ("scripts", tmp_path / "decisions.jsonl", "--format", "json")
    assert len(json.loads(process(*log).out)) == 3
    code, message, err = process(*log, "--policy", tmp_path / "p.yaml")
    assert (code, err) == (0, "keyfence: 2 scripts left out: registered since\n")
    assert [one["script"] for one in json.loads(message)] == [sha1(UNLOCK)]
