"""Encodes the errors and requests that keyfence sends itself.

Rule: no text from a client or a server can end a line early or start another reply.
"""

from __future__ import annotations

import re

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def error(text: str) -> bytes:
    """Return `text`, which begins with its error code (`NOPERM …`), as one RESP2 and RESP3 error reply.

    Control characters become `\\xHH`. Everything else is encoded in UTF-8.
    """
    line = _UNSAFE.sub(_escape_character, text)
    return b"-" + line.encode("utf-8", "backslashreplace") + b"\r\n"


def command(*args: bytes | str | int) -> bytes:
    """Return a request as an array of bulk strings, with text in UTF-8 and numbers in decimal."""
    parts = [b"*%d\r\n" % len(args)]
    for arg in args:
        if isinstance(arg, int):
            arg = b"%d" % arg
        elif isinstance(arg, str):
            arg = arg.encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(arg), arg))
    return b"".join(parts)


def _escape_character(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
