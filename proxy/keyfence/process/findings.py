"""The findings store of a running keyfence: opened at the start, fed each second, asked by operators.

Rule: only the process that controls keyfence opens the store. Without one, every question is a ValueError.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from keyfence.admin.beside import Beside
from keyfence.config.settings import Settings
from keyfence.findings.filter import Filter
from keyfence.findings.finding import ACTIONS, ACTIVE, QUIET_SECONDS, State
from keyfence.findings.history.book import Book
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.resp.values import LEFT_OUT
from keyfence.telemetry.counters import Counters
from keyfence.telemetry.operator_log import warn

from .history import History
from .serving.answers import written
from .serving.backend import NOTHING_KEPT, Ledger, not_known
from .serving.garbage import importing, without_collections
from .serving.jobs import going_on, until_it_works
from .serving.runtime import StartError

if TYPE_CHECKING:
    from keyfence.config.models import NotifyModel
    from keyfence.findings.database import Database
    from keyfence.findings.instances import Compared, Instance
    from keyfence.findings.news.notify import Notifier
    from keyfence.findings.queries import Reader
    from keyfence.findings.views import Views
    from keyfence.findings.writer import Writer
    from keyfence.telemetry.tally import Key, Row

    Opened = tuple[Writer, Notifier | None]

_T = TypeVar("_T")
UNSETTLED = (*ACTIVE, State.WAIVED)  # findings that a service can do something about


class FindingsDesk(Ledger):
    """The findings store, or the absence of one."""

    def __init__(self, book: Book | None = None) -> None:
        """`book` is the history of this process; None: there is no store to write it to."""
        self.history = History(book)
        self.instance = book.instance if book is not None else ""
        self._writer: Writer | None = None
        self._notifier: Notifier | None = None
        self._opens_later: Callable[[], Opened | None] | None = None
        self._opening: asyncio.Future[None] | None = None
        self._opened = asyncio.Event()  # or there is no store
        self._opened.set()
        self._waiting: list[Mapping[str, Any]] = []  # increments from before that
        self._authorizer: Authorizer | None = None  # in force
        self._reports: Callable[[], Instance] | None = None  # what this keyfence says of itself …
        self._compares: Callable[[Instance], Compared | None] = lambda _: None  # … and the fleet's candidate
        self._reading = Beside("findings")
        self._reading_in_band = Beside("findings in-band")  # no service waits for the readers of the page
        self._in_band = asyncio.Lock()  # one question of services at a time, however many clients ask
        self.reading_seconds = 0.0  # of processor time, for all answers so far

    @classmethod
    def open(cls, settings: Settings, counters: Counters) -> FindingsDesk:
        """Open the store that the settings name. Raises StartError. keyfence also runs without the default
        store, so that one is left to `open_default`: importing SQLAlchemy takes as long as all else."""
        if not settings.findings:
            return cls()
        book = Book(f"{socket.gethostname()}:{os.getpid()}")
        desk = cls(book)
        if settings.findings_are_default:
            desk._opens_later = functools.partial(_open, settings, counters, book)
            desk._opened.clear()
        else:
            opened = _open(settings, counters, book)
            assert opened is not None
            desk._writer, desk._notifier = opened
        return desk

    async def open_default(self) -> None:
        """Open the default store, if the settings name no other. If it cannot be used, keyfence says so and
        goes on without. If the caller is cancelled, the opening goes on."""
        if self._opening is None and self._opens_later is not None:
            self._opening = asyncio.ensure_future(self._open_default(self._opens_later))
        if self._opening is not None:
            await asyncio.shield(self._opening)

    async def _open_default(self, open_it: Callable[[], Opened | None]) -> None:
        try:
            opened = await until_it_works(open_it)
            if opened is None:
                self.history.give_up()
            else:
                self._writer, self._notifier = opened
                self._tell(self._writer)
                for counts in self._waiting:
                    self._writer.take(counts)
        finally:  # nobody waits for a store that cannot be opened
            self._opens_later = None
            self._waiting.clear()
            self._opened.set()

    @property
    def has_store(self) -> bool:
        return self._writer is not None or self._opens_later is not None

    def notes(self) -> list[str]:
        """Why the store lacks what was counted last; empty if it lacks nothing."""
        return [self._writer.trouble] if self._writer is not None and self._writer.trouble else []

    @property
    def feed(self) -> Callable[[dict[str, Any]], None] | None:
        """Takes the increments of processes; None: nobody wants them."""
        return self._take if self.has_store else None

    def _take(self, counts: dict[str, Any]) -> None:
        if self._writer is not None:
            self._writer.take(counts)
        elif self._opens_later is not None:
            self._waiting.append(counts)

    def policy_taken(self, authorizer: Authorizer | None, settings: Settings) -> None:
        """A policy is in force from now on, with its modes and waivers; None: commands pass unread."""
        self._authorizer = authorizer
        self.history.put_in_force(authorizer, settings)
        if self._writer is not None:
            self._tell(self._writer)

    def report_by(
        self, reports: Callable[[], Instance], compares: Callable[[Instance], Compared | None]
    ) -> None:
        """Write what these return, as what this keyfence says of itself and of the fleet's candidate."""
        self._reports, self._compares = reports, compares
        if self._writer is not None:
            self._writer.reports, self._writer.compares = reports, compares

    def _tell(self, writer: Writer) -> None:
        writer.reports, writer.compares = self._reports, self._compares
        authorizer = self._authorizer
        if authorizer is None:
            writer.policy_taken(None)
        else:
            writer.policy_taken(authorizer.policy, authorizer.modes)

    async def write_forever(self, is_open: Callable[[], bool]) -> None:
        """Write each second what was counted; `is_open` says whether clients are served."""
        await self._opened.wait()
        while self._writer is not None:
            with going_on():
                self._writer.look(is_open())
                await self._writer.tick()
            await asyncio.sleep(1)

    async def notify_forever(self) -> None:
        """Tell a webhook of findings, if the configuration names one."""
        await self._opened.wait()
        if self._notifier is not None:
            await self._notifier.run_forever()

    async def database(self) -> Database | None:
        """The store's database, once it is open; None: there is no store."""
        await self._opened.wait()
        return self._writer.reader.database if self._writer is not None else None

    async def write(self) -> int:
        """Write what was counted so far. Returns the version of the findings, which changes with them."""
        await self._opened.wait()
        if self._writer is None:
            return 0
        await self._writer.write()
        return self._writer.version

    async def ask(
        self, question: Callable[[Views], _T], report: Iterable[tuple[Key, Row]] | None = None
    ) -> _T:
        """The answer of the store as it is; without one, that of the rows of a report. Raises ValueError."""
        return await self._ask(question, self._reading, report)

    async def _ask(
        self,
        question: Callable[[Views], _T],
        reading: Beside,
        report: Iterable[tuple[Key, Row]] | None = None,
    ) -> _T:
        await self._opened.wait()
        if self._writer is None and report is None:
            raise ValueError(NOTHING_KEPT)
        # The rows are listed here: the report goes on to change while a thread reads them.
        reader = self._writer.reader if self._writer is not None else list(report or ())
        authorizer = self._authorizer

        def answer() -> tuple[_T, float]:
            began = time.thread_time()
            return _answered(question, reader, authorizer), time.thread_time() - began

        found, seconds = await reading.do(answer)
        self.reading_seconds += seconds
        return found

    # -- for services, in-band

    @property
    def ledger(self) -> Ledger | None:
        """Answers services; None: there is no store."""
        return self if self.has_store else None

    async def findings_of(self, service: str, limit: int) -> dict[str, Any]:
        which = Filter(service=service, state=UNSETTLED, limit=limit)
        found = await self._ask_in_turn(lambda views: views.listing(which, time.time()))
        rows = [_row(one) for one in found["findings"]]
        return {"findings": rows, LEFT_OUT: found["total"] - len(rows)}

    async def readiness_of(self, service: str, modes: Mapping[str, str]) -> dict[str, Any]:
        of_service = {rule: {service: mode} for rule, mode in modes.items()}
        found = await self._ask_in_turn(lambda views: views.readiness(of_service, QUIET_SECONDS, time.time()))
        if notes := self.notes():
            raise not_known(notes[0])
        names = ("rule", "readiness", "why", "asked", "findings")
        rows = [{name: one[name] for name in names} for one in found["standings"]]
        return {"service": service, "ready": found["ready"], "rules": rows}

    async def _ask_in_turn(self, question: Callable[[Views], _T]) -> _T:
        """The answer of the store, up to date. One question follows the other. A question that its asker
        gives up keeps its turn until the store has answered: a store that hangs takes one thread, not all."""
        await self._in_band.acquire()
        asking = asyncio.ensure_future(self._ask_up_to_date(question))

        def answered(_: object) -> None:
            self._in_band.release()
            if not asking.cancelled():
                asking.exception()  # its asker may have gone

        asking.add_done_callback(answered)
        return await asyncio.shield(asking)

    async def _ask_up_to_date(self, question: Callable[[Views], _T]) -> _T:
        await self.write()
        return await self._ask(question, self._reading_in_band)

    async def close(self) -> None:
        """Write what is left, and tell of it."""
        if self._opening is not None or self._waiting:
            await self.open_default()
        if self._writer is not None:
            self.history.stop()
            await self._writer.write()
            if self._notifier is not None:
                await self._notifier.close()
            await self._writer.close()


