"""Encodes plain values as replies of RESP2 or RESP3, bounded in size.

Rule: an answer has at most MAX_ROWS rows in a list, and about MAX_BYTES in all. What does not fit is left out
whole, and the answer says how many rows that were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

MAX_ROWS = 200
MAX_BYTES = 64 * 1024
MAX_TEXT = 1024  # characters of one text
LEFT_OUT = "left_out"  # the field of an answer that counts the rows that were left out


def answer(fields: Mapping[str, object], resp: int) -> bytes:
    """Returns an answer as a map, which RESP2 has as a flat array.

    A field that is a sequence is a list of rows. If there is one, LEFT_OUT is added at the end: the rows left
    out here, and those that `fields` has under that name already.
    """
    parts: dict[str, bytes] = {}
    lists = {name: rows for name, rows in fields.items() if _is_list(rows)}
    for name, one in fields.items():
        if name != LEFT_OUT and name not in lists:
            parts[name] = value(one, resp)
    room = MAX_BYTES - sum(len(part) + len(name) + 16 for name, part in parts.items())
    left_out = int(str(fields.get(LEFT_OUT, 0)))
    for name, rows in lists.items():
        assert isinstance(rows, Sequence)
        kept: list[bytes] = []
        for row in rows[:MAX_ROWS]:
            encoded = value(row, resp)
            if len(encoded) > room:
                break
            room -= len(encoded)
            kept.append(encoded)
        left_out += len(rows) - len(kept)
        parts[name] = b"*%d\r\n%b" % (len(kept), b"".join(kept))
    ordered = {name: parts[name] for name in fields if name in parts}
    if lists:
        ordered[LEFT_OUT] = value(left_out, resp)
    return _map(ordered, resp)


def value(one: object, resp: int) -> bytes:
    """Returns a value: a text, a number, a truth value, None, or a sequence or a map of values. RESP2 has
    numbers 1 and 0 for truth values, and texts for fractions."""
    if one is None:
        return b"_\r\n" if resp > 2 else b"$-1\r\n"
    if isinstance(one, bool):
        return (b"#t\r\n" if one else b"#f\r\n") if resp > 2 else b":%d\r\n" % one
    if isinstance(one, int):
        return b":%d\r\n" % one
    if isinstance(one, float):
        return b",%b\r\n" % repr(one).encode() if resp > 2 else _text(repr(one))
    if isinstance(one, Mapping):
        return _map({str(name): value(field, resp) for name, field in one.items()}, resp)
    if _is_list(one):
        assert isinstance(one, Sequence)
        return b"*%d\r\n%b" % (len(one), b"".join(value(row, resp) for row in one))
    return _text(str(one))


def lines(texts: Sequence[str]) -> bytes:
    """Returns lines of help, as Redis sends them: an array of simple strings."""
    return b"*%d\r\n%b" % (len(texts), b"".join(b"+%b\r\n" % text.encode() for text in texts))


def _is_list(one: object) -> bool:
    return isinstance(one, Sequence) and not isinstance(one, str | bytes)


def _map(parts: Mapping[str, bytes], resp: int) -> bytes:
    head = b"%%%d\r\n" % len(parts) if resp > 2 else b"*%d\r\n" % (2 * len(parts))
    return head + b"".join(_each(parts))


def _each(parts: Mapping[str, bytes]) -> Iterator[bytes]:
    for name, part in parts.items():
        yield _text(name)
        yield part


def _text(text: str) -> bytes:
    if len(text) > MAX_TEXT:
        text = text[: MAX_TEXT - 1] + "…"
    data = text.encode("utf-8", "surrogateescape")
    return b"$%d\r\n%b\r\n" % (len(data), data)
