"""A login of keyfence's connections, and how its connections come to the next one. Without I/O.

Rule: no herd. Connections log in again one after another, until 85 % of their login's life are over. Those
that cannot are ended between 90 % and 97 % of it.
"""

from __future__ import annotations

import dataclasses
import math

from .rotation import doubled

ACCEPTED = b"+OK\r\n"
RENEWED_BY = 0.85  # of a login's life …
ENDED_FROM, ENDED_BY = 0.9, 0.97
SPREAD_SECONDS = 10.0  # for which connections log in again whose login does not end
FIRST_PAUSE = 1.0  # seconds after a refusal, in which no connection logs in again, …
LONGEST_PAUSE = 30.0  # … doubled with each refusal up to this


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Login:
    """What keyfence's connections log in with. All connections that have logged in with it share it, and a
    connection's login is old if it is not the upstream's."""

    number: int  # of the credentials
    request: bytes = dataclasses.field(repr=False)  # AUTH
    made_at: float  # Unix seconds
    ends_at: float = math.inf  # after which Redis may close its connections

    def from_now(self, now: float) -> Login:
        """One of the same life that begins now."""
        return dataclasses.replace(self, made_at=now, ends_at=now + self.ends_at - self.made_at)

    def at(self, part: float) -> float:
        """When this part of its life is over."""
        return math.inf if math.isinf(self.ends_at) else self.made_at + part * (self.ends_at - self.made_at)


def each_second(waiting: int, now: float, until: float) -> int:
    """Of so many that wait, how many have their turn in this second, so that all have had it by `until`."""
    return math.ceil(waiting / max(1.0, until - now)) if waiting else 0


class Pace:
    """How many connections log in again."""

    def __init__(self) -> None:
        self._refusals = 0  # in a row
        self._paused_until = -math.inf
        self._login: Login | None = None

    def may(self, old: list[Login | None], new: Login, now: float) -> int:
        """How many of the connections with these logins log in with the new one now."""
        if new is not self._login:
            self._login, self._refusals, self._paused_until = new, 0, -math.inf
        if now < self._paused_until:
            return 0
        soon = new.made_at + SPREAD_SECONDS
        ends = [one.at(RENEWED_BY) for one in old if one is not None and not math.isinf(one.ends_at)]
        return each_second(len(old), now, min(ends, default=soon))

    def answered(self, now: float, *, accepted: bool) -> None:
        """Redis has answered one of them."""
        if accepted:
            self._refusals = 0
        elif now >= self._paused_until:
            self._refusals += 1
            self._paused_until = now + doubled(FIRST_PAUSE, self._refusals, LONGEST_PAUSE)
