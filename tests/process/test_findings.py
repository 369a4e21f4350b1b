"""What services get from the findings store, in-band."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from keyfence.policy.engine.authorizer import Authorizer
from keyfence.process.findings import FindingsDesk
from keyfence.process.serving import answers
from keyfence.process.serving.answers import NO_STORE, from_ledger
from keyfence.telemetry.tally import Tally
from tests.session.sessions import authorizer_with


class SlowStore(FindingsDesk):
    """A store whose answers wait in a thread until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()
        self.reading = 0
        self.most_reading = 0

    async def _ask(self, *_: object) -> Any:
        self.reading += 1
        self.most_reading = max(self.most_reading, self.reading)
        try:
            await asyncio.to_thread(self.let_go.wait)
            return {"findings": [], "total": 0}
        finally:
            self.reading -= 1


class BrokenStore(FindingsDesk):
    def __init__(self, fault: Exception) -> None:
        super().__init__()
        self._fault = fault

    async def _ask(self, *_: object) -> Any:
        raise self._fault


def told(ledger: FindingsDesk | None, kind: str = "findings") -> Any:
    return asyncio.run(from_ledger(ledger, kind, "CubeProxy", authorizer(), Tally()))


def authorizer() -> Authorizer:
    return authorizer_with()


def test_a_store_that_hangs_takes_one_thread_and_no_asker_waits_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "LEDGER_SECONDS", 0.02)
    store = SlowStore()

    async def run() -> None:
        asked = [from_ledger(store, "findings", "CubeProxy", authorizer(), Tally()) for _ in range(20)]
        assert await asyncio.gather(*asked) == [None] * 20
        assert store.most_reading == 1
        store.let_go.set()
        while store.reading:
            await asyncio.sleep(0)
        monkeypatch.setattr(answers, "LEDGER_SECONDS", 30.0)
        found = await from_ledger(store, "findings", "CubeProxy", authorizer(), Tally())
        assert found == {"findings": [], "left_out": 0}

    asyncio.run(run())


def test_a_store_that_cannot_be_read_is_an_error_for_the_service() -> None:
    assert told(BrokenStore(ValueError("it can't be read"))) == {"error": "it can't be read"}


def test_a_fault_is_reported_and_gives_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[Exception] = []
    monkeypatch.setattr(answers, "report_fault", reported.append)
    fault = RuntimeError("unforeseen")
    assert told(BrokenStore(fault)) is None
    assert reported == [fault]


def test_without_a_store_there_are_the_findings_of_the_tally_and_no_readiness() -> None:
    assert told(None) == {"findings": [], "left_out": 0}
    assert told(None, "readiness") == {"error": NO_STORE}
    assert FindingsDesk().ledger is None
