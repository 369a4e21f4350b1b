from __future__ import annotations

import pytest

from keyfence.admin.routes import READING, ROUTES, Route, Who, checks_host, docs_table, index, needed_role
from tests.servers import PROJECT


def test_the_documentation_has_the_table_of_routes() -> None:
    operations = (PROJECT / "docs" / "operations.md").read_text()
    assert docs_table() in operations, f"put this table into docs/operations.md:\n{docs_table()}"


def test_the_index_page_lists_every_route_in_a_line() -> None:
    lines = index(ROUTES).splitlines()[2:]
    assert [line.split()[:2] for line in lines] == [[one.method, one.path] for one in ROUTES]


@pytest.mark.parametrize("route", ROUTES, ids=lambda one: f"{one.method} {one.path}")
def test_each_route_is_checked_as_the_table_says(route: Route) -> None:
    is_for_operators = route.who is Who.OPERATORS
    assert needed_role(route.method, route.path) == (route.role if is_for_operators else None)
    assert checks_host(route.path) == (route.who is not Who.ANYONE)


def test_only_operators_use_a_method_that_may_change_something() -> None:
    assert {one.who for one in ROUTES if one.method not in READING} == {Who.OPERATORS}
    assert needed_role("POST", "/metrics") == "operate"
    assert needed_role("PATCH", "/no-such-page") == "operate"


def test_only_what_changes_nothing_needs_less_than_the_role_operate() -> None:
    lower = {one.path for one in ROUTES if one.who is Who.OPERATORS and one.role != "operate"}
    assert lower == {"/explain"}


def test_the_metrics_listener_serves_only_what_anyone_may_use() -> None:
    assert {one.who for one in ROUTES if one.on_metrics} == {Who.ANYONE}
