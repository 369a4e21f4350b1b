"""The report by key."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from keyfence.telemetry.reports.by_key import as_objects, by_key, render_by_key
from tests.telemetry.test_tally import row

ROWS = [
    row(command="HSET", entry="", shape="rq:job:<uuid>", count=40, actions={"observed": 40}, example="a:1"),
    row(command="DEL", entry="", shape="rq:job:<uuid>", count=3, actions={"refused": 3}, example="a:2"),
    row(command="GET", entry="", shape="rq:job:<uuid>", count=50, service="web", rule="scope.read",
        actions={"waived": 50}),
    row(command="SMEMBERS", entry="", shape="rq:groups", count=1, actions={"late": 1}),
    row(command="SET", entry="route", count=7, actions={"refused": 5, "observed": 2}),
]  # fmt: skip


def test_a_kind_of_key_has_one_row_for_each_service() -> None:
    found = [(one.key, one.service, one.commands, one.actions) for one in by_key(ROWS)]
    assert found == [
        ("rq:job:<uuid>", "web", {"GET": 50}, {"waived": 50}),
        ("rq:job:<uuid>", "CubeProxy", {"HSET": 40, "DEL": 3}, {"observed": 40, "refused": 3}),
        ("route", "CubeProxy", {"SET": 7}, {"refused": 5, "observed": 2}),
        ("rq:groups", "CubeProxy", {"SMEMBERS": 1}, {"late": 1}),
    ]
    assert by_key(ROWS)[1].examples == ["a:1", "a:2"]


def test_the_table_shows_commands_and_actions() -> None:
    file = io.StringIO()
    render_by_key(ROWS, file)
    heading, _, first, *_, last = file.getvalue().splitlines()
    assert heading.split()[4:] == [
        "service", "refused", "observed", "waived", "late", "commands", "rules", "example",
    ]  # fmt: skip
    assert first.split()[:7] == ["rq:job:<uuid>", "web", "0", "0", "50", "0", "GET"]
    assert last == "101 violations on 3 kinds of keys"
    assert "HSET 40, DEL 3" in file.getvalue()


def test_an_empty_report_is_one_line_and_no_control_bytes_reach_a_terminal() -> None:
    file = io.StringIO()
    render_by_key([], file)
    assert file.getvalue() == "No violations.\n"
    render_by_key([row(entry="", shape="\x1b[31m")], file)
    assert "\x1b" not in file.getvalue()


SOME_ROWS = st.builds(
    row,
    service=st.sampled_from("ab"),
    command=st.sampled_from(["GET", "SET"]),
    shape=st.sampled_from(["", "x:<int>"]),
    actions=st.dictionaries(st.sampled_from(["refused", "observed"]), st.integers(1, 9)),
)


@given(st.lists(SOME_ROWS))
def test_nothing_is_lost(rows: list[dict[str, object]]) -> None:
    found = as_objects(rows)  # type: ignore[arg-type]
    assert sum(one["count"] for one in found) == sum(one["count"] for one in rows)  # type: ignore[misc]
    assert len({(one["key"], one["service"]) for one in found}) == len(found)
