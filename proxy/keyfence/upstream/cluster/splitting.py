"""A command whose keys are in several hash slots, cut into one request for each, and their replies. No I/O.

Rule: only commands are cut that do the same to each key for itself, and whose reply is a number or a list in
the order of the keys. MSET is not cut: it sets all keys or none, and a cluster cannot do that.

A part has one hash slot, because a node refuses keys of several, even if it has them all. The parts are not
one step: other clients may see some of them done and others not. If a part fails, its error is the answer,
and other parts may have been done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from keyfence.commands.arguments import fold
from keyfence.commands.model import Streamed
from keyfence.policy.compiled.hash_slots import hash_slot
from keyfence.policy.compiled.splittable import COUNTED, LISTED
from keyfence.resp import encode
from keyfence.resp.frames import FrameError, tree

from .fan_out import Join
from .joining import joined

# What `split` may name, and how the replies to the parts become one; CONCATENATED: in the order of the keys.
# The servers' tips name more (`multi_shard`): MSET, MSETNX and MSETEX write all keys or none.
SPLITTABLE: Final = dict.fromkeys(COUNTED, Join.SUM) | dict.fromkeys(LISTED, Join.CONCATENATED)


class Part(NamedTuple):
    """The keys of one hash slot."""

    slot: int
    places: tuple[int, ...]  # of its keys in the request, from 0
    request: bytes


class Split(NamedTuple):
    """One command in parts, in the order of their first keys."""

    name: str
    parts: tuple[Part, ...]


def split(argv: Sequence[bytes]) -> Split | None:
    """The parts of a command; None: it is not cut, because its keys are in one hash slot, or never, or
    because a key was streamed, of which only the beginning is there."""
    name = fold(argv[0]).decode("latin-1") if argv else ""
    if name not in SPLITTABLE or any(isinstance(one, Streamed) for one in argv):
        return None
    places: dict[int, list[int]] = {}
    for place, key in enumerate(argv[1:]):
        places.setdefault(hash_slot(key), []).append(place)
    if len(places) < 2:
        return None
    parts = [
        Part(slot, tuple(own), encode.command(argv[0], *(argv[1 + place] for place in own)))
        for slot, own in places.items()
    ]
    return Split(name, tuple(parts))


def in_order(cut: Split, replies: Sequence[bytes]) -> bytes:
    """The reply to a command from the complete replies to its parts, in their order. Raises FrameError: they
    are no replies to it."""
    join = SPLITTABLE[cut.name]
    error = next((reply for reply in replies if reply[:1] in (b"-", b"!")), None)
    if error is not None or join is not Join.CONCATENATED:
        return error if error is not None else joined(join, replies)
    values: dict[int, bytes] = {}
    for part, reply in zip(cut.parts, replies, strict=True):
        items = tree(reply).items
        if len(items) != len(part.places):
            raise FrameError("they have more or fewer elements than keys")
        values |= {place: reply[one.begin : one.end] for place, one in zip(part.places, items, strict=True)}
    return b"*%d\r\n%b" % (len(values), b"".join(values[place] for place in range(len(values))))
