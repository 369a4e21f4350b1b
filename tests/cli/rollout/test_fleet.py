"""`keyfence fleet`: a table, sentences, and an exit code."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from keyfence.findings.batch import Batch
from keyfence.findings.database import Database
from keyfence.findings.instances import Instance
from keyfence.findings.store import Store
from tests.cli.test_main import keyfence
from tests.findings.test_fleet import an_instance, modes


def a_store(path: Path, *instances: Instance) -> str:
    """The URL of a store in which these instances have just reported."""
    url = f"sqlite:///{path}"
    database = Database(url)
    for one in instances:
        made = Batch()
        made.instance = one
        Store(database, one.id).write(made)
    database.close()
    return url


def reporting(name: str, environment: str = "prod", **more: Any) -> Instance:
    now = time.time()
    return an_instance(name, environment, **{"last": now, "started": now - 60, "loaded": 0.0} | more)


def test_a_fleet_in_which_all_is_well_is_a_table_and_no_word(tmp_path: Path) -> None:
    url = a_store(tmp_path / "f.db", reporting("web-1:9464", ""), reporting("web-2:9464", ""))
    found = keyfence("fleet", "--findings", url)
    assert (found.code, found.err) == (0, "")
    first, *rows = found.out.splitlines()
    assert first.split() == ["instance", "revision", "since", "health"]
    cells = [row.split() for row in rows]
    assert [(one[0], one[-1]) for one in cells] == [("web-1:9464", "ok"), ("web-2:9464", "ok")]


def test_what_differs_and_what_is_wrong_is_told_below_the_table(tmp_path: Path) -> None:
    name = "keyfence-7d9f8c6b5-x2x4z:9464"
    url = a_store(
        tmp_path / "f.db",
        reporting(name, "staging", sequence=12, modes=modes(scope_write="enforce")),
        reporting("keyfence-6c8b7d9f4-aaaaa:9464", sequence=12, source="refused", reason="it is not signed"),
    )
    found = keyfence("fleet", "--findings", url)
    assert found.code == 1
    lines = found.out.splitlines()
    assert lines[0].split() == ["environment", "instance", "revision", "seq", "since", "health"]
    assert max(map(len, lines[:3])) <= 80
    assert lines[3:] == [
        "! keyfence-6c8b7d9f4-aaaaa:9464 (prod): it is not signed",
        "  staging enforces scope.write, prod observes it",
    ]


def test_several_stores_are_one_fleet(tmp_path: Path) -> None:
    prod = a_store(tmp_path / "prod.db", reporting("a"))
    staging = a_store(tmp_path / "staging.db", reporting("b", "staging", revision="def", policy="shop"))
    found = keyfence("fleet", "--findings", prod, "--findings", staging, "--json")
    assert found.code == 0
    answer = json.loads(found.out)
    assert [one["environment"] for one in answer["instances"]] == ["prod", "staging"]
    assert [one["text"].split(" since")[0] for one in answer["lines"]] == ["policy shop: prod runs abc"]


def test_different_policies_are_a_column(tmp_path: Path) -> None:
    passing = reporting("b", policy="", revision="", modes="{}")
    found = keyfence("fleet", "--findings", a_store(tmp_path / "f.db", reporting("a"), passing))
    first, *rows = (line.split() for line in found.out.splitlines())
    assert first[:4] == ["environment", "instance", "policy", "revision"]
    assert rows[1][:4] == ["prod", "b", "none", "–"]


def test_a_store_that_no_instance_has_reported_to_is_no_good_news(tmp_path: Path) -> None:
    found = keyfence("fleet", "--findings", a_store(tmp_path / "f.db"))
    assert found.code == 1
    assert found.out.startswith("No instance is known: ")


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("--findings", "nowhere"), "'nowhere' is not a findings store"),
        (("--findings", "sqlite:////none/f.db"), "cannot be opened: there is no such file"),
        (("--forget", "a"), "name it with --findings"),
        (("--findings", "sqlite:////f.db", "--admin", "h:1"), "give either --admin or --findings, not both"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], fault: str) -> None:
    found = keyfence("fleet", *arguments)
    assert found.code == 2
    assert fault in found.err


def test_a_silent_instance_that_will_not_come_back_is_forgotten(tmp_path: Path) -> None:
    silent = reporting("a", last=time.time() - 60)
    url = a_store(tmp_path / "f.db", silent, reporting("b"))
    assert keyfence("fleet", "--findings", url).code == 1
    found = keyfence("fleet", "--findings", url, "--forget", "b")
    assert (found.code, found.err) == (
        2,
        "keyfence: 'b' is not a silent instance; keyfence fleet lists them\n",
    )
    found = keyfence("fleet", "--findings", url, "--forget", "a", "--json")
    assert found.code == 0
    assert [one["name"] for one in json.loads(found.out)["instances"]] == ["b"]
