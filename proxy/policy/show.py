"""Bytes as people may see them.

Rule: what comes out is one line of printable text, whatever went in, so that it can stand in a reply or a
log.
"""

from __future__ import annotations


def printable(data: bytes, limit: int = 128) -> str:
    """UTF-8 text with everything unprintable as \\xHH, cut at `limit` bytes of `data` with an ellipsis."""
    cut = data[:limit]
    text = cut.decode("utf-8", "backslashreplace")
    shown = "".join(char if char.isprintable() and char != "\\" else _escape(char) for char in text)
    return shown + "…" if len(data) > limit else shown


def _escape(char: str) -> str:
    if char == "\\":
        return "\\"
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogatepass"))
