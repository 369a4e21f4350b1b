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

from keyfence.net.addresses import Address
from keyfence.upstream.url import without_password

from .token import TokenError, read_token

TIMEOUT = 10.0  # seconds
TOKEN_VARIABLE = "KEYFENCE_ADMIN_TOKEN_FILE"
MAX_ANSWER = 64 * 1024 * 1024  # bytes; a report of 10,000 rows is a tenth of it


class AskError(Exception):
    """No answer, or one that says no; the message is one line for the user.

    `details` are further lines: the faults of files that keyfence was to read.
    """

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.details = details


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """keyfence sends none, and urllib would take the token along to wherever one leads."""

    def redirect_request(self, *_: Any) -> None:
        return None


def url_of(address: Address) -> str:
    """How this machine reaches an admin listener, also one on all of the machine's addresses."""
    host, port = address.host_port
    own = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{own}]:{port}" if ":" in own else f"http://{own}:{port}"


def ask(
    base: str,
    path: str,
    body: dict[str, Any] | None = None,
    timeout: float = TIMEOUT,
    token_file: str = "",
    method: str = "",
) -> Any:
    """One request to the admin listener at `base`. Without a `method` it is a POST where there is a body,
    else a GET. `timeout` is in seconds. The token of `token_file` goes along with all but a GET. Raises
    AskError."""
    method = method or ("GET" if body is None else "POST")
    url = base.rstrip("/") + path
    shown = without_password(url)
    data = None if body is None else json.dumps(body).encode()
    try:
        # Only a URL of the web: urllib would open file:// as readily.
        if not url.startswith(("http://", "https://")):
            raise AskError(f"{shown} is no admin listener; write http://HOST:PORT")
        headers = {"Content-Type": "application/json"}
        if method != "GET" and token_file:
            headers["Authorization"] = f"Bearer {read_token(token_file).decode('ascii')}"
        request = urllib.request.Request(url, data=data, headers=headers, method=method)
        # Straight to the address: an HTTP proxy of the environment has no business here.
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
        return f"{token_file} holds another."
    return f"Name its file with --token-file or {TOKEN_VARIABLE}."


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
