"""SCAN over all primaries of a cluster, with one decimal cursor below 2⁶³. No I/O.

Rule: keyfence remembers nothing between two calls. The cursor holds the place, so any keyfence can go on, and
a change of the topology may repeat keys and never leaves one out.

**What is promised.** A key that exists during a whole iteration is returned at least once, while hash slots
move (key by key or at once), shards split and merge, and primaries fail over. While the topology changes,
keys may come more than once. Without changes each node is scanned once. After a change each node may be
scanned eight times, and the iteration ends as soon as the hash slots of an eighth of the cluster have stayed
where they are for as long as scanning their nodes takes.

**What is not.** As with one Redis: a key that exists for a part of the iteration may come or not; keys may be
missed if a server starts again and stays primary, because its hash function is another one then. Besides: a
hash slot that goes to another node and comes back before anybody looks; and a change that the mark of the
cursor does not show, which happens by chance once in 65,535 changes. It is once in 63 if the node's cursor
has more than 30 bits: with a thousand million keys in a table, or from Redis 8 and Valkey 8 on, which have a
table for each hash slot, with more than 65,000 keys in one hash slot.

**How.** The nodes of a window of hash slots are scanned one after the other, in the order of the lowest hash
slot that each has there. At first the window is the whole cluster. The cursor holds four things:

- `slot`: the lowest hash slot, in the window, of the node whose turn it is;
- `is_whole`: whether the window is the whole cluster. Otherwise it is the eighth that has `slot`, and all
  hash slots before it are done;
- `mark`: a hash of all that must not change while the node is scanned: which node it is, since which epoch,
  which hash slots it has in the window, and which ones the nodes before had;
- `at`: the node's own cursor.

If the mark does not fit any more, nothing is known but that all hash slots below `slot` were done. Then the
eighth that has `slot` begins anew.

When a node's own cursor is back at 0, the node is asked for its view of the cluster (CLUSTER NODES), because
keyfence's own may be some seconds old. If the mark still fits, the node's hash slots are done. But for those
that the node is giving away key by key just now: of these some keys are at the node that takes them. A key
only moves in this direction. So the node that takes is scanned too, after the one that gives; the mark says
which one.

A hash slot that moves from a node that is still to come to one that has been scanned changes what the nodes
before had, so the mark does not fit. The hash slot is not below `slot`, so it comes again, at its new owner.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from keyfence.commands.model import Streamed
from keyfence.policy.compiled.hash_slots import SLOTS
from keyfence.resp import encode

from .fan_out import NOT_SERVED
from .topology import Node, Range, Topology, TopologyError, topology_in

INVALID_CURSOR = b"-ERR invalid cursor\r\n"  # as Redis words it
# Of a streamed argument only the beginning is there, so the request cannot be made anew.
_TOO_LONG = encode.error("ERR keyfence cannot go on with SCAN: an argument is too long")
_FIRST: Final = b"0"
# In the lowest bits, the mark and the node's cursor above them: so small tables have small cursors. Some
# clients read numbers of 53 bits only, and others of 63.
_SLOT_BITS, _FLAG_BITS = 14, 3
_LARGE, _WHOLE, _TAKES = 1, 2, 4
_WINDOW = SLOTS // 8
_SMALL_MARK, _LARGE_MARK = 16, 6  # bits
_MOST_SMALL, _MOST_LARGE = 30, 40  # bits of a node's cursor
_CURSOR = re.compile(rb"[0-9]{1,20}")
_PAGE = re.compile(rb"\*2\r\n(?:\$\d+\r\n|[:+])(\d+)\r\n")
_LEAVING = re.compile(r"\[(\d+)->-(\w+)\]")


class Cursor(NamedTuple):
    """A place in the cluster."""

    slot: int = 0
    is_whole: bool = True
    takes: bool = False  # the node is one that takes hash slots from the owner of `slot`
    mark: int = 0
    at: int = 0

    def encoded(self) -> bytes | None:
        """The cursor as a client gets it, never 0; None: the node's cursor is too large."""
        is_large = self.at.bit_length() > _MOST_SMALL
        if self.at.bit_length() > _MOST_LARGE:
            return None
        flags = _LARGE * is_large | _WHOLE * self.is_whole | _TAKES * self.takes
        bits = _LARGE_MARK if is_large else _SMALL_MARK
        number = self.at << bits | _short(self.mark, bits)
        return b"%d" % ((number << _SLOT_BITS | self.slot) << _FLAG_BITS | flags)

    def has_mark(self, mark: int) -> bool:
        """Whether the mark of a cursor that was decoded, which has few bits, is this one."""
        bits = _LARGE_MARK if self.at.bit_length() > _MOST_SMALL else _SMALL_MARK
        return self.mark == _short(mark, bits)


