"""A worker that fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides
from keyfence.process.serving.backend import WorkerFailed
from keyfence.process.serving.packing import pack
from keyfence.process.workers import child as module
from keyfence.process.workers.child import WorkerProcess
from keyfence.process.workers.sockets import bind_places
from keyfence.process.workers.worker import Sockets, Start
from keyfence.telemetry.counters import Counters
from keyfence.telemetry.log_relay import LogRelay
from keyfence.upstream.address import UpstreamAddress
from tests.servers import PATIENCE_SECONDS


@contextlib.asynccontextmanager
async def launched(before: Callable[[WorkerProcess], object] | None = None) -> AsyncIterator[WorkerProcess]:
    """A worker in passthrough whose upstream does not exist. `before` is called before it is launched."""
    settings = load_settings("", Overrides(listen="127.0.0.1:0"), needs_policy=False)
    ((bound,),) = bind_places(settings.listeners, 1)
    sockets = (Sockets(bound.name, tuple(sock.fileno() for sock in bound.sockets)),)
    nowhere = UpstreamAddress("unix", path="/nonexistent", shown="unix:///nonexistent")
    worker = WorkerProcess(0, LogRelay(Counters(), None), lambda *_: None)
    if before is not None:
        before(worker)
    try:
        await worker.launch(Start(pack(settings, None), 0.0, nowhere, sockets))
        yield worker
    finally:
        worker.kill()
        await asyncio.wait_for(worker.ended.wait(), PATIENCE_SECONDS)
        bound.close()


def test_a_worker_of_another_version_does_not_start(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def play() -> None:
        async with launched() as worker:
            with pytest.raises(WorkerFailed, match=r"ended before it could serve \(exit code 1\)"):
                await worker.wait_ready()

    monkeypatch.setattr(module, "__version__", "0.0.0")
    asyncio.run(play())
    assert "keyfence 0.0.0 cannot start a worker of" in capfd.readouterr().err


def test_an_order_that_waits_fails_when_the_worker_ends() -> None:
    async def play() -> None:
        async with launched() as worker:
            await worker.wait_ready()
            assert worker.state == "serving"
            await worker.ask("count", None, PATIENCE_SECONDS)
            with pytest.raises(WorkerFailed, match="ValueError"):
                await worker.ask("take", (), PATIENCE_SECONDS)
            asked = asyncio.ensure_future(worker.ask("count", None, PATIENCE_SECONDS))
            worker.kill()
            await asyncio.wait([asked])
            assert asked.exception() is None or isinstance(asked.exception(), WorkerFailed)
            await asyncio.wait_for(worker.ended.wait(), PATIENCE_SECONDS)
            assert worker.why_ended == "killed by SIGKILL"
            with pytest.raises(WorkerFailed, match="it has ended"):
                await worker.ask("count", None, PATIENCE_SECONDS)

    asyncio.run(play())


def test_an_order_that_comes_while_the_worker_is_launched_is_carried_out_after_its_start() -> None:
    """A regression: it was lost, and the worker kept the former policy until it was killed."""
    asked: list[asyncio.Task[object]] = []

    def ask(worker: WorkerProcess) -> None:
        asked.append(asyncio.create_task(worker.ask("count", None, PATIENCE_SECONDS)))

    async def play() -> None:
        async with launched(before=ask) as worker:
            await worker.wait_ready()
            await asked[0]

    asyncio.run(play())


def test_an_order_to_a_worker_that_cannot_be_launched_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise OSError("no process can be started")

    monkeypatch.setattr(module, "start_python", none)

    async def play() -> None:
        worker = WorkerProcess(0, LogRelay(Counters(), None), lambda *_: None)
        asked = asyncio.create_task(worker.ask("count", None, PATIENCE_SECONDS))
        with pytest.raises(OSError, match="no process can be started"):
            await worker.launch(Start((), 0.0, UpstreamAddress("unix", path="/x", shown="unix:///x"), ()))
        with pytest.raises(WorkerFailed, match="it has ended"):
            await asked

    asyncio.run(play())


def test_a_worker_with_the_order_to_drain_ends_by_itself() -> None:
    async def play() -> None:
        async with launched() as worker:
            await worker.wait_ready()
            worker.leave(0.0)
            assert worker.state == "draining"
            await asyncio.wait_for(worker.ended.wait(), PATIENCE_SECONDS)
            assert worker.exit_code == 0

    asyncio.run(play())
