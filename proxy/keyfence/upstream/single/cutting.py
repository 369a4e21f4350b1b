# cython: annotation_typing=False
"""Cuts admitted requests by the hash slots of their keys.

Rule: a request is read by the reader that has read it before it was authorized. The first key decides: a node
that is asked for keys of several hash slots refuses the command itself (CROSSSLOT), and runs nothing of it.
No I/O.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from keyfence.commands.arguments import fold
from keyfence.commands.extract import ONE_KEY, extract, positions
from keyfence.commands.table import lookup
from keyfence.policy.compiled.hash_slots import hash_slot, slot_in
from keyfence.resp.limits import GIB, MAX_ARGUMENTS, ProtocolError, RequestLimits
from keyfence.resp.requests import PLACES, RequestReader

LIMITS = RequestLimits(max_arguments=max(MAX_ARGUMENTS, 1 << 30), max_request=GIB)
_PLACES = PLACES

NO_SLOT = -1  # of a request without keys
_NO_SLOT = NO_SLOT
NO_NODE = 0xFFFF  # has a hash slot that no node has
ANY_NODE = -1  # the requests name no key
SEVERAL = -2  # the requests go to several nodes
UNFIT = -3  # they have to be cut: a transaction, parts, a hash slot without a node, or too many
PARTS = -4  # a command whose keys are in several hash slots is to be sent in parts
_NO_NODE, _ANY_NODE, _SEVERAL, _UNFIT, _PARTS = NO_NODE, ANY_NODE, SEVERAL, UNFIT, PARTS

# Of the requests that `Cutter.deal` has read last: the node of each, and where it ends. All cutters share
# them, so that no object is made for a request.
MOST_DEALT = 1024
_MOST_DEALT = MOST_DEALT
NODES = array("H", bytes(2 * MOST_DEALT))
ENDS = array("q", bytes(8 * MOST_DEALT))
_NODES, _ENDS = NODES, ENDS

# Where the first key of most commands is.
_KEY_AT = {name: one.key_at for name, one in ONE_KEY.items()}
_MULTI = b"MULTI"


class Run:
    """Adjacent requests for one node. Made without a call of `__init__`, which costs a compiled module more
    than the rest of it."""

    node: int
    count: int
    begin: int  # in the bytes that were cut
    end: int


def new_run(node: int, count: int, begin: int, end: int) -> Run:
    run = Run.__new__(Run)
    run.node, run.count, run.begin, run.end = node, count, begin, end
    return run


class Cutter:
    """Cuts the requests of any client, by the nodes that have the hash slots now. Each call is complete in
    itself."""

    def __init__(self, owners: array[int], version: int = 0, splits: frozenset[bytes] = frozenset()) -> None:
        """`splits`: the names of the commands that are sent in parts if their keys are in several hash
        slots."""
        self.version = version  # changes with what `owners` says
        self.is_transaction = False  # whether the last cut was one from MULTI to EXEC, which stays together
        self._is_split = False  # whether the last request is to be sent in parts
        self._splits = splits
        self._key_at = {name: at for name, at in _KEY_AT.items() if name.upper() not in splits}
        # The name of the last request, and where its key is: most requests have the name of the last one.
        self._name = b""
        self._at = 0
        self._reader = RequestReader(LIMITS)
        self.take(owners)

    def take(self, owners: array[int]) -> None:
        """Go by these from now on: the number of the node of each hash slot."""
        self._owners = owners

    def deal(self, data: bytes, count: int) -> int:
        """Find the node of each of `count` requests, and where it ends: in NODES and ENDS. Returns the node
        that all of them go to, or SEVERAL, ANY_NODE or UNFIT. A request without keys goes with its
        neighbour."""
        if count > _MOST_DEALT:
            return _UNFIT
        reader = self._reader
        reader.feed(data)
        here = whole = _ANY_NODE
        self.is_transaction = self._is_split = False
        for index in range(count):
            slot = self._next_slot()
            if slot != _NO_SLOT:
                node = self._owners[slot]
                if node == _NO_NODE:
                    reader.rest()
                    return _UNFIT
                if node != here:
                    if here == _ANY_NODE:
                        whole = node
                        for earlier in range(index):
                            _NODES[earlier] = node
                    else:
                        whole = _SEVERAL
                    here = node
            elif self.is_transaction or self._is_split:
                reader.rest()
                return _UNFIT
            _NODES[index] = here if here != _ANY_NODE else _NO_NODE
            _ENDS[index] = reader.end
        reader.let_go()
        return whole

    def cut(self, data: bytes, count: int) -> list[Run]:
        """The runs of `count` requests for one node each. A request without keys goes with its neighbour. A
        run for PARTS is one command."""
        reader = self._reader
        owners = self._owners
        reader.feed(data)
        runs: list[Run] = []
        here = _ANY_NODE
        begin = end = number = 0
        self.is_transaction = self._is_split = False
        for index in range(count):
            slot = self._next_slot()
            if index == 0 and self.is_transaction:
                slot = self._first_slot(count)
                return [new_run(_ANY_NODE if slot == _NO_SLOT else owners[slot], count, 0, len(data))]
            if slot != _NO_SLOT:
                node = owners[slot]
                if node != here:
                    if here != _ANY_NODE:
                        runs.append(new_run(here, number, begin, end))
                        begin, number = end, 0
                    here = node
            elif self._is_split:
                self._is_split = False
                if number:
                    runs.append(new_run(here, number, begin, end))
                runs.append(new_run(_PARTS, 1, end, reader.end))
                here, number, begin = _ANY_NODE, 0, reader.end
                end = begin
                continue
            end = reader.end
            number += 1
        if number:
            runs.append(new_run(here, number, begin, end))
        reader.let_go()
        return runs

    def _next_slot(self) -> int:
        """Read the next request. Returns the hash slot of its first key."""
        reader = self._reader
        if not reader.peek():
            return self._read_slot(reader.next())
        data = reader.data()
        at = self._at if self._has_same_name(data) else self._find_key(data)
        if at == 1 and reader.count > 1:
            return slot_in(data, reader.key_at, reader.key_end)
        if 0 < at < reader.count:
            return slot_in(data, _PLACES[2 * at], _PLACES[2 * at + 1])
        if reader.count == 1:
            self.is_transaction = self._name.upper() == _MULTI
            return _NO_SLOT
        return self._read_slot(reader.reparse())

    def _has_same_name(self, data: bytes) -> bool:
        """Whether the request in hand has the name of the one before."""
        raw, name = data, self._name
        same = name
        at = self._reader.name_at
        size = self._reader.name_end - at
        if size != len(name):
            return False
        for index in range(size):  # noqa: SIM110 - this compiles to a loop without objects
            if raw[at + index] != same[index]:
                return False
        return True

    def _find_key(self, data: bytes) -> int:
        """Where the key of the request in hand is, among its arguments; 0: that is not known."""
        raw = data
        self._name = raw[self._reader.name_at : self._reader.name_end]
        self._at = self._key_at.get(self._name, 0)
        return self._at

    def _read_slot(self, argv: list[bytes] | None) -> int:
        """The same for a request whose arguments were read one by one."""
        if not argv:
            return _NO_SLOT
        if self._splits and not self.is_transaction and len(argv) > 1 and fold(argv[0]) in self._splits:
            slots = {hash_slot(key) for key in argv[1:]}
            self._is_split = len(slots) > 1
            return _NO_SLOT if self._is_split else slots.pop()
        return slot_of(argv)

    def _first_slot(self, count: int) -> int:
        """The hash slot of the first key of a transaction whose MULTI was read."""
        reader = self._reader
        slot = _NO_SLOT
        for _ in range(count - 1):
            if slot == _NO_SLOT:
                self.is_transaction = True  # in which nothing is sent in parts
                slot = self._next_slot()
        self.is_transaction = True
        reader.rest()
        return slot


def requests_in(data: bytes) -> list[bytes]:
    """The bytes of each request."""
    reader = RequestReader(LIMITS)
    reader.feed(data)
    found = []
    try:
        while reader.next() is not None:
            found.append(reader.span(reader.start, reader.end))
    except ProtocolError:
        pass
    return found


def end_of(data: bytes, count: int) -> int:
    """Where the first `count` of these requests end. A transaction that begins them stays whole."""
    reader = RequestReader(LIMITS)
    reader.feed(data)
    for _ in range(count):
        argv = reader.next()
        if argv is None or (len(argv) == 1 and argv[0].upper() == _MULTI):
            return len(data)
    return reader.end


def arguments(request: bytes) -> list[bytes]:
    """The arguments of one complete request."""
    reader = RequestReader(LIMITS)
    reader.feed(request)
    return reader.next() or []


def slot_of(argv: Sequence[bytes]) -> int:
    """The hash slot of the first key or sharded channel of a command; NO_SLOT: it names none."""
    for access in extract(argv).accesses:
        return hash_slot(access.key)
    row = lookup(argv)
    for spec in row.specs if row is not None else ():
        if spec.find != "keynum":  # of EVAL with 0 keys, the arguments are none
            for position in positions(spec, argv):
                return hash_slot(argv[position])
    return NO_SLOT


def keys_of(requests: Sequence[bytes]) -> frozenset[bytes]:
    """All keys that these requests name."""
    return frozenset(one.key for request in requests for one in extract(arguments(request)).accesses)


def leading_arguments(data: bytes) -> list[bytes]:
    """The complete arguments at the beginning of an array whose end has not come."""
    found: list[bytes] = []
    at = data.find(b"\r\n") + 2
    while at >= 2 and data[at : at + 1] == b"$":
        begin = data.find(b"\r\n", at) + 2
        end = begin + int(data[at + 1 : begin - 2]) if begin >= 2 else len(data) + 1
        if end > len(data):
            break
        found.append(data[begin:end])
        at = end + 2
    return found
