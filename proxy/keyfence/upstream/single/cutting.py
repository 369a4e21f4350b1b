# cython: annotation_typing=False
"""Cuts admitted requests by the hash slots of their keys.

Rule: a request is read by the reader that has read it before it was authorized. The first key decides: a node
that is asked for keys of several hash slots refuses the command itself (CROSSSLOT), and runs nothing of it.
No I/O.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

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
_ANY_NODE = ANY_NODE

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
    """Cuts the requests of any client. Each call is complete in itself."""

    def __init__(self) -> None:
        self._reader = RequestReader(LIMITS)
        self.is_transaction = False  # whether the last cut was one from MULTI to EXEC, which stays together

    def cut(self, data: bytes, count: int, owners: array[int]) -> list[Run]:
        """The runs of `count` requests, by the numbers of the nodes in `owners`, which has one for each hash
        slot. A request without keys goes with its neighbour."""
        reader = self._reader
        reader.feed(data)
        runs: list[Run] = []
        here = _ANY_NODE
        begin = end = number = 0
        self.is_transaction = False
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
            end = reader.end
            number += 1
        runs.append(new_run(here, number, begin, end))
        reader.let_go()
        return runs

    def _next_slot(self) -> int:
        """Read the next request. Returns the hash slot of its first key."""
        reader = self._reader
        if not reader.peek():
            argv = reader.next()
            return slot_of(argv) if argv else _NO_SLOT
        data = reader.data()
        name = data[reader.name_at : reader.name_end]
        at = _KEY_AT.get(name, 0)
        if at == 1 and reader.count > 1:
            return slot_in(data, reader.key_at, reader.key_end)
        if 0 < at < reader.count:
            return slot_in(data, _PLACES[2 * at], _PLACES[2 * at + 1])
        if reader.count == 1:
            self.is_transaction = name.upper() == _MULTI
            return _NO_SLOT
        argv = reader.reparse()
        return slot_of(argv) if argv else _NO_SLOT

    def _first_slot(self, count: int) -> int:
        """The hash slot of the first key of a transaction whose MULTI was read."""
        reader = self._reader
        slot = _NO_SLOT
        for _ in range(count - 1):
            if slot == _NO_SLOT:
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
