"""What takes in policies by itself never ends, whatever comes between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from keyfence.fleet import settling
from keyfence.fleet.copy import Copy
from keyfence.fleet.model import Answer, PolicyServer
from keyfence.fleet.source import PolicySource
from keyfence.policy.source.files import Reading, read_file
from keyfence.process import control as control_module
from keyfence.process import fleet_candidate as candidate_module
from keyfence.process import provision as provision_module
from keyfence.process.control import ProcessControl
from keyfence.process.fleet_candidate import FleetCandidate
from keyfence.process.provision import Provision
from keyfence.process.serving.reload import Origin
from tests.servers import PATIENCE_SECONDS

FAULT = "a fault of keyfence's own"


async def until(job: Awaitable[None], has_come: Callable[[], bool]) -> None:
    """Run a job that does not end, until this has come."""
    task = asyncio.ensure_future(job)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not has_come() and not task.done():
            await asyncio.sleep(0.001)
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class Failing:
    """Work that fails once, and is counted."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, *_: object, **__: object) -> None:
        self.count += 1
        if self.count == 1:
            raise RuntimeError(FAULT)

    def has_gone_on(self) -> bool:
        return self.count > 1


def test_a_fault_does_not_end_reload_auto(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(control_module, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(settling, "SETTLE_SECONDS", 0.01)
    monkeypatch.setattr(settling, "RETRY_SECONDS", 0.01)
    path = tmp_path / "policy.yaml"
    path.write_text("before")
    with Reading() as reading:
        read_file(path)
    one = cast(Any, object.__new__(ProcessControl))
    one._runtime = SimpleNamespace(settings=SimpleNamespace(reload="auto"))
    one._provision, one.draining, one.reload = Provision(Origin(), reading.seen()), False, Failing()
    path.write_text("after")
    asyncio.run(until(one.watch_forever(), one.reload.has_gone_on))
    assert FAULT in capsys.readouterr().err


def test_a_fault_does_not_end_the_poll(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = iter(range(1_000_000))

    async def fetch(*_: object) -> Answer:
        return Answer(b"%d" % next(texts), "", True)

    monkeypatch.setattr(provision_module, "_fetch", fetch)
    monkeypatch.setattr(PolicySource, "pause", lambda *_: 0.001)
    source = PolicySource(PolicyServer("https://policies.example/shop.yaml"), Copy(b"held", "", 0.0))
    take = Failing()
    asyncio.run(until(Provision(Origin(), source=source).poll_forever(take), take.has_gone_on))
    assert FAULT in capsys.readouterr().err


def test_a_fault_does_not_end_the_following_of_candidates(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(candidate_module, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(FleetCandidate, "is_due", True)
    one, follow = cast(Any, object.__new__(FleetCandidate)), Failing()
    one.follow = follow

    async def following() -> None:
        await until(one.follow_forever(asyncio.Lock()), follow.has_gone_on)

    asyncio.run(following())
    assert FAULT in capsys.readouterr().err
