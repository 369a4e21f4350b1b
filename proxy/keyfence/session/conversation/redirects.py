"""Hides or exchanges the addresses that redirects (MOVED, ASK) name.

Rule: only the text of such an error changes, at any depth and in any pieces. Where frames begin and end stays
as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from keyfence.resp.replies import REDIRECTS, TO_NODES, ErrorPart

MAX_KEPT = 1024  # bytes of a redirect, whose address comes first


def without_redirects(data: bytes, errors: Sequence[ErrorPart], at: int, refusal: bytes) -> bytes:
    """Returns `data`, which began at `at` of the bytes in which `errors` were found, with the text of
    `refusal` (an error reply) in place of each redirect's. Bytes of a redirect that the client has received
    before stay: at most its first word, which the colon then makes another word."""
    text = refusal[1:-2]
    pieces: list[bytes] = []
    begin = 0
    for error in errors:
        if error.word not in REDIRECTS:
            continue
        pieces.append(data[begin : error.begin - at])
        if not error.is_rest:
            pieces.append(b": " + text if error.sent else text)
        begin = error.end - at
    return b"".join([*pieces, data[begin:]])


class Exchange:
    """Exchanges the address in each redirect. A part of a redirect is kept until its end has come."""

    def __init__(self, exchanged: Callable[[bytes], bytes]) -> None:
        """`exchanged` gets the text of a redirect, and returns another one."""
        self._exchanged = exchanged
        self._kept = b""  # the beginning of a redirect …
        self._sent = 0  # … and how much of it the client has received

    def take(self, data: bytes, errors: Sequence[ErrorPart], at: int) -> bytes:
        """Returns what the client gets in place of `data`, which began at `at` of the bytes in which `errors`
        were found."""
        pieces: list[bytes] = []
        begin = 0
        for error in errors:
            if error.word not in TO_NODES:
                continue
            pieces.append(data[begin : error.begin - at])
            begin = error.end - at
            if not error.is_rest:
                self._kept, self._sent = error.word.encode()[: error.sent], error.sent
            self._kept += data[error.begin - at : begin]
            is_whole = begin < len(data)  # the end of the line follows
            if self._kept and (is_whole or len(self._kept) > MAX_KEPT):
                pieces.append(self._rest_of(self._exchanged(self._kept)))
                self._kept, self._sent = b"", 0
        return b"".join([*pieces, data[begin:]])

    def _rest_of(self, text: bytes) -> bytes:
        """What follows in this text on what the client has received. Another error follows as a whole."""
        sent = self._kept[: self._sent]
        return text[self._sent :] if text.startswith(sent) else b": " + text
