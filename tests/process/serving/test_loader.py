"""A separate process loads policy and configuration, each time from what the files have then."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import tempfile
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from keyfence.config.settings import Overrides
from keyfence.policy.diagnostics import FileError
from keyfence.process.serving import loader as loader_module
from keyfence.process.serving.loader import NICER, Loader
from keyfence.process.serving.packing import Packed, unpack
from keyfence.process.serving.reload import NotLoaded, Origin
from tests.process.serving.test_packing import LARGE
from tests.servers import PATIENCE_SECONDS

POLICY = """
policy: {name}
claims: ["a:"]
services: [one]
scopes: {{s: {{prefix: "a:", writers: [one]}}}}
keys: {{words: {{key: "a:now", type: string}}}}
"""
_T = TypeVar("_T")


@pytest.fixture
def loader() -> Iterator[Loader]:
    found = Loader()
    yield found
    found.close()


def run(work: Coroutine[Any, Any, _T]) -> _T:
    return asyncio.run(asyncio.wait_for(work, PATIENCE_SECONDS))


def origin_of(folder: Path, text: str) -> Origin:
    path = folder / "policy.yaml"
    path.write_text(text)
    return Origin("", Overrides(policy=str(path)))


def test_it_needs_no_room_on_a_disk(loader: Loader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert run(loader.load(origin_of(tmp_path, POLICY.format(name="one")))).name == "one"


def children(process: int) -> dict[int, int]:
    """The children of a process that load policies, each with its niceness."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            fields = path.read_text().rpartition(")")[2].split()
            is_loader = loader_module.__name__.encode() in path.with_name("cmdline").read_bytes()
            if int(fields[1]) == process and is_loader:
                found[int(path.parent.name)] = int(fields[16])
    return found


async def until_children(process: int, count: int = 1) -> list[int]:
    while len(found := list(children(process))) != count:
        await asyncio.sleep(0.001)
    return found


def test_a_separate_process_loads_it(tmp_path: Path, loader: Loader) -> None:
    packed = run(loader.load(origin_of(tmp_path, POLICY.format(name="apart"))))
    policy = unpack(packed)
    assert policy is not None
    assert policy.name == "apart"
    assert packed.settings.policy == str(tmp_path / "policy.yaml")


def test_one_process_loads_what_the_files_have_each_time(tmp_path: Path, loader: Loader) -> None:
    async def load() -> list[str]:
        names, processes = [], set()
        for name in ("first", "broken: [", "second"):
            try:
                names.append((await loader.load(origin_of(tmp_path, POLICY.format(name=name)))).name)
            except NotLoaded:
                names.append("")
            processes |= set(children(os.getpid()))
        assert len(processes) == 1
        return names

    assert run(load()) == ["first", "", "second"]


def test_loads_at_the_same_time_take_turns(tmp_path: Path, loader: Loader) -> None:
    origins = []
    for name in "abc":
        (tmp_path / name).mkdir()
        origins.append(origin_of(tmp_path / name, POLICY.format(name=name)))

    async def load() -> list[Packed]:
        return await asyncio.gather(*map(loader.load, origins))

    assert [one.name for one in run(load())] == list("abc")


def test_a_refused_load_tells_what_it_has_read(tmp_path: Path, loader: Loader) -> None:
    with pytest.raises(NotLoaded) as caught:
        run(loader.load(origin_of(tmp_path, "policy: [")))
    assert str(tmp_path / "policy.yaml") in [file for file, _ in caught.value.seen.files]
    assert caught.value.seen.look() == caught.value.seen.digest


def test_the_separate_process_returns_every_fault(tmp_path: Path, loader: Loader) -> None:
    text = "policy: p\nservices: [a]\nclaims: ['x']\nnonsense: 1\nmore: 2\n"
    with pytest.raises(FileError) as caught:
        run(loader.load(origin_of(tmp_path, text)))
    assert [one.place.line for one in caught.value.diagnostics][:2] == [4, 5]


def test_without_a_policy_the_settings_alone_are_loaded(loader: Loader) -> None:
    packed = run(loader.load(Origin("", Overrides(listen="127.0.0.1:9"), spliced=True)))
    assert packed.policy is None
    assert packed.settings.listeners[0].listen == "127.0.0.1:9"


