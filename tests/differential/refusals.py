"""The replies that a client should get if some of its commands are refused, derived from Redis itself.

For each command that keyfence should refuse, Redis directly gets a stand-in of wrong arity. Redis answers it
at once with an error in any state, runs nothing, and marks the transaction as failed: as a refusal should. So
keyfence must refuse exactly where Redis has answered a stand-in.
"""

from __future__ import annotations

import re

from keyfence.resp.replies import ReplyFramer

# No generated command is equal to this one, so its error marks the place of a refusal.
STAND_IN = ("GETDEL",)
_STAND_IN_ERROR = b"-ERR wrong number of arguments for 'getdel' command\r\n"

REFUSED = b"<refused>\r\n"
_REFUSAL = re.compile(rb"-NOPERM \[scope\.(?:read|write)\] app may not [^\r\n]*\(d-[0-9a-f]{8}\)\r\n")


def with_refusals_marked(data: bytes) -> bytes:
    """Returns the replies with a mark for each stand-in's error and each refusal."""
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
