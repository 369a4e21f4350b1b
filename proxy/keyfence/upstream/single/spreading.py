"""One command that several nodes of a cluster answer.

Rule: a node's reply is taken as a whole. Replies come in any order; `cluster.joining` makes one of them. No
I/O.
"""

from __future__ import annotations

from collections.abc import Mapping

from keyfence.resp.replies import ReplyFramer
from keyfence.upstream.cluster.joining import Joined

_PUSH = ord(">")


class _Part:
    """What has come from one node."""

    def __init__(self, node_id: str, skipped: int) -> None:
        self.id = node_id
        self.skipped = skipped  # replies that come before
        self.framer = ReplyFramer()
        self.data = bytearray()
        self.is_complete = False
        self.is_too_long = False


class Spread:
    """The replies of the nodes that were asked."""

    def __init__(self, joined: Joined, nodes: Mapping[int, str], skipped: int) -> None:
        """`nodes`: the ids of the nodes by their numbers. `skipped`: the number of replies that come before
        from each."""
        self._joined = joined
        self._parts = {number: _Part(node_id, skipped) for number, node_id in nodes.items()}

    def awaits(self, number: int) -> bool:
        """Whether the reply of this node is due."""
        part = self._parts.get(number)
        return part is not None and not part.is_complete

    def came(self, number: int, data: bytes) -> bytes:
        """A node has sent this. Returns what does not belong to its reply. Raises ReplyError."""
        part, joined, at = self._parts[number], self._joined, 0
        others = b""
        while at < len(data) and not part.is_complete:
            begin, at = at, part.framer.advance(data, at, 1, True)
            part.framer.take_errors()
            if part.framer.kind == _PUSH:
                others += data[begin:at]
                continue
            if not part.is_too_long:
                part.data += data[begin:at]
            if len(part.data) > max(joined.room, 0) and not part.skipped and not part.is_too_long:
                part.is_too_long = True
                part.data.clear()
                joined.too_long(part.id)
            if part.framer.completed and part.skipped:
                part.skipped -= 1
                part.data.clear()
            elif part.framer.completed:
                part.is_complete = True
                if not part.is_too_long:
                    joined.replied(part.id, bytes(part.data))
        return others + data[at:]

    def lost(self, number: int) -> None:
        """This node cannot be reached. That is its reply, and what has come of another one is dropped."""
        part = self._parts[number]
        part.is_complete = True
        if not part.is_too_long:
            self._joined.unreachable(part.id)

    @property
    def is_complete(self) -> bool:
        return all(one.is_complete for one in self._parts.values())

    def reply(self) -> bytes:
        """What the client gets; all nodes have answered."""
        return self._joined.reply()