def test_the_process_that_serves_knows_the_waivers_file_after_a_reload(
    tmp_path: Path, loader: Loader
) -> None:
    origin_of(tmp_path, POLICY.format(name="apart"))
    (tmp_path / "waivers.yaml").write_text("waivers: []\n")
    config = tmp_path / "keyfence.yaml"
    config.write_text("policy: policy.yaml\nwaivers: waivers.yaml\n")
    packed = run(loader.load(Origin(str(config), Overrides())))
    assert packed.settings.waivers_file == str(tmp_path / "waivers.yaml")


def test_the_separate_process_leaves_the_processors_to_clients(tmp_path: Path, loader: Loader) -> None:
    run(loader.load(origin_of(tmp_path, POLICY.format(name="apart"))))
    assert list(children(os.getpid()).values()) == [min(os.nice(0) + NICER, 19)]


def test_a_load_that_is_killed_is_an_error_and_the_next_one_works(tmp_path: Path, loader: Loader) -> None:
    origin = origin_of(tmp_path, LARGE)

    async def load() -> str:
        task = asyncio.ensure_future(loader.load(origin))
        [process] = await until_children(os.getpid())
        os.kill((await until_children(process))[0], signal.SIGKILL)
        with pytest.raises(FileError, match="its process was ended by signal 9"):
            await task
        return (await loader.load(origin_of(tmp_path, POLICY.format(name="next")))).name

    assert run(load()) == "next"


@pytest.mark.parametrize("what", ["os.memfd_create", "start_python"])
def test_a_process_that_the_system_does_not_start_is_an_error_and_the_next_load_works(
    what: str, tmp_path: Path, loader: Loader
) -> None:
    origin = origin_of(tmp_path, POLICY.format(name="next"))

    def no_room(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def load() -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(f"{loader_module.__name__}.{what}", no_room)
            with pytest.raises(FileError, match="its process cannot start: No space left on device"):
                await loader.load(origin)
        return (await loader.load(origin)).name

    assert run(load()) == "next"


@pytest.mark.parametrize("is_loading", [True, False])
def test_the_process_is_started_again_if_it_was_killed(
    tmp_path: Path, loader: Loader, is_loading: bool
) -> None:
    async def load() -> str:
        if is_loading:
            task = asyncio.ensure_future(loader.load(origin_of(tmp_path, LARGE)))
            [process] = await until_children(os.getpid())
            await until_children(process)
        else:
            await loader.load(origin_of(tmp_path, POLICY.format(name="first")))
            [process] = children(os.getpid())
        os.killpg(process, signal.SIGKILL)
        if is_loading:
            with pytest.raises(FileError, match="its process ended with -9"):
                await task
        else:
            await asyncio.to_thread(os.waitid, os.P_PID, process, os.WEXITED | os.WNOWAIT)
        return (await loader.load(origin_of(tmp_path, POLICY.format(name="next")))).name

    assert run(load()) == "next"


def test_a_load_that_takes_too_long_ends_with_its_process(
    tmp_path: Path, loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_module, "TIMEOUT", 0.01)
    with pytest.raises(FileError, match=r"it took longer than 0\.01 s"):
        run(loader.load(origin_of(tmp_path, LARGE)))
    assert not children(os.getpid())


def test_a_load_that_nobody_waits_for_ends_with_its_process(tmp_path: Path, loader: Loader) -> None:
    async def give_up() -> None:
        task = asyncio.ensure_future(loader.load(origin_of(tmp_path, LARGE)))
        [process] = await until_children(os.getpid())
        await until_children(process)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(give_up())
    assert not children(os.getpid())


def test_the_process_is_there_before_a_load_while_it_is_wanted(
    loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_module, "LOOK_SECONDS", 0.01)
    is_wanted = True

    async def stay() -> None:
        nonlocal is_wanted
        job = asyncio.ensure_future(loader.stay_ready(lambda: is_wanted))
        [process] = await until_children(os.getpid())
        os.kill(process, signal.SIGKILL)
        while await until_children(os.getpid()) == [process]:
            await asyncio.sleep(0.001)
        is_wanted = False
        await until_children(os.getpid(), 0)
        is_wanted = True
        await until_children(os.getpid())
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)

    run(stay())
    assert not children(os.getpid())


def test_a_load_that_is_under_way_when_keyfence_ends_is_not_a_fault(tmp_path: Path, loader: Loader) -> None:
    async def load() -> str:
        job = asyncio.ensure_future(loader.stay_ready(lambda: True))
        task = asyncio.ensure_future(loader.load(origin_of(tmp_path, POLICY.format(name="last"))))
        await until_children(os.getpid())
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)
        return (await task).name

    assert run(load()) == "last"
    assert not children(os.getpid())
