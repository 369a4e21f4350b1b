"""What keyfence does each second goes on after a fault that nobody foresaw."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides
from keyfence.findings.writer import Writer
from keyfence.process.findings import FindingsDesk
from keyfence.process.serving import jobs
from keyfence.process.serving.runtime import Runtime
from keyfence.telemetry.telemetry import Telemetry


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """The faults that were reported."""
    found: list[Exception] = []
    monkeypatch.setattr(jobs, "report_fault", found.append)
    return found


def failing(calls: list[None]) -> Callable[..., None]:
    def fail(*_: object) -> None:
        calls.append(None)
        raise RuntimeError("by this test")

    return fail


async def until_called_twice(job: asyncio.Task[None], calls: list[None]) -> None:
    while len(calls) < 2 and not job.done():
        await asyncio.sleep(0.01)
    job.cancel()


def test_a_runtime_ticks_on_and_does_the_rest_of_its_round(
    monkeypatch: pytest.MonkeyPatch, faults: list[Exception]
) -> None:
    settings = load_settings("", Overrides(listen="127.0.0.1:0"), needs_policy=False)
    runtime = Runtime(settings, None, Telemetry())
    calls: list[None] = []
    rounds: list[None] = []
    monkeypatch.setattr(runtime.telemetry, "flush", failing(calls))
    monkeypatch.setattr(runtime, "_count_lapsed", lambda: rounds.append(None))

    async def run() -> None:
        await until_called_twice(asyncio.ensure_future(runtime.tick_forever()), calls)

    asyncio.run(run())
    assert len(calls) == len(rounds) == len(faults) == 2


def test_findings_are_written_on(monkeypatch: pytest.MonkeyPatch, faults: list[Exception]) -> None:
    calls: list[None] = []
    desk = FindingsDesk()
    monkeypatch.setattr(desk, "_writer", object.__new__(Writer))
    monkeypatch.setattr(Writer, "look", failing(calls))
    desk._opened.set()

    async def run() -> None:
        await until_called_twice(asyncio.ensure_future(desk.write_forever(lambda: True)), calls)

    asyncio.run(run())
    assert len(calls) == len(faults) == 2
