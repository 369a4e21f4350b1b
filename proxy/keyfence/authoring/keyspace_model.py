"""A model of Redis' key space for policy tests: which keys exist after a sequence of commands, and until
when.

Rule: the model follows only what argv shows. A key exists once a command has written it. Effects that depend
on values (the last field that HDEL removes, a SET IFEQ) are assumed to happen as written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keyfence.commands.model import DELETE, DELETES, WRITE, Access, Touches, Ttl
from keyfence.policy.compiled.ttl import GONE, NO_TTL

NEVER = None  # a key that exists and has no time to live


class Keyspace:
    """Keys with their expiry times in milliseconds since the epoch; NEVER for keys without one."""

    def __init__(self, given: Mapping[bytes, int | None] | None = None) -> None:
        self._ends: dict[bytes, int | None] = dict(given or {})

    def exists(self, key: bytes, now: int) -> bool:
        """Returns whether the key exists at the time `now`."""
        end = self._ends.get(key, now + 1)
        return key in self._ends and (end is NEVER or end > now)

    def pttl(self, key: bytes, now: int) -> int:
        """Returns the reply of PTTL: milliseconds, NO_TTL or GONE."""
        if not self.exists(key, now):
            return GONE
        end = self._ends[key]
        return NO_TTL if end is NEVER else end - now

    def run(self, touches: Touches, now: int, into: Keyspace | None = None) -> None:
        """Applies a command at the time `now`, in milliseconds since the epoch. `into`: the keys of the other
        database to which COPY or MOVE takes a key."""
        for keyspace in (self, into or self):
            keyspace._expire(now)
        written = [(one, one.ttl) for one in touches.accesses if one.ttl is not None and one.needs & WRITE]
        if any(self._fails(access.key, ttl, now) for access, ttl in written):
            return  # Redis answers with an error or 0, also for the other keys of the command (MSETNX)
        if any(ttl.kind == "carries" for _, ttl in written):
            self._carry(touches.accesses, into or self)
            return
        for access in touches.accesses:
            if _removes(access):
                self._ends.pop(access.key, None)
        for access, ttl in written:
            self._apply(access.key, ttl, now)

    def _expire(self, now: int) -> None:
        self._ends = {key: end for key, end in self._ends.items() if end is NEVER or end > now}

    def _fails(self, key: bytes, ttl: Ttl, now: int) -> bool:
        """Whether a write does nothing: its condition does not hold, or its time is none (SET … EX 0)."""
        if ttl.kind in ("carries", "expires"):
            return False
        return not self._meets(key, ttl, now) or (ttl.kind == "sets" and (ttl.milliseconds or 0) <= 0)

    def _carry(self, accesses: Sequence[Access], into: Keyspace) -> None:
        """Applies RENAME, COPY and MOVE.

        The time to live moves with the value; without a value, nothing does.
        """
        source, target = accesses[0], accesses[-1]
        is_same = into is self and source.key == target.key
        goes = _removes(source) or bool(source.losses & DELETES)
        is_new = goes and into is not self  # MOVE replaces nothing
        is_new = is_new or (target.ttl is not None and target.ttl.condition == "NX")
        if is_same or source.key not in self._ends or (is_new and target.key in into._ends):
            return
        into._ends[target.key] = self._ends[source.key]
        if goes:
            del self._ends[source.key]

    def _apply(self, key: bytes, ttl: Ttl, now: int) -> None:
        there = key in self._ends
        if (not there and (not ttl.creates or ttl.kind == "expires")) or not self._meets(key, ttl, now):
            return
        if ttl.kind == "keeps":
            self._ends.setdefault(key, NEVER)
        elif ttl.kind == "drops":
            self._ends[key] = NEVER
        elif ttl.milliseconds is not None:
            end = ttl.milliseconds + (0 if ttl.absolute else now)
            if end > now:
                self._ends[key] = end
            else:
                self._ends.pop(key, None)

    def _meets(self, key: bytes, ttl: Ttl, now: int) -> bool:
        """Returns whether the conditions of SET (on the key) or EXPIRE (on its time to live) hold."""
        conditions = ttl.condition.split()
        if ttl.kind != "expires":
            there = key in self._ends
            return not (("NX" in conditions and there) or ("XX" in conditions and not there))
        old = self._ends[key]
        new = (ttl.milliseconds or 0) + (0 if ttl.absolute else now)
        # GT and LT treat a missing time to live as an infinite one (`src/expire.c`).
        return not (
            ("NX" in conditions and old is not NEVER)
            or ("XX" in conditions and old is NEVER)
            or ("GT" in conditions and (old is NEVER or new <= old))
            or ("LT" in conditions and old is not NEVER and new >= old)
        )


def _removes(access: Access) -> bool:
    """Returns whether the access removes the whole key."""
    return bool(access.needs & DELETE) and access.ttl is None
