"""Moves one key to its new name: COPY, verify, DEL. A large key is renamed: a copy of it would stall Redis.

Rule: the old key goes only in a transaction that Redis refuses if the key has changed since before it was
copied. The new key is never overwritten. A copy has its time to live from its beginning. It is taken back
only if it still is what was copied. Whatever is in doubt is left as it is, with the reason. A copy at another
master is on a replica before the old key goes, or a failover would lose both.
"""

from __future__ import annotations

import enum
import re
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from keyfence.policy.compiled.ttl import NO_TTL

from .judge import type_name
from .renames import Rename
from .servers.links import SLOT_MOVES, Link, Request
from .servers.router import Router

MAX_COMPARED = 1024 * 1024  # bytes of memory; of a larger key only type, length and time to live are compared
CONFIRM_MILLISECONDS = 1_000  # for a replica to confirm a copy
SLACK = 1_000  # milliseconds between two looks at a time to live
# In INFO: what a master has written, and what a replica says that it has.
_WRITTEN = re.compile(rb"master_repl_offset:(\d+)")
_REACHED = re.compile(rb"state=online,offset=(\d+)")
_LENGTHS = {
    "string": b"STRLEN",
    "hash": b"HLEN",
    "list": b"LLEN",
    "set": b"SCARD",
    "zset": b"ZCARD",
    "stream": b"XLEN",
}
# How to read all that a key of a type holds. There is no way for a stream: it has groups and consumers too.
_CONTENTS: dict[str, tuple[bytes, tuple[bytes, ...]]] = {
    "string": (b"GET", ()),
    "hash": (b"HGETALL", ()),
    "list": (b"LRANGE", (b"0", b"-1")),
    "set": (b"SMEMBERS", ()),
    "zset": (b"ZRANGE", (b"0", b"-1", b"WITHSCORES")),
}
# What Redis says of keys that it only dumps, as vector sets (`src/db.c`, copyCommand).
_OF_A_MODULE = "not supported for this module key"
# The first byte of a dump is its type (`src/rdb.h`). From this one on, the fields of a hash expire.
_FIELDS_EXPIRE = 22


class Fate(enum.StrEnum):
    """What has become of a key."""

    MOVED = "moved"
    MOVABLE = "movable"  # a dry run: it would be moved
    DONE = "done"  # it was moved before
    GONE = "gone"  # neither the old key nor the new one exists
    LEFT = "left"


class Outcome(NamedTuple):
    """What has become of a key, and why it was left."""

    fate: Fate
    why: str = ""


class _Left(Exception):
    """The key is left; the message says why, without the key."""


class _CannotCopy(_Left):
    """The server does not copy this key."""


class _NoCommand(_CannotCopy):
    """The server does not know a command."""


class _Old(NamedTuple):
    """The old key as it was before the copy."""

    is_small: bool  # enough to compare its content
    has_copy: bool  # the new key exists already


class _Copied(NamedTuple):
    """The copy as it was made."""

    dump: bytes | None  # None: it is too large to be compared
    ttl: int  # milliseconds; below 0: it does not expire


