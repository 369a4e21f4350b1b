"""Explanations while clients are served."""

from __future__ import annotations

import asyncio
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
from keyfence.process.serving.explainer import Explainer
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
