"""A client of the admin listener, for the command line.

Rule: every failure is an `AskError` with one line for the user. A fault of the network never shows a
traceback.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from keyfence.upstream.address import without_password

from .token import TOKEN_VARIABLE, TokenError, read_token

TIMEOUT = 10.0  # seconds
RELOAD_TIMEOUT = 600.0  # seconds; compiling a large policy on a busy machine takes minutes
MAX_ANSWER = 64 * 1024 * 1024  # bytes; a report of 10,000 rows is a tenth of it


class AskError(Exception):
    """No answer, or an error as the answer; the message is one line for the user.

    `details` are further lines: the faults of the files that keyfence reads.
    """

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.details = details


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """keyfence sends no redirects, and urllib would send the token to their target."""

    def redirect_request(self, *_: Any) -> None:
        return None


def ask(
    base: str,
    path: str,
    body: dict[str, Any] | None = None,
    timeout: float = TIMEOUT,
    token_file: str = "",
    method: str = "",
) -> Any:
    """Send one request to the admin listener at `base`. Without a `method` it is a POST if there is a body,
    else a GET. `timeout` is in seconds. All requests but GET carry the token of `token_file`. Raises
    AskError."""
    method = method or ("GET" if body is None else "POST")
    url = base.rstrip("/") + path
    shown = without_password(url)
    data = None if body is None else json.dumps(body).encode()
    try:
        # Only HTTP: urllib would open file:// too.
        if not url.startswith(("http://", "https://")):
            raise AskError(f"{shown} is not an admin listener; write http://HOST:PORT")
        headers = {"Content-Type": "application/json"}
        if method != "GET" and token_file:
            headers["Authorization"] = f"Bearer {read_token(token_file).decode('ascii')}"
        request = urllib.request.Request(url, data=data, headers=headers, method=method)
        # Connect directly, without an HTTP proxy that the environment names.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())
        with opener.open(request, timeout=timeout) as response:
            return json.loads(response.read(MAX_ANSWER))
    except TokenError as exc:
        raise AskError(f"the token file {token_file} {exc}") from None
    except urllib.error.HTTPError as exc:
        with exc:
            text, details = _error_text(exc)
            if exc.code == 401:
                text = f"{text} {_other_token(token_file)}"
            raise AskError(f"{shown}: {text}", details) from None
    except (OSError, ValueError, http.client.HTTPException, RecursionError) as exc:
        raise AskError(f"{shown}: no keyfence answers there ({_why(exc)})") from None


def _other_token(token_file: str) -> str:
    if token_file:
        return f"{token_file} holds a different one."
    return f"Name its file with --token-file or {TOKEN_VARIABLE}."


def _why(exc: Exception) -> str:
    reason = getattr(exc, "reason", exc)
    if isinstance(exc, json.JSONDecodeError | UnicodeDecodeError):
        return "the answer is not JSON"
    text = getattr(reason, "strerror", None) or str(reason) or type(exc).__name__
    return " ".join(str(text).split())


def _error_text(error: urllib.error.HTTPError) -> tuple[str, list[str]]:
    """The error and each of its details, one line each."""
    try:
        answer = json.loads(error.read(MAX_ANSWER))
        return _line(answer["error"]), [_line(one) for one in answer.get("diagnostics", ())]
    except (ValueError, KeyError, TypeError, AttributeError, OSError, http.client.HTTPException):
        return f"HTTP {error.code}", []


def _line(text: object) -> str:
    return " ".join(str(text).split())
