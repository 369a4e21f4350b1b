"""What Sentinels answer, and which of their answers counts.

Rule: an answer counts by its configuration epoch, which grows with each failover. An older answer never
undoes a newer one, unless most Sentinels give it long after: then their configuration was made anew. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from keyfence.net.host_port import host_port

SWITCHED = "+switch-master"  # the channel on which a Sentinel reports a failover
_UNSOUND = {"s_down", "o_down", "disconnected"}  # flags of a replica that nothing should be read from


class Named(NamedTuple):
    """The primary that a Sentinel names."""

    host: str
    port: int
    epoch: int  # the number of the failover that made it the primary

    @property
    def shown(self) -> str:
        return host_port(self.host, self.port)

    def is_at(self, other: Named) -> bool:
        return (self.host, self.port) == (other.host, other.port)


class NotNamed(Exception):
    """A Sentinel named no primary. `str` says why, for people."""


def named_in(reply: object) -> Named:
    """The primary in the reply to SENTINEL MASTER: names and values in turn, or a map (RESP3). Raises
    NotNamed."""
    fields = _fields(reply)
    host, port, epoch = fields.get("ip", ""), fields.get("port", ""), fields.get("config-epoch", "")
    if not host or not _is_number(port) or not _is_number(epoch) or not 0 < int(port) < 65536:
        raise NotNamed("it gave no answer that names a primary")
    return Named(host, int(port), int(epoch))


def replicas_in(reply: object) -> list[tuple[str, int]]:
    """The replicas in the reply to SENTINEL REPLICAS that it takes for sound, each with its port."""
    found = []
    for one in reply if isinstance(reply, list) else []:
        fields = _fields(one)
        host, port = fields.get("ip", ""), fields.get("port", "")
        is_sound = not _UNSOUND.intersection(fields.get("flags", "").split(","))
        if is_sound and fields.get("master-link-status") == "ok" and host and _is_number(port):
            found.append((host, int(port)))
    return found


def why_not(error: str, name: str) -> str:
    """Why a Sentinel that answered with this error names no primary."""
    if "No such master" in error:
        return f"it knows no primary called {name!r}"
    if "unknown command" in error.lower():
        return "it is no Sentinel"
    return f"it answered {error}"


def chosen(
    named: Sequence[Named], followed: Named | None, sentinels: int, *, is_settled: bool = True
) -> Named | None:
    """The primary to follow, of the answers that came from this number of `sentinels`; None: there is no
    answer. Unless `is_settled`, most Sentinels may not know of the last failover yet."""
    if not named:
        return followed
    best = max(named, key=lambda one: (one.epoch, sum(other.is_at(one) for other in named)))
    is_older = followed is not None and best.epoch < followed.epoch
    may_undo = is_settled and 2 * len(named) > sentinels
    return followed if is_older and not may_undo else best


def is_about(reply: object, name: str) -> bool:
    """Whether this is a message about a failover of the primary of this name, which is its first word."""
    if not isinstance(reply, list) or [_text(one) for one in reply[:2]] != ["message", SWITCHED]:
        return False
    return len(reply) > 2 and _text(reply[2]).split(" ", 1)[0] == name


def _fields(reply: object) -> dict[str, str]:
    """Names and values in turn, or a map (RESP3)."""
    if isinstance(reply, list):
        reply = dict(zip(reply[::2], reply[1::2], strict=False))
    return {_text(name): _text(value) for name, value in reply.items()} if isinstance(reply, dict) else {}


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20