def decoded(text: bytes) -> Cursor | None:
    """The place that a client's cursor holds; None: no server would take it. Any number is a place."""
    if _CURSOR.fullmatch(text) is None or (number := int(text)) >= 2**64:
        return None
    if not number:
        return Cursor()
    flags, number = number & ((1 << _FLAG_BITS) - 1), number >> _FLAG_BITS
    slot, number = number & (SLOTS - 1), number >> _SLOT_BITS
    bits = _LARGE_MARK if flags & _LARGE else _SMALL_MARK
    return Cursor(
        slot, bool(flags & _WHOLE), bool(flags & _TAKES), number & ((1 << bits) - 1), number >> bits
    )


class Segment(NamedTuple):
    """The hash slots that are done when one node has been scanned."""

    slot: int  # the lowest of the node's hash slots in the window
    is_whole: bool
    owner: Node
    ranges: tuple[Range, ...]
    base: bytes  # what must not change

    def mark(self, taker: str = "") -> int:
        return _hashed(self.base, taker.encode())

    def cursor(self, taker: str = "", at: int = 0) -> Cursor:
        return Cursor(self.slot, self.is_whole, bool(taker), self.mark(taker), at)

    def following(self, topology: Topology) -> Segment | None:
        """What is done next; None: nothing is left."""
        window = _window(self.slot, is_whole=self.is_whole)
        here = (one for slot, one in _segments(topology, window).items() if slot > self.slot)
        if (found := next(here, None)) is not None:
            return found
        return _begin(window.stop, topology) if window.stop < SLOTS else None


class Step:
    """One SCAN of a client.

    If there is an `answer`, it is the client's reply. Otherwise the caller sends `request` to the node with
    the id `node`, and gives its reply to `answered`. If that returns None, the caller asks the node `owner`
    for CLUSTER NODES and gives the reply's text to `confirmed`. If a node cannot be asked, the client gets an
    error, and may send the same SCAN again.
    """

    def __init__(self, argv: Sequence[bytes], topology: Topology) -> None:
        """`topology`: as keyfence knows it, with an owner for each hash slot."""
        self.answer = b""
        self.is_stale = False  # after `confirmed`: the node knows another topology than keyfence
        self._page = b""
        cursor = decoded(argv[1]) if len(argv) > 1 else Cursor()
        if cursor is None:
            self.answer, cursor = INVALID_CURSOR, Cursor()
        if any(isinstance(one, Streamed) for one in argv):
            self.answer = _TOO_LONG
        self._segment, self._taker, at = _place(cursor, topology)
        self.owner = self._segment.owner.id
        self.node = self._taker or self.owner
        rest = argv[2:] if len(argv) > 1 else ()
        number = (b"%d" % at,) if len(argv) > 1 else ()
        self.request = encode.command(*argv[:1], *number, *rest)

    def answered(self, reply: bytes) -> bytes | None:
        """The client's reply to SCAN; None: the owner is to be asked for CLUSTER NODES."""
        found = _PAGE.match(reply)
        if found is None:
            return reply  # an error, of the options
        self._page = reply[found.end() :]
        at = int(found[1])
        return self._reply(self._segment.cursor(self._taker, at)) if at else None

    def confirmed(self, text: bytes, asked: str) -> bytes:
        """The client's reply to SCAN, from the owner's own view of the cluster. `asked`: the owner's host."""
        try:
            topology = topology_in(text, asked)
        except TopologyError as exc:
            return encode.error(
                f"ERR keyfence cannot go on with SCAN: a node answers CLUSTER NODES, but {exc}"
            )
        if topology.covered < SLOTS:
            return NOT_SERVED
        before = self._segment
        segment = _segments(topology, _window(before.slot, is_whole=before.is_whole)).get(before.slot)
        if segment is None or segment.mark() != before.mark():
            self.is_stale = True
            return self._reply(_begin(before.slot, topology).cursor())
        takers = sorted(_takers(text, segment) & topology.nodes_by_id.keys())
        taker = next((one for one in takers if one > self._taker), "")
        if taker:
            return self._reply(segment.cursor(taker))
        following = segment.following(topology)
        return self._reply(following.cursor() if following is not None else None)

    def _reply(self, cursor: Cursor | None) -> bytes:
        """The page with this cursor; None: the iteration is over."""
        text = cursor.encoded() if cursor is not None else _FIRST
        if text is None:
            return encode.error(
                f"ERR keyfence cannot go on with SCAN: a node's cursor has more than {_MOST_LARGE} bits"
            )
        return b"*2\r\n$%d\r\n%b\r\n%b" % (len(text), text, self._page)