class Mover:
    """Moves keys, one at a time. Movers that work at the same time need a router each."""

    def __init__(self, router: Router, *, apply: bool) -> None:
        """Without `apply` it only looks."""
        self._router = router
        self._apply = apply
        self._can_copy = True  # COPY is of Redis 6.2

    def move(self, one: Rename) -> Outcome:
        """Moves a key, or says why not. Raises LinkError."""
        if one.new is None:
            return Outcome(Fate.LEFT, one.why)
        link = self._router.link(one.old, one.database)
        try:
            found = self._check(link, one, one.new)
            if isinstance(found, Outcome):
                return found
            if found.has_copy and not self._is_copy(link, one, one.new, found):
                raise _Left(_EXISTS)
            if not self._apply:
                return Outcome(Fate.MOVABLE)
            if found.has_copy:
                self._set_ttl(one, one.new)
                return self._finish(link, one, one.new, found)
            if not found.is_small and self._router.may_copy(one.old, one.new):
                return self._rename(link, one, one.new)
            copied = self._copy(link, one, one.new, found)
            if copied is None:
                return self._why_not_copied(link, one, one.new)
            return self._finish(link, one, one.new, found, copied)
        except _Left as exc:
            return Outcome(Fate.LEFT, str(exc))

    def _check(self, link: Link, one: Rename, new: bytes) -> _Old | Outcome:
        """Looks whether both keys are as the plan says; from here on both are watched."""
        # Before anything is copied, Redis says whether the user may remove the old key. DISCARD also ends the
        # watch over the key before, if that was left.
        trial: list[Request] = [(b"MULTI",), (b"UNLINK", one.old), (b"DISCARD",), (b"WATCH", one.old)]
        old: list[Request] = [(b"TYPE", one.old), (b"PTTL", one.old), (b"MEMORY", b"USAGE", one.old)]
        *tried, kind, ttl, size = link.ask([*(trial if self._apply else []), *old])
        for reply in tried:
            _sure(reply)
        watch: list[Request] = [(b"UNWATCH",), (b"WATCH", new)] if self._apply else []
        exists = [_sure(reply) for reply in self._guard(one, new).ask([*watch, (b"EXISTS", new)])][-1]
        if _sure(kind) == b"none" or _sure(ttl) == -2:
            return Outcome(Fate.DONE if exists else Fate.GONE)
        if type_name(kind.decode("utf-8", "replace")) != one.type:
            raise _Left("its type is not as in the plan; audit again")
        if (ttl >= 0) != (one.ttl is not None and not one.sets_ttl):
            raise _Left("its time to live is not as in the plan; audit again")
        return _Old(isinstance(size, int) and size <= MAX_COMPARED, bool(exists))

    def _is_copy(self, link: Link, one: Rename, new: bytes, old: _Old) -> bool:
        """Whether the new key is all that the old one is: a move was interrupted after its copy."""
        return old.is_small and not self._difference(link, one, new, old)

    def _guard(self, one: Rename, new: bytes) -> Link:
        return self._router.link(new, one.database, guard=True)

    def _copy(self, link: Link, one: Rename, new: bytes, old: _Old) -> _Copied | None:
        """Copies the key, with the time to live that the new key is to have; None if Redis has not copied it.
        One transaction does it all, so an interruption leaves no half of it."""
        look: list[Request] = [(b"PTTL", new), *([(b"DUMP", new)] if old.is_small else [])]
        if self._can_copy and self._router.may_copy(one.old, new):
            making: list[Request] = [(b"COPY", one.old, new)]
            making += [(b"PEXPIRE", new, one.ttl)] if one.sets_ttl and one.ttl is not None else []
            try:
                return _copied(_together(self._guard(one, new), [*making, *look]), len(making))
            except _CannotCopy as exc:
                self._can_copy = not isinstance(exc, _NoCommand)
        payload, ttl = (_sure(reply) for reply in link.ask([(b"DUMP", one.old), (b"PTTL", one.old)]))
        if payload is None:
            return None
        lasts = one.ttl if one.sets_ttl else max(ttl, 0)
        return _copied(_together(self._guard(one, new), [(b"RESTORE", new, lasts or 0, payload), *look]), 1)

    def _rename(self, link: Link, one: Rename, new: bytes) -> Outcome:
        """Renames the key, with the time to live that the new key is to have, in one transaction."""
        # The connection of the old key watches the new one too: RENAMENX leaves a new key as it is, but
        # PEXPIRE would not.
        exists = [_sure(reply) for reply in link.ask([(b"WATCH", new), (b"EXISTS", new)])][-1]
        making: list[Request] = [(b"RENAMENX", one.old, new)]
        making += [(b"PEXPIRE", new, one.ttl)] if one.sets_ttl and one.ttl is not None else []
        replies = None if exists else _together(link, making)
        # Before 6.0.9, Redis carries out a transaction although a watched key has expired.
        if replies is None or replies[0] != 1:
            return self._why_not_copied(link, one, new)
        return Outcome(Fate.MOVED)

    def _why_not_copied(self, link: Link, one: Rename, new: bytes) -> Outcome:
        """One of the keys is not any more what it was: looks at both again."""
        found = self._check(link, one, new)
        if isinstance(found, Outcome):
            return found
        raise _Left(_EXISTS if found.has_copy else _AGAIN)

    def _set_ttl(self, one: Rename, new: bytes) -> None:
        """Gives a copy of an interrupted move the time to live that it may lack."""
        if not one.sets_ttl or one.ttl is None:
            return
        if _together(self._guard(one, new), [(b"PEXPIRE", new, one.ttl)]) is None:
            raise _Left(_DIFFERS)

    def _finish(
        self, link: Link, one: Rename, new: bytes, old: _Old, copied: _Copied | None = None
    ) -> Outcome:
        """Verifies the copy and removes the old key; or takes the copy back, if the old key has changed.
        `copied`: this move has made the copy."""
        problem = self._difference(link, one, new, old)
        problem = problem or self._unconfirmed(one, new, is_own=copied is not None)
        last = (b"EXISTS" if problem else b"UNLINK", one.old)
        is_unchanged = _together(link, [last]) is not None
        if is_unchanged and not problem:
            return Outcome(Fate.MOVED)
        if is_unchanged:
            raise _Left(problem)
        if copied is None:
            raise _Left("it changed meanwhile, and the new key exists already")
        raise _Left(self._taken_back(one, new, copied))

    def _unconfirmed(self, one: Rename, new: bytes, *, is_own: bool) -> str:
        """Why the copy may not outlive its master, in words; "" if a replica has it, if there is none, or if
        Redis does not say. `is_own`: this move has made the copy."""
        if not self._router.may_lose(one.old, new):
            return ""
        guard = self._guard(one, new)
        about = guard.ask([(b"INFO", b"replication")])[0]
        if isinstance(about, bytes) and b"state=online" not in about:
            return _UNCONFIRMED
        if is_own:
            has_copy = guard.ask([(b"WAIT", 1, CONFIRM_MILLISECONDS)])[0] != 0
        else:  # WAIT asks only for what this connection has written
            has_copy = not isinstance(about, bytes) or _is_reached(guard, about)
        return "" if has_copy else _UNCONFIRMED

    def _taken_back(self, one: Rename, new: bytes, copied: _Copied) -> str:
        """Removes the copy, which is watched, if it still is what was copied. Returns why the key is left."""
        guard = self._guard(one, new)
        if copied.dump is None:
            return _TOO_LARGE if _sure(guard.ask([(b"EXISTS", new)])[0]) else _AGAIN
        dump, ttl = (_sure(reply) for reply in guard.ask([(b"DUMP", new), (b"PTTL", new)]))
        if dump is None:  # it went
            return _AGAIN
        is_own = dump == copied.dump and _is_same_ttl(copied.ttl, ttl)
        return _AGAIN if is_own and _together(guard, [(b"UNLINK", new)]) is not None else _BOTH_CHANGED

    def _difference(self, link: Link, one: Rename, new: bytes, old: _Old) -> str:
        """What distinguishes the copy from the old key, in words; "" if nothing does. From here on the copy
        is watched."""
        guard = self._guard(one, new)
        length = _LENGTHS.get(one.type)
        asked = [b"TYPE", b"PTTL", *([length] if length else [])]
        compares = old.is_small or not length
        asked += [b"DUMP"] if compares else []
        before = [_sure(reply) for reply in link.ask([(name, one.old) for name in asked])]
        watch: list[Request] = [(b"WATCH", new)] if self._apply else []
        replies = guard.ask([*watch, *((name, new) for name in asked)])
        after = [_sure(reply) for reply in replies][len(watch) :]
        if before[0] != after[0] or (length and before[2] != after[2]):
            return _DIFFERS
        if not _is_right_ttl(one, before[1], after[1], may_lack=old.has_copy):
            return "the copy's time to live differs; compare both keys"
        if not compares or before[-1] == after[-1]:
            return ""
        # Equal content may be stored in another order; then the dumps differ.
        left = _all_of(link, one.old, one.type, before[-1])
        right = _all_of(guard, new, one.type, after[-1])
        return "" if left is not None and left == right else _DIFFERS


