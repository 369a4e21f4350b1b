"""What the control of a process does beside its loop: answers that grow with traffic or with the policy."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from keyfence.policy.enforcement.modes import Modes
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.process import control as module
from keyfence.process.control import ProcessControl
from keyfence.telemetry.tally import Tally
from tests.session.sessions import policy


def control(tally: Tally) -> ProcessControl:
    async def asked() -> Tally:
        return tally

    one = object.__new__(ProcessControl)
    one._tables = None
    authorizer = Authorizer(policy(), Modes((), policy().services))
    one._runtime = cast(Any, SimpleNamespace(authorizer=authorizer, policy=authorizer.policy))
    one._backend = cast(Any, SimpleNamespace(tally=asked))
    return one


def test_the_rows_of_the_report_are_copied_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    copied_by: list[threading.Thread] = []

    def snapshot(_: Tally) -> list[Any]:
        copied_by.append(threading.current_thread())
        return []

    monkeypatch.setattr(Tally, "snapshot", snapshot)
    assert asyncio.run(control(Tally()).report()) == []
    assert copied_by[0] is not threading.main_thread()


def test_the_tables_of_a_policy_are_made_beside_the_loop_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made_by: list[threading.Thread] = []
    original = module.tables

    def tables(of: Any) -> dict[str, Any]:
        made_by.append(threading.current_thread())
        return original(of)

    monkeypatch.setattr(module, "tables", tables)
    one = control(Tally())
    assert asyncio.run(one.policy()) is asyncio.run(one.policy())
    assert len(made_by) == 1
    assert made_by[0] is not threading.main_thread()
