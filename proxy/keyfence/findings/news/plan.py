"""When a digest is due, and who gets what: the configuration's `news` as plain values.

Rule: nothing here does I/O. All instances with one configuration have the same periods and the same names of
targets, so they agree on who sends without talking to each other.
"""

from __future__ import annotations

import datetime
import hashlib
import zoneinfo
from typing import NamedTuple

DAY = 24 * 3600.0


class Target(NamedTuple):
    """Where a digest goes: a webhook, or addresses of e-mail."""

    webhook: str = ""  # its URL, a secret
    form: str = "json"  # of a webhook: json, slack or teams
    email: tuple[str, ...] = ()
    owners: frozenset[str] = frozenset()  # whose findings it gets
    gets_rest: bool = False  # it gets what nobody else gets, too

    @property
    def name(self) -> str:
        """The same in every instance, and nothing of the URL can be read from it."""
        text = "\0".join((self.webhook, self.form, *self.email))
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


class Smtp(NamedTuple):
    """A mail server. `tls`: starttls, tls or none; `ca` "" is the system's authorities."""

    host: str
    port: int
    tls: str
    ca: str
    username: str
    password: str
    sender: str


class Period(NamedTuple):
    """One digest: its name, and when it is due, in Unix seconds."""

    name: str  # `day 2026-11-30`, `week 2026-11-30`
    due: float
    length: float  # seconds until the next one, about


class Plan(NamedTuple):
    """Which digests are sent, and to whom."""

    weekday: int | None  # Monday is 0; None: each day
    hour: int
    minute: int
    zone: str
    targets: tuple[Target, ...]
    smtp: Smtp | None
    page: str
    even_if_quiet: bool

    @property
    def length(self) -> float:
        return DAY if self.weekday is None else 7 * DAY

    def last_due(self, now: float) -> Period:
        """The last digest that was due at a time."""
        zone = zoneinfo.ZoneInfo(self.zone)
        day = datetime.datetime.fromtimestamp(now, zone).date()
        while True:
            at = datetime.datetime.combine(day, datetime.time(self.hour, self.minute), zone)
            if (self.weekday in (None, day.weekday())) and at.timestamp() <= now:
                kind = "day" if self.weekday is None else "week"
                return Period(f"{kind} {day.isoformat()}", at.timestamp(), self.length)
            day -= datetime.timedelta(days=1)


def merged(targets: list[Target]) -> tuple[Target, ...]:
    """Each place once: one that is named several times gets everything in one message."""
    found: dict[str, Target] = {}
    for one in targets:
        before = found.get(one.name, one)
        found[one.name] = one._replace(
            owners=before.owners | one.owners, gets_rest=before.gets_rest or one.gets_rest
        )
    return tuple(found.values())