_AGAIN = "it changed meanwhile; run it again"
_BOTH_CHANGED = "both keys changed meanwhile; compare them and remove one"
_DIFFERS = "the copy differs: the new key was changed meanwhile; compare both keys"
_EXISTS = "the new key exists already"
_UNCONFIRMED = "no replica has confirmed the copy: the new key exists besides; run it again"
_TOO_LARGE = "it changed meanwhile, and its copy is too large to be sure of; compare both keys and remove one"


def _is_reached(link: Link, replication: bytes) -> bool:
    """Whether a replica has all that its master had written at this INFO. A replica says each second what it
    has."""
    written = int(found[1]) if (found := _WRITTEN.search(replication)) else 0
    until = time.monotonic() + 2 * CONFIRM_MILLISECONDS / 1000
    while not any(int(one) >= written for one in _REACHED.findall(replication)):
        if time.monotonic() > until:
            return False
        time.sleep(CONFIRM_MILLISECONDS / 20_000)
        replication = link.one("INFO", "replication")
    return True


def _together(link: Link, requests: Sequence[Request]) -> list[Any] | None:
    """The replies to requests that Redis carries out in one transaction; None if a watched key has changed.
    Then, and if one of them is refused, Redis carries out none."""
    *queued, replies = link.ask([(b"MULTI",), *requests, (b"EXEC",)])
    for reply in queued:
        if isinstance(reply, ResponseError) and "unknown command" in str(reply).lower():
            raise _NoCommand(f"Redis refuses: {reply}")
        _sure(reply)
    return None if _sure(replies) is None else list(replies)


