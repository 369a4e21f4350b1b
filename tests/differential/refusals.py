"""What a client should get whose commands are refused in part, worked out from Redis itself.

In place of a command that is to be refused, Redis directly gets one of wrong arity. It is answered by an
error at once wherever it stands, runs nothing, and makes a transaction fail: as a refusal should. So where
keyfence refuses, Redis must have answered a stand-in, and the other way round.
"""

from __future__ import annotations

import re

from keyfence.resp.replies import ReplyFramer

# No generated command is this one, so that its error tells a refusal's place.
STAND_IN = ("GETDEL",)
_STAND_IN_ERROR = b"-ERR wrong number of arguments for 'getdel' command\r\n"

REFUSED = b"<refused>\r\n"
_REFUSAL = re.compile(rb"-NOPERM \[scope\.(?:read|write)\] app may not [^\r\n]*\(d-[0-9a-f]{8}\)\r\n")


def with_refusals_marked(data: bytes) -> bytes:
    """Replies with a mark wherever a stand-in was answered or keyfence has refused."""
    framer = ReplyFramer()
    marked = bytearray()
    at = 0
    while at < len(data):
        end = framer.advance(data, at, 1, stop_after_push=True)
        frame = data[at:end]
        is_refusal = frame == _STAND_IN_ERROR or _REFUSAL.fullmatch(frame)
        marked += REFUSED if is_refusal else frame
        at = end
    return bytes(marked)
