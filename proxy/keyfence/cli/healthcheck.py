"""`keyfence healthcheck`: whether a keyfence lives, for a container's HEALTHCHECK.

Rule: it imports no more than it needs, because a container engine runs it again and again beside a keyfence
that serves.
"""

from __future__ import annotations

from typing import Any

import click

from keyfence.admin.client import AskError, ask

from .terminal.options import admin_option, format_option, print_json
from .terminal.output import fail, say

TIMEOUT = 2.0  # seconds; a container engine gives up after 3


@click.command()
@admin_option
@format_option("text", "json")
def healthcheck(admin: str, form: str) -> None:
    """Ask whether a keyfence lives, as a container's HEALTHCHECK does.

    The metrics address answers it too. Whether clients can be served is what keyfence status tells.

    Exit code 0: it lives; 1: no keyfence answers within 2 s.
    """
    try:
        answer: Any = ask(admin, "/healthz", timeout=TIMEOUT)
    except AskError as exc:
        fail(str(exc), 1)
    if answer != {"status": "alive"}:
        fail(f"{admin}: this answer is not from keyfence", 1)
    if form == "json":
        print_json(answer)
    else:
        say("alive")
