"""Credentials as files and commands write them: a line with the password, or JSON.

Rule: a message says what is wrong with a text and shows nothing of it.
"""

from __future__ import annotations

import datetime
import json
import math
import time
from collections.abc import Mapping
from typing import Any

from .model import Credentials, NoCredentials

MAX_BYTES = 64 * 1024
_KEYS = '{"username": …, "password": …, "expires_at": …} or the password as the only line'


def read_text(data: bytes, username: str, written_at: float) -> Credentials:
    """The credentials that a text holds, which was written at that time; `username` is the one of the
    setting. The message of NoCredentials continues after the name of what has written the text."""
    if len(data) > MAX_BYTES:
        raise NoCredentials(f"gives more than {MAX_BYTES} bytes; have it give {_KEYS}")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise NoCredentials(f"gives no UTF-8 text; have it give {_KEYS}") from None
    fields = _object(text)
    if fields is not None:
        return _of_fields(fields, username, written_at)
    line = text.removesuffix("\n").removesuffix("\r")
    if not line:
        raise NoCredentials(f"gives nothing; have it give {_KEYS}")
    if "\n" in line:
        raise NoCredentials(f"gives several lines; have it give {_KEYS}")
    return Credentials(username, line)


def _object(text: str) -> Mapping[str, Any] | None:
    """The JSON object that a text is; None: it is none, and may be a password."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _of_fields(fields: Mapping[str, Any], username: str, written_at: float) -> Credentials:
    password, user = fields.get("password"), fields.get("username", username)
    if not isinstance(password, str) or not password or not isinstance(user, str):
        raise NoCredentials(f"gives JSON without a password, or with a username that is not text: {_KEYS}")
    expires_at = _expiry(fields, written_at)
    if expires_at is not None and expires_at <= time.time():
        raise NoCredentials("gives credentials that have expired; is the clock right?")
    return Credentials(user, password, expires_at)


def _expiry(fields: Mapping[str, Any], written_at: float) -> float | None:
    if (seconds := fields.get("expires_in")) is not None:
        return written_at + _number(seconds, "expires_in")
    at = fields.get("expires_at")
    if at is None:
        return None
    if isinstance(at, str):
        try:
            return datetime.datetime.fromisoformat(at).timestamp()
        except ValueError:
            pass
    return _number(at, "expires_at")


def _number(value: object, name: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number:
        how = (
            "seconds from then"
            if name == "expires_in"
            else "Unix seconds, or a time such as 2026-01-31T12:00:00Z"
        )
        raise NoCredentials(f"gives {name} in another form than {how}")
    return float(value)  # type: ignore[arg-type]
