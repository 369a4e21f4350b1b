"""What an auditor asks of a keyfence that ran, and of a store that was tampered with."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keyfence.findings.database import Database
from keyfence.findings.history.book import Book
from keyfence.findings.history.chain import parse_heads
from keyfence.findings.store import Store
from tests.cli.test_main import Result, keyfence
from tests.clients.running import ask, configure, eventually, settle
from tests.servers import Keyfence, RedisServer, running_redis

NOW = 1_780_272_000  # 2026-06-01
RULE = "scope.write"
WAIVER = "{service: CubeProxy, rule: scope.write, owner: ann, reason: known, until: 2099-01-01}"


@pytest.fixture(scope="module")
def redis_behind() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


class Kept:
    """A store with the history of an instance that was enforcing for an hour, then observing for a minute."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "findings.db"
        self.url = f"sqlite:///{self.path}"
        self.now = float(NOW)
        self.book = Book("here:1", lambda: self.now)
        self.modes("enforce")
        self.run(3600)
        self.modes("observe")
        self.run(60)
        self.book.stop("SIGTERM")
        database = Database(self.url)
        Store(database, "here:1").history_taken(*self.book.waiting(), int(self.now * 1000))
        database.close()

    def modes(self, mode: str) -> None:
        found = {"enforce": {RULE: ["*"]}} if mode == "enforce" else {"enforce": {}}
        policy: dict[str, Any] = {"name": "shop", "revision": "r1", "should": []}
        self.book.note("ann", ("policy", policy), ("modes", {"services": ["api"], **found}))

    def run(self, seconds: int) -> None:
        self.book.look("looking", "", self.now, self.now + seconds)
        self.now += seconds

    def ask(self, *more: str | Path) -> Result:
        return keyfence("history", "--findings", self.url, *more)

    def tamper(self, statement: str) -> None:
        with sqlite3.connect(self.path) as connection:
            connection.execute(statement)
        connection.close()


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def test_a_rule_that_was_enforced_all_the_time_is_exit_code_0(kept: Kept) -> None:
    code, out, err = kept.ask("--rule", RULE, "--since", "2026-06-01", "--until", "2026-06-01T01:00:00")
    assert (code, err) == (0, "")
    assert "api: enforced all the time (enforced 1h)" in out
    assert "enforced  2026-06-01 00:00:00  2026-06-01 01:00:00      1h" in out


def test_a_rule_that_was_not_is_exit_code_1_and_says_when(kept: Kept) -> None:
    code, out, _ = kept.ask("--rule", RULE, "--since", "2026-06-01", "--until", "2026-06-01T02:00:00")
    assert code == 1
    assert "api: not enforced all the time (enforced 1h, observed 1m, gap 59m)" in out
    assert "gap       2026-06-01 01:01:00  2026-06-01 02:00:00     59m  no instance looked" in out
    assert max(map(len, out.splitlines())) <= 80


def test_the_answer_as_json_has_every_stretch(kept: Kept) -> None:
    more = ("--rule", RULE, "--since", "2026-06-01", "--until", "2026-06-01T01:01:00", "--format", "json")
    (found,) = json.loads(kept.ask(*more).out)["services"]
    assert [(one["status"], one["begin"], one["end"]) for one in found["spans"]] == [
        ("enforced", NOW, NOW + 3600),
        ("observed", NOW + 3600, NOW + 3660),
    ]
    assert (found["always_enforced"], found["seconds"]["observed"]) == (False, 60)


def test_the_changes_are_listed_with_who_made_them(kept: Kept) -> None:
    lines = kept.ask().out.splitlines()
    assert "2026-06-01 00:00:00  ann: enforce for all services: scope.write" in lines
    assert "2026-06-01 01:00:00  ann: no more enforce: scope.write" in lines
    assert kept.ask("--since", "2026-07-01").out == "No changes.\n"


@pytest.mark.parametrize("question", [("--verify",), ("--rule", RULE), (), ("--rule", RULE, "--json")])
def test_a_history_that_was_tampered_with_answers_nothing_else(kept: Kept, question: tuple[str, ...]) -> None:
    kept.tamper("DELETE FROM keyfence_history WHERE number = 3")
    code, out, _ = kept.ask(*question)
    assert (code, "missing before row 4: 3" in out) == (2, True)


