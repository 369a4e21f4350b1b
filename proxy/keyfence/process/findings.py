"""The findings store of a running keyfence: opened at the start, fed each second, asked by operators.

Rule: only the process that controls keyfence opens the store. Without one, every question is a ValueError.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from keyfence.config.settings import Settings
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.telemetry.counters import Counters
from keyfence.telemetry.operator_log import warn

from .serving.runtime import StartError

if TYPE_CHECKING:
    from keyfence.findings.notify import Notifier
    from keyfence.findings.views import Views
    from keyfence.findings.writer import Writer

_T = TypeVar("_T")


class FindingsDesk:
    """The findings store, or the absence of one."""

    def __init__(self, writer: Writer | None = None, notifier: Notifier | None = None) -> None:
        self._writer = writer
        self._notifier = notifier

    @classmethod
    def open(cls, settings: Settings, counters: Counters) -> FindingsDesk:
        """Open the store that the settings name. Raises StartError. If only the default cannot be used,
        keyfence says so and goes on without."""
        if not settings.findings:
            return cls()
        # SQLAlchemy takes a fifth of a second to import, so only a keyfence with a store does.
        from keyfence.findings.database import StoreError
        from keyfence.findings.finding import State
        from keyfence.findings.notify import Feed, Notifier
        from keyfence.findings.queries import Reader
        from keyfence.findings.writer import Writer, open_store

        try:
            store = open_store(settings.findings, f"{socket.gethostname()}:{os.getpid()}")
        except StoreError as exc:
            if not settings.findings_are_default:
                raise StartError(str(exc)) from None
            warn(f"{exc}; findings are lost when keyfence ends (set findings: to a store, or to none)")
            return cls()
        reader, notifier = Reader(store.database), None
        if settings.notify is not None:
            said = settings.notify
            on = frozenset(map(State, said.on))
            feed = Feed(said.webhook, on, said.group / 1000, said.form)
            notifier = Notifier(feed, reader.finding, counters)
        told = notifier.changed if notifier is not None else lambda _events: None
        return cls(Writer(store, counters, keep=settings.findings_keep, on_change=told), notifier)

    @property
    def feed(self) -> Callable[[dict[str, Any]], None] | None:
        """Takes the increments of processes; None: nobody wants them."""
        return self._writer.take if self._writer is not None else None

    def policy_taken(self, policy: CompiledPolicy | None) -> None:
        """A policy is in force from now on."""
        if self._writer is not None:
            self._writer.policy_taken(policy)

    async def write_forever(self, is_open: Callable[[], bool]) -> None:
        """Write each second what was counted; `is_open` says whether clients are served."""
        while self._writer is not None:
            self._writer.look(is_open())
            await self._writer.tick()
            await asyncio.sleep(1)

    async def notify_forever(self) -> None:
        """Tell a webhook of findings, if the configuration names one."""
        if self._notifier is not None:
            await self._notifier.run_forever()

    async def ask(self, question: Callable[[Views], _T]) -> _T:
        """The answer of the store, up to date. Raises ValueError."""
        from sqlalchemy.exc import SQLAlchemyError

        from keyfence.findings.database import reason
        from keyfence.findings.views import Views

        if self._writer is None:
            raise ValueError("keyfence runs without a findings store; set findings: in the configuration")
        await self._writer.write()
        try:
            return await asyncio.to_thread(question, Views(self._writer.reader))
        except SQLAlchemyError as exc:
            raise ValueError(f"the findings store cannot be read: {reason(exc)}") from None

    async def close(self) -> None:
        """Write what is left, and tell of it."""
        if self._writer is not None:
            await self._writer.write()
            if self._notifier is not None:
                await self._notifier.close()
            await self._writer.close()
