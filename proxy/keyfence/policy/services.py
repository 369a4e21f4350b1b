"""The one service that every policy has without declaring it.

Rule: `unknown` is always the last of a policy's services.
"""

from __future__ import annotations

UNKNOWN = "unknown"  # the service of a client that nothing identifies
