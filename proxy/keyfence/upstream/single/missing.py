"""Replies of a replica that do not show that the key is there, so that its master has the last word.

Rule: while a hash slot moves, its keys leave one after another. At a replica of the former node such a key
just is not there, and nothing refuses the read: only the node itself leads to the next one (ASK). So a reply
that a missing key would have got as well is confirmed by the master. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from .cutting import arguments

MOST_HELD = 1024 * 1024  # bytes of a reply that are held until it is known what it shows
# A reply, or its beginning, without any text, any number above zero, and any truth: what commands with one
# key answer if that is missing. Errors are among them.
_BLANK: Final = re.compile(
    rb"(?:[*~%]-?\d+\r\n|\$-1\r\n|\$0\r\n\r\n|_\r\n|:(?:0|-\d+)\r\n|#f\r\n|,-?0\r\n|\+none\r\n|-[^\r\n]*\r\n)*"
)
_SHOWS: Final = re.compile(rb"\$[1-9]|:[1-9]|#t|,[^-0]|\+[^n]|[=(]")
_NULLS: Final = (b"$-1\r\n", b"_\r\n")
_ARRAY, _INTEGER = b"*:"


def may_be_blank(reply: bytes, request: Callable[[], bytes]) -> bool:
    """Whether the beginning of a reply does not show yet that all keys of the request are there."""
    match = _BLANK.match(reply)
    end = match.end() if match is not None else 0
    return _shows_several(reply, request) or _SHOWS.match(reply, end) is None


def is_blank(reply: bytes, request: Callable[[], bytes]) -> bool:
    """Whether a complete reply does not show that all keys of the request are there."""
    if _BLANK.fullmatch(reply) is not None:
        return True
    if not _shows_several(reply, request):
        return False
    if reply[0] == _INTEGER:
        return reply != b":%d\r\n" % (len(arguments(request())) - 1)
    return any(null in reply for null in _NULLS)


def _shows_several(reply: bytes, request: Callable[[], bytes]) -> bool:
    """Whether the reply is about several keys: that of MGET (an array), or of EXISTS (a number)."""
    if reply[0] not in (_ARRAY, _INTEGER):
        return False
    return arguments(request())[0].upper() == (b"MGET" if reply[0] == _ARRAY else b"EXISTS")