def _answered(
    question: Callable[[Views], _T], reader: Reader | list[tuple[Key, Row]], authorizer: Authorizer | None
) -> _T:
    """The answer of a store, or of the rows of a report, under the policy of the authorizer. Raises
    ValueError."""
    if isinstance(reader, list):
        reader = _reader_of_report(reader)
    from sqlalchemy.exc import SQLAlchemyError

    from keyfence.findings.database import reason
    from keyfence.findings.proof.basis import InForce
    from keyfence.findings.views import Views

    in_force = InForce() if authorizer is None else InForce(authorizer.policy, authorizer.modes)
    try:
        return question(Views(reader, in_force))
    except SQLAlchemyError as exc:
        raise ValueError(f"the findings store cannot be read: {reason(exc)}") from None


def _reader_of_report(rows: list[tuple[Key, Row]]) -> Reader:
    _import_report()
    from .report import ReportReader

    return ReportReader(rows, time.time())


@functools.cache
def _import_report() -> None:
    with importing():
        importlib.import_module("keyfence.process.report")


def _open(settings: Settings, counters: Counters, book: Book) -> Opened | None:
    """Open the store. Returns None if only the default cannot be used, and says so. Raises StartError."""
    # SQLAlchemy takes a fifth of a second to import, so only a keyfence with a store does. Clients are served
    # meanwhile; what else exists now and is no garbage stays, or goes without a collection.
    with importing():
        from keyfence.findings.database import StoreError
        from keyfence.findings.queries import Reader
        from keyfence.findings.writer import Writer, open_store
    try:
        store = open_store(settings.findings, book.instance)
    except StoreError as exc:
        if not settings.findings_are_default:
            raise StartError(str(exc)) from None
        warn(f"{exc}; findings are lost when keyfence ends (set findings: to a store, or to none)")
        return None
    notifier = _notifier(settings.notify, Reader(store.database), counters)
    told = notifier.changed if notifier is not None else lambda _events: None
    return Writer(store, counters, keep=settings.findings_keep, on_change=told, book=book), notifier


def _notifier(told: NotifyModel | None, reader: Reader, counters: Counters) -> Notifier | None:
    if told is None:
        return None
    with without_collections():
        from keyfence.findings.news.notify import Feed, Notifier
    feed = Feed(told.webhook, frozenset(map(State, told.on)), told.group / 1000, told.form)
    return Notifier(feed, reader.finding, counters)


def _row(finding: dict[str, Any]) -> dict[str, Any]:
    """A finding as its service gets it."""
    examples = finding["examples"]
    return {
        **{name: finding[name] for name in ("id", "state", "rule", "command", "entry", "shape")},
        **{action: finding["counts"].get(action, 0) for action in ACTIONS},
        "first_seen": written(finding["first"]),
        "last_seen": written(finding["last"]),
        "example": examples[-1]["key"] if examples else "",
        "hint": finding["hint"],
        "owner": finding["owner"],
    }
