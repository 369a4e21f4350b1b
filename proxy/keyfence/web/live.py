"""Refreshes open pages: one snapshot a second, for all of them.

Rule: equal pages are made once, and only what has changed is sent. Making them takes at most MAX_SHARE of the
time on average, so that many readers slow the refresh and not the proxy.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

from keyfence.admin.beside import answers
from keyfence.admin.bodies import BadRequest
from keyfence.telemetry.operator_log import notice

from .asked_once import Questions
from .render import prepare, render
from .views import Parameters, View, view_at

PERIOD = 1.0  # seconds between two snapshots
MAX_SHARE = 0.007  # of one core, on average; sending comes on top, and all of it should stay under 0.01
ADVANCE = 0.05  # seconds of a core that may be spent ahead of that, so that a change is shown at once
MAX_STREAMS = 32
STEP = 10.0  # seconds
SILENCE = 15.0  # seconds after which an empty event is sent, so that a dead peer is noticed


class Channel:
    """One view with its parameters, and the pages that show it."""

    def __init__(self, view: View, parameters: Parameters) -> None:
        self.view = view
        self.parameters = parameters
        self.regions: dict[str, str] = {}  # as they were made last
        self._made_of: dict[str, list[Any]] = {}  # the values, by region
        self._event: tuple[dict[str, str], int | None, bytes] | None = None
        self.streams: set[Stream] = set()

    def make(self, values: Mapping[str, Any], now: float) -> float:
        """Make the regions again whose values have changed. Times in words change too, so `now` moves in
        steps. Returns the seconds of processor time that it took. Raises jinja2.TemplateError."""
        began = time.thread_time()
        step = now // STEP * STEP
        for name, region in self.view.regions.items():
            made_of = [step, *(values[one] for one in region.shows)]
            if None in made_of or self._made_of.get(name) == made_of:
                continue
            self.regions[name] = render(region.template, {**values, "now": now})
            self._made_of[name] = made_of
        return time.thread_time() - began

    def event(self, regions: dict[str, str], findings: int | None) -> bytes:
        """The event that brings these regions. Most pages lack the same ones, so it is made once for them."""
        if self._event is None or self._event[:2] != (regions, findings):
            data = json.dumps({"regions": regions, "findings": findings})
            self._event = regions, findings, b"event: regions\ndata: " + data.encode() + b"\n\n"
        return self._event[2]


class Stream:
    """One open page. A page that does not keep up misses snapshots: the next one has what it lacks."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._pending: dict[str, str] = {}
        self._seen: dict[str, str] = {}
        self._findings: int | None = None
        self._changed = asyncio.Event()
        self._has_ended = False

    def put(self, regions: Mapping[str, str], findings: int | None) -> None:
        """There is a snapshot: the page gets the regions that it lacks, and the number of new findings."""
        fresh = {name: text for name, text in regions.items() if self._seen.get(name) != text}
        self._seen |= fresh
        self._pending |= fresh
        if fresh:
            self._findings = findings
            self._changed.set()

    def end(self) -> None:
        """There will be no more snapshots."""
        self._has_ended = True
        self._changed.set()

    async def next(self) -> bytes:
        """The next event; b"" after the last one."""
        try:
            async with asyncio.timeout(SILENCE):
                await self._changed.wait()
        except TimeoutError:
            return b": still here\n\n"
        if self._has_ended:
            return b""
        self._changed.clear()
        regions, self._pending = self._pending, {}
        return self.channel.event(regions, self._findings)


class TooMany(Exception):
    """There are too many streams."""


class Live:
    """All open pages of one admin listener."""

    def __init__(self, questions: Questions, max_streams: int = MAX_STREAMS) -> None:
        self._questions = questions
        self._max_streams = max_streams
        self._channels: dict[tuple[Any, ...], Channel] = {}  # by view and parameters
        self._task: asyncio.Task[None] | None = None
        self._made_seconds = 0.0  # of processor time, in threads that made regions, not yet counted

    def open(self, address: str) -> Stream:
        """A new stream for the page at this path and query. Raises BadRequest, TooMany."""
        found = view_at(address)
        if found is None or not found[0].regions:
            raise BadRequest("There is no page to refresh at this address.", 404)
        if sum(len(one.streams) for one in self._channels.values()) >= self._max_streams:
            raise TooMany
        view, parameters = found
        channel = self._channels.setdefault(_key(view, parameters), Channel(view, parameters))
        stream = Stream(channel)
        channel.streams.add(stream)
        if self._task is None:
            self._task = asyncio.create_task(self._refresh_forever())
        return stream

    def close(self, stream: Stream) -> None:
        """A page has gone. After the last one nothing is refreshed."""
        channel = stream.channel
        channel.streams.discard(stream)
        key = _key(channel.view, channel.parameters)
        if not channel.streams and self._channels.get(key) is channel:
            del self._channels[key]
        if not self._channels and self._task is not None:
            self._task.cancel()
            self._task = None

    def end(self) -> None:
        """End every stream, because keyfence ends."""
        for channel in self._channels.values():
            for stream in channel.streams:
                stream.end()

    async def _refresh_forever(self) -> None:
        await answers.do(prepare)
        spent, before = 0.0, time.monotonic()
        while True:
            # Traffic of this thread at the same time counts too: a busy keyfence refreshes less often.
            began = time.thread_time() + self._questions.control.reading_seconds()
            for channel in list(self._channels.values()):
                await self._refresh(channel)
            spent += time.thread_time() + self._questions.control.reading_seconds() - began
            spent, self._made_seconds = spent + self._made_seconds, 0.0
            await asyncio.sleep(max(PERIOD, (spent - ADVANCE) / MAX_SHARE))
            now = time.monotonic()
            spent, before = max(0.0, spent - (now - before) * MAX_SHARE), now

    async def _refresh(self, channel: Channel) -> None:
        """Make the regions of a page again. If that fails, the page stays as it is."""
        view = channel.view
        try:
            values = await (view.load_regions or view.load)(self._questions, channel.parameters)
            self._made_seconds += await answers.do(channel.make, values, time.time())
        except (BadRequest, ValueError):
            return  # the store does not answer just now, or the finding has gone
        except Exception as exc:  # a mistake of keyfence's must not end the refresh of other pages
            notice("page", f"the page {view.path} cannot be refreshed: {exc!r}")
            return
        findings = _active(values)
        for stream in channel.streams:
            stream.put(channel.regions, findings)


def _key(view: View, parameters: Parameters) -> tuple[Any, ...]:
    return view.path, *sorted(parameters.items())


def _active(values: Mapping[str, Any]) -> int | None:
    """The number of new findings, for the announcement; None if the view does not know it."""
    summary = values.get("summary")
    return None if not summary else int(summary["states"]["new"] + summary["states"]["reopened"])
