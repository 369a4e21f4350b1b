"""What the page asks of a running keyfence, and what it changes there."""

from __future__ import annotations

import datetime
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from keyfence.admin.client import ask
from keyfence.findings.database import Database
from keyfence.findings.store import Store
from keyfence.telemetry.counters import OTHER
from tests.clients.running import ask as http
from tests.clients.running import eventually
from tests.findings.rows import batch, row
from tests.servers import Keyfence, RedisServer, running_redis
from tests.web.person import Person

TOKEN = "the-token-of-this-test-0123456789"
POLICY = """policy: shop
owner: {contact: "#shop"}
claims: ["shop:"]
services: [web, billing]
placeholders: {id: "[a-z0-9]{1,9}"}
scopes: {shop: {prefix: "shop:", writers: [billing], readers: [web]}}
keys:
  cart: {key: "shop:cart:<id>", type: string, about: what is not paid yet}
"""
LISTENERS = 'listeners: [{listen: "127.0.0.1:0", service: web}, {listen: "127.0.0.1:0", service: billing}]'
WORKERS = pytest.mark.parametrize("more", [(), ("workers: 2",)], ids=["alone", "workers"])
UNTIL = (datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=9)).isoformat()
OTHER_WAIVER = f"{{service: web, rule: ttl.required, owner: ops, reason: a test, until: {UNTIL}}}"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as one:
        yield one


class Stage:
    """A running keyfence with a policy, a token, a waivers file and an audit log."""

    def __init__(self, folder: Path, server: RedisServer, start: Callable[..., Keyfence]) -> None:
        self.folder = folder
        self.config = folder / "keyfence.yaml"
        self.waivers = folder / "waivers.yaml"
        self._server = server
        self._start = start
        (folder / "policy.yaml").write_text(POLICY)
        (folder / "token").write_text(TOKEN)
        (folder / "token").chmod(0o600)
        self.waivers.write_text("# known\nwaivers: []\n")

    def run(
        self,
        *more: str,
        flags: tuple[str, ...] = (),
        waivers: bool = True,
        listeners: str = LISTENERS,
        **options: Any,
    ) -> Person:
        lines = [
            "policy: policy.yaml",
            f"upstream: {self._server.url}",
            "findings: sqlite:///findings.db",
            "admin: {listen: '127.0.0.1:0', token_file: token, audit_log: audit.jsonl}",
            listeners,
            *(["waivers: waivers.yaml"] if waivers else []),
            *more,
        ]
        self.config.write_text("\n".join(lines) + "\n")
        self.keyfence = self._start("--config", self.config, *flags, **options)
        return Person(self.keyfence, TOKEN)

    def send(self, service: str, *words: str) -> bytes:
        """The first bytes of the reply to a command."""
        with self.keyfence.connect(service) as sock:
            sock.sendall(b"".join([b"*%d\r\n" % len(words), *(_bulk(word) for word in words)]))
            return sock.recv(1000)[:7]

    def finding(self) -> dict[str, Any]:
        (one,) = ask(self.keyfence.ready.admin, "/findings")["findings"]
        found: dict[str, Any] = one
        return found

    def audit(self) -> list[tuple[str, str, str]]:
        lines = [json.loads(line) for line in (self.folder / "audit.jsonl").read_text().splitlines()]
        assert {(one["who"], one["address"]) for one in lines} == {("ann", "127.0.0.1")}
        return [(one["action"], one["detail"], one["outcome"]) for one in lines]


def _bulk(word: str) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode())


@pytest.fixture
def stage(tmp_path: Path, server: RedisServer, start_keyfence: Callable[..., Keyfence]) -> Stage:
    server.clear()
    return Stage(tmp_path, server, start_keyfence)


# -- what it shows


