"""Searches for requests that the admin listener should not survive, serve or believe.

After any request: no answer has status 500, nothing changes without the token, the log is not filled, the
listener itself ends every connection, and the next request is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import re
from typing import Any

import pytest

from keyfence.admin import server as admin
from keyfence.admin.access import Access
from keyfence.admin.bounds import Bounds, Times
from keyfence.admin.routes import ROUTES
from keyfence.admin.server import start_admin
from keyfence.net.addresses import Address
from keyfence.telemetry import operator_log as notices
from tests.admin.test_server import FakeControl
from tests.admin.tokens import tokens
from tests.adversary.conftest import Search

TOKEN = "a-token-of-this-search"
LIMIT = 8
PATIENCE_SECONDS = 20.0
METHODS = ("GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH", "TRACE", "CONNECT", "get", "P\0ST")
PATHS = (
    *sorted({"/", *(route.path for route in ROUTES)}),
    *(
        "/%2d/observe",
        "//-/observe",
        "/-/observe/",
        "/-/observe?x=1",
    ),
    *(
        "/-/%6fbserve",
        "/\udcff",
        "/%ff%00",
        "*",
        "http://localhost/-/observe",
        "http://[",
        "/../-/observe",
        "",
    ),
)
TOKENS = (
    "Bearer",
    "Bearer ",
    "Bearer wrong",
    f"Basic {TOKEN}",
    f"Bearer {TOKEN}x",
    TOKEN,
    "Bearer \udcff",
    "\x01",
)
FOREIGN = ("Origin: http://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site", "Host: evil.example")
HEADERS = (
    *(
        "Host: localhost",
        "Host: 127.0.0.1:1",
        "Host: ",
        "Host: [::1",
        "Host: evil.example",
        "Connection: close",
    ),
    *("Content-Type: application/json", "Content-Type: text/plain", "Content-Type: \udcff/x; charset=\udcff"),
    *("Content-Length: 5", "Content-Length: -1", "Content-Length: 99999999999999999999", "Content-Length: x"),
    *("Transfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked", "Content-Encoding: gzip"),
    *(
        "Content-Encoding: deflate",
        "Content-Encoding: br",
        "Expect: 100-continue",
        "Expect: rain",
        "Upgrade: h2c",
    ),
    *("Connection: Upgrade", "Upgrade: websocket", "Upgrade: h2c", "Origin: http://localhost"),
    *(
        "Cookie: a=b; \udcff",
        "Accept: text/html",
        "X: " + "y" * 9000,
        " folded: x",
        "no colon",
        ": empty",
        "\0: x",
    ),
    *("X-Forwarded-For: 127.0.0.1", "X-HTTP-Method-Override: DELETE", "Range: bytes=0-", "Connection: close"),
)
BODIES = (
    *(b"{}", b'{"for": 60}', b"[]", b'{"service": "CubeProxy", "argv": ["GET", "k"]}', b"\xff", b"[" * 5000),
    *(
        b"0\r\n\r\n",
        b"2\r\n{}\r\n0\r\n\r\n",
        b"zz\r\n",
        b"fffffffffffffffffff\r\n",
        b"2\r\n{}",
        b"5\r\n{}\r\n0\r\n",
    ),
    *(b"\x1f\x8b\x08\0\0\0\0\0", b"", b'{"for": 60, "rule": "\\ud800"}', b'{"for": 1e999}', b"\0" * 100),
)
READS = {"findings", "evidence", "readiness", "unused"}  # what anybody may ask without the token
ANSWER = re.compile(rb"HTTP/1\.[01] (\d{3})")


class Control(FakeControl):
    """A control without faults: nothing behind the listener fails."""

    async def modes(self) -> dict[str, Any]:
        return {}


def header_lines(rng: random.Random) -> list[str]:
    lines = rng.sample(HEADERS, rng.randrange(5))
    if rng.random() < 0.7:
        lines.append("Host: localhost")
    if rng.random() < 0.3:
        # Without the token; or with it, but from another site's page.
        named = f"Authorization: {rng.choice(TOKENS)}"
        lines += [named] if rng.random() < 0.7 else [f"Authorization: Bearer {TOKEN}", rng.choice(FOREIGN)]
    if rng.random() < 0.05:
        lines += [
            f"X-{number}: {'z' * rng.choice((1, 8000))}" for number in range(rng.choice((10, 200, 2000)))
        ]
    rng.shuffle(lines)
    return lines


def request(rng: random.Random) -> bytes:
    version = rng.choices(["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/1.1x", ""], [80, 10, 3, 3, 3])[0]
    first = f"{rng.choice(METHODS)} {rng.choice(PATHS)} {version}"
    body = rng.choice(BODIES)
    lines = header_lines(rng)
    if rng.random() < 0.5:
        lines.append(f"Content-Length: {len(body)}")
    end = rng.choices(["\r\n", "\n", "\r", "\0"], [90, 5, 3, 2])[0]
    return (end.join([first, *lines]) + end * 2).encode("utf-8", "surrogateescape") + body


def garbled(rng: random.Random, data: bytes) -> bytes:
    """Returns the request with some bytes added, removed or changed.

    The token is left out, so that no change can make it right.
    """
    changed = bytearray(data)
    for _ in range(rng.choice((0, 0, 0, 1, 1, 3))):
        at = rng.randrange(len(changed) + 1)
        if any(
            at - len(TOKEN) - 40 < found.start() < at + 40
            for found in re.finditer(b"Bearer|Origin|Sec-", data)
        ):
            continue
        end = at + rng.choice((0, 1, 1, 5))
        changed[at:end] = rng.randbytes(rng.choice((0, 1, 1, 4)))
    if rng.random() < 0.25:
        del changed[rng.randrange(len(changed) + 1) :]
    return bytes(changed)


def conversation(rng: random.Random) -> bytes:
    if rng.random() < 0.1:
        return rng.randbytes(rng.choice((1, 20, 9000)))
    return b"".join(garbled(rng, request(rng)) for _ in range(rng.choice((1, 1, 2, 40))))


async def play(rng: random.Random, port: int) -> bytes:
    """Sends on one connection, in pieces or at once. Returns all bytes until the listener ends it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = conversation(rng)
    received = b""
    try:
        for _ in range(rng.choice((1, 1, 4))):
            size = rng.randrange(1, len(data) + 1) if data else 0
            writer.write(data[:size])
            data = data[size:]
            await asyncio.sleep(0)
        writer.write(data)
        if rng.random() < 0.1:
            writer.transport.abort()
            return b""
        if rng.random() < 0.2:
            writer.write_eof()
        while more := await asyncio.wait_for(reader.read(1 << 16), PATIENCE_SECONDS):
            received += more
    except TimeoutError:
        raise
    except OSError:
        pass  # closed meanwhile, by the listener or by both sides
    finally:
        writer.close()
    return received


