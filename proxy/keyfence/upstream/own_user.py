"""Checks the permissions of keyfence's own Redis user by trying each of its commands once.

Rule: a trial changes nothing and reads no data. Only Redis' NOPERM counts as a missing permission.
"""

from __future__ import annotations

from collections.abc import Sequence

import hiredis

from .address import UpstreamAddress
from .handshake import GreetingError
from .health import Upstream
from .own_commands import OWN_COMMANDS, OwnCommand

MAX_REPLIES = 64 * 1024  # bytes of all replies together


async def missing_permissions(upstream: Upstream) -> list[OwnCommand] | None:
    """The commands that the upstream's user may not run, or None if the check fails now."""
    requests = [one.request(*one.trial) for one in OWN_COMMANDS]
    reader = hiredis.Reader()
    try:
        reader.feed(await upstream.ask(upstream.address.login(), requests, MAX_REPLIES))
        replies = [reader.gets() for _ in requests]
    except (OSError, GreetingError, hiredis.HiredisError, TypeError, ValueError):
        return None
    return [one for one, reply in zip(OWN_COMMANDS, replies, strict=True) if _forbids(reply)]


def what_is_missing(address: UpstreamAddress, missing: Sequence[OwnCommand]) -> str:
    """One sentence for operators: the missing permissions, their effects, and the remedy."""
    user = address.username or "default"
    remedy = f"ACL SETUSER {user}" if address.has_login else "give the upstream's URL a user with"
    effects = "; ".join(f"{one.name.decode()}: {one.without}" for one in missing)
    permissions = " ".join(one.permission for one in missing)
    return (
        f"the upstream's user {user} lacks {permissions} ({effects}): {remedy} {permissions} "
        "(`keyfence acl self` prints all that keyfence needs)"
    )


def _forbids(reply: object) -> bool:
    """Whether a reply says that the command is forbidden. A NOPERM about the trial's key does not count,
    because the user may have access to other keys."""
    text = str(reply)
    return isinstance(reply, hiredis.ReplyError) and text.startswith("NOPERM") and "command" in text
