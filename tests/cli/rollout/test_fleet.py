"""`keyfence fleet`: a table, sentences, and an exit code."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from keyfence.findings.batch import Batch
from keyfence.findings.database import Database
from keyfence.findings.instances import Compared, Instance
from keyfence.findings.store import Store
from tests.cli.test_main import keyfence
from tests.findings.test_fleet import an_instance, modes
from tests.findings.test_instances import a_comparison, changed


def a_store(path: Path, *instances: Instance, **said: Compared) -> str:
    """The URL of a store in which these instances have just reported, and what they have said of a candidate
    by their names."""
    url = f"sqlite:///{path}"
    database = Database(url)
    for one in instances:
        made = Batch()
        made.instance = one
        made.compared = said.get(one.name)
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


# -- the fleet's candidate


def comparing(name: str, *rows: dict[str, Any], **more: Any) -> Compared:
    return Compared(a_comparison(name, since=time.time() - 60, **more), lambda: rows)


def test_what_the_candidate_would_change_is_a_table_of_80_columns(tmp_path: Path) -> None:
    long = "shop:note:" + "x" * 90
    rows = changed(times=12, key=long), changed("gone", 1_234, service="a-service-with-a-name")
    one = comparing("a", *rows, changed("same", 3, "observed"), signed={"message": "orders may read carts"})
    url = a_store(tmp_path / "f.db", reporting("a"), reporting("b"), a=one)
    found = keyfence("fleet", "diff", "--findings", url)
    assert (found.code, found.err) == (1, "")
    lines = found.out.splitlines()
    assert lines[:2] == [
        "candidate    3 of shop, by ada, based on 12, revision new: orders may read carts",
        f"compared by  1 of 2 instances since {lines[1][-5:]}",
    ]
    assert lines[2:5] == [
        "commands     100 evaluated by both (shop 100)",
        "refused      12 that are not now; 1,234 no longer",
        "",
    ]
    assert lines[5].split() == ["change", "count", "refused", "service", "rule", "example"]
    assert lines[6].split()[:5] == ["new", "12", "12", "shop", "scope.write"]
    assert lines[6].endswith("…")
    assert lines[7].split() == ["gone", "1,234", "1,234", "a-service-with-a-name", "scope.write", "order:7"]
    assert max(map(len, lines[:8])) <= 80
    assert lines[8].startswith("! b (prod) does not compare it: ")
    answer = json.loads(keyfence("fleet", "diff", "--findings", url, "--json").out)
    assert answer["candidates"][0]["totals"]["newly_refused"] == 12


@pytest.mark.parametrize(
    ("rows", "code"), [((), 0), ((changed("gone", 2), changed("same", 3)), 0), ((changed("stricter"),), 1)]
)
def test_the_exit_code_says_whether_something_speaks_against_it(
    rows: tuple[dict[str, Any], ...], code: int, tmp_path: Path
) -> None:
    url = a_store(tmp_path / "f.db", reporting("a"), a=comparing("a", *rows))
    assert keyfence("fleet", "diff", "--findings", url).code == code


def test_a_fleet_without_a_candidate_is_no_good_news(tmp_path: Path) -> None:
    found = keyfence("fleet", "diff", "--findings", a_store(tmp_path / "f.db", reporting("a")))
    assert found.code == 1
    assert "store one with keyfence push --candidate" in found.out


def test_options_stand_behind_the_command(tmp_path: Path) -> None:
    found = keyfence("fleet", "--findings", a_store(tmp_path / "f.db"), "diff")
    assert (found.code, found.err) == (
        2,
        "keyfence: write the options behind the command: keyfence fleet diff …\n",
    )