def _copied(replies: list[Any] | None, making: int) -> _Copied | None:
    """What the replies say of a copy: the first `making` are of its making. None if it was not made: the new
    key exists, or the old one has gone."""
    if replies is None or replies[0] == 0 or _is_busy(replies[0]):
        return None
    if isinstance(replies[0], ResponseError) and _OF_A_MODULE in str(replies[0]):
        raise _CannotCopy(f"Redis refuses: {replies[0]}")
    _, *more = (_sure(reply) for reply in replies)
    ttl, *dump = more[making - 1 :]
    return _Copied(dump[0] if dump else None, ttl)


def _is_busy(reply: Any) -> bool:
    return isinstance(reply, ResponseError) and str(reply).startswith("BUSYKEY")


def _all_of(link: Link, key: bytes, kind: str, dump: bytes | None) -> Any:
    """All that a key holds, in a form in which equal contents are equal; None if there is no such form."""
    command, arguments = _CONTENTS.get(kind, (b"", ()))
    if not command or not dump:
        return None
    reply = _sure(link.ask([(command, key, *arguments)])[0])
    if kind != "hash":
        return set(reply) if kind == "set" else reply
    names, ends = reply[::2], []
    if dump[0] >= _FIELDS_EXPIRE and names:
        ends = _sure(link.ask([(b"HPEXPIRETIME", key, b"FIELDS", len(names), *names)])[0])
    return dict(zip(names, zip(reply[1::2], ends or [NO_TTL] * len(names), strict=True), strict=True))


def _is_right_ttl(one: Rename, before: int, after: int, *, may_lack: bool) -> bool:
    """`may_lack`: the time to live of the copy may still have to be set."""
    if one.sets_ttl:
        return one.ttl is not None and (0 < after <= one.ttl or (may_lack and after == NO_TTL))
    return _is_same_ttl(before, after)


def _is_same_ttl(before: int, after: int) -> bool:
    return after < 0 if before < 0 else abs(after - before) <= SLACK


def _sure(reply: Any) -> Any:
    if isinstance(reply, SLOT_MOVES):
        raise _Left("its hash slot has moved; run it again")
    if isinstance(reply, ResponseError):
        raise _Left(f"Redis refuses: {reply}")
    return reply