@WORKERS
def test_every_view_shows_what_a_service_has_just_done(more: tuple[str, ...], stage: Stage) -> None:
    person = stage.run(*more)
    assert "Nothing new since yesterday" in person.read("/")
    admin = stage.keyfence.ready.admin
    assert ask(admin, "/next")["name"] == "silent"
    for _ in range(3):
        assert stage.send("web", "SET", "shop:cart:1", "x") == b"+OK\r\n"
    assert stage.send("billing", "GET", "shop:cart:1") == b"$1\r\nx\r\n"
    eventually(lambda: "1 new finding since yesterday" in person.read("/"), "the overview shows it")
    eventually(lambda: "violations: 3 observed" in person.read("/"), "the chart has them")
    one = stage.finding()
    assert (one["total"], one["service"], one["rule"]) == (3, "web", "scope.write")
    step = ask(admin, "/next")
    assert step["sentence"] == "1 finding is active. Begin with scope.write by web."
    assert (step["command"], step["link"]) == (
        f"keyfence findings {one['id']} --admin {admin}",
        f"/findings/{one['id']}",
    )
    finding = person.read(f"/findings/{one['id']}")
    for part in ("scope.write by web", "SET on cart", "shop:cart:1", "its writers: billing", "#shop", "new"):
        assert part in finding, part
    assert "it breaks scope.write" in finding
    assert "{service: web, rule: scope.write, entry: cart, command: SET" in finding
    assert "web" in person.read("/findings?state=new&owner=%23shop")
    assert "0 findings" in person.read("/findings?state=waived")
    service = person.read("/services/billing")
    assert "read cart 1" in service
    traffic = person.read("/services")
    assert "web" in traffic
    assert "billing" in traffic
    policy = person.read("/policy")
    assert "what is not paid yet" in policy
    explained = person.read("/explain?service=web&command=SET+shop%3Acart%3A1+x")
    assert "scope.write" in explained
    assert "None is loaded." in person.read("/candidate")


def test_with_masked_keys_a_finding_is_shown_without_its_command(stage: Stage) -> None:
    person = stage.run("decision_log: {path: decisions.jsonl, mask_keys: yes}")
    stage.send("web", "SET", "shop:cart:1", "x")
    finding = person.read(f"/findings/{stage.finding()['id']}")
    assert "shop:cart:1" not in finding
    assert "cart" in finding


@WORKERS
def test_what_a_store_that_cannot_be_written_lacks_makes_nothing_ready(
    more: tuple[str, ...], stage: Stage
) -> None:
    person = stage.run(*more)
    admin = stage.keyfence.ready.admin
    assert stage.send("billing", "SET", "shop:cart:1", "x") == b"+OK\r\n"
    assert ask(admin, "/findings")["notes"] == []
    full = (
        "CREATE TRIGGER full BEFORE INSERT ON keyfence_findings BEGIN SELECT RAISE(ABORT, 'it is full'); END"
    )
    with sqlite3.connect(stage.folder / "findings.db") as database:
        database.execute(full)
    assert stage.send("web", "SET", "shop:cart:1", "x") == b"+OK\r\n"
    said = "cannot be written: it is full; findings wait in memory"
    again = "ask again when the store can be written"
    for path in ("/readiness?quiet=1", "/evidence", "/unused?for=1", "/what-if?mode=scope.write%3Denforce"):
        status, answer = http(stage.keyfence, path)
        assert (status, f"{said}; {again}" in answer) == (400, True), path
    assert said in ask(admin, "/findings")["notes"][0]
    assert said in ask(admin, "/readyz")["warnings"][0]
    assert said in ask(admin, "/next")["sentence"]
    eventually(lambda: said in person.read("/"), "the page says so")
    with sqlite3.connect(stage.folder / "findings.db") as database:
        database.execute("DROP TRIGGER full")
    found = ask(admin, "/findings")  # which writes first
    assert found["notes"] == ask(admin, "/readyz")["warnings"] == []
    (one,) = found["findings"]
    assert (one["service"], one["total"]) == ("web", 1)
    assert ask(admin, "/readiness?quiet=1")["standings"]
    stage.keyfence.expect_stderr = f"{said}\n.*is written again after .*; nothing was lost"


