"""The rows of answers that name addresses of Redis: none is missing, and each has its reason."""

from __future__ import annotations

import pytest

from keyfence.commands.addresses import ANSWERS, UNASKED, Fate
from keyfence.commands.table import COMMANDS
from keyfence.resp.replies import REDIRECTS

ROWS = {row.command.name: row.command for row in COMMANDS.values()}
MAY_TELL = {"admin", "connection"}  # categories of commands about the server and the client's connection


@pytest.mark.parametrize("name", [name for name, one in ROWS.items() if MAY_TELL & one.categories])
def test_each_command_about_the_server_or_the_connection_has_a_row(name: str) -> None:
    assert name in ANSWERS, "say in commands/addresses.py whether its answer names an address of Redis"


@pytest.mark.parametrize("container", ["CLIENT", "CLUSTER"])
def test_so_has_each_subcommand_that_has_other_categories(container: str) -> None:
    assert {name for name in ROWS if name.startswith(f"{container} ")} <= ANSWERS.keys()


def test_each_row_is_about_a_command_of_the_table_or_of_sentinels() -> None:
    assert ANSWERS.keys() - ROWS.keys() == {"SENTINEL"}


def test_each_answer_that_names_an_address_says_which_and_why() -> None:
    named = [one for one in ANSWERS.values() if one.fate is not Fate.NO_ADDRESS]
    assert all(one.names and one.why for one in (*named, *UNASKED.values()))


def test_each_redirect_that_the_session_hides_has_a_row() -> None:
    errors = {word for what in UNASKED for word in what.split() if what.startswith("an error")}
    assert errors >= set(REDIRECTS)
