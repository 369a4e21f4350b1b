"""Reads the keys that servers hold, without a policy: type, time to live, fields. `keyfence draft` learns
from them.

Rule: only commands that read are sent, at a pace, and no value is kept. A key whose hash slot moves is left
out: one server lists it, and another one answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from redis.exceptions import ResponseError

from keyfence.policy.compiled.ttl import GONE

from .facts import FEW_FIELDS, fields_in, fields_request
from .judge import type_name
from .pace import Pace
from .servers.links import SLOT_MOVES, CannotAsk, Link
from .servers.nodes import Server, leave_idle_times, visiting

MOST_AT_ONCE = 500  # keys of one SCAN and of the pipelines after it


class Held(NamedTuple):
    """A key as it is."""

    key: bytes
    database: int
    type: str
    ttl: int  # milliseconds; below 0: it does not expire
    fields: tuple[bytes, ...]  # of a hash, the first ones


def held_keys(
    servers: Sequence[Server],
    rate: int,
    watch: Callable[[int, int], None] = lambda _seen, _all: None,
    left_out: Callable[[bytes], None] = lambda _key: None,
) -> Iterator[Held]:
    """The keys of all servers, at most `rate` a second; 0: as fast as they answer. SCAN returns them in no
    order, so the first ones are a sample. `left_out` gets each key whose hash slot moves. Raises LinkError,
    CannotAsk."""
    total = sum(sum(server.keys.values()) for server in servers)
    pace = Pace(rate)
    seen = 0
    for server in servers:
        for database in sorted(server.keys):
            with visiting(server, database) as link:
                leave_idle_times(link, server)
                for keys in _batches(link, pace):
                    yield from _looked_at(link, server, database, keys, left_out)
                    seen += len(keys)
                    watch(seen, total)


def _batches(link: Link, pace: Pace) -> Iterator[Sequence[bytes]]:
    cursor = b"0"
    while True:
        cursor, keys = link.scan(cursor, pace.batch(MOST_AT_ONCE))
        for at in range(0, len(keys), MOST_AT_ONCE):
            yield keys[at : at + MOST_AT_ONCE]
        if cursor == b"0":
            return
        pace.wait(max(len(keys), 1))


def _looked_at(
    link: Link, server: Server, database: int, keys: Sequence[bytes], left_out: Callable[[bytes], None]
) -> list[Held]:
    replies = link.ask([(command, key) for key in keys for command in (b"TYPE", b"PTTL")])
    found = []
    for key, kind, ttl in zip(keys, replies[::2], replies[1::2], strict=True):
        if isinstance(kind, SLOT_MOVES) or isinstance(ttl, SLOT_MOVES):
            left_out(key)
            continue
        for reply in (kind, ttl):
            if isinstance(reply, ResponseError):
                raise CannotAsk(f"{link.shown} refuses what a draft needs: {reply}")
        if kind != b"none" and ttl != GONE:
            found.append(Held(key, database, type_name(kind.decode("utf-8", "replace")), ttl, ()))
    hashes = [at for at, one in enumerate(found) if one.type == "hash"]
    asked = [fields_request(found[at].key, server, FEW_FIELDS) for at in hashes]
    for at, reply in zip(hashes, link.ask(asked) if asked else (), strict=True):
        if not isinstance(reply, ResponseError):  # it may be another key by now, or HSCAN is not allowed
            found[at] = found[at]._replace(fields=fields_in(reply, server))
    return found
