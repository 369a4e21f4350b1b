"""Explanations while clients are served."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from typing import Any

import pytest

from keyfence.commands.extract import extract
from keyfence.policy.compiled.tenants import NOBODY
from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.evaluator import CommandChecks
from keyfence.policy.remedies.explain import explain, explain_line
from keyfence.policy.wording.command_log import as_line
from keyfence.process.serving.explainer import Explainer, SideWork
from tests.servers import PATIENCE_SECONDS
from tests.session.sessions import ROUTE, policy

ARGV = [b"MGET", ROUTE, *(b"stray:%d" % number for number in range(300))]


def authorizer(mode: Any = "enforce") -> Authorizer:
    return Authorizer(policy(), Modes((ModeRule(mode),), policy().services))


def explained(one: Authorizer, argv: list[bytes]) -> dict[str, Any]:
    return asyncio.run(Explainer().command(one, "CubeProxy", argv, NOBODY))


@pytest.mark.parametrize("argv", [ARGV, [b"GET", ROUTE], [b"KEYS", b"*"], [b"NOSUCH"]], ids=lambda a: a[0])
def test_an_explanation_is_that_of_the_command_line_and_what_modes_make_of_it(argv: list[bytes]) -> None:
    one = authorizer()
    found = explained(one, argv)
    ruling = one.rule(Asker(one.number("CubeProxy")), argv)
    assert found.pop("refused") == (ruling.refused_by is not None)
    actions = [{"rule": each.violation.rule, "action": each.action} for each in ruling.findings]
    assert found.pop("actions") == actions
    assert found == explain(policy(), "CubeProxy", argv)


def test_modes_decide_what_is_refused() -> None:
    assert not explained(authorizer("observe"), ARGV)["refused"]
    assert explained(authorizer("enforce"), ARGV)["refused"]


def test_a_kept_command_is_explained_in_the_same_way() -> None:
    line = as_line(policy(), "CubeProxy", [b"DEL", ROUTE], extract([b"DEL", ROUTE]), 1)
    found = asyncio.run(Explainer().line(authorizer(), line))
    assert found == explain_line(policy(), line)


def test_the_evaluator_of_the_clients_takes_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not safe to use from two threads."""
    one, used = authorizer(), []
    original = CommandChecks.violations

    def violations(self: CommandChecks, *arguments: Any) -> Any:
        used.append(self)
        return original(self, *arguments)

    monkeypatch.setattr(CommandChecks, "violations", violations)
    explained(one, ARGV)
    assert used
    assert one.evaluator.checks not in used


def test_the_tables_of_a_policy_are_made_once() -> None:
    explainer, one = Explainer(), authorizer()

    def twin() -> Authorizer:
        asyncio.run(explainer.command(one, "CubeProxy", [b"GET", ROUTE], NOBODY))
        assert explainer._twin is not None
        return explainer._twin[1]

    first = twin()
    assert twin() is first
    one.forget_permissions()  # the command table has changed
    assert twin() is not first
    explainer.forget()
    assert explainer._twin is None


# -- work beside the clients' commands


def test_the_loop_goes_on_during_a_long_step() -> None:
    """The step ends only after the loop has done something."""
    went_on = threading.Event()

    def steps() -> Generator[None, None, str]:
        assert went_on.wait(PATIENCE_SECONDS)
        yield
        return threading.current_thread().name

    async def scenario() -> str:
        asyncio.get_running_loop().call_soon(went_on.set)
        return await SideWork().do(steps())

    assert asyncio.run(scenario()) != threading.main_thread().name


def test_one_piece_of_work_follows_the_other() -> None:
    order: list[str] = []

    def steps(name: str) -> Generator[None, None, None]:
        for number in range(3):
            order.append(f"{name}{number}")
            yield

    async def scenario() -> None:
        work = SideWork()
        await asyncio.gather(work.do(steps("a")), work.do(steps("b")))

    asyncio.run(scenario())
    assert order == ["a0", "a1", "a2", "b0", "b1", "b2"]


def test_a_fault_reaches_the_asker_and_the_next_one_has_its_turn() -> None:
    def fails() -> Generator[None, None, str]:
        yield
        raise ValueError("no such service")

    def works() -> Generator[None, None, str]:
        yield
        return "done"

    async def scenario() -> str:
        work = SideWork()
        with pytest.raises(ValueError, match="no such service"):
            await work.do(fails())
        return await work.do(works())

    assert asyncio.run(scenario()) == "done"


def test_work_that_nobody_waits_for_ends_with_its_step_before_the_next_begins() -> None:
    begun, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def endless() -> Generator[None, None, None]:
        while True:
            begun.set()
            assert go_on.wait(PATIENCE_SECONDS)
            order.append("step")
            yield

    def after() -> Generator[None, None, None]:
        order.append("next")
        yield

    async def scenario() -> None:
        work = SideWork()
        asking = asyncio.ensure_future(work.do(endless()))
        await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
        asking.cancel()
        following = asyncio.ensure_future(work.do(after()))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.02, go_on.set)
        await following
        assert asking.cancelled()

    asyncio.run(scenario())
    assert order == ["step", "next"]
