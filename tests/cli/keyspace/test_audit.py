"""`keyfence audit` and `keyfence migrate` as people and pipelines run them, against real servers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy.exc import OperationalError

from keyfence.cli.keyspace import audit as keyspace_audit
from keyfence.cli.keyspace.report import WIDTH, as_markdown, as_text, size_text
from keyfence.findings.finding import AT_REST
from tests.audit.shop import POLICY, fill
from tests.cli.test_main import Result, keyfence
from tests.cluster import NO_CLUSTER, cluster_binary, running_cluster
from tests.end_to_end.clusters import moved_slot
from tests.sentinel import NAME, running_sentinels
from tests.servers import PATIENCE_SECONDS, PROJECT, RedisServer, free_port


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "shop.yaml"
    path.write_text(POLICY)
    return path


@pytest.fixture
def shop(redis_server: RedisServer) -> RedisServer:
    with redis_server.client() as client:
        fill(client)
    return redis_server


def audit(policy: Path, server: RedisServer, *arguments: str | Path) -> Result:
    url = server.embedded.url
    return keyfence("audit", url, "--policy", policy, "--rate", "none", *arguments)


def test_the_report_fits_into_80_columns_and_names_what_is_broken(policy: Path, shop: RedisServer) -> None:
    code, out, err = audit(policy, shop)
    assert (code, err) == (1, "")
    assert max(len(line) for line in out.splitlines() if "unix://" not in line) <= WIDTH
    for text in (
        "36 keys, ",
        "  order                                   23",
        "  order (legacy)",
        "broken rules",
        "type.mismatch: 1 key of order; owner #shop",
        "field.unknown (should): 1 key of order; owner #shop",
        "key.legacy: 1 key of page; owner #shop",
        "entries without keys: note, stock, stock-v2, unused",
    ):
        assert text in out
    assert "abcdefgh1234" not in out


def test_json_has_every_number(policy: Path, shop: RedisServer) -> None:
    code, out, _ = audit(policy, shop, "--format", "json")
    found = json.loads(out)
    assert code == 1
    assert found["keys"] == sum(one["keys"] for one in (*found["entries"], *found["unregistered"]))
    assert {one["name"]: one["keys"] for one in found["entries"] if one["kind"] == "entry"}["order"] == 23
    (cart,) = [one for one in found["entries"] if one["name"] == "cart"]
    assert cart["broken"] == {"ttl.range": 1, "ttl.required": 1}
    assert cart["without_ttl"] == 1
    assert found["orphans"] == ["note", "stock", "stock-v2", "unused"]
    rules = {one["rule"] for one in found["violations"]}
    assert {"key.unregistered", "key.format", "key.legacy", "value.size", "key.members"} <= rules
    biggest = [one["biggest"]["bytes"] for one in found["unregistered"]]
    assert all(biggest)


def test_the_report_counts_the_keys_whose_hash_slots_move(policy: Path, shop: RedisServer) -> None:
    found = json.loads(audit(policy, shop, "--format", "json").out)
    assert found["moving"] == 0
    assert "hash slots move" not in as_text(found)
    found["moving"] = 2
    for text in (as_text(found), as_markdown(found)):
        assert "2 keys left out, because their hash slots move; audit again when they" in text


@pytest.mark.skipif(cluster_binary() is None, reason=NO_CLUSTER)
def test_an_audit_during_which_hash_slots_move_says_so_and_resolves_nothing(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "findings.db"

    def states() -> list[str]:
        with contextlib.closing(sqlite3.connect(store)) as connection:
            return [str(row[0]) for row in connection.execute("SELECT state FROM keyfence_findings")]

    with running_cluster() as cluster, cluster.client() as client:

        def audited(*arguments: str) -> Result:
            url = f"redis://127.0.0.1:{cluster.masters[0].port}"
            return keyfence("audit", url, "--policy", policy, "--rate", "none", *arguments)

        def moving(*arguments: Any) -> Any:
            result = run(*arguments)
            moved_slot(cluster, "stray")
            return result

        client.set("stray", "x")
        assert audited("--store", f"sqlite:///{store}").code == 1
        client.delete("stray")
        run = keyspace_audit._run
        with monkeypatch.context() as while_it_runs:
            while_it_runs.setattr(keyspace_audit, "_run", moving)
            found = audited("--store", f"sqlite:///{store}", "--format", "json")
            assert json.loads(found.out)["moved_slots"] == 1
            assert states() == ["new"], "its keys may only have been missed"
            _, out, err = audited("--plan", "migrate")
            assert "keyfence: 1 hash slot moved meanwhile: keys may be missing" in err
            _, out, _ = audited()
            assert "1 hash slot moved meanwhile: keys may be missing or counted twice;" in out
        assert (
            json.loads(audited("--store", f"sqlite:///{store}", "--format", "json").out)["moved_slots"] == 0
        )
        assert states() == ["resolved"]


def test_markdown_is_a_page_of_tables(policy: Path, shop: RedisServer) -> None:
    code, out, _ = audit(policy, shop, "--format", "markdown")
    assert code == 1
    assert out.startswith("# Audit of unix://")
    assert "| main | order | 23 |" in out
    assert "## Broken rules" in out


def test_a_clean_redis_is_exit_code_0(policy: Path, redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        client.hset("shop:main:order:1", "state", "paid")
        client.hset("order-7", "state", "paid")  # tolerated
    code, out, _ = audit(policy, redis_server)
    assert code == 0
    assert "2 keys" in out
    assert "0 violations and 1 more of a should" in out


def test_keys_in_a_database_that_the_policy_does_not_have_are_violations(
    policy: Path, redis_server: RedisServer
) -> None:
    with redis_server.client(db=4) as client:
        client.hset("shop:main:order:1", "state", "paid")
    code, out, _ = audit(policy, redis_server)
    assert code == 1
    assert "database.forbidden: 1 key in database 4" in out
    code, out, _ = audit(policy, redis_server, "--database", "0")
    assert code == 1
    assert "database 4 was not looked at: 1 key" in out


def test_an_rdb_file_is_audited(policy: Path, shop: RedisServer, tmp_path: Path) -> None:
    with shop.client() as client:
        client.save()
        made = Path(client.config_get("dir")["dir"], "dump.rdb")
    file = tmp_path / "dump.rdb"
    file.write_bytes(made.read_bytes())
    made.unlink()
    code, out, err = keyfence("audit", file, "--policy", policy)
    assert (code, err) == (1, "")
    assert "36 keys" in out
    assert "idle times are not known: a file does not keep them" in out


def test_the_configuration_names_policy_redis_and_store(
    policy: Path, shop: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "url").write_text(f"{shop.embedded.url}\n")
    config = tmp_path / "keyfence.yaml"
    store = tmp_path / "findings.db"
    values = {"policy": policy.name, "upstream": "file:url", "findings": f"sqlite:///{store}"}
    config.write_text(yaml.safe_dump(values))
    monkeypatch.chdir(tmp_path)
    code, out, err = keyfence("audit", "--config", config, "--store", "config")
    assert (code, err) == (1, "")
    assert "36 keys" in out
    with sqlite3.connect(store) as connection:
        rows = dict(connection.execute("SELECT rule, sum(at_rest) FROM keyfence_findings GROUP BY rule"))
        services = set(connection.execute("SELECT service FROM keyfence_findings"))
    connection.close()
    assert rows["key.unregistered"] == 3
    assert services == {(AT_REST,)}


def test_the_configurations_credentials_are_fetched(
    policy: Path, shop: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "keyfence.yaml"
    upstream = {"url": shop.embedded.url, "username": "auditor", "credentials": {"file": "password"}}
    config.write_text(yaml.safe_dump({"policy": policy.name, "upstream": upstream}))
    monkeypatch.chdir(tmp_path)
    code, _, err = keyfence("audit", "--config", config)
    assert code == 2
    assert re.search(r"keyfence\.yaml:\d+: file: \S*password cannot be read: No such file", err)
    (tmp_path / "password").write_text("secret\n")
    with shop.client() as admin:
        admin.acl_setuser(
            "auditor", enabled=True, passwords=["+secret"], keys=["*"], categories=["+@read", "+@connection"]
        )
        admin.execute_command("ACL", "SETUSER", "auditor", "+scan", "+info")
        try:
            code, out, err = keyfence("audit", "--config", config)
        finally:
            admin.acl_deluser("auditor")
    assert (code, err) == (1, "")
    assert "36 keys" in out


def test_a_second_audit_resolves_what_is_gone(policy: Path, shop: RedisServer, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'findings.db'}"
    audit(policy, shop, "--store", url)
    with shop.client() as client:
        client.delete("shop:main:queue", "user:0:name")
    audit(policy, shop, "--store", url)
    with sqlite3.connect(tmp_path / "findings.db") as connection:
        rows = connection.execute("SELECT rule, entry, state, at_rest FROM keyfence_findings").fetchall()
    connection.close()
    assert ("key.members", "queue", "resolved", 0) in rows
    assert ("key.unregistered", "", "new", 2) in rows


def test_a_store_that_cannot_be_opened_is_said_before_redis_is_read(policy: Path, shop: RedisServer) -> None:
    with shop.client() as client:
        client.config_resetstat()
        code, out, err = audit(policy, shop, "--store", f"sqlite:///{policy}/findings.db")
        assert (code, out) == (2, "")
        assert f"{policy}/findings.db" in err
        assert "cmdstat_scan" not in client.info("commandstats")


def test_a_store_that_cannot_be_written_costs_neither_the_report_nor_the_walk(
    policy: Path, shop: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    store = ("--store", f"sqlite:///{tmp_path / 'findings.db'}", "--resume", state, "--format", "json")

    def refuse(*_arguments: object, **_more: object) -> None:
        raise OperationalError("", {}, sqlite3.OperationalError("disk I/O error"))

    with monkeypatch.context() as broken:
        broken.setattr("keyfence.audit.at_rest.write_audit", refuse)
        code, out, err = audit(policy, shop, *store)
    assert code == 2
    assert "cannot be written: disk I/O error" in err
    assert err.endswith(f"; --resume {state} writes it without a new audit\n")
    with shop.client() as client:
        client.config_resetstat()
        code, again, err = audit(policy, shop, *store)
        assert "cmdstat_scan" not in client.info("commandstats")
    assert (code, err) == (1, "")
    first, second = json.loads(out), json.loads(again)
    assert {**first, "seconds": 0} == {**second, "seconds": 0}
    assert not state.exists()
    with sqlite3.connect(tmp_path / "findings.db") as connection:
        (rows,) = connection.execute("SELECT count(*) FROM keyfence_findings").fetchone()
    connection.close()
    assert rows > 0


def test_findings_at_rest_fail_no_gate(policy: Path, shop: RedisServer, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'findings.db'}"
    audit(policy, shop, "--store", url)
    code, out, _ = keyfence("gate", url)
    assert code == 3, out  # no traffic, and nothing that would be refused


def test_a_plan_goes_to_standard_output_or_to_a_file(policy: Path, shop: RedisServer, tmp_path: Path) -> None:
    code, out, err = audit(policy, shop, "--plan", "migrate")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (1, "keyfence: 36 keys: 2 renames, and 0 keys without one\n")
    assert lines[0]["plan"] == "migrate"
    assert {line["old"]: line["new"] for line in lines[1:]} == {
        "order-77": "shop:main:order:77",
        "page-7": "shop:main:page:7",
    }
    _, out, err = audit(policy, shop, "--plan", "migrate", "--output", tmp_path / "plan")
    assert err == ""
    assert out.endswith("plan: 2 renames, and 0 keys without one\n")
    assert len((tmp_path / "plan").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("audit",), "keyfence: command line:1:1: error: no policy; name one with policy: or --policy"),
        (("audit", "--policy", "%P"), "keyfence: name a Redis: redis://HOST:PORT, or --config with"),
        (("audit", "redis://127.0.0.1:1", "--policy", "%P"), "cannot be reached: connection refused"),
        (("audit", "localhost:1", "--policy", "%P"), "the URL of a Redis; write redis://localhost:1"),
        (
            ("migrate", "%P", "[::1]:1"),
            "[::1]:1 is neither a file nor the URL of a Redis; write redis://[::1]:1",
        ),
        (("audit", "nowhere.rdb", "--policy", "%P"), "nowhere.rdb cannot be read: no such file"),
        (("audit", "%P", "--policy", "%P"), "is not an RDB file"),
        (("audit", "redis://h", "--policy", "%P", "--rate", "fast"), "is not a rate"),
        (("audit", "redis://h", "--policy", "%P", "--sample", "2"), "is not a sample"),
        (("audit", "redis://h", "--policy", "%P", "--output", "x"), "--output is for --plan"),
        (
            ("audit", "redis://h", "--policy", "%P", "--plan", "migrate", "--resume", "x"),
            "an audit that can be resumed needs a file for its plan; add --output",
        ),
        (("audit", "dump.rdb", "--policy", "%P", "--resume", "x"), "--resume is for a live Redis"),
        (("audit", "redis://h", "--policy", "%P", "--store", "x"), "is not a findings store"),
        (("audit", "redis://h", "--policy", "%P", "--store", "config"), "needs a configuration"),
        (("migrate", "nowhere", "redis://h"), "nowhere cannot be read: no such file"),
        (("migrate", "%P", "redis://h"), "is not a plan of keyfence audit --plan migrate, version 1"),
        (("migrate", "%P"), "keyfence: name a Redis: redis://HOST:PORT"),
        (("migrate", "%P", "dump.rdb"), "a file holds no keys to move; name a Redis"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(
    policy: Path, arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = keyfence(*(one.replace("%P", str(policy)) for one in arguments))
    assert (code, out) == (2, "")
    assert message.removeprefix("keyfence: ") in err


# -- migrate


def migrate(plan: Path, server: RedisServer, *arguments: str | Path) -> Result:
    return keyfence("migrate", plan, server.embedded.url, "--rate", "none", *arguments)


def test_a_migration_is_dry_by_default_and_then_moves(
    policy: Path, shop: RedisServer, tmp_path: Path
) -> None:
    plan = tmp_path / "plan"
    audit(policy, shop, "--plan", "migrate", "--output", plan)
    with shop.client(decode_responses=True) as client:
        before = client.dbsize()
        code, out, _ = migrate(plan, shop)
        assert code == 0
        assert "2 keys in 1s: 2 would be moved\nNothing was changed; --apply moves them.\n" in out
        assert client.exists("order-77", "page-7") == 2
        code, out, _ = migrate(plan, shop, "--apply", "--format", "json")
        assert code == 0
        assert json.loads(out)["fates"]["moved"] == 2
        assert client.exists("order-77", "page-7") == 0
        assert client.hgetall("shop:main:order:77") == {"state": "paid"}
        assert client.dbsize() == before
        code, out, _ = migrate(plan, shop, "--apply")
        assert code == 0
        assert "2 moved before" in out
    _, out, _ = audit(policy, shop, "--format", "json")
    assert not any(one["kind"] == "legacy" for one in json.loads(out)["entries"])


def test_a_plan_of_another_redis_is_named(policy: Path, shop: RedisServer, tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    audit(policy, shop, "--plan", "migrate", "--output", plan)
    assert migrate(plan, shop).err == ""
    text = plan.read_text()
    plan.write_text(text.replace(shop.embedded.url, "redis://elsewhere:6379"))
    err = migrate(plan, shop).err
    assert err.startswith(
        "keyfence: the plan is of redis://elsewhere:6379; its keys are looked for at unix://"
    )


def test_what_is_left_is_exit_code_1_with_the_reason(policy: Path, shop: RedisServer, tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    with shop.client() as client:
        client.set("cart-9", "not a hash")
        client.hset("shop:main:order:77", "state", "new")
    audit(policy, shop, "--plan", "migrate", "--output", plan)
    code, out, _ = migrate(plan, shop, "--apply", "--log", tmp_path / "log")
    assert code == 1
    assert "3 keys in 1s: 1 moved, 2 left" in out
    assert "it is a string, and cart is a hash" in out
    assert "the new key exists already" in out
    assert len((tmp_path / "log").read_text().splitlines()) == 3


# -- the documented users


def documented(user: str) -> str:
    """The rights of a Redis user, as docs/audit.md has them."""
    text = (PROJECT / "docs" / "audit.md").read_text()
    (rights,) = re.findall(rf"ACL SETUSER {user} on >PASSWORD (.*)", text)
    return f"{user} on >secret {rights}"


def test_the_documented_rights_are_enough(
    policy: Path, start_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    server = start_redis(acl=[documented("auditor"), documented("mover")])
    with server.client(decode_responses=True) as client:
        fill(client)
        client.set("cart-9", "x")
        client.sadd("note-1", *(f"member{number}" for number in range(3000)))
    plan = tmp_path / "plan"
    url = f"unix://auditor:secret@{server.socket_path}"
    code, out, _ = keyfence("audit", url, "--policy", policy, "--plan", "migrate", "--output", plan)
    assert code == 1
    assert "not known" not in out
    code, out, _ = keyfence("migrate", plan, url.replace("auditor", "mover"), "--apply")
    assert "2 moved" in out
    assert "Redis refuses" not in out


@pytest.mark.parametrize("command", ["audit", "migrate"])
def test_the_help_fits_into_80_columns(command: str) -> None:
    _, out, _ = keyfence(command, "--help")
    assert max(map(len, out.splitlines())) <= WIDTH


# -- long work


def test_ctrl_c_keeps_the_progress_and_resume_goes_on(
    policy: Path, redis_server: RedisServer, tmp_path: Path
) -> None:
    with redis_server.client() as client, client.pipeline() as pipeline:
        for number in range(4000):
            pipeline.hset(f"shop:main:order:{number}", "state", "paid")
        pipeline.execute()
    state = tmp_path / "state"
    command = [sys.executable, "-m", "keyfence", "audit", redis_server.embedded.url]
    command += ["--policy", str(policy), "--resume", str(state), "--format", "json"]
    slow = subprocess.Popen(
        [*command, "--rate", "200/s"], cwd=PROJECT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 2 * PATIENCE_SECONDS
    while not _has_scanned(redis_server):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(slow.pid, signal.SIGINT)
    out, err = slow.communicate(timeout=2 * PATIENCE_SECONDS)
    assert (slow.returncode, out) == (130, "")
    assert f"keys; --resume {state} goes on from here" in err
    kept = json.loads(state.read_text())["state"]["seen"]
    assert 0 < kept < 4000
    code, out, _ = audit(policy, redis_server, "--resume", state, "--format", "json")
    assert code == 0
    assert json.loads(out)["keys"] == 4000


def _has_scanned(server: RedisServer) -> bool:
    with server.client() as client:
        return bool(client.info("commandstats").get("cmdstat_scan", {}).get("calls", 0) > 2)


def test_sizes_are_shown_in_the_largest_unit() -> None:
    texts = [size_text(one) for one in (0, 1023, 1024, 1536, 3 * 1024**2, 5 * 1024**4)]
    assert texts == ["0 B", "1023 B", "1.0 kB", "1.5 kB", "3.0 MB", "5.0 TB"]


def test_a_sentinel_is_no_redis_without_keys(policy: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.jsonl"
    plan.write_text('{"plan": "migrate", "version": 1, "policy": "p", "revision": "r", "source": "s"}\n')
    with running_sentinels(tmp_path) as watched:
        url = f"redis://127.0.0.1:{watched.sentinels[0]}"
        commands = (["audit", url, "--policy", policy], ["migrate", plan, url], ["draft", url], ["look", url])
        for arguments in commands:
            code, out, err = keyfence(*arguments)
            assert (code, out) == (2, "")
            assert f"{url} is a Sentinel, which has no keys; name the primary that it knows" in err


def test_the_primary_that_sentinels_name_is_read(policy: Path, tmp_path: Path) -> None:
    with running_sentinels(tmp_path) as watched:
        hosts = ", ".join(f'"127.0.0.1:{port}"' for port in watched.sentinels)
        config = tmp_path / "keyfence.yaml"
        config.write_text(f"policy: {policy}\nupstream: {{sentinel: {{hosts: [{hosts}], name: {NAME}}}}}\n")
        with watched.primary.client() as client:
            fill(client)
        found = keyfence("audit", "--config", config, "--format", "json")
        assert (found.code, json.loads(found.out)["keys"]) == (1, 36)
        config.write_text(config.read_text().replace(f"name: {NAME}", "name: other"))
        code, out, err = keyfence("audit", "--config", config)
        assert (code, out) == (2, "")
        assert "no Sentinel names the primary" in err


def test_any_node_of_a_cluster_that_answers_is_asked_for_the_others(
    policy: Path, tmp_path: Path, start_redis: Callable[..., RedisServer]
) -> None:
    server = start_redis(tcp=True)
    with server.client() as client:
        fill(client)
    config = tmp_path / "keyfence.yaml"
    nodes = f'"127.0.0.1:{free_port()}", "127.0.0.1:{server.port}"'
    config.write_text(f"policy: {policy}\nupstream: {{cluster: [{nodes}], expose: single}}\n")
    found = keyfence("audit", "--config", config, "--format", "json")
    assert (found.code, json.loads(found.out)["keys"]) == (1, 36)
