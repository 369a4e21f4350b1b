"""Sends a message to a webhook.

Rule: one request with a limit of time, no redirect is followed, and nothing of the answer is read but its
status. The URL is a secret, so no message shows it: only its host.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from keyfence.net.trust import client_context

TIMEOUT = 10.0  # seconds of one request
# UnicodeError: the host is no name that can be asked for.
FAILURES = (aiohttp.ClientError, TimeoutError, OSError, UnicodeError)


class Refused(Exception):
    """The webhook answered with an error; the text may be shown."""


def host_of(url: str) -> str:
    """What may be shown of a webhook's URL."""
    return urlsplit(url).hostname or ""


def why_not(exc: Exception) -> str:
    """Why a message was not taken, without the URL, which aiohttp's texts hold."""
    return str(exc) if isinstance(exc, Refused) else type(exc).__name__


async def post(session: aiohttp.ClientSession, url: str, body: dict[str, Any], timeout: float) -> None:
    """POST a body as JSON. Raises Refused, or one of FAILURES."""
    limit = aiohttp.ClientTimeout(total=timeout)
    headers = {"Content-Type": "application/json"}
    trust = await asyncio.to_thread(client_context) if urlsplit(url).scheme == "https" else True
    async with session.post(
        url, data=json.dumps(body), headers=headers, timeout=limit, allow_redirects=False, ssl=trust
    ) as answer:
        if answer.status >= 300:
            raise Refused(f"HTTP status {answer.status}")
