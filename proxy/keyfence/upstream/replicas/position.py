"""How far a node is with its history, as its reply to INFO replication says.

Rule: two nodes are compared by their history and their offset, never by addresses. What a node does not say
is not guessed. No I/O.
"""

from __future__ import annotations

from typing import NamedTuple

from keyfence.resp.role import MASTER

LONGEST_REPLY = 64 * 1024  # bytes


class Position(NamedTuple):
    """What one node has said."""

    role: str  # master or slave
    history: str  # the id of the history that it has: a replica has its primary's
    offset: int  # how much of it has run there, in bytes
    trouble: str  # why nothing can be read there as from a replica; "": it can

    @property
    def is_primary(self) -> bool:
        return self.role == MASTER

    def includes(self, other: Position) -> bool:
        """Whether everything that had run at the other node has run at this one."""
        return bool(self.history) and self.history == other.history and self.offset >= other.offset


def position_in(reply: bytes) -> Position:
    """The position in a reply to INFO replication. Raises ValueError with the reason if there is none."""
    if reply.startswith(b"-"):
        raise ValueError(f"it answered {reply[1:80].decode('utf-8', 'replace').strip()}")
    lines = reply.decode("ascii", "replace").split("\r\n")
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    role, history = fields.get("role", ""), fields.get("master_replid", "")
    offset = fields.get("master_repl_offset" if role == MASTER else "slave_repl_offset", "")
    if not role or not history or not offset.isdigit():
        raise ValueError("it does not say how far its replication is")
    return Position(role, history, int(offset), _trouble(role, fields.get("master_link_status", "")))


def _trouble(role: str, link: str) -> str:
    if role == MASTER:
        return "it is a primary"
    return "" if link == "up" else "its link to the primary is down"
