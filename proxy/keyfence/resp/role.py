"""The role that Redis names in its reply to HELLO.

Rule: it is found by its bytes, in RESP2 and RESP3 alike. A reply without it names no role.
"""

from __future__ import annotations

import re

MASTER, REPLICA = "master", "replica"

_ROLE = re.compile(rb"\$4\r\nrole\r\n\$[67]\r\n(master|replica)\r\n")


def role_in(reply: bytes | bytearray) -> str:
    """MASTER or REPLICA; "": neither is named."""
    found = _ROLE.search(reply)
    return found[1].decode() if found is not None else ""
