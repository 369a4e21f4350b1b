"""A quarter for an auditor, in every format."""

from __future__ import annotations

import csv
import io
import json
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from keyfence.findings.compliance import quarter
from keyfence.findings.database import Database
from keyfence.findings.store import Store
from keyfence.policy.rules import RULES
from tests.cli.publish.test_history import NOW, RULE, Kept
from tests.cli.test_main import Result, keyfence
from tests.findings.rows import batch, row


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    made = Kept(tmp_path)
    database = Database(made.url)
    seen = [row(3, NOW + 10, "refused", service="api"), row(2, NOW + 20, service="api")]
    Store(database, "here:1").write(batch(*seen, at=NOW + 20))
    Store(database, "here:1").write(batch(row(9, NOW - 9e6, service="api"), at=NOW - 9e6))
    database.close()
    return made


def report(kept: Kept, form: str, of: str = "2026-Q2") -> Result:
    return keyfence("report", "--compliance", of, "--findings", kept.url, "--format", form)


def test_the_quarter_as_json_has_every_rule_with_its_times_and_counts(kept: Kept) -> None:
    code, out, _ = report(kept, "json")
    found = json.loads(out)
    by_rule = {one["rule"]: one for one in found["rows"]}
    assert (code, by_rule.keys(), found["right"]) == (0, RULES.keys(), True)
    one = by_rule[RULE]
    assert (one["service"], one["always_enforced"], one["seconds"]["enforced"]) == ("api", False, 3600)
    assert one["seconds"]["observed"] == 60
    assert sum(one["seconds"].values()) <= found["until"] - found["since"]
    assert (one["counts"]["refused"], one["counts"]["observed"], one["counts"]["findings"]) == (3, 2, 1)
    assert by_rule["ttl.required"]["counts"]["refused"] == 0


def test_the_quarter_as_markdown_has_a_row_for_each_rule(kept: Kept) -> None:
    code, out, _ = report(kept, "markdown")
    rows = [line for line in out.splitlines() if line.startswith("| api | ")]
    assert (code, len(rows)) == (0, len(RULES))
    assert "- The history has 6 rows in 1 chain, and all are as they were written." in out
    (one,) = [line for line in rows if f"| {RULE} |" in line]
    assert one.endswith("| 1 | 3 | 2 | 0 |")
    assert report(kept, "text").out == out


def test_the_quarter_as_csv_is_read_back(kept: Kept) -> None:
    rows = {one["rule"]: one for one in csv.DictReader(io.StringIO(report(kept, "csv").out))}
    assert rows.keys() == RULES.keys()
    assert (rows[RULE]["enforced_seconds"], rows[RULE]["refused"]) == ("3600.0", "3")


def test_the_quarter_as_html_is_one_page(kept: Kept) -> None:
    cells: list[str] = []

    class Reader(HTMLParser):
        def handle_data(self, data: str) -> None:
            cells.append(data.strip())

    Reader().feed(report(kept, "html").out)
    assert cells.count("api") == len(RULES)
    assert "Compliance 2026-Q2" in cells


@pytest.mark.parametrize("form", ["markdown", "html", "csv", "json"])
def test_a_history_that_was_tampered_with_is_said_and_nothing_else(kept: Kept, form: str) -> None:
    kept.tamper("UPDATE keyfence_history SET who = 'eve' WHERE number = 2")
    code, out, _ = report(kept, form)
    assert code == 2
    assert "row 2: its content is not what was written" in out
    assert RULE not in out


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (("--compliance", "2026-Q5"), "'2026-Q5' is not a quarter; write it as 2026-Q3"),
        (("--compliance", "2099-Q1"), "--compliance: 2099-Q1 has not begun"),
        (("--compliance", "2026-Q2", "--by", "key"), "omit LOG, --admin and --by"),
        (("--format", "html"), "--format html is for --compliance"),
    ],
)
def test_a_mistake_is_one_line(kept: Kept, question: tuple[str, ...], message: str) -> None:
    code, out, err = keyfence("report", *question, "--findings", kept.url)
    assert (code, out) == (2, "")
    assert message in err


def test_quarters_follow_each_other() -> None:
    names = [f"{year}-Q{number}" for year in (2023, 2024) for number in (1, 2, 3, 4)]
    times = [quarter(name) for name in names]
    assert all(one[1] == after[0] for one, after in pairwise(times))
    assert {(end - begin) / 86_400 for begin, end in times} == {90, 91, 92}
