"""Hides the addresses that redirects (MOVED, ASK) name.

Rule: only the text of such an error changes, at any depth and in any pieces. Where frames begin and end stays
as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from keyfence.resp.replies import REDIRECTS, ErrorPart


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
