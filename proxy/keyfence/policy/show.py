"""Bytes as people may see them.

Rule: what comes out is one line of printable text, whatever went in, so that it can stand in a reply or a
log.
"""

from __future__ import annotations

_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", '"': '\\"', "'": "\\'"}


# Printable ASCII but for quotes and the backslash: nearly every key, and nothing to do.
PLAIN = frozenset(range(0x20, 0x7F)) - frozenset(map(ord, _SHORT_ESCAPES))
_plain = bytes(PLAIN)


def printable(data: bytes, limit: int = 128) -> str:
    r"""Show `data` in a message or log: at most `limit` bytes of it, and `…` if there are more.

    What is printable in UTF-8 stays; quotes and backslashes are escaped, the rest becomes `\n`, `\r`, `\t` or
    `\xHH`. In double quotes this is how redis-cli takes it, so it can be pasted there.
    """
    if len(data) <= limit and not data.translate(None, _plain):
        return data.decode("ascii")
    shown = data if len(data) <= limit else _cut(data, limit)
    text = "".join(_show_character(char) for char in shown.decode("utf-8", "surrogateescape"))
    return text if len(data) <= limit else text + "…"


def one_line(text: str) -> str:
    """A text from elsewhere for a table or a comment: one line that moves no cursor."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def printable_code(line: bytes) -> str:
    """The same for a line of a script, with its quotes as they are: it stands nowhere between quotes."""
    return (
        printable(line).replace("\\'", "'").replace('\\"', '"')
    )  # each is escaped by the backslash before it


def shown_name(name: bytes) -> str:
    """The name of a command that isn't in the table, in upper case as servers fold it: ASCII letters only."""
    return printable(name[:64].upper(), 32)


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
