"""One command that several nodes of a cluster answer.

Rule: a node's reply is taken as a whole. Replies come in any order; `cluster.joining` makes one of them. No
I/O.
"""

from __future__ import annotations

from collections.abc import Mapping

from keyfence.resp.replies import ReplyFramer
from keyfence.upstream.cluster.joining import Joined

_PUSH = ord(">")


class _Reply:
    """Where the reply of one node is."""

    def __init__(self, node_id: str, skipped: int) -> None:
        self.id = node_id
        self.skipped = skipped  # replies that come before
        self.framer = ReplyFramer()
        self.is_complete = False


class Spread:
    """The replies of the nodes that were asked."""

    def __init__(self, joined: Joined, nodes: Mapping[int, str], skipped: int) -> None:
        """`nodes`: the ids of the nodes by their numbers. `skipped`: the number of replies that come before
        from each."""
        self._joined = joined
        self._replies = {number: _Reply(node_id, skipped) for number, node_id in nodes.items()}

    def awaits(self, number: int) -> bool:
        """Whether the reply of this node is due."""
        reply = self._replies.get(number)
        return reply is not None and not reply.is_complete

    def came(self, number: int, data: bytes) -> bytes:
        """A node has sent this. Returns what does not belong to its reply. Raises ReplyError."""
        reply, at = self._replies[number], 0
        framer, others = reply.framer, b""
        while at < len(data) and not reply.is_complete:
            begin, at = at, framer.advance(data, at, 1, True)
            framer.take_errors()
            if framer.kind == _PUSH:
                others += data[begin:at]
            elif reply.skipped:
                reply.skipped -= framer.completed
            else:
                reply.is_complete = bool(framer.completed)
                self._joined.came(reply.id, data[begin:at], reply.is_complete)
        return others + data[at:]

    def lost(self, number: int) -> None:
        """This node cannot be reached."""
        reply = self._replies[number]
        reply.is_complete = True
        self._joined.unreachable(reply.id)

    @property
    def is_complete(self) -> bool:
        return self._joined.is_complete

    def reply(self) -> bytes:
        """What the client gets; all nodes have answered."""
        return self._joined.reply()
