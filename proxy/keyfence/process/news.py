"""The news of a running keyfence: the configuration's `news` put to work, beside the findings store.

Rule: only the process that controls keyfence sends news, and only if it is configured. A reload changes
it. Nothing here is on the path of a request.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from keyfence.config.news import NewsModel, TargetModel
from keyfence.telemetry.counters import Counters

from .causes import Causes
from .findings import FindingsDesk
from .serving.garbage import importing
from .serving.runtime import Runtime

if TYPE_CHECKING:
    from keyfence.findings.database import Database
    from keyfence.findings.news.digest import Bounds, Covered
    from keyfence.findings.news.plan import Plan, Target
    from keyfence.findings.news.sender import Sender
    from keyfence.findings.views import Views

_UNREADABLE = (AttributeError, KeyError, TypeError)


class News:
    """The news of one keyfence."""

    def __init__(self, desk: FindingsDesk, runtime: Runtime) -> None:
        self._desk = desk
        self._runtime = runtime

    async def run_forever(self) -> None:
        """Send each digest when it is due, for as long as the configuration asks for any."""
        database = await self._desk.database()
        if database is None:
            return
        while self._runtime.settings.news is None:
            await asyncio.sleep(1)
        with importing():
            import aiohttp

            sender = self._sender(database, self._runtime.telemetry.counters)
        known: NewsModel | None = None
        async with aiohttp.ClientSession() as session:
            while True:
                await asyncio.sleep(1)
                if known is not self._runtime.settings.news:
                    known = self._runtime.settings.news
                    sender.plan = plan_of(known) if known is not None else None
                await sender.tick(session)

    def _sender(self, database: Database, counters: Counters) -> Sender:
        from keyfence.findings.news.claims import Claims
        from keyfence.findings.news.sender import Sender

        return Sender(Claims(database, self._desk.instance), self._make, counters)

    async def _make(self, bounds: Bounds) -> Covered:
        causes = Causes(self._runtime.policy)
        return await self._desk.ask(lambda views: covered(views, bounds, causes))


def covered(views: Views, bounds: Bounds, causes: Causes) -> Covered:
    """The digest of what the views read. Raises ValueError."""
    from keyfence.findings.news.digest import digest_of

    try:
        return digest_of(views, bounds, causes.grouped)
    except _UNREADABLE as exc:
        raise ValueError(f"the findings store has a row that keyfence does not write: {exc!r}") from None


def told_since(views: Views, causes: Causes, since: float, now: float, owner: str) -> dict[str, Any]:
    """What the news of the time since then would say, to one owner or ("") to all. Raises ValueError."""
    from keyfence.findings.news.digest import Bounds
    from keyfence.findings.news.share import only_of
    from keyfence.findings.news.wording import as_object

    if since >= now:
        raise ValueError("the time is not over; news is about what has happened since a time")
    made = covered(views, Bounds(since, now, now - since), causes)
    return as_object(only_of(made.digest, owner))


def plan_of(said: NewsModel) -> Plan:
    """The settings as a plan."""
    from keyfence.findings.news.plan import Plan, Smtp, merged

    targets = [_target(one)._replace(gets_rest=True) for one in said.to]
    for owner, several in said.owners.items():
        targets += [_target(one)._replace(owners=frozenset({owner})) for one in several]
    hour, minute = map(int, said.at.split(":"))
    mail, smtp = said.smtp, None
    if mail is not None:
        login = mail.username, mail.password
        smtp = Smtp(mail.host, mail.its_port, mail.tls, mail.ca, *login, mail.from_)
    places = merged(targets)
    return Plan(said.its_weekday, hour, minute, said.zone, places, smtp, said.page, said.even_if_quiet)


def _target(said: TargetModel) -> Target:
    from keyfence.findings.news.plan import Target

    return Target(said.webhook, said.as_ or "json", tuple(said.email))