async def answer(port: int, data: bytes) -> bytes:
    """Returns the answer to a request.

    Sends the request again if the listener's short limits ended the connection before reading it, because the
    machine may be busy.
    """
    received = b""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not received:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            with contextlib.suppress(ConnectionError):
                received = await reader.read(1 << 16)
            writer.close()
    return received


def test_no_request_harms_the_admin_listener(
    search: Search,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(admin, "FAILURE_SECONDS", 0.01)
    monkeypatch.setattr(notices, "_kinds", {})

    async def attempts() -> None:
        control = Control()
        bounds = Bounds(LIMIT, Times(header=0.05, body=0.05, answer=0.05))
        server = await start_admin(
            control, Access([], tokens(TOKEN.encode())), Address("127.0.0.1:0"), bounds
        )
        port = int(server.url.rpartition(":")[2])
        for rng in search:
            flood = [play(rng, port) for _ in range(rng.choice((1, 3, 30)))]
            for received in await asyncio.gather(*flood):
                statuses = {int(one) for one in ANSWER.findall(received)}
                assert not any(status >= 500 for status in statuses), received
            assert {what for what, *_ in control.asked} <= READS
            assert (await answer(port, b"GET /healthz HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.0 200")
        right = f"DELETE /-/observe HTTP/1.0\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        assert (await answer(port, right.encode())).startswith(b"HTTP/1.0 200")
        assert [one for one in control.asked if one[0] not in READS] == [("end",)]
        await server.close()
        await asyncio.sleep(0.05)  # for this end of the connections

    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(attempts())
    assert len(os.listdir("/proc/self/fd")) == before
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == []
    message = {line.partition(" ")[2].partition("Z ")[2] for line in capsys.readouterr().err.splitlines()}
    expected = {
        f"admin: more than {LIMIT} connections; the oldest are closed",
        "a wrong admin token came from 127.0.0.1",
    }
    assert {re.sub(r" \(and \d+ more .*", "", line) for line in message} <= expected
