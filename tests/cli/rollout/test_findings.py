"""`keyfence findings`, `ready` and `what-if` against a running keyfence."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from keyfence.cli.main import cli
from keyfence.cli.rollout.findings import _cells as cells_of
from tests.servers import PATIENCE_SECONDS, Keyfence

POLICY = """
policy: shop
owner: {contact: "#shop"}
claims: ["shop:"]
services: [orders, billing]
placeholders: {id: "[a-z0-9-]+"}
scopes: {shop: {prefix: "shop:", writers: [orders], readers: [billing]}}
keys:
  order: {key: "shop:order:<id>", type: string}
"""


@pytest.fixture(scope="module")
def keyfence(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyfence]:
    """A keyfence that has seen some commands of `orders`: good ones, and two kinds of mistakes."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "policy.yaml").write_text(POLICY)
    lines = ["policy: policy.yaml", "admin: 127.0.0.1:0", "findings: sqlite:///findings.db"]
    lines += ["listeners: [{listen: '127.0.0.1:0', service: orders}]"]
    (folder / "keyfence.yaml").write_text("\n".join(lines))
    with Keyfence("--config", folder / "keyfence.yaml") as running:
        with running.client() as client:
            client.set("shop:order:1", "x")
            client.get("shop:order:1")
            for number in range(3):
                client.set(f"shop:cart:{number}", "x")
            client.set("\x1b[31m<b>", "x")
        deadline = time.monotonic() + PATIENCE_SECONDS
        # It begins to look. A millisecond would be ready at once, because it is within what is rounded.
        while run(running, "ready", "--quiet", "100ms", "--rule", "scope.read").exit_code:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield running


def run(keyfence: Keyfence, *words: str) -> Result:
    return CliRunner().invoke(cli, [*words, "--admin", str(keyfence.ready.admin)])


def test_findings_are_listed_with_state_owner_and_count(keyfence: Keyfence) -> None:
    ran = run(keyfence, "findings")
    assert ran.exit_code == 0
    assert "shop:cart:<int>" in ran.output
    (line,) = [line for line in ran.output.splitlines() if "shop:cart" in line]
    assert line.split()[1:6] == ["new", "orders", "key.unregistered", "SET", "shop:cart:<int>"]
    assert "#shop" in line
    assert ran.output.endswith("2 findings\n")


def test_each_finding_of_one_cause_shows_it_and_one_without_a_cause_shows_what_it_may_mean() -> None:
    plain = {"id": "f-1", "state": "new", "service": "shop", "rule": "key.format", "severity": "must"}
    plain |= {"command": "GET", "shape": "hb:x", "entry": "", "total": 1, "last": 1.0, "owner": ""}
    slip, library = "keys that begin with bh: (did you mean hb:?)", "the client library bullmq 5"
    causes = (
        [(slip, "did you mean hb:?")] * 2
        + [(library, "")] * 2
        + [("", "the nearest entry is x: x"), ("", "")]
    )
    rows = [plain | {"cause": cause, "meant": meant} for cause, meant in causes]
    assert [str(cells[-1]) for cells in cells_of(rows, 2.0)] == [
        *(slip, "did you mean hb:?", library, library),
        *("the nearest entry is x: x", ""),
    ]


def test_on_a_narrow_terminal_each_finding_takes_two_lines(
    keyfence: Keyfence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyfence.cli.rollout.findings.fits", lambda _table: False)
    lines = run(keyfence, "findings", "--text", "cart").output.splitlines()
    assert len(lines) == 3
    assert lines[0].split()[1:] == ["new", "orders", "key.unregistered"]
    assert re.fullmatch(r"    SET shop:cart:<int>: 3, the last \d+[sm] ago, #shop", lines[1])


def test_a_hostile_key_is_shown_inert(keyfence: Keyfence) -> None:
    assert "\x1b" not in run(keyfence, "findings").output
    assert "\x1b" not in run(keyfence, "findings", "--format", "csv").output


def test_filters_choose_findings(keyfence: Keyfence) -> None:
    assert run(keyfence, "findings", "--service", "billing").output == "No findings match.\n"
    assert run(keyfence, "findings", "--text", "cart", "--state", "active").output.endswith("1 finding\n")
    assert run(keyfence, "findings", "--since", "1h").output.endswith("2 findings\n")


def test_one_finding_is_shown_by_the_beginning_of_its_id(keyfence: Keyfence) -> None:
    rows = json.loads(run(keyfence, "findings", "--text", "cart", "--format", "json").output)["findings"]
    ran = run(keyfence, "findings", rows[0]["id"][:8])
    assert ran.exit_code == 0
    assert "3 observed" in ran.output
    assert "SET shop:cart:0 ?" in ran.output
    assert "new: first seen" in ran.output


def test_csv_has_a_line_for_each_finding(keyfence: Keyfence) -> None:
    rows = list(csv.DictReader(io.StringIO(run(keyfence, "findings", "--format", "csv").output)))
    assert {row["state"] for row in rows} == {"new"}
    assert sum(int(row["count"]) for row in rows) == 4


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("findings", "--state", "quite"), 2, "did you mean quiet"),
        (("findings", "--since", "yesterday"), 2, "is not a time; write a duration"),
        (("findings", "f-nothing"), 1, "there is no finding 'f-nothing'"),
        (("ready", "--quiet", "7"), 2, "'7' is not a duration"),
        (("ready", "--rule", "scope.rite"), 2, "'scope.rite' is not a rule"),
        (("ready", "--service", "nobody"), 2, "'nobody' is not a service of the policy"),
        (("what-if", "--mode", "scope.write"), 2, "write RULE=enforce"),
    ],
)
def test_wrong_usage_is_one_clear_line(
    keyfence: Keyfence, words: tuple[str, ...], code: int, why: str
) -> None:
    ran = run(keyfence, *words)
    assert ran.exit_code == code
    assert why in ran.output
    assert "Traceback" not in ran.output


