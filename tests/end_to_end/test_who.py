"""The decision log and the report name the client that broke a rule."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import redis

from tests.cli.test_main import process
from tests.clients.running import ask, decisions, eventually
from tests.servers import Keyfence, running_redis

POLICY = """policy: p
services: [app]
scopes: {s: {prefix: "p:", writers: [app]}}
keys: {k: {key: "p:k", ttl: required, type: hash}}
"""


def test_the_log_and_the_report_hold_address_user_name_and_library(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(POLICY)
    config = tmp_path / "keyfence.yaml"
    with running_redis(acl=["worker on >secret ~* +@all"]) as server:
        config.write_text(
            f"policy: p.yaml\nupstream: {server.url}\nadmin: 127.0.0.1:0\ndecision_log: decisions.jsonl\n"
            'listeners: [{listen: "127.0.0.1:0", service: app}]\n'
        )
        with Keyfence("--config", config) as keyfence:
            known = {"username": "worker", "password": "secret", "client_name": "cron@a"}
            with keyfence.client("app", **known) as client:
                for option, value in (("LIB-NAME", "acme"), ("LIB-VER", "1.2")):
                    with contextlib.suppress(redis.exceptions.ResponseError):  # before Redis 7.2
                        client.execute_command("CLIENT", "SETINFO", option, value)
                for _ in range(2):
                    client.get("elsewhere:1")
            with keyfence.client("app") as client:
                client.get("elsewhere:2")
                client.execute_command("CLIENT", "SETNAME", "n" * 100)
                client.get("elsewhere:3")
            (row,) = json.loads(ask(keyfence, "/report")[1])
            table = process("report", keyfence.ready.admin).out
            by_key = process("report", keyfence.ready.admin, "--by", "key").out
            (of_key,) = json.loads(
                process("report", keyfence.ready.admin, "--by", "key", "--format", "json").out
            )
    assert "elsewhere:<int>" in by_key
    assert (of_key["key"], of_key["service"], of_key["commands"]) == ("elsewhere:<int>", "app", {"GET": 4})
    first, _, third, fourth = decisions(tmp_path)
    assert str(first["client"]).startswith("127.0.0.1:")
    assert {name: first[name] for name in ("user", "name", "library", "version")} == {
        "user": "worker", "name": "cron@a", "library": "acme", "version": "1.2",
    }  # fmt: skip
    assert "user" not in third
    assert "name" not in third
    assert fourth["name"] == "n" * 64 + "…"
    assert all("time" in line for line in (first, third, fourth))
    assert row["clients"][0] == {
        "address": "127.0.0.1", "user": "worker", "name": "cron@a", "library": "acme", "version": "1.2",
    }  # fmt: skip
    assert len(row["clients"]) == 3
    assert "127.0.0.1 cron@a (acme 1.2) as worker" in table
    assert redis.__version__ in str(row["clients"][1].get("version"))


def test_a_late_finding_names_its_client(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(POLICY.replace("ttl: required", "ttl: {max: 1h, grace: 1s}"))
    config = tmp_path / "keyfence.yaml"
    with running_redis() as server:
        config.write_text(
            f"policy: p.yaml\nupstream: {server.url}\nadmin: 127.0.0.1:0\ndecision_log: decisions.jsonl\n"
            'listeners: [{listen: "127.0.0.1:0", service: app}]\n'
        )
        with Keyfence("--config", config) as keyfence, keyfence.client("app", client_name="cron@a") as client:
            client.hset("p:k", "f", "v")
            eventually(lambda: "late" in (tmp_path / "decisions.jsonl").read_text(), "the finding comes")
        (late,) = decisions(tmp_path)
    assert (late["action"], late["name"]) == ("late", "cron@a")
