"""Refreshes open pages: one snapshot a second, for all of them.

Rule: equal pages are made once, and only what has changed is sent. Making them takes at most MAX_SHARE of the
time, so that many readers slow the refresh and not the proxy.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

from jinja2 import TemplateError

from keyfence.admin.bodies import BadRequest
from keyfence.telemetry.operator_log import notice

from .questions import Questions
from .render import render
from .views import Parameters, View, view_at

PERIOD = 1.0  # seconds between two snapshots
MAX_SHARE = 0.01
MAX_STREAMS = 32  # the admin listener has 64 connections, and others need some
SILENCE = 15.0  # seconds after which an empty event is sent, so that a dead peer is noticed


class Channel:
    """One view with its parameters, and the pages that show it."""

    def __init__(self, view: View, parameters: Parameters) -> None:
        self.view = view
        self.parameters = parameters
        self.regions: dict[str, str] = {}  # as they were sent last
        self.findings: int | None = None  # new ones
        self.streams: set[Stream] = set()


class Stream:
    """One open page. A page that does not keep up misses snapshots: the next one has what it lacks."""

    def __init__(self) -> None:
        self.pending: dict[str, str] = {}
        self.findings: int | None = None
        self.changed = asyncio.Event()
        self.ended = False
        self.seen: dict[str, str] = {}

    def put(self, regions: Mapping[str, str], findings: int | None) -> None:
        fresh = {name: text for name, text in regions.items() if self.seen.get(name) != text}
        self.seen |= fresh
        self.pending |= fresh
        if fresh:
            self.findings = findings
            self.changed.set()

    def end(self) -> None:
        """The page has gone."""
        self.ended = True
        self.changed.set()

    async def next(self) -> bytes:
        """The next event; nothing if the page has gone."""
        try:
            async with asyncio.timeout(SILENCE):
                await self.changed.wait()
        except TimeoutError:
            return b": still here\n\n"
        if self.ended:
            return b""
        self.changed.clear()
        regions, self.pending = self.pending, {}
        data = json.dumps({"regions": regions, "findings": self.findings}, ensure_ascii=True)
        return b"event: regions\ndata: " + data.encode() + b"\n\n"


class TooMany(Exception):
    """There are too many streams."""


class Live:
    """All open pages of one admin listener."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._channels: dict[str, Channel] = {}
        self._task: asyncio.Task[None] | None = None

    def open(self, address: str) -> tuple[str, Stream]:
        """A new stream for the page at this path and query. Raises BadRequest, TooMany."""
        found = view_at(address)
        if found is None or not found[0].regions:
            raise BadRequest("There is no page to refresh at this address.", 404)
        if sum(len(one.streams) for one in self._channels.values()) >= MAX_STREAMS:
            raise TooMany
        channel = self._channels.setdefault(address, Channel(*found))
        stream = Stream()
        stream.put(channel.regions, channel.findings)
        channel.streams.add(stream)
        if self._task is None:
            self._task = asyncio.ensure_future(self._refresh_forever())
        return address, stream

    def close(self, address: str, stream: Stream) -> None:
        channel = self._channels.get(address)
        if channel is None:
            return
        channel.streams.discard(stream)
        if not channel.streams:
            del self._channels[address]
        if not self._channels and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _refresh_forever(self) -> None:
        while True:
            took = 0.0
            for channel in list(self._channels.values()):
                took += await self._refresh(channel)
            await asyncio.sleep(max(PERIOD, took / MAX_SHARE))

    async def _refresh(self, channel: Channel) -> float:
        """Make the regions of a page again. Returns the seconds for which nothing else could run."""
        try:
            values = await channel.view.load(self._questions, channel.parameters)
            values |= {"now": time.time()}
            began = time.thread_time()
            channel.regions = {
                name: render(template, values) for name, template in channel.view.regions.items()
            }
        except (BadRequest, ValueError):
            return 0.0  # the store does not answer just now, or the service has gone: the page stays as it is
        except (TemplateError, KeyError, TypeError) as exc:
            notice("page", f"the page {channel.view.path} cannot be refreshed: {exc!r}")
            return 0.0
        channel.findings = _active(values)
        for stream in channel.streams:
            stream.put(channel.regions, channel.findings)
        return time.thread_time() - began


def _active(values: Mapping[str, Any]) -> int | None:
    """The number of new findings, for the announcement; None if the view does not know it."""
    summary = values.get("summary")
    return None if not summary else int(summary["states"]["new"] + summary["states"]["reopened"])