@WORKERS
def test_a_socket_that_was_removed_is_a_warning(more: tuple[str, ...], stage: Stage) -> None:
    """keyfence still listens, and nobody can connect."""
    path = stage.folder / "keyfence.sock"
    listeners = f'listeners: [{{listen: "unix:{path}"}}, {{listen: "127.0.0.1:0", service: web}}]'
    stage.run(*more, listeners=listeners)
    admin = stage.keyfence.ready.admin
    assert ask(admin, "/readyz")["warnings"] == []
    path.unlink()
    (said,) = ask(admin, "/readyz")["warnings"]
    assert said == f"the socket {path} was removed, so no client can connect there; restart keyfence"


def test_without_a_store_the_page_says_so(stage: Stage) -> None:
    stage.run()
    other = stage.folder / "other.yaml"
    other.write_text(stage.config.read_text().replace("sqlite:///findings.db", "none"))
    stage.keyfence = stage._start("--config", other)
    person = Person(stage.keyfence)
    stage.send("web", "SET", "shop:cart:1", "x")
    assert "keyfence runs without a findings store" in person.read("/")
    assert "keyfence runs without a findings store" in person.read("/policy")
    assert "web scope.write SET cart" in person.read("/findings")
    assert "web" in person.read("/services")


def test_in_passthrough_the_page_shows_traffic_and_says_why_it_shows_no_more(
    stage: Stage, start_keyfence: Callable[..., Keyfence], server: RedisServer
) -> None:
    keyfence = start_keyfence(
        "--splice", "--upstream", server.url, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"
    )
    person = Person(keyfence)
    assert "commands pass unread" in person.read("/")
    for path in ("/findings", "/policy", "/explain", "/candidate"):
        assert "Keyfence runs with --splice: it " in person.read(path)
    assert "has sent nothing" in person.read("/services/web", 404)
    person.read("/services")
    assert stage.folder.exists()


# -- modes


@WORKERS
def test_a_mode_that_is_set_wins_over_what_the_file_says(more: tuple[str, ...], stage: Stage) -> None:
    person = stage.run("modes:", "  # of staging", "  - {mode: observe}  # everything", *more)
    before = stage.config.read_bytes()
    assert stage.send("web", "SET", "shop:cart:1", "x") == b"+OK\r\n"
    done = person.do("mode", rule="scope.write", service="web", mode="enforce")
    assert f"scope.write for web: enforce. It is in {stage.config} and in force." in done
    assert stage.send("web", "SET", "shop:cart:1", "x") == b"-NOPERM"
    line = b"  - {rule: scope.write, service: web, mode: enforce}\n"
    assert stage.config.read_bytes() == before.replace(b"  - {mode: observe}", line + b"  - {mode: observe}")
    modes = ask(stage.keyfence.ready.admin, "/modes")["modes"]
    assert (modes["scope.write"], modes["scope.read"]["web"]) == (
        modes["scope.write"] | {"web": "enforce", "billing": "observe"},
        "observe",
    )
    person.do("mode", rule="", service="web", mode="observe")
    assert stage.send("web", "SET", "shop:cart:1", "x") == b"+OK\r\n"
    assert [one["mode"] for one in yaml.safe_load(stage.config.read_text())["modes"]] == [
        *("observe", "enforce", "observe")
    ]
    assert stage.audit() == [
        ("sign in", "", "done"),
        ("mode", "scope.write for web: enforce", "done"),
        ("mode", "every rule for web: observe", "done"),
    ]


def test_a_mode_that_makes_no_sense_changes_nothing(stage: Stage) -> None:
    person = stage.run()
    before = stage.config.read_bytes()
    said = person.do("mode", rule="scope.write", service="wbe", mode="enforce")
    assert "'wbe' is not a service of the policy; did you mean web?" in said
    assert stage.config.read_bytes() == before


def test_a_mode_of_the_command_line_cannot_be_overruled(stage: Stage) -> None:
    person = stage.run(flags=("--mode", "observe"))
    before = stage.config.read_bytes()
    said = person.do("mode", rule="scope.write", service="web", mode="enforce")
    assert "Keyfence runs with --mode observe, which wins over the file." in said
    assert stage.config.read_bytes() == before


