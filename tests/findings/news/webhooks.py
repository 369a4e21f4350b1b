"""A real HTTP server that takes what is sent, or does not."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

from aiohttp import web

from tests.servers import PATIENCE_SECONDS


class Hooks:
    """A server with any number of webhooks, by their paths."""

    def __init__(self) -> None:
        self.url = ""
        self.got: list[tuple[str, Any]] = []  # path and body
        self.status = 200
        self.is_silent = False  # it answers nothing
        self._gone = asyncio.Event()

    async def _take(self, request: web.Request) -> web.Response:
        self.got.append((request.path, await request.json()))
        if self.is_silent:
            await self._gone.wait()
        headers = {"Location": f"{self.url}/elsewhere"} if 300 <= self.status < 400 else {}
        return web.Response(status=self.status, text="x" * 1_000_000, headers=headers)


@contextlib.asynccontextmanager
async def running_hooks(tls: ssl.SSLContext | None = None) -> AsyncIterator[Hooks]:
    """Webhooks on a free port of 127.0.0.1."""
    hooks = Hooks()
    application = web.Application()
    application.router.add_post("/{path:.*}", hooks._take)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    hooks.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield hooks
    finally:
        hooks._gone.set()
        await runner.cleanup()


@contextlib.contextmanager
def hooks_in_a_thread() -> Iterator[Hooks]:
    """The same, for who has no event loop to run them in, or runs another process."""
    loop = asyncio.new_event_loop()
    begun, ended = threading.Event(), asyncio.Event()
    made: list[Hooks] = []

    async def serve() -> None:
        async with running_hooks() as hooks:
            made.append(hooks)
            begun.set()
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert begun.wait(PATIENCE_SECONDS)
        yield made[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()
