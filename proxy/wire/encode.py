"""Writes the few things that the proxy says itself.

Rule: nothing that a client or a server sent can end a line early or pass for another reply.
"""

from __future__ import annotations

import re

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", '"': '\\"', "'": "\\'"}


def error(text: str) -> bytes:
    """Return `text`, its error code first (`NOPERM …`), as one error reply of RESP2 and RESP3.

    Control characters become `\\xHH`; the rest goes out in UTF-8.
    """
    line = _UNSAFE.sub(_escape_character, text)
    return b"-" + line.encode("utf-8", "backslashreplace") + b"\r\n"


def command(*args: bytes | str | int) -> bytes:
    """Return a request: an array of bulk strings. Text goes out in UTF-8, a number in decimal."""
    parts = [b"*%d\r\n" % len(args)]
    for arg in args:
        if isinstance(arg, int):
            arg = b"%d" % arg
        elif isinstance(arg, str):
            arg = arg.encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(arg), arg))
    return b"".join(parts)


def printable(data: bytes, limit: int = 128) -> str:
    r"""Show `data` in a message or log: at most `limit` bytes of it, and `…` if there are more.

    What is printable in UTF-8 stays; quotes and backslashes are escaped, the rest becomes `\n`, `\r`, `\t` or
    `\xHH`. In double quotes this is how redis-cli takes it, so it can be pasted there.
    """
    shown = data if len(data) <= limit else _cut(data, limit)
    text = "".join(_show_character(char) for char in shown.decode("utf-8", "surrogateescape"))
    return text if len(data) <= limit else text + "…"


def _cut(data: bytes, limit: int) -> bytes:
    """The first `limit` bytes, or up to three fewer where they end within a character."""
    for size in range(limit, max(limit - 4, -1), -1):
        if data[size] & 0xC0 != 0x80:  # no continuation byte: a character begins here
            return data[:size]
    return data[:limit]


def _show_character(char: str) -> str:
    if char in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[char]
    if char.isprintable():
        return char
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))


def _escape_character(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
