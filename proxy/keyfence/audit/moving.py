"""Moves one key to its new name: COPY, verify, DEL.

Rule: the old key goes only in a transaction that Redis refuses if the key has changed since before it was
copied. The new key is never overwritten, and a copy is taken back only if nobody has changed it. Whatever is
in doubt is left as it is, with the reason.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from .judge import type_name
from .renames import Rename
from .servers.links import Link, Request
from .servers.router import Router

MAX_COMPARED = 1024 * 1024  # bytes of memory; of a larger key only type, length and time to live are compared
SLACK = 1_000  # milliseconds between two looks at a time to live
_LENGTHS = {
    "string": b"STRLEN",
    "hash": b"HLEN",
    "list": b"LLEN",
    "set": b"SCARD",
    "zset": b"ZCARD",
    "stream": b"XLEN",
}
_CONTENTS: dict[str, tuple[bytes, tuple[bytes, ...]]] = {
    "string": (b"GET", ()),
    "hash": (b"HGETALL", ()),
    "list": (b"LRANGE", (b"0", b"-1")),
    "set": (b"SMEMBERS", ()),
    "zset": (b"ZRANGE", (b"0", b"-1", b"WITHSCORES")),
    "stream": (b"XRANGE", (b"-", b"+")),
}


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


class _Old(NamedTuple):
    """The old key as it was before the copy."""

    size: int  # bytes of memory
    has_copy: bool  # the new key exists already


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
                raise _Left("the new key exists already")
            if not self._apply:
                return Outcome(Fate.MOVABLE)
            if not found.has_copy:
                self._copy(link, one, one.new)
            return self._finish(link, one, one.new, found)
        except _Left as exc:
            return Outcome(Fate.LEFT, str(exc))

    def _check(self, link: Link, one: Rename, new: bytes) -> _Old | Outcome:
        """Looks whether both keys are as the plan says; from here on the old one is watched."""
        # Before anything is copied, Redis says whether the user may remove the old key. DISCARD also ends the
        # watch over the key before, if that was left.
        trial: list[Request] = [(b"MULTI",), (b"UNLINK", one.old), (b"DISCARD",), (b"WATCH", one.old)]
        old: list[Request] = [(b"TYPE", one.old), (b"PTTL", one.old), (b"MEMORY", b"USAGE", one.old)]
        *tried, kind, ttl, size = link.ask([*(trial if self._apply else []), *old])
        for reply in tried:
            _sure(reply)
        unwatch: list[Request] = [(b"UNWATCH",)] if self._apply else []
        exists = _sure(self._guard(one, new).ask([*unwatch, (b"EXISTS", new)])[-1])
        if _sure(kind) == b"none" or _sure(ttl) == -2:
            return Outcome(Fate.DONE if exists else Fate.GONE)
        if type_name(kind.decode("utf-8", "replace")) != one.type:
            raise _Left("its type is not as in the plan; audit again")
        if (ttl >= 0) != (one.ttl is not None and not one.sets_ttl):
            raise _Left("its time to live is not as in the plan; audit again")
        return _Old(size if isinstance(size, int) else MAX_COMPARED + 1, bool(exists))

    def _is_copy(self, link: Link, one: Rename, new: bytes, old: _Old) -> bool:
        """Whether the new key is all that the old one is: a move was interrupted after its copy."""
        if old.size > MAX_COMPARED:
            return False
        return not self._difference(link, self._guard(one, new), one, new, is_small=True)

    def _guard(self, one: Rename, new: bytes) -> Link:
        return self._router.link(new, one.database, guard=True)

    def _copy(self, link: Link, one: Rename, new: bytes) -> None:
        guard = self._guard(one, new)
        if self._can_copy and self._router.may_copy(one.old, new):
            reply = link.ask([(b"COPY", one.old, new)])[0]
            if not (isinstance(reply, ResponseError) and "unknown command" in str(reply).lower()):
                if not _sure(reply):
                    raise _Left("the new key exists already")
                self._set_ttl(guard, one, new)
                return
            self._can_copy = False
        payload, ttl = (_sure(reply) for reply in link.ask([(b"DUMP", one.old), (b"PTTL", one.old)]))
        if payload is None:
            raise _Left("it went meanwhile")
        lasts = one.ttl if one.sets_ttl else max(ttl, 0)
        reply = guard.ask([(b"RESTORE", new, lasts or 0, payload)])[0]
        if isinstance(reply, ResponseError) and str(reply).startswith("BUSYKEY"):
            raise _Left("the new key exists already")
        _sure(reply)

    def _set_ttl(self, guard: Link, one: Rename, new: bytes) -> None:
        if one.sets_ttl and one.ttl is not None:
            _sure(guard.ask([(b"PEXPIRE", new, one.ttl)])[0])

    def _finish(self, link: Link, one: Rename, new: bytes, old: _Old) -> Outcome:
        """Verifies the copy and removes the old key; or takes the copy back, if the old key has changed."""
        guard = self._guard(one, new)
        problem = self._difference(link, guard, one, new, is_small=old.size <= MAX_COMPARED)
        last = (b"EXISTS" if problem else b"UNLINK", one.old)
        is_unchanged = _sure(link.ask([(b"MULTI",), last, (b"EXEC",)])[-1]) is not None
        if is_unchanged and not problem:
            return Outcome(Fate.MOVED)
        if is_unchanged:
            raise _Left(problem)
        if old.has_copy:
            raise _Left("it changed meanwhile, and the new key exists already")
        if _sure(guard.ask([(b"MULTI",), (b"UNLINK", new), (b"EXEC",)])[-1]) is None:
            raise _Left("both keys changed meanwhile; compare them and remove one")
        raise _Left("it changed meanwhile; run it again")

    def _difference(self, link: Link, guard: Link, one: Rename, new: bytes, *, is_small: bool) -> str:
        """What distinguishes the copy from the old key, in words; "" if nothing does. From here on the copy
        is watched."""
        length = _LENGTHS.get(one.type)
        asked = [b"TYPE", b"PTTL", *([length] if length else [])]
        compares = is_small or not length
        asked += [b"DUMP"] if compares else []
        before = [_sure(reply) for reply in link.ask([(name, one.old) for name in asked])]
        watch: list[Request] = [(b"WATCH", new)] if self._apply else []
        replies = guard.ask([*watch, *((name, new) for name in asked)])
        after = [_sure(reply) for reply in replies][len(watch) :]
        if before[0] != after[0] or (length and before[2] != after[2]):
            return _DIFFERS
        if not _is_right_ttl(one, before[1], after[1]):
            return "the copy's time to live differs; compare both keys"
        # Equal content may be stored in another order; then the dumps differ.
        if not compares or before[-1] == after[-1] or self._is_same(link, guard, one, new):
            return ""
        return _DIFFERS

    def _is_same(self, link: Link, guard: Link, one: Rename, new: bytes) -> bool:
        """Whether two keys have the same content."""
        command, arguments = _CONTENTS.get(one.type, (b"", ()))
        if not command:
            return False
        before = _sure(link.ask([(command, one.old, *arguments)])[0])
        after = _sure(guard.ask([(command, new, *arguments)])[0])
        return bool(_content(one.type, before) == _content(one.type, after))


_DIFFERS = "the copy differs: the new key was changed meanwhile; compare both keys"


def _content(kind: str, reply: Any) -> Any:
    """The content of a key, in a form in which equal contents are equal."""
    if kind == "hash":
        return dict(zip(reply[::2], reply[1::2], strict=True))
    return set(reply) if kind == "set" else reply


def _is_right_ttl(one: Rename, before: int, after: int) -> bool:
    if one.sets_ttl:
        return one.ttl is not None and 0 < after <= one.ttl
    return after < 0 if before < 0 else abs(after - before) <= SLACK


def _sure(reply: Any) -> Any:
    if isinstance(reply, ResponseError):
        text = str(reply)
        if text.startswith(("MOVED", "ASK ")):
            raise _Left("its hash slot has moved; run it again")
        raise _Left(f"Redis refuses: {text}")
    return reply
