"""What operators are told while keyfence runs: a line on standard error, with its time.

Rule: one line a minute of a kind, whatever happens how often; the next one says how many were left out.
"""

from __future__ import annotations

import sys
import time

INTERVAL_SECONDS = 60.0
MAX_KINDS = 1000  # kinds come from code and configuration; this only guards against slips

_kinds: dict[str, tuple[float, int]] = {}  # when it was told last, and how many have been left out since


def notice(kind: str, text: str) -> None:
    """Tell it, unless something of this kind was told within the last minute."""
    now = time.monotonic()
    last, left_out = _kinds.get(kind, (-INTERVAL_SECONDS, 0))
    if now - last < INTERVAL_SECONDS:
        _kinds[kind] = last, left_out + 1
        return
    if kind in _kinds or len(_kinds) < MAX_KINDS:
        _kinds[kind] = now, 0
    more = f" (and {left_out} more since the last line about this)" if left_out else ""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    sys.stderr.write(f"keyfence: {stamp} {text}{more}\n")
    sys.stderr.flush()
