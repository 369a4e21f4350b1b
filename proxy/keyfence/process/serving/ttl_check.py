"""Asks Redis for times to live and sizes that the commands did not show, and reports violations.

Rule: it asks on a connection of its own, in batches, each key in its database. A key without an answer is
counted and causes no violation; each reason is reported once. A fault here does not affect clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TypeVar, cast

from keyfence.policy.compiled.sizes import Question
from keyfence.policy.engine.pending import PendingSize, PendingTtl, PendingTtls
from keyfence.policy.engine.writes import Write
from keyfence.policy.verdict import Finding
from keyfence.telemetry.telemetry import Telemetry
from keyfence.upstream.credentials.login import Login
from keyfence.upstream.handshake import Greeting, GreetingError, describe, keep_alive
from keyfence.upstream.health import Upstream
from keyfence.upstream.own_commands import PTTL, SELECT, SIZES
from keyfence.upstream.patience import at_most

LOOK_SECONDS = 0.5  # between two checks
UNUSED_SECONDS = 60.0  # after which a connection is closed
BATCH = 500  # keys in one write
MAX_LINE = 64 * 1024  # bytes of a reply that is one line
MAX_REASONS = 100  # reasons that are reported
_OF_ANOTHER_TYPE = b"-WRONGTYPE"

_Open = TypeVar("_Open", PendingTtl, PendingSize)


class CannotAsk(Exception):
    """Redis cannot be asked; the message says why, for people."""


class TtlWatch:
    """Checks the due keys of a table again and again. One for each process, in its event loop."""

    def __init__(
        self,
        table: PendingTtls,
        upstream: Upstream,
        telemetry: Telemetry,
        on_failure: Callable[[str], None] = lambda _reason: None,
        on_error: Callable[[Exception], None] = lambda _error: None,
        upstream_of: Callable[[bytes], Upstream | None] = lambda _key: None,
    ) -> None:
        """`upstream_of`: the node of a cluster that has a key; None: `upstream` has it. `on_failure` gets
        each reason why Redis could not be asked, once; `on_error` gets faults of keyfence."""
        self.table = table
        self._upstream = upstream
        self._telemetry = telemetry
        self._on_failure = on_failure
        self._on_error = on_error
        self._reported: set[str] = set()
        self._dropped = self._dropped_sizes = 0  # `dropped` of the tables when last counted
        self._upstream_of = upstream_of
        # With the move of the upstream before each was opened, and its login.
        self._links: dict[Upstream, tuple[_Link, tuple[float, Login | None]]] = {}

    async def watch_forever(self) -> None:
        """Check the due keys twice a second. Cancelling closes the connections."""
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                try:
                    await self.look()
                except Exception as exc:
                    self._telemetry.counters.internal_error("late")
                    self._on_error(exc)
        finally:
            self.close()

    def close(self) -> None:
        """Close the connections."""
        for upstream in list(self._links):
            self._close(upstream)

    async def look(self) -> None:
        """Ask about every key that is due now."""
        counters = self._telemetry.counters
        counters.pending_ttl_dropped += self.table.dropped - self._dropped
        self._dropped = self.table.dropped
        counters.pending_size_dropped += self.table.sizes.dropped - self._dropped_sizes
        self._dropped_sizes = self.table.sizes.dropped
        while due := self.table.due():
            for upstream, some in self._by_upstream(due):
                for database, batch in _batches(some):
                    await self._ask(upstream, database, batch)
        while sizes := self.table.sizes.due():
            for upstream, of_some in self._by_upstream(sizes):
                for database, of_size in _batches(of_some):
                    await self._ask_sizes(upstream, database, of_size)
        now = asyncio.get_running_loop().time()
        for upstream in [
            one for one, (link, _) in self._links.items() if now - link.asked_at > UNUSED_SECONDS
        ]:
            self._close(upstream)  # such as a node that has left its cluster

    def _by_upstream(self, due: Sequence[_Open]) -> Iterable[tuple[Upstream, list[_Open]]]:
        found: dict[Upstream, list[_Open]] = {}
        for one in due:
            found.setdefault(self._upstream_of(one.key) or self._upstream, []).append(one)
        return found.items()

    async def _ask(self, upstream: Upstream, database: int, batch: Sequence[PendingTtl]) -> None:
        """Settle each key of a batch, whatever happens."""
        awaited = list(batch)
        try:
            commands = [PTTL.request(one.key) for one in batch]
            for reply in await self._replies(upstream, database, commands):
                self._settle(awaited.pop(0), reply)
        except CannotAsk as exc:
            self._close(upstream)
            self._tell(str(exc))
        finally:
            for one in awaited:
                self._unanswered(one)

    def _settle(self, pending: PendingTtl, reply: bytes) -> None:
        """Take Redis' reply about a key."""
        left = _integer(reply)
        if left is None:
            self._unanswered(pending)
            self._tell(reply[1:].decode("utf-8", "replace"))
        elif self.table.answer(pending, left):
            self._report(pending.write, pending.findings(left))

    def _unanswered(self, pending: PendingTtl) -> None:
        self.table.unanswered(pending)
        self._telemetry.counters.pending_ttl_unanswered += 1

    async def _ask_sizes(self, upstream: Upstream, database: int, batch: Sequence[PendingSize]) -> None:
        """The same for sizes. A key of unknown type needs several commands."""
        awaited = list(batch)
        # The questions are fixed here: another write may arrive meanwhile, with other questions.
        asked = [one.questions for one in batch]
        try:
            commands = [
                SIZES[question.command].request(one.key)
                for one, questions in zip(batch, asked, strict=True)
                for question in questions
            ]
            replies = iter(await self._replies(upstream, database, commands))
            for questions in asked:
                self._settle_size(awaited.pop(0), questions, [next(replies) for _ in questions])
        except CannotAsk as exc:
            self._close(upstream)
            self._tell(str(exc))
        finally:
            for one in awaited:
                self._size_unanswered(one)

    def _settle_size(
        self, pending: PendingSize, questions: Sequence[Question], replies: Sequence[bytes]
    ) -> None:
        sizes = [_integer(reply) for reply in replies]
        refused = [reply for reply in replies if reply[:1] != b":" and not reply.startswith(_OF_ANOTHER_TYPE)]
        if refused:
            self._size_unanswered(pending)
            self._tell(refused[0][1:].decode("utf-8", "replace"))
            return
        found = self.table.sizes.answer(pending, questions, sizes)
        if found is not None:
            doubt, size = found
            self._report(doubt.write, doubt.findings(size))

    def _size_unanswered(self, pending: PendingSize) -> None:
        self.table.sizes.unanswered(pending)
        self._telemetry.counters.pending_size_unanswered += 1

    def _report(self, write: Write, findings: Sequence[Finding]) -> None:
        policy = write.authorizer.policy
        service = policy.services[write.asker.service]
        self._telemetry.violations(service, write.asker.peer, write.command, findings, policy.revision)

    def _tell(self, reason: str) -> None:
        if reason not in self._reported and len(self._reported) < MAX_REASONS:
            self._reported.add(reason)
            self._on_failure(reason)

    async def _replies(self, upstream: Upstream, database: int, commands: Sequence[bytes]) -> list[bytes]:
        """Redis' replies to commands about keys of one database, one line each. Raises CannotAsk."""
        try:
            async with at_most(upstream.connect_timeout):
                link = await self._connected(upstream)
                return await link.ask(database, commands)
        except OSError as exc:
            raise CannotAsk(describe(exc)) from None

    async def _connected(self, upstream: Upstream) -> _Link:
        stands = upstream.moved_at, upstream.login
        if upstream in self._links:
            link, stood = self._links[upstream]
            if stood == stands and not link.lost:
                return link
            self._close(upstream)  # it leads to the former primary, or has a former login
        if upstream.up is False or upstream.must_wait:
            raise CannotAsk(upstream.reason)
        link = _Link(upstream.address.greeting(), upstream.address.database)
        await upstream.attempt(lambda: link)
        self._links[upstream] = link, stands
        return link

    def _close(self, upstream: Upstream) -> None:
        if upstream in self._links:
            self._links.pop(upstream)[0].close()