def _place(cursor: Cursor, topology: Topology) -> tuple[Segment, str, int]:
    """Where a scan goes on: the segment, the node that takes hash slots from its owner if it is the turn of
    one, and the node's cursor."""
    window = _window(cursor.slot, is_whole=cursor.is_whole)
    segment = _segments(topology, window).get(cursor.slot)
    if segment is not None and cursor.mark:
        takers = [one.id for one in topology.nodes if one.is_primary] if cursor.takes else [""]
        for taker in takers:
            if cursor.has_mark(segment.mark(taker)):
                return segment, taker, cursor.at
    return _begin(cursor.slot, topology), "", 0


def _begin(slot: int, topology: Topology) -> Segment:
    """The first segment of the eighth that has this hash slot. If that is the first eighth, nothing is done
    yet, and the window is the whole cluster."""
    window = _window(slot, is_whole=slot < _WINDOW)
    return _segments(topology, window)[window.start]


def _window(slot: int, *, is_whole: bool) -> range:
    begin = slot // _WINDOW * _WINDOW
    return range(SLOTS) if is_whole else range(begin, begin + _WINDOW)


@functools.lru_cache(maxsize=32)
def _segments(topology: Topology, window: range) -> Mapping[int, Segment]:
    """The segments of a window in their order, by their lowest hash slots."""
    found = []
    for owner in topology.owners():
        within = ((max(first, window.start), min(last, window.stop - 1)) for first, last in owner.slots)
        if ranges := tuple((first, last) for first, last in within if first <= last):
            found.append((ranges, owner))
    segments = {}
    before = 0  # the hash slots of the nodes before, in any order
    weights = _weights()
    for ranges, owner in sorted(found, key=lambda one: one[0]):
        base = f"{before} {owner.id} {owner.config_epoch} {ranges}".encode()
        slot = ranges[0][0]
        segments[slot] = Segment(slot, len(window) == SLOTS, owner, ranges, base)
        before += sum(sum(weights[first : last + 1]) for first, last in ranges)
    return segments


@functools.cache
def _weights() -> Sequence[int]:
    """A number for each hash slot; the sum shows which ones a set has."""
    return [_hashed(b"%d" % slot) for slot in range(SLOTS)]


def _takers(text: bytes, segment: Segment) -> set[str]:
    """The nodes to which hash slots of a segment are on their way, as their owner itself says in CLUSTER
    NODES: `[SLOT->-ID]`."""
    lines = text.decode("utf-8", "replace").split("\n")
    own = next((line for line in lines if "myself" in "".join(line.split(" ", 3)[2:3]).split(",")), "")
    return {
        found[2]
        for found in _LEAVING.finditer(own)
        if any(first <= int(found[1]) <= last for first, last in segment.ranges)
    }


def _hashed(*parts: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(b" ".join(parts), digest_size=8).digest())


def _short(mark: int, bits: int) -> int:
    """A mark of so many bits, never 0: so no cursor is 0, and a cursor without a mark fits nowhere."""
    return mark % ((1 << bits) - 1) + 1
