from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from keyfence.admin.acting import act_as, acting_as, who_acts
from keyfence.findings.history.book import Book
from keyfence.policy.enforcement.modes import BreakGlass, ModeRule, Modes
from keyfence.policy.enforcement.waivers import WaiverModel
from keyfence.process.glass import Glass
from keyfence.process.history import History, compact
from keyfence.telemetry.counters import Counters

SIGNED = {
    "name": "shop",
    "sequence": 7,
    "author": "ann",
    "message": "",
    "time": "",
    "key": "0123456789abcdef",
}
WAIVER = {
    "service": "api",
    "rule": "scope.write",
    "owner": "ann",
    "reason": "known",
    "until": "2099-01-01",
}


def in_force(revision: str = "r1", mode: Any = "observe") -> Any:
    policy = SimpleNamespace(name="shop", revision=revision, should={"ttl.required"})
    return SimpleNamespace(policy=policy, modes=Modes([ModeRule(mode)], ("api", "web")))


def settings(*waivers: WaiverModel, signed: Any = None, environment: str = "") -> Any:
    return SimpleNamespace(
        waivers=waivers, policy_signed=signed, policy_shown="shop.yaml", environment=environment
    )


def shown(book: Book) -> list[tuple[str, str]]:
    return [(row.kind, row.who) for row in book.waiting()[0]]


def test_a_history_begins_with_what_is_in_force() -> None:
    book = Book("here:1")
    signed = SimpleNamespace(status=lambda: SIGNED)
    History(book).put_in_force(in_force(), settings(WaiverModel.model_validate(WAIVER), signed=signed))
    start, policy, modes, waivers = book.waiting()[0]
    assert [row.kind for row in (start, policy, modes, waivers)] == ["start", "policy", "modes", "waivers"]
    assert policy.data() == {
        "name": "shop",
        "revision": "r1",
        "source": "shop.yaml",
        "should": ["ttl.required"],
        "signed": SIGNED,
    }
    assert modes.data() == {"services": ["api", "web"], "enforce": {}, "disabled": {}}
    assert waivers.data() == {"in_force": [WAIVER]}


def test_the_policy_is_in_force_in_an_environment() -> None:
    book = Book("here:1")
    history = History(book)
    for environment in ("staging", "staging", "prod"):
        history.put_in_force(in_force(), settings(environment=environment))
    policies = [row.data() for row in book.waiting()[0] if row.kind == "policy"]
    assert [one["environment"] for one in policies] == ["staging", "prod"]


def test_only_what_has_changed_is_a_row_with_who_changed_it() -> None:
    book = Book("here:1")
    history = History(book)
    history.put_in_force(in_force(), settings())
    book.written(book.waiting()[0])
    with acting_as("ci"):
        history.put_in_force(in_force(), settings())
        assert shown(book) == []
        history.put_in_force(in_force(mode="enforce"), settings())
        history.put_in_force(in_force("r2", "enforce"), settings())
        history.put_in_force(None, settings())
    assert shown(book) == [("modes", "ci"), ("policy", "ci"), ("policy", "ci"), ("modes", "ci")]
    assert book.waiting()[0][2].data() == {"passthrough": True}


def test_modes_in_few_words_name_services_only_if_they_differ() -> None:
    rules = [
        ModeRule("enforce", "scope.write"),
        ModeRule("enforce", "ttl.required", "api"),
        ModeRule("disabled", "ttl.required"),
    ]
    assert compact(Modes(rules, ("api", "web"))) == {
        "services": ["api", "web"],
        "enforce": {"scope.write": ["*"], "ttl.required": ["api"]},
        "disabled": {"ttl.required": ["web"]},
    }


def test_without_a_store_nothing_is_kept() -> None:
    history = History()
    history.put_in_force(in_force(), settings())
    history.note("candidate", {})
    assert history.head() == ""
    book = Book("here:1")
    history = History(book)
    history.give_up()
    history.put_in_force(in_force(), settings())
    history.stop()
    assert not book.has_waiting


def test_a_break_glass_is_a_row_when_it_begins_and_when_it_is_over() -> None:
    book = Book("here:1")
    put: list[list[BreakGlass]] = []

    async def set_glass(glass: list[BreakGlass]) -> None:
        put.append(list(glass))

    runtime = SimpleNamespace(glass=[], telemetry=SimpleNamespace(counters=Counters()))
    glass = Glass(cast(Any, runtime), cast(Any, SimpleNamespace(set_glass=set_glass)), History(book).note)
    authorizer = SimpleNamespace(policy=SimpleNamespace(services=("api",)))

    async def run() -> None:
        with acting_as("ann"):
            await glass.open(cast(Any, authorizer), 1000, "scope.write", "api")
            await glass.open(cast(Any, authorizer), -1, None, None)
        await glass.tick()
        await glass.observe_all(is_on=True)
        await glass.end()

    asyncio.run(run())
    rows = book.waiting()[0]
    said = [(row.who, row.data()["change"], [one["who"] for one in row.data()["open"]]) for row in rows]
    assert said == [
        ("ann", "opened", ["ann"]),
        ("ann", "opened", ["ann", "ann"]),
        ("keyfence", "over", ["ann"]),
        ("the policy's age", "opened", ["ann", "the policy's age"]),
        ("keyfence", "ended", ["the policy's age"]),
    ]
    assert [len(one) for one in put] == [1, 2, 1, 2, 1]


def test_who_acts_follows_calls_and_their_tasks_and_no_others() -> None:
    async def other() -> str:
        act_as("a job")
        return who_acts()

    async def task() -> str:
        return who_acts()

    async def run() -> list[str]:
        with acting_as("ann"):
            inside = await asyncio.create_task(task())
            job = await asyncio.create_task(other())
        return [inside, job, who_acts()]

    assert asyncio.run(run()) == ["ann", "a job", "keyfence"]
