"""Who sends a digest: rows of the store that instances claim, one for each period and target.

Rule: a claim is one statement, and only one instance's changes the row. It counts the try before the try is
made, and holds for `LEASE` only. So a digest is sent at least once if its instance dies, and tried at most
`len(PAUSES) + 1` times whatever happens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite

from keyfence.findings.database import Database
from keyfence.findings.tables import news, news_targets

from .digest import Bounds, Covered, Digest
from .plan import Period

WAITING, SENT, GIVEN_UP = "waiting", "sent", "given up"
PAUSES = (60.0, 300.0, 900.0, 3600.0)  # seconds after each failure but the last
LEASE = 120.0  # seconds; longer than a try may take
KEEP_SECONDS = 30 * 24 * 3600.0  # for which the rows of a period stay


class Waiting(NamedTuple):
    """A digest that a target has not taken yet."""

    period: str
    target: str


class Claims:
    """The digests of one store. Its methods block; any thread may call them."""

    def __init__(self, database: Database, instance: str) -> None:
        """`instance` names this process among those of the store."""
        self._database = database
        self._instance = instance
        self._insert = sqlite.insert if database.is_sqlite else postgresql.insert

    # -- digests

    def is_made(self, period: str) -> bool:
        """Whether the digest of a period is made, or the news of this store begin with it."""
        chosen = select(news.c.period).where(news.c.period == period)
        with self._database.reading() as connection:
            return connection.execute(chosen).one_or_none() is not None

    def digest(self, period: str) -> Digest | None:
        """The digest of a period; None: the news of this store only begin with it."""
        with self._database.reading() as connection:
            content = connection.execute(select(news.c.content).where(news.c.period == period)).scalar_one()
        found: Digest | None = json.loads(content) if content else None
        return found

    def bounds(self, period: Period) -> Bounds | None:
        """What the digest of a period covers: everything since the one before. None: there is none before."""
        with self._database.reading() as connection:
            row = connection.execute(select(news).order_by(news.c.until.desc()).limit(1)).one_or_none()
        if row is None:
            return None
        before = json.loads(row.content) if row.content else {}
        ready = frozenset((one["rule"], one["service"]) for one in before.get("ready") or ())
        return Bounds(row.until, period.due, period.length, row.event, ready)

    def begin(self, period: Period, event: int) -> None:
        """The news of this store begin: the next digest covers what comes after this period."""
        values = {"since": period.due, "until": period.due, "event": event, "content": ""}
        with self._database.writing() as connection:
            self._add(connection, period, values)

    def add(self, period: Period, made: Covered, targets: Iterable[str]) -> None:
        """Keep the digest of a period for its targets, unless another instance was first."""
        span = {name: made.digest[name] for name in ("since", "until")}
        values = {**span, "event": made.event, "content": json.dumps(made.digest)}
        with self._database.writing() as connection:
            self._add(connection, period, values)
            self._expect(connection, period.name, targets)

    def expect(self, period: str, targets: Iterable[str]) -> None:
        """These targets are to get the digest of a period, which is made."""
        with self._database.writing() as connection:
            self._expect(connection, period, targets)

    def _add(self, connection: Connection, period: Period, values: dict[str, Any]) -> None:
        added = self._insert(news).values(period=period.name, **values)
        connection.execute(added.on_conflict_do_nothing(index_elements=["period"]))
        is_old = news.c.until < period.due - KEEP_SECONDS
        old = select(news.c.period).where(is_old)
        connection.execute(delete(news_targets).where(news_targets.c.period.in_(old)))
        connection.execute(delete(news).where(is_old))

    def _expect(self, connection: Connection, period: str, targets: Iterable[str]) -> None:
        of_period = {"period": period, "instance": "", "state": WAITING, "tries": 0, "next": 0.0}
        rows = [{"target": one, **of_period} for one in sorted(targets)]
        if rows:
            added = self._insert(news_targets)
            connection.execute(added.on_conflict_do_nothing(index_elements=["period", "target"]), rows)

    # -- tries

    def waiting(self, now: float) -> list[Waiting]:
        """What may be tried now, the oldest first."""
        due = news_targets.c.state == WAITING, news_targets.c.next <= now
        chosen = (
            select(news_targets.c.period, news_targets.c.target)
            .join(news, news.c.period == news_targets.c.period)
            .where(*due, news.c.content != "")
            .order_by(news.c.until, news_targets.c.target)
        )
        with self._database.reading() as connection:
            return [Waiting(*row) for row in connection.execute(chosen)]

    def claim(self, one: Waiting, now: float) -> int:
        """The number of the try that this instance may make now; 0: it may make none."""
        may_try = news_targets.c.next <= now, news_targets.c.tries <= len(PAUSES)
        values = {"instance": self._instance, "tries": news_targets.c.tries + 1, "next": now + LEASE}
        with self._database.writing() as connection:
            if not self._change(connection, one, *may_try, **values):
                return 0
            tries = select(news_targets.c.tries).where(*_row_of(one))
            return int(connection.execute(tries).scalar_one())

    def sent(self, one: Waiting) -> None:
        """The target has taken the digest."""
        with self._database.writing() as connection:
            self._change(connection, one, self._is_held, state=SENT)

    def failed(self, one: Waiting, tries: int, now: float) -> float:
        """The target has not taken it at this try. Returns for how many seconds nobody tries again; 0.0: that
        was the last try."""
        pause = PAUSES[tries - 1] if tries <= len(PAUSES) else 0.0
        values = {"next": now + pause} if pause else {"state": GIVEN_UP}
        with self._database.writing() as connection:
            self._change(connection, one, self._is_held, **values)
        return pause

    def give_up(self, one: Waiting, now: float) -> bool:
        """Whether it is given up now: each try was begun, and the last one never ended."""
        is_dead = news_targets.c.tries > len(PAUSES), news_targets.c.next <= now
        with self._database.writing() as connection:
            return self._change(connection, one, *is_dead, state=GIVEN_UP)

    @property
    def _is_held(self) -> Any:
        """Whether this instance has the claim: another may have taken it over."""
        return news_targets.c.instance == self._instance

    def _change(self, connection: Connection, one: Waiting, *which: Any, **values: Any) -> bool:
        """Change the row of what waits, if it still does."""
        where = (*_row_of(one), news_targets.c.state == WAITING, *which)
        return bool(connection.execute(update(news_targets).where(*where).values(values)).rowcount)


def _row_of(one: Waiting) -> tuple[Any, Any]:
    return news_targets.c.period == one.period, news_targets.c.target == one.target