class _Link(asyncio.Protocol):
    """keyfence's own connection, on which every reply is one line."""

    def __init__(self, greeting: Sequence[bytes], database: int) -> None:
        self.lost = False
        self._opening = b"".join(greeting)
        self._greeting = Greeting(len(greeting))
        self._database = database
        self._transport: asyncio.WriteTransport | None = None
        self._unread = b""
        self._lines: list[bytes] = []
        self._wanted = 0
        self._answer: asyncio.Future[list[bytes]] | None = None
        self.asked_at = 0.0  # when it was used last, by the loop's clock

    async def ask(self, database: int, commands: Sequence[bytes]) -> list[bytes]:
        """Send commands about one database, each with a reply of one line. Raises CannotAsk."""
        if self._transport is None or self.lost:
            raise CannotAsk("the connection was lost")
        loop = asyncio.get_running_loop()
        self.asked_at = loop.time()
        changes = database != self._database
        if changes:
            commands = [SELECT.request(database), *commands]
        self._wanted = len(commands)
        self._answer = loop.create_future()
        self._transport.write(b"".join(commands))
        lines = await self._answer
        if changes and lines[0] != b"+OK":
            raise CannotAsk(lines[0][1:].decode("utf-8", "replace"))
        self._database = database
        return lines[1:] if changes else lines

    def close(self) -> None:
        self.lost = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's does not inherit from it
        keep_alive(transport.get_extra_info("socket"))
        self._transport.write(self._opening)

    def data_received(self, data: bytes) -> None:
        try:
            data = self._greeting.take(data)
        except GreetingError as exc:
            self._fail(str(exc))
            return
        *lines, self._unread = (self._unread + data).split(b"\r\n")
        if len(self._unread) > MAX_LINE or any(line[:1] not in (b":", b"+", b"-") for line in lines):
            self._fail("it replies with something other than a number")
            return
        self._lines += lines
        awaited = self._wanted if self._answer is not None and not self._answer.done() else 0
        if len(self._lines) > awaited:
            self._fail("it sent a reply that no request asked for")
        elif self._answer is not None and lines and len(self._lines) == awaited:
            lines, self._lines = self._lines, []
            self._answer.set_result(lines)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(describe(exc))

    def _fail(self, reason: str) -> None:
        self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(CannotAsk(reason))


def _integer(reply: bytes) -> int | None:
    """The number in an integer reply; None for any other reply."""
    digits = reply[1:]
    is_number = reply[:1] == b":" and len(digits) <= 20 and digits.lstrip(b"-").isdigit()
    return int(digits) if is_number else None


def _batches(due: list[_Open]) -> Iterator[tuple[int, list[_Open]]]:
    """Keys by their database, at most BATCH at a time."""
    due.sort(key=attrgetter("database"))
    for database, keys in groupby(due, attrgetter("database")):
        of_one = list(keys)
        for start in range(0, len(of_one), BATCH):
            yield database, of_one[start : start + BATCH]