def test_a_young_keyfence_is_not_ready_and_says_how_long_it_must_look(keyfence: Keyfence) -> None:
    ran = run(keyfence, "ready", "--service", "orders")
    assert ran.exit_code == 1
    assert "gap" in ran.output
    assert "observe for another 6d 23h" in ran.output
    (line,) = [line for line in ran.output.splitlines() if "key.unregistered" in line]
    assert "not ready" in line
    assert "2 findings (#shop)" in line
    assert "more without traffic" in ran.output


def test_a_rule_is_ready_after_the_quiet_time_and_its_modes_can_be_printed(keyfence: Keyfence) -> None:
    ready = ("ready", "--quiet", "1ms", "--rule", "scope.read", "--service", "orders")
    assert run(keyfence, *ready).exit_code == 0
    ran = run(keyfence, *ready, "--write-modes")
    assert ran.exit_code == 0
    assert ran.output.splitlines()[-2:] == [
        "modes:",
        "  - {rule: scope.read, service: orders, mode: enforce}",
    ]


def test_without_traffic_nothing_is_ready(keyfence: Keyfence) -> None:
    ran = run(keyfence, "ready", "--service", "billing")
    assert ran.exit_code == 1
    assert "No commands were evaluated, so nothing is known." in ran.output
    assert "no traffic" in run(keyfence, "ready", "--service", "billing", "--all").output


def test_unused_rights_come_with_how_long_keyfence_has_looked(keyfence: Keyfence) -> None:
    ran = run(keyfence, "ready", "--unused", "30d")
    assert ran.exit_code == 0
    rows = [line.split() for line in ran.output.splitlines()]
    assert ["billing", "read", "order", "never", "seen"] in rows
    assert ["orders", "write", "order", "never", "seen"] not in rows
    assert "keyfence was looking for only" in ran.output


def test_what_enforcing_would_refuse_is_counted(keyfence: Keyfence) -> None:
    ran = run(keyfence, "what-if", "--mode", "key.unregistered=enforce")
    assert ran.exit_code == 1
    assert ran.output.endswith("4 commands would have been refused\n")
    ran = run(keyfence, "what-if", "--mode", "scope.write=enforce", "--service", "orders")
    assert (ran.exit_code, ran.output) == (0, "Nothing that was seen would have been refused.\n")


def test_modes_leave_out_the_clients_that_nothing_identifies(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = ("scope.read", "scope.write")
    lines = [
        {"rule": rule, "service": one, "mode": "enforce"} for rule in rules for one in ("shop", "unknown")
    ]
    standings = [
        {"service": one, "rule": rule, "readiness": "ready", "why": "", "asked": 1}
        for rule in rules
        for one in ("shop", "unknown")
    ]
    answer = {"standings": standings, "modes": lines}
    monkeypatch.setattr("keyfence.cli.rollout.ready.ask_admin", lambda *_: answer)
    said = CliRunner().invoke(cli, ["ready", "--write-modes"]).output.splitlines()
    assert said == [
        "# Put these lines before the others: the first line that matches decides.",
        "modes:",
        "  - {rule: scope.read, service: shop, mode: enforce}",
        "  - {rule: scope.write, service: shop, mode: enforce}",
        "# Not listed: 2 rules are ready for unknown, the clients that nothing identifies.",
        "# Identify them first; --service unknown prints the lines.",
    ]
    asked = CliRunner().invoke(cli, ["ready", "--write-modes", "--service", "unknown"]).output
    assert asked.count("service: unknown") == 2
