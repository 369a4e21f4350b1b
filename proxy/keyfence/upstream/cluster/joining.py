"""The replies of several nodes as one reply. No I/O.

Rule: the bytes of the nodes' replies are kept and put together, not encoded again. So they may be of RESP2 or
RESP3, as long as all are of the same. What cannot be joined is an error, never a part of the truth.

The answer is an error if a node answers with one: the first error in the order of the nodes. SCRIPT KILL and
FUNCTION KILL are answered by a node that has killed something, and otherwise by the error that says most.

Memory is bounded. Replies of more than `limit` bytes in all are dropped as they come, and the answer is an
error that says so.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final

from keyfence.resp import encode
from keyfence.resp.frames import Frame, FrameError, tree
from keyfence.resp.limits import MIB

from .fan_out import Join

MAX_JOINED = 64 * MIB  # bytes of the replies to one command that are held
UNREACHABLE = b"-CLUSTERDOWN a node of the cluster cannot be asked\r\n"

_ERRORS, _NULLS = b"-!", (b"$-1\r\n", b"*-1\r\n", b"_\r\n")
_STATUS, _INTEGER, _BULK, _VERBATIM, _ARRAY, _SET, _MAP = b"+:$=*~%"
_NOTHING_RUNS = b"-NOTBUSY"
_FIXED_LINES = re.compile(rb"^((?:redis|server)_mode):cluster(?=\r?$)|^(cluster_enabled):1(?=\r?$)", re.M)

Parts = Sequence[tuple[bytes, Frame]]  # frames of several replies that stand in the same place


class Joined:
    """The reply to one command of several nodes, or to the parts of one (`splitting`)."""

    def __init__(
        self,
        name: str,
        join: Join | Callable[[Sequence[bytes]], bytes],
        nodes: Sequence[Hashable],
        limit: int = MAX_JOINED,
    ) -> None:
        """`name`: of the command, for errors. `nodes`: whatever names them, in the order of their replies."""
        self.waiting = set(nodes)  # those that have not answered
        self.held = 0  # bytes of replies
        self._name = name
        self._join = functools.partial(joined, join) if isinstance(join, Join) else join
        self._limit = limit
        self._is_too_long = False
        self._pieces: dict[Hashable, list[bytes]] = {node: [] for node in nodes}  # in the order of the nodes

    @property
    def is_complete(self) -> bool:
        return not self.waiting

    def came(self, node: Hashable, piece: bytes, is_end: bool) -> None:
        """A node has sent a piece of its reply, which ends with it if that is said."""
        if is_end:
            self.waiting.remove(node)
        if self._is_too_long:
            return
        self.held += len(piece)
        self._pieces[node].append(piece)
        if self.held > self._limit:
            self._is_too_long, self.held = True, 0
            self._pieces.clear()

    def unreachable(self, node: Hashable) -> None:
        """A node cannot be asked. The error takes the place of its reply; a piece that has come is
        dropped."""
        if not self._is_too_long:
            self.held -= sum(map(len, self._pieces[node]))
            self._pieces[node].clear()
        self.came(node, UNREACHABLE, True)

    def reply(self) -> bytes:
        """The joined reply; all nodes have answered."""
        assert self.is_complete
        if self._is_too_long:
            return encode.error(
                f"ERR the nodes' replies to {self._name} are longer than {self._limit} bytes together, "
                "which is what keyfence joins: ask for less at once"
            )
        replies = [b"".join(one) for one in self._pieces.values()]
        try:
            return self._join(replies)
        except FrameError as exc:
            return encode.error(f"ERR keyfence cannot join the nodes' replies to {self._name}: {exc}")


def joined(join: Join, replies: Sequence[bytes]) -> bytes:
    """Returns complete replies as one. Raises FrameError: they do not fit together."""
    if join is Join.ONE_SUCCEEDS:
        return _one_that_succeeds(replies)
    error = next((reply for reply in replies if reply[0] in _ERRORS), None)
    return error if error is not None else _JOINS[join](replies)


def _first(replies: Sequence[bytes]) -> bytes:
    return replies[0]


def _one_that_succeeds(replies: Sequence[bytes]) -> bytes:
    """That nothing runs is what all nodes say but the one that is meant, if there is one."""
    return min(replies, key=lambda reply: (reply[0] in _ERRORS, reply.startswith(_NOTHING_RUNS)))


def _random(replies: Sequence[bytes]) -> bytes:
    return random.choice([reply for reply in replies if reply not in _NULLS] or replies)


def _running(replies: Sequence[bytes]) -> bytes:
    """FUNCTION STATS: a map with `running_script`, which is null if there is none."""
    for reply in replies:
        items = tree(reply).items
        for name, value in zip(items[::2], items[1::2], strict=False):
            if name.text == b"running_script" and value.items:
                return reply
    return replies[0]


def _place_by_place(combine: Callable[[Iterable[int]], int]) -> Callable[[Sequence[bytes]], bytes]:
    def join(replies: Sequence[bytes]) -> bytes:
        return _merged([(reply, tree(reply)) for reply in replies], combine)

    return join


def _merged(parts: Parts, combine: Callable[[Iterable[int]], int]) -> bytes:
    """Numbers combined; all else as the first reply has it."""
    reply, frame = parts[0]
    if any((one.kind, len(one.items)) != (frame.kind, len(frame.items)) for _, one in parts):
        raise FrameError("they have different forms")
    if frame.kind == _INTEGER:
        return b":%d\r\n" % combine([_number(one) for _, one in parts])
    if not frame.items:
        return reply[frame.begin : frame.end]
    rows = zip(*(one.items for _, one in parts), strict=True)
    merged = (
        _merged([(part[0], one) for part, one in zip(parts, row, strict=True)], combine) for row in rows
    )
    return reply[frame.begin : frame.items[0].begin] + b"".join(merged)


def _number(frame: Frame) -> int:
    try:
        return int(frame.text or b"")
    except ValueError:
        raise FrameError("a number is no number") from None


def _concatenated(replies: Sequence[bytes]) -> bytes:
    """The elements of arrays, which are not looked at. ACL LOG RESET answers with a status."""
    if all(reply[0] == _STATUS for reply in replies):
        return replies[0]
    found = [_elements(reply) for reply in replies]
    kinds = {kind for kind, _, _ in found}
    if len(kinds) > 1:
        raise FrameError("they have different forms")
    count = sum(one for _, one, _ in found)
    bodies = (reply[begin:] for reply, (_, _, begin) in zip(replies, found, strict=True))
    return b"%c%d\r\n%b" % (kinds.pop(), count, b"".join(bodies))


def _distinct(replies: Sequence[bytes]) -> bytes:
    elements: dict[bytes, None] = {}
    for reply in replies:
        _elements(reply)
        elements |= dict.fromkeys(reply[one.begin : one.end] for one in tree(reply).items)
    return b"%c%d\r\n%b" % (replies[0][0], len(elements), b"".join(elements))


def _elements(reply: bytes) -> tuple[int, int, int]:
    """The kind of an array or a set, the number of its elements, and where they begin."""
    if reply[0] not in (_ARRAY, _SET):
        raise FrameError("one is no list")
    try:
        end = reply.index(b"\r\n")
        return reply[0], max(int(reply[1:end]), 0), end + 2
    except ValueError:
        raise FrameError("a number is no number") from None


def _texts(replies: Sequence[bytes]) -> bytes:
    frames = [tree(reply) for reply in replies]
    if any(frame.text is None or frame.kind not in (_BULK, _VERBATIM) for frame in frames):
        raise FrameError("one is no text")
    prefix = b"txt:" if frames[0].kind == _VERBATIM else b""
    return _text(frames[0].kind, prefix + b"".join((one.text or b"").removeprefix(prefix) for one in frames))


def _text(kind: int, text: bytes) -> bytes:
    return b"%c%d\r\n%b\r\n" % (kind, len(text), text)


_JOINS: Final[Mapping[Join, Callable[[Sequence[bytes]], bytes]]] = {
    Join.FIRST: _first,
    Join.SUM: _place_by_place(sum),
    Join.MINIMUM: _place_by_place(min),
    Join.CONCATENATED: _concatenated,
    Join.DISTINCT: _distinct,
    Join.TEXTS: _texts,
    Join.ALL_SUCCEED: _first,
    Join.RANDOM: _random,
    Join.RUNNING: _running,
}


def without_cluster(name: str, reply: bytes) -> bytes:
    """Returns a node's reply to INFO or HELLO as a Redis without a cluster answers. A reply that cannot be
    read, and that to any other command, stays as it is."""
    if name not in ("INFO", "HELLO") or reply[0] in _ERRORS:
        return reply
    try:
        frame = tree(reply)
    except FrameError:
        return reply
    if name == "INFO":
        if frame.text is None or frame.kind not in (_BULK, _VERBATIM):
            return reply
        return _text(frame.kind, _FIXED_LINES.sub(_standalone, frame.text))
    for field, value in zip(frame.items[::2], frame.items[1::2], strict=False):
        if field.text == b"mode" and value.text == b"cluster":
            return reply[: value.begin] + _text(_BULK, b"standalone") + reply[value.end :]
    return reply


def _standalone(line: re.Match[bytes]) -> bytes:
    return b"%b:standalone" % line[1] if line[1] else b"%b:0" % line[2]