def test_rows_that_are_right_are_exit_code_0(kept: Kept) -> None:
    assert kept.ask("--verify") == (0, "All 6 rows of 1 chain are as they were written.\n", "")


def test_heads_that_are_kept_elsewhere_show_what_the_store_cannot(kept: Kept, tmp_path: Path) -> None:
    heads = tmp_path / "heads"
    heads.write_text(kept.ask("--head").out)
    assert kept.ask("--verify", "--head", heads).code == 0
    kept.tamper("DELETE FROM keyfence_history")
    kept.tamper("DELETE FROM keyfence_history_heads")
    assert kept.ask("--verify").code == 0
    code, out, _ = kept.ask("--verify", "--head", heads)
    assert (code, "row 6: this row is missing;" in out) == (2, True)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (("--rule", "scope.wirte"), "--rule: 'scope.wirte' is not a rule; did you mean scope.write?"),
        (("--rule", RULE, "--since", "June"), "'June' is not a time; write a date (2026-07-01) or RFC 3339"),
        (("--rule", RULE, "--since", "2099-01-01"), "--since must be before --until"),
        (("--name", "shop", "--verify"), "--name is about versions that were pushed"),
        (("--from", "x"), "--from is about versions that were pushed; name the policy with --name"),
        (("--name", "shop"), "name the store of the versions with --from STORE"),
        (("--config", "x.yaml"), "either --findings URL, or --config FILE"),
        (("--head", "/nowhere"), "/nowhere: No such file or directory"),
    ],
)
def test_a_mistake_is_one_line(kept: Kept, question: tuple[str, ...], message: str) -> None:
    code, out, err = kept.ask(*question)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())


def test_a_missing_store_is_exit_code_1(tmp_path: Path) -> None:
    code, _, err = keyfence("history", "--findings", f"sqlite:///{tmp_path}/none.db")
    assert (code, "there is no such file" in err) == (1, True)


def test_a_keyfence_writes_down_what_was_in_force_and_who_changed_it(
    tmp_path: Path, redis_behind: RedisServer
) -> None:
    waivers = tmp_path / "waivers.yaml"
    waivers.write_text("waivers: []\n")
    more = (f"findings: sqlite:///{tmp_path}/f.db", "waivers: waivers.yaml")
    config = configure(tmp_path, redis_behind.url, *more, mode="enforce")
    text = config.read_text()
    config.write_text(text.replace("admin: 127.0.0.1:0", "admin: {listen: '127.0.0.1:0', audit_log: audit}"))
    with Keyfence("--config", config, expect_stderr="(?s)break-glass.*break-glass was ended") as running:
        settle(running)
        assert ask(running, "/-/observe", {"for": 60, "rule": RULE, "service": "CubeProxy"})[0] == 200
        assert ask(running, "/-/observe", method="DELETE")[0] == 200
        waivers.write_text(f"waivers:\n  - {WAIVER}\n")
        config.write_text(config.read_text().replace("mode: enforce", "mode: observe"))
        assert ask(running, "/-/reload", {})[0] == 200
        history = ("history", "--config", config)
        eventually(lambda: "waived: scope.write" in keyfence(*history).out, "the change is written")
    code, out, _ = keyfence(*history)
    said = [line.partition("  ")[2] for line in out.splitlines()]
    assert code == 0
    assert said[0].startswith("keyfence: start of ")
    assert any(one.startswith("keyfence: policy cubesandbox ") for one in said)
    assert "keyfence: enforce for all services: every rule" in said
    begun = said.index("a program: break-glass opened, 1 open")
    assert said[begun + 1] == "a program: break-glass ended, 0 open"
    assert "a program: no more enforce: every rule" in said[begun:]
    assert "a program: waived: scope.write by CubeProxy" in said[begun:]
    assert said[-1].startswith("keyfence: stop of ")
    (tmp_path / "heads").write_text((tmp_path / "audit").read_text())
    assert parse_heads((tmp_path / "heads").read_text())
    assert keyfence(*history, "--verify", "--head", tmp_path / "heads").code == 0
    code, out, _ = keyfence(*history, "--rule", RULE, "--service", "CubeProxy")
    assert code == 1
    assert [word for word in out.split() if word in ("enforced", "observed", "gap")]
    assert "break-glass by a program" in " ".join(out.split())
