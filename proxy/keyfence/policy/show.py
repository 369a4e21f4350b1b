"""Bytes shown to people: in replies, logs and tables.

Rule: the result is one line of printable text, whatever the bytes.
"""

from __future__ import annotations

import re
import textwrap

_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", '"': '\\"', "'": "\\'"}

# What a number in a command can mean at most. A client may confuse its place with that of a value, and then a
# greater one (a card's number, say) would be the value. It is not shown.
LONGEST_TIME = 100 * 365 * 86_400_000  # milliseconds: a hundred years
LATEST_TIME = 200 * 365 * 86_400_000  # milliseconds since 1970
MOST_ENTRIES = 2**32  # of a stream
LAST_DATABASE = 99_999


# Printable ASCII without quotes and the backslash. Nearly every key consists of it and needs no escape.
PLAIN = frozenset(range(0x20, 0x7F)) - frozenset(map(ord, _SHORT_ESCAPES))
_plain = bytes(PLAIN)


def printable(data: bytes, limit: int = 128) -> str:
    r"""Returns at most `limit` bytes of `data` as text for a message or log, and `…` if there are more.

    Printable UTF-8 stays. Quotes and backslashes are escaped; other bytes become `\n`, `\r`, `\t` or `\xHH`.
    Between double quotes, redis-cli reads the text back, so people can paste it there.
    """
    if len(data) <= limit and not data.translate(None, _plain):
        return data.decode("ascii")
    shown = data if len(data) <= limit else _cut(data, limit)
    text = "".join(_show_character(char) for char in shown.decode("utf-8", "surrogateescape"))
    return text if len(data) <= limit else text + "…"


def in_lines(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Returns a text in lines, broken between words only. `first` begins line one, `rest` the others."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def one_line(text: str) -> str:
    """Returns a text from outside as one line for a table or a comment, without control characters."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def cell(text: str) -> str:
    """Returns a text from outside as a cell of a CSV file: what a spreadsheet would take for a formula begins
    with an apostrophe."""
    text = one_line(text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def anchor(name: str) -> str:
    """Returns the anchor of a name of the policy in the exported document: `shop/lock` is `shop-lock`."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", name)


def printable_code(line: bytes) -> str:
    """Returns a line of a script as `printable`, but with plain quotes. It is never shown within quotes."""
    return printable(line).replace("\\'", "'").replace('\\"', '"')  # undoes exactly the escapes of quotes


def shown_name(name: bytes) -> str:
    """Returns the name of a command that the table lacks, in upper case.

    As in servers, only ASCII letters fold.
    """
    return printable(name[:64].upper(), 32)


def _cut(data: bytes, limit: int) -> bytes:
    """Returns the first `limit` bytes, or up to three fewer so as not to split a character."""
    for size in range(limit, max(limit - 4, -1), -1):
        if data[size] & 0xC0 != 0x80:  # not a continuation byte: a character begins here
            return data[:size]
    return data[:limit]


def _show_character(char: str) -> str:
    if char in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[char]
    if char.isprintable():
        return char
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))
