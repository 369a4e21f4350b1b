"""What takes in policies by itself never ends, whatever comes between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from keyfence.fleet import settling
from keyfence.fleet import source as source_module
from keyfence.fleet.copy import Copy
from keyfence.fleet.model import Answer, PolicyServer
from keyfence.fleet.source import PolicySource
from keyfence.policy.diagnostics import FileError
from keyfence.policy.source.files import NOTHING_SEEN, Reading, read_file
from keyfence.process import control as control_module
from keyfence.process import fleet_candidate as candidate_module
from keyfence.process import provision as provision_module
from keyfence.process.control import ProcessControl
from keyfence.process.fleet_candidate import FleetCandidate
from keyfence.process.provision import Provision
from keyfence.process.serving.loader import Loader
from keyfence.process.serving.packing import Packed
from keyfence.process.serving.reload import NotLoaded, Order, Origin, load_failed
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


def test_a_version_is_loaded_again_until_it_is_in_force_or_has_faults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source_module, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(PolicySource, "pause", lambda *_: 0.001)
    why: list[FileError] = [load_failed("it was killed"), NotLoaded([], NOTHING_SEEN)]
    loads, answers = 0, 0

    async def fetch(*_: object) -> Answer:
        nonlocal answers
        answers += loads > 1
        return Answer(b"new", "new", True)

    async def load(*_: object) -> Packed:
        nonlocal loads
        loads += 1
        raise why[min(loads, 2) - 1]

    monkeypatch.setattr(provision_module, "_fetch", fetch)
    monkeypatch.setattr(Loader, "load", load)
    source = PolicySource(PolicyServer("https://policies.example/shop.yaml"), Copy(b"held", "", 0.0))
    one, provision = cast(Any, object.__new__(ProcessControl)), Provision(Origin(), source=source)

    async def reload(_: Order) -> None:
        await provision.load(source, is_offer=True)

    one._provision, one._reload_as_supervised, one._reloading = provision, reload, asyncio.Lock()
    asyncio.run(until(one.poll_forever(), lambda: answers > 50))
    assert loads == 2, "it has faults, so it is not loaded again"


def test_a_version_that_a_reload_has_taken_meanwhile_is_not_loaded_again() -> None:
    source = PolicySource(PolicyServer("https://policies.example/shop.yaml"), Copy(b"held", "", 0.0))
    source.answered(Answer(b"new", "new", True), 0.0)
    one, reload = cast(Any, object.__new__(ProcessControl)), Failing()
    one._provision, one._reload_as_supervised = Provision(Origin(), source=source), reload
    one._reloading = asyncio.Lock()

    async def take() -> None:
        await one._reloading.acquire()
        taking = asyncio.ensure_future(one._take_offer())
        await asyncio.sleep(0)
        assert source.offered is not None
        source.tried(source.offered)
        one._reloading.release()
        await taking

    asyncio.run(take())
    assert reload.count == 0


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
