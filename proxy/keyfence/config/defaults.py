"""The addresses that keyfence uses if the configuration names none.

Rule: commands that only ask a running keyfence need these, and no model.
"""

from __future__ import annotations

DEFAULT_LISTEN = "127.0.0.1:6380"
DEFAULT_ADMIN = "127.0.0.1:9464"
