"""Asking the admin listener of a running keyfence.

Rule: whatever goes wrong is one `AskError` with one line for the user; a fault of the network is never a
traceback.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from .config import without_password

TIMEOUT = 10.0  # seconds
MAX_ANSWER = 64 * 1024 * 1024  # bytes; a report of 10,000 rows is a tenth of it


class AskError(Exception):
    """No answer, or one that says no; the message is one line for the user.

    `details` are further lines: the faults of files that keyfence was to read.
    """

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.details = details


def ask(base: str, path: str, body: dict[str, Any] | None = None, timeout: float = TIMEOUT) -> Any:
    """One request to the admin listener at `base`, a POST where there is a body. `timeout` is in seconds.
    Raises AskError."""
    url = base.rstrip("/") + path
    shown = without_password(url)
    data = None if body is None else json.dumps(body).encode()
    try:
        # Only a URL of the web: urllib would open file:// as readily.
        if not url.startswith(("http://", "https://")):
            raise AskError(f"{shown} is no admin listener; write http://HOST:PORT")
        request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
        # Straight to the address: an HTTP proxy of the environment has no business here.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=timeout) as response:
            return json.loads(response.read(MAX_ANSWER))
    except urllib.error.HTTPError as exc:
        with exc:
            text, details = _error_text(exc)
            raise AskError(f"{shown}: {text}", details) from None
    except (OSError, ValueError, http.client.HTTPException, RecursionError) as exc:
        raise AskError(f"{shown}: no keyfence answers there ({_why(exc)})") from None


def _why(exc: Exception) -> str:
    reason = getattr(exc, "reason", exc)
    if isinstance(exc, json.JSONDecodeError | UnicodeDecodeError):
        return "the answer isn't JSON"
    text = getattr(reason, "strerror", None) or str(reason) or type(exc).__name__
    return " ".join(str(text).split())


def _error_text(error: urllib.error.HTTPError) -> tuple[str, list[str]]:
    """The error in one line, and its details a line each."""
    try:
        answer = json.loads(error.read(MAX_ANSWER))
        return _line(answer["error"]), [_line(one) for one in answer.get("diagnostics", ())]
    except (ValueError, KeyError, TypeError, AttributeError, OSError, http.client.HTTPException):
        return f"HTTP {error.code}", []


def _line(text: object) -> str:
    return " ".join(str(text).split())
