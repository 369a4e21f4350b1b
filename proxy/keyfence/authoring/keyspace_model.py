"""A model of Redis' key space for policy tests: which keys exist after a sequence of commands, and until
when.

Rule: the model follows only what argv shows. A key exists once a command has written it. Effects that depend
on values (the last field that HDEL removes, a SET IFEQ) are assumed to happen as written.
"""

from __future__ import annotations

from collections.abc import Mapping

from keyfence.commands.model import DELETE, READ, WRITE, Access, Touches, Ttl
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

    def run(self, touches: Touches, now: int) -> None:
        """Applies a command at the time `now`, in milliseconds since the epoch."""
        carried = next((one.key for one in touches.accesses if one.needs & READ), b"")
        gone = [key for key in self._ends if not self.exists(key, now)]
        for key in gone:
            del self._ends[key]
        before = dict(self._ends)
        removed = [access.key for access in touches.accesses if _removes(access)]
        for key in removed:
            self._ends.pop(key, None)
        for access in touches.accesses:
            ttl = access.ttl
            if ttl is None or not access.needs & WRITE:
                continue
            if ttl.kind == "carries":
                self._carry(before, carried, access, ttl, removed)
            else:
                self._apply(access.key, ttl, now)

    def _carry(
        self,
        before: Mapping[bytes, int | None],
        source: bytes,
        access: Access,
        ttl: Ttl,
        removed: list[bytes],
    ) -> None:
        """Applies RENAME, COPY and MOVE.

        The time to live moves with the value; without a value, nothing does.
        """
        if source == access.key and not removed:  # MOVE: to another database
            self._ends.pop(source, None)
            return
        refused = ttl.condition == "NX" and access.key in before
        if refused or source not in before or source == access.key:
            for key in removed:
                if key in before:
                    self._ends[key] = before[key]
        else:
            self._ends[access.key] = before[source]

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
