from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest

from keyfence.telemetry.reports.by_command import render, rows_from_snapshot, tally_of_log
from tests.telemetry.test_tally import row


def line(**given: Any) -> str:
    fields: dict[str, Any] = {
        "time": "2025-06-15T15:06:41.250000Z",
        "decision": "d-00000001",
        "service": "CubeProxy",
        "command": "HSET",
        "rule": "scope.write",
        "severity": "must",
        "entry": "route",
        "key": "cube:a",
        "hint": "its writers: CubeMaster",
        "action": "observed",
        "merged": 0,
        "dropped": 0,
    }
    return json.dumps(fields | given) + "\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_of_a_log_add_up_with_their_merged_decisions() -> None:
    lines = [line(), line(merged=9, time="2025-06-15T16:00:00.000000Z"), line(action="refused", dropped=3)]
    tally, dropped = tally_of_log(lines, pytest.fail)
    rows = tally.snapshot()
    assert dropped == 3
    (one,) = rows
    assert one["count"] == 12
    assert one["actions"] == {"observed": 11, "refused": 1}
    assert one["last"] - one["first"] == pytest.approx(3198.75)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ('{"time": "2025-', "line 2 is skipped: not JSON"),
        ("[1]", "line 2 is skipped: not a JSON object"),
        (b"\xff\xfe{}", "line 2 is skipped: "),
        (b'{"a":"\xff"}', "line 2 is skipped: not UTF-8"),
        ("{}", 'line 2 is skipped: "time" is missing'),
        (line(time="yesterday"), "line 2 is skipped: \"time\" is not RFC 3339: 'yesterday'"),
        (line(merged=-1), 'line 2 is skipped: "merged" is not a number of decisions'),
        (line(merged="many"), 'line 2 is skipped: "merged" is not a number of decisions'),
        (line(action="exploded"), "line 2 is skipped: unknown action 'exploded'"),
        (line(service=7), 'line 2 is skipped: "service" is missing or not a text'),
        ("[" * 100_000, "line 2 is skipped: "),
    ],
)
def test_an_unreadable_line_is_skipped_and_reported_by_its_number(broken: str | bytes, reason: str) -> None:
    complaints: list[str] = []
    tally, _ = tally_of_log([line(), broken, "\n", line()], complaints.append)
    rows = tally.snapshot()
    assert rows[0]["count"] == 2
    assert len(complaints) == 1
    assert complaints[0].startswith(reason)


def test_rows_come_back_from_the_admin_listeners_json() -> None:
    rows = [row(), row(entry="", shape="a:<int>", count=7, actions={"refused": 7})]
    assert rows_from_snapshot(json.loads(json.dumps(rows))) == [rows[1], rows[0]]


@pytest.mark.parametrize(
    "value", [1, {}, {"actions": {"observed": "x"}}, {**row(), "count": "1"}, {**row(), "first": 1e99}]
)
def test_a_value_that_is_not_a_row_is_a_value_error(value: Any) -> None:
    with pytest.raises(ValueError):
        rows_from_snapshot([value])


def test_when_piped_each_row_is_one_whole_line_without_colour() -> None:
    out = io.StringIO()
    example, hint = "k" * 128, "h" * 200
    render([row(example=example, hint=hint), row(entry="", shape="user:<int>", count=50)], out)
    text = out.getvalue()
    assert "\x1b" not in text
    lines = text.splitlines()
    assert "user:<int>" in lines[2]
    assert example in lines[3]
    assert hint in lines[3]
    assert "1970-01-01 00:01:40Z" in lines[3]
    assert lines[-1] == "51 violations in 2 rows"


def test_the_actions_are_columns() -> None:
    out = io.StringIO()
    render([row(count=7, actions={"refused": 4, "waived": 3}), row(count=2, actions={"observed": 2})], out)
    heading, _, first, second, _ = out.getvalue().splitlines()
    assert re.split(" {2,}", heading.strip())[4:7] == ["refused", "observed", "waived"]
    assert re.split(" {2,}", first.strip())[4:7] == ["4", "0", "3"]
    assert re.split(" {2,}", second.strip())[4:7] == ["0", "2", "0"]
    out = io.StringIO()
    render([row(count=1, actions={"late": 1})], out)
    assert re.split(" {2,}", out.getvalue().splitlines()[0].strip())[4:8] == [
        "refused",
        "observed",
        "waived",
        "late",
    ]


def on_a_terminal(width: int, monkeypatch: pytest.MonkeyPatch, **given: Any) -> str:
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    render([row(**given)], out, width=width)
    return out.getvalue()


def test_on_a_narrow_terminal_lines_break_between_words_only(monkeypatch: pytest.MonkeyPatch) -> None:
    example = "cube:v1:shared:sandbox:lifecycle:state:with-a-name-of-some-length-" + "0" * 40
    hint = "its writers: CubeMaster, cube-proxy-sidecar; ask for the right with the team that owns the scope"
    given = {"rule": "script.unregistered", "command": "XREADGROUP", "example": example, "hint": hint}
    text = on_a_terminal(80, monkeypatch, **given, count=12, actions={"refused": 10, "observed": 2})
    lines = text.splitlines()
    assert lines[0] == "refused  observed  waived"
    assert lines[1].startswith("     10         2       0  ")
    assert all(len(line) <= 80 for line in lines if example not in line)
    assert f"    {example}" in lines
    words = set(text.split())
    assert {"script.unregistered", "XREADGROUP", *hint.split()} <= words


def test_on_a_wide_terminal_it_is_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = on_a_terminal(250, monkeypatch).splitlines()
    assert lines[0].lstrip("\x1b[01m").startswith("service")
    assert len(lines) == 4


def test_on_a_narrow_terminal_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    example = "".join(chr(0x4E00 + number) for number in range(60))
    text = on_a_terminal(60, monkeypatch, example=example)
    assert example in text
    assert "…" not in text


def test_no_cell_can_move_the_cursor_or_become_markup() -> None:
    out = io.StringIO()
    render([row(example="a\x1b[2J\nb", hint="[bold]x[/bold]", service=":smile:")], out)
    text = out.getvalue()
    assert "\x1b" not in text
    assert "[bold]x[/bold]" in text
    assert ":smile:" in text


def test_an_empty_report_is_a_sentence() -> None:
    out = io.StringIO()
    render([], out)
    assert out.getvalue() == "No violations.\n"