def test_without_a_configuration_file_a_mode_is_a_line_to_write(
    stage: Stage, start_keyfence: Callable[..., Keyfence], server: RedisServer
) -> None:
    stage.run()
    flags = ["--upstream", server.url, "--policy", str(stage.folder / "policy.yaml")]
    flags += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--service", "web"]
    keyfence = start_keyfence(*flags)
    assert "read-only" in Person(keyfence).ask("GET", "/")[2]


def test_two_modes_that_are_set_at_once_are_both_in_the_file(stage: Stage) -> None:
    person = stage.run("modes: []")
    rules = ["scope.write", "scope.read", "type.mismatch", "key.unregistered"]
    threads = [
        threading.Thread(
            target=person.do, args=("mode",), kwargs={"rule": rule, "service": "", "mode": "enforce"}
        )
        for rule in rules
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(one["rule"] for one in yaml.safe_load(stage.config.read_text())["modes"]) == sorted(rules)
    modes = ask(stage.keyfence.ready.admin, "/modes")["modes"]
    assert {modes[rule]["web"] for rule in rules} == {"enforce"}


def test_a_configuration_that_one_line_cannot_extend_is_left_as_it_is(stage: Stage) -> None:
    person = stage.run("? modes", ": - {mode: observe}")
    before = stage.config.read_bytes()
    said = person.do("mode", rule="scope.write", service="web", mode="enforce")
    assert "The mode must be written by hand" in said
    assert "cannot be changed: its modes are written in a way that is only changed by hand" in said
    assert "- {rule: scope.write, service: web, mode: enforce}" in said
    assert stage.config.read_bytes() == before
    assert stage.audit()[-1] == ("mode", "scope.write for web: enforce", "by hand")


# -- waivers


@WORKERS
def test_a_waiver_is_written_and_in_force(more: tuple[str, ...], stage: Stage) -> None:
    person = stage.run("modes: [{mode: enforce}]", *more)
    assert stage.send("web", "SET", "shop:cart:1", "x") == b"-NOPERM"
    one = stage.finding()
    done = person.do("waive", finding=one["id"], owner="team web", until=UNTIL)
    assert f"The waiver is in {stage.waivers} and in force." in done
    assert stage.send("web", "SET", "shop:cart:2", "x") == b"+OK\r\n"
    text = stage.waivers.read_text()
    assert text.startswith("# known\nwaivers: [{service: web")
    (waiver,) = yaml.safe_load(text)["waivers"]
    assert (waiver["owner"], waiver["reason"], str(waiver["until"])) == ("team web", "a test", UNTIL)
    eventually(lambda: stage.finding()["state"] == "waived", "the finding is waived")
    assert stage.audit()[-1] == ("waive", one["id"], "done")


def test_without_a_waivers_file_the_waiver_is_a_line_to_write(stage: Stage) -> None:
    person = stage.run(waivers=False)
    stage.send("web", "SET", "shop:cart:1", "x")
    one = stage.finding()
    assert "The configuration names no waivers file" in person.read(f"/findings/{one['id']}")
    said = person.do("waive", finding=one["id"], owner="team web", until=UNTIL)
    assert "the configuration names no waivers file; set waivers: FILE" in said
    assert "- {service: web, rule: scope.write, entry: cart, command: SET, owner:" in said
    assert stage.audit()[-1] == ("waive", one["id"], "by hand")


def test_a_waiver_is_not_written_for_a_finding_that_none_can_cover(stage: Stage) -> None:
    database = Database(f"sqlite:///{stage.folder / 'findings.db'}")
    now = datetime.datetime.now().timestamp()
    Store(database, "there:1").write(batch(row(at=now, service="web", entry="", shape=OTHER), at=now))
    database.close()
    person = stage.run()
    one = stage.finding()
    before = stage.waivers.read_bytes()
    assert "web, scope.write, SET other" in person.read(f"/findings/{one['id']}")
    said = person.do("waive", finding=one["id"], owner="team web", until=UNTIL)
    assert "No waiver can cover it: " in said
    assert "There is no finding 'f-0'" in person.do("waive", finding="f-0", owner="a", until=UNTIL)
    assert stage.waivers.read_bytes() == before


def test_a_reload_that_is_refused_leaves_the_waivers_file_as_it_was(stage: Stage) -> None:
    person = stage.run(expect_stderr=r"(?s)policy\.yaml:.*nothing was reloaded")
    stage.send("web", "SET", "shop:cart:1", "x")
    before = stage.waivers.read_bytes()
    (stage.folder / "policy.yaml").write_text(POLICY.replace("type: string", "type: strong"))
    said = person.do("waive", finding=stage.finding()["id"], owner="team web", until=UNTIL)
    assert "Nothing has changed: " in said
    assert "'strong'" in said
    assert stage.waivers.read_bytes() == before
    assert "'strong'" in stage.audit()[-1][2]


def test_a_waiver_puts_nothing_in_force_that_others_have_written(stage: Stage) -> None:
    """Someone whose role is `waive` must not decide when an operator's edits come into force."""
    person = stage.run("modes: [{mode: observe}]")
    stage.send("web", "SET", "shop:cart:1", "x")
    one, before = stage.finding()["id"], stage.waivers.read_bytes()
    edits = (
        (stage.config, "mode: observe", "mode: enforce", "modes"),
        (stage.folder / "policy.yaml", "type: string", "type: hash", "policy"),
        (stage.waivers, "[]", f"[{OTHER_WAIVER}]", "waivers"),
        (stage.folder / "token", TOKEN, TOKEN[::-1], "admin token"),
    )
    for file, text, other, name in edits:
        written = file.read_text()
        file.write_text(written.replace(text, other))
        edited = stage.waivers.read_bytes()
        said = person.do("waive", finding=one, owner="team web", until=UNTIL)
        assert f"changes that are not in force: {name}; an operator must reload first" in said
        assert stage.waivers.read_bytes() == edited
        file.write_text(written)
    assert stage.send("web", "SET", "shop:cart:1", "x") == b"+OK\r\n"
    assert stage.waivers.read_bytes() == before
    assert "and in force" in person.do("waive", finding=one, owner="team web", until=UNTIL)


# -- everything else


def test_break_glass_reload_and_candidate_are_actions_too(stage: Stage) -> None:
    told = "break-glass: violations .* are only observed.*break-glass was ended"
    person = stage.run("modes: [{mode: enforce}]", expect_stderr=f"(?s){told}")
    assert stage.send("web", "SET", "shop:cart:1", "x") == b"-NOPERM"
    assert "Break-glass is open" in person.do("observe", minutes="5", rule="scope.write", service="web")
    assert stage.send("web", "SET", "shop:cart:1", "x") == b"+OK\r\n"
    assert "Break-glass is open" in person.read("/")
    assert "Break-glass has ended" in person.do("end-observe")
    assert stage.send("web", "SET", "shop:cart:1", "x") == b"-NOPERM"

    new = stage.folder / "new.yaml"
    new.write_text(POLICY.replace("writers: [billing]", "writers: [billing, web]"))
    assert "is compared with the policy in force" in person.do("load-candidate", file=str(new))
    stage.send("web", "SET", "shop:cart:1", "x")
    assert "gone web scope.write SET cart shop:cart:1 1" in person.read("/candidate")
    (stage.folder / "policy.yaml").write_text(new.read_text())
    assert "of the policy is in force" in person.do("promote")
    assert stage.send("web", "SET", "shop:cart:1", "x") == b"+OK\r\n"
    assert "The comparison has ended." in person.do("drop")
    assert "Reloaded; changed: nothing." in person.do("reload")
    actions = ["sign in", "observe", "end-observe", "load-candidate", "promote", "drop", "reload"]
    assert [action for action, _, _ in stage.audit()] == actions


def test_a_change_of_the_token_signs_everyone_out(stage: Stage) -> None:
    person = stage.run()
    (stage.folder / "token").write_text("another-token-0123456789")
    assert person.do("reload")
    assert "Sign in to change something" in person.ask("GET", "/")[2]
    assert person.ask("POST", "/do/reload", why="x")[0] == 401
