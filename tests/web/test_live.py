from __future__ import annotations

import asyncio
import json
import re
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from keyfence.admin.bodies import BadRequest
from keyfence.telemetry import operator_log
from keyfence.web import live as module
from keyfence.web.asked_once import Questions
from keyfence.web.live import MAX_STREAMS, Live, Stream, TooMany
from tests.servers import PATIENCE_SECONDS
from tests.web.stage import Stage, violation


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot follows the other, and no kind of line for the operator was printed before."""
    monkeypatch.setattr(module, "PERIOD", 0.001)
    monkeypatch.setattr(module, "MAX_SHARE", 1e9)
    monkeypatch.setattr(operator_log, "_kinds", {})


def play(stage: Stage, scenario: Callable[[Live, Questions], Awaitable[None]]) -> None:
    async def run() -> None:
        ticks = iter(range(10**9))
        questions = Questions(stage, clock=lambda: float(100 * next(ticks)))  # every answer is new
        live = Live(questions)
        try:
            await asyncio.wait_for(scenario(live, questions), PATIENCE_SECONDS)
        finally:
            for channel in list(live._channels.values()):
                for stream in list(channel.streams):
                    live.close(stream)
        assert live._task is None

    asyncio.run(run())


async def event(stream: Stream) -> dict[str, Any]:
    """The next snapshot."""
    while (data := await stream.next()).startswith(b":"):
        pass
    lines = data.decode().splitlines()
    assert lines[0] == "event: regions"
    assert lines[2:] == [""]
    found: dict[str, Any] = json.loads(lines[1].removeprefix("data: "))
    return found


def test_a_page_gets_all_its_regions_first_and_then_what_has_changed(stage: Stage) -> None:
    async def scenario(live: Live, _: Questions) -> None:
        stream = live.open("/")
        first = await event(stream)
        assert {"headline", "new", "matrix", "trend", "latest", "process-state"} <= first["regions"].keys()
        assert first["findings"] == 0
        stage.see(violation(3))
        seen: dict[str, str] = {}
        while "CubeProxy" not in seen.get("new", ""):
            later = await event(stream)
            seen |= later["regions"]
        assert later["findings"] == 1
        assert "process-state" not in seen

    play(stage, scenario)


def test_equal_pages_are_one_channel_whatever_the_address_looks_like(stage: Stage) -> None:
    async def scenario(live: Live, _: Questions) -> None:
        addresses = ["/findings?rule=ttl.required&state=new", "/findings?state=new&rule=ttl.required&text="]
        streams = [live.open(address) for address in addresses for _ in range(3)]
        assert len({stream.channel for stream in streams}) == 1
        assert live.open("/findings?state=new").channel is not streams[0].channel
        for stream in streams:
            assert (await event(stream))["regions"].keys() == {"rows"}

    play(stage, scenario)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "/policy",
        "/explain",
        "/metrics",
        "/findings?colour=red",
        "//[",
        "/findings?" + "a=1&" * 99,
        "\x00",
    ],
)
def test_what_is_no_page_with_regions_is_not_opened(stage: Stage, address: str) -> None:
    async def scenario(live: Live, _: Questions) -> None:
        with pytest.raises(BadRequest) as caught:
            live.open(address)
        assert caught.value.status == 404
        assert live._channels == {}

    play(stage, scenario)


def test_the_number_of_streams_is_bounded(stage: Stage) -> None:
    async def scenario(live: Live, _: Questions) -> None:
        streams = [live.open(f"/findings?text={number}") for number in range(MAX_STREAMS)]
        with pytest.raises(TooMany):
            live.open("/")
        live.close(streams[0])
        live.open("/")

    play(stage, scenario)


def test_a_view_that_fails_stays_as_it_is_and_others_go_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def candidate() -> dict[str, Any]:
        raise AttributeError("a bug")

    monkeypatch.setattr(stage, "candidate", candidate)

    async def scenario(live: Live, _: Questions) -> None:
        broken, gone, fine = live.open("/candidate"), live.open("/findings/f-none"), live.open("/services")
        await event(fine)
        stage.counters.commands["CubeProxy", "GET", "forwarded"] = 1
        while "CubeProxy" not in (await event(fine))["regions"].get("traffic", ""):
            pass
        assert not broken._changed.is_set()
        assert not gone._changed.is_set()

    play(stage, scenario)
    said = capsys.readouterr().err
    assert said.count("the page /candidate cannot be refreshed: AttributeError('a bug')") == 1
    assert "f-none" not in said


def test_a_store_that_fails_for_a_while_leaves_the_page_as_it_is(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(live: Live, _: Questions) -> None:
        stream = live.open("/findings")
        await event(stream)
        with monkeypatch.context() as failing:
            asked = asyncio.Event()

            async def findings(*_: object) -> dict[str, Any]:
                asked.set()
                raise ValueError("the findings store cannot be read: database is locked")

            failing.setattr(stage, "findings", findings)
            await asked.wait()
        stage.see(violation())
        assert "CubeProxy" in (await event(stream))["regions"]["rows"]

    play(stage, scenario)


def test_without_a_store_the_other_parts_are_refreshed() -> None:
    stage = Stage(None)

    async def scenario(live: Live, _: Questions) -> None:
        found = await event(live.open("/"))
        rest = {"concerns", "glass", "matrix", "traffic", "process-state"}
        assert found["regions"].keys() == {"next", *rest}
        assert found["findings"] is None

    play(stage, scenario)


def test_the_banner_shows_what_keyfence_says_of_its_redis(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = stage.status
    told = {"reasons": ["upstream was <primary>"], "warnings": ["the file of tokens is old"]}

    async def status() -> dict[str, Any]:
        return await real() | told

    monkeypatch.setattr(stage, "status", status)

    async def scenario(live: Live, _: Questions) -> None:
        stream = live.open("/")
        banner = (await event(stream))["regions"]["concerns"]
        assert re.findall(r'<p class="notice bad" role="alert">(.*?)</p>', banner) == [
            "Upstream was &lt;primary&gt;.",
            "The file of tokens is old.",
        ]
        told.update(reasons=[], warnings=["upstream sends notices"])
        regions = (await event(stream))["regions"]
        assert "Upstream sends notices." in regions["next"]
        assert "notice" not in regions["concerns"]

    play(stage, scenario)


def test_a_region_is_made_again_only_if_its_values_have_changed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    real = module.render

    def counting(template: str, values: Any) -> str:
        made.append(template)
        return real(template, values)

    monkeypatch.setattr(module, "render", counting)
    monkeypatch.setattr(module, "STEP", 1e9)
    stage.see(violation())

    async def scenario(live: Live, questions: Questions) -> None:
        stream = live.open("/findings")
        await event(stream)
        asked = 0
        real_findings = stage.findings

        async def findings(*rest: Any) -> dict[str, Any]:
            nonlocal asked
            asked += 1
            return await real_findings(*rest)

        monkeypatch.setattr(stage, "findings", findings)
        while asked < 3:
            await asyncio.sleep(0.001)
        assert made == ["live/rows.html"]
        stage.see(violation())
        await event(stream)
        assert made == ["live/rows.html"] * 2
        assert questions.control is stage

    play(stage, scenario)


def test_nothing_is_refreshed_after_the_last_page_has_gone_and_everything_after_the_next(
    stage: Stage,
) -> None:
    async def scenario(live: Live, _: Questions) -> None:
        first = live.open("/services")
        await event(first)
        live.close(first)
        assert live._task is None
        assert live._channels == {}
        second = live.open("/services")  # while the task of the first one is still ending
        assert "matrix" in (await event(second))["regions"]
        live.close(first)  # once more
        stage.counters.commands["CubeProxy", "GET", "forwarded"] = 1
        assert "CubeProxy" in (await event(second))["regions"]["traffic"]

    play(stage, scenario)


def test_a_silent_stream_says_that_it_is_still_there(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE", 0.01)

    async def scenario(live: Live, _: Questions) -> None:
        stream = live.open("/findings/f-none")
        assert await stream.next() == b": still here\n\n"

    play(stage, scenario)


def test_every_stream_ends_when_keyfence_does(stage: Stage) -> None:
    async def scenario(live: Live, _: Questions) -> None:
        streams = [live.open("/services"), live.open("/findings/f-none")]
        waiting = [asyncio.ensure_future(stream.next()) for stream in streams[1:]]
        await asyncio.sleep(0)
        live.end()
        assert await waiting[0] == b""
        assert await streams[0].next() == b""

    play(stage, scenario)


def test_a_page_that_does_not_keep_up_gets_the_newest_state(stage: Stage) -> None:
    async def scenario(live: Live, _: Questions) -> None:
        slow, quick = live.open("/findings"), live.open("/findings")
        for number in range(1, 4):
            stage.see(violation(entry="", shape=f"tmp{number}:<hex>"))
            while f"{number} finding" not in (await event(quick))["regions"]["rows"]:
                pass
        assert "3 findings" in (await event(slow))["regions"]["rows"]
        assert not slow._changed.is_set()

    play(stage, scenario)


def test_the_more_a_refresh_costs_the_rarer_it_is(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """On average it takes its share, with what threads do for it, and it may begin with an advance."""
    slept: list[float] = []
    looks: Counter[int] = Counter()

    class Clocks:
        """`time`, with a processor that has worked half a second more at each look of a thread."""

        @staticmethod
        def thread_time() -> float:
            looks[threading.get_ident()] += 1
            return looks[threading.get_ident()] * 0.5

        @staticmethod
        def time() -> float:
            return 1e9

        @staticmethod
        def monotonic() -> float:
            return sum(slept)

    monkeypatch.setattr(module, "MAX_SHARE", 0.01)
    monkeypatch.setattr(module, "ADVANCE", 0.1)
    monkeypatch.setattr(module, "time", Clocks)
    real_sleep = asyncio.sleep

    class Loop:
        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

        async def sleep(self, seconds: float) -> None:
            slept.append(seconds)
            await real_sleep(0)

    monkeypatch.setattr(module, "asyncio", Loop())

    async def scenario(live: Live, _: Questions) -> None:
        await event(live.open("/services"))
        while len(slept) < 3:
            await real_sleep(0)

    play(stage, scenario)
    assert slept[:3] == [pytest.approx(90.0), pytest.approx(100.0), pytest.approx(100.0)]
