"""Where policy and configuration come from while keyfence runs: files, and a server that has the policy.

Rule: one process asks, the parent of the workers if there are any; they get what it has loaded. A server that
is away, or lies, never changes what is in force.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from keyfence.config.state_file import last_sequence, policy_copy
from keyfence.fleet.copy import Copy, confirm_copy, read_copy, write_copy
from keyfence.fleet.files import WatchedFiles
from keyfence.fleet.manifest import Signed
from keyfence.fleet.model import Answer, NotFetched, Offer, PolicyServer
from keyfence.fleet.signed import KeptFloor, floor_of, signature_path
from keyfence.fleet.source import PolicySource
from keyfence.policy.diagnostics import FileError, file_error
from keyfence.policy.source.files import NOTHING_SEEN, Given, Seen
from keyfence.policy.units import clock_text
from keyfence.telemetry.operator_log import Changes, warn

from .serving.jobs import going_on
from .serving.loader import Loader
from .serving.packing import Packed
from .serving.reload import Loaded, NotLoaded, Origin

if TYPE_CHECKING:
    from keyfence.telemetry.counters import Counters


IDLE_SECONDS = 1.0  # between two looks whether there is a server


class Choice(NamedTuple):
    """What may be loaded. `copy` is what it has of the policy's server; None: there is no server."""

    origin: Origin
    copy: Copy | None


class Found(NamedTuple):
    """What was loaded. `best` is the best choice; if that was refused, why."""

    packed: Packed
    choice: Choice
    best: Choice
    refused: FileError | None


class Provision:
    """The origin of policy and configuration, and what was read of it."""

    def __init__(self, origin: Origin, seen: Seen = NOTHING_SEEN, source: PolicySource | None = None) -> None:
        """`seen` are the files that were loaded, `source` the server that has the policy, if there is one."""
        self.origin = origin
        self.loader = Loader()
        self.files = WatchedFiles(seen)
        self.source = source
        self.path = policy_copy(origin.config) if origin.config else Path()  # of the copy on disk
        self.floor = KeptFloor(last_sequence(origin.config) if origin.config else None)
        self.refused_at_start: FileError | None = None  # what the server had, if the copy was loaded instead
        self.copy_trouble = ""  # why the copy on disk is not what is in force
        self._failures = 0  # that are not counted yet
        self._changes = Changes()
        self._woken = asyncio.Event()

    async def ask(self, source: PolicySource, *, waits: bool = False) -> None:
        """Ask once. `waits`: the server may wait for a change."""
        asked, trouble = source.request(), source.trouble
        wait = asked.wait if waits else 0.0
        try:
            answer = await _fetch(source, asked.etag, wait)
        except NotFetched as exc:
            source.failed(str(exc))
            self._failures += 1
            if source.trouble != trouble:
                self._changes.add(f"{source.server.shown} {exc}{self._what_stays(source)}")
            return
        source.answered(answer, time.time(), asked.etag, has_asked_to_wait=wait > 0)
        if trouble:
            self._changes.add(f"{source.server.shown} answers again")
        is_written = not self.copy_trouble
        if source is self.source and is_written and source.offered is None and source.held is not None:
            with contextlib.suppress(OSError):  # it was not written, which was said
                await asyncio.to_thread(confirm_copy, self.path, source.held.confirmed)

    def _what_stays(self, source: PolicySource) -> str:
        if source.held is None:
            return ""
        return f"; the policy that it confirmed at {clock_text(source.held.confirmed)} stays in force"

    async def prepare(self, server: PolicyServer | None, *, asks: bool) -> PolicySource | None:
        """The source of the server that the configuration names now. Another server than before must answer.
        Raises FileError."""
        if server is None:
            return None
        known = self.source
        if known is not None and known.server.id == server.id:
            known.server = server
            if asks:
                await self.ask(known)
            return known
        new = PolicySource(server, None)
        await self.ask(new)
        if new.offered is None:
            raise file_error(server.shown, f"this server {new.trouble}")
        return new

    def choices(self, source: PolicySource | None) -> list[Choice]:
        """What may be loaded, the best first: what the server offers, and what is in force."""
        origin = self.origin.above(self.floor.known)
        if source is None:
            return [Choice(origin, None)]
        return [
            Choice(origin.with_given(self._given(source.server, one)), one)
            for one in (source.offered, source.held)
            if one is not None
        ]

    async def load(self, source: PolicySource | None, *, is_offer: bool) -> Found:
        """Load what the server has, with all files; if that has faults, what is in force of it. `is_offer`:
        nothing but the former. Raises FileError."""
        choices = self.choices(source)
        best, refused = choices[0], None
        for choice in choices[:1] if is_offer else choices:
            try:
                return Found(await self.loader.load(choice.origin), choice, best, refused)
            except NotLoaded as exc:
                refused = refused or exc
        assert refused is not None
        self.tried(source, best)
        raise refused

    def tried(self, source: PolicySource | None, choice: Choice) -> None:
        """This is in force now, or has faults, so it is not loaded again."""
        if source is not None and choice.copy is not None:
            source.tried(choice.copy)

    def _given(self, server: PolicyServer, copy: Copy) -> dict[str, Given]:
        """The contents that stand for the copy on disk and its signature."""
        given = {str(self.path): Given(copy.content, server.shown)}
        if server.signed_as:
            named = f"the signature of {server.shown}"
            given[signature_path(self.path)] = Given(copy.signature, named)
        return given

    async def accepted(
        self, source: PolicySource | None, copy: Copy | None, signed: Signed | None = None
    ) -> None:
        """This copy of what the source has is in force; None: files are. `signed`: the policy's signature."""
        if source is not self.source:
            self.source = source
            self._woken.set()
        if source is not None and copy is not None and (source.accepted(copy) or self.copy_trouble):
            await self._keep_copy(source, copy)
        if signed is None:
            return
        # After the copy, and not without it: no start would take a copy that is older than the sequence.
        is_without = source is not None and self.copy_trouble
        why_not = "the policy itself cannot be kept" if is_without else ""
        if await asyncio.to_thread(self.floor.keep, floor_of(signed), why_not):
            warn(f"{self.floor_trouble}: after a restart, an older signed policy would be taken")

    async def _keep_copy(self, source: PolicySource, copy: Copy) -> None:
        try:
            await asyncio.to_thread(write_copy, self.path, source.server.id, copy)
            self.copy_trouble = ""
        except OSError as exc:
            why = (exc.strerror or type(exc).__name__).lower()
            self.copy_trouble = f"the policy in force cannot be kept in {self.path} ({why})"
            warn(f"{self.copy_trouble}: a start without its server would use an older one, or fail")

    @property
    def floor_trouble(self) -> str:
        """Why the last sequence on disk is not the one in force; "": it is."""
        why = self.floor.why_not
        return f"the policy's sequence cannot be kept in {self.floor.path} ({why})" if why else ""

    async def poll_forever(self, take: Callable[[], Awaitable[object]]) -> None:
        """Ask again and again. `take` puts in force what is offered."""
        took = 0.0
        while True:
            source = self.source
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(IDLE_SECONDS if source is None else source.pause(took)):
                    await self._woken.wait()
            self._woken.clear()
            if (source := self.source) is None:
                continue
            began = asyncio.get_running_loop().time()
            with going_on():
                await self.ask(source, waits=True)
                took = asyncio.get_running_loop().time() - began
                if source is self.source and self.is_due():
                    await take()

    def is_due(self) -> bool:
        """Whether what the server has is to be put in force."""
        return self.source is not None and self.source.is_due(asyncio.get_running_loop().time())

    def put_off(self) -> None:
        """What the server has was not put in force, for a reason that is not in it."""
        if self.source is not None:
            self.source.put_off(asyncio.get_running_loop().time())

    # -- what operators see

    def tick(self, counters: Counters) -> None:
        """Called each second."""
        self._changes.tick()
        source, failures = self.source, self._failures
        self._failures = 0
        if source is not None:
            counters.policy_failed("fetch", source.server.shown, failures)
        counters.policy_confirmed = (
            {} if source is None or source.held is None else {source.server.shown: int(source.held.confirmed)}
        )

    def degraded(self) -> list[str]:
        """Why the policy in force may not be the right one."""
        source = self.source
        if source is None or source.held is None or not source.is_copy:
            return []
        when = clock_text(source.held.confirmed)
        return [f"the policy is the copy on disk, which {source.server.shown} has confirmed last at {when}"]

    def notes(self) -> list[str]:
        """What else operators should know."""
        source = self.source
        found = [self.floor_trouble] if self.floor_trouble else []
        if source is None:
            return found
        if source.trouble:
            found.append(f"{source.server.shown} {source.trouble}{self._what_stays(source)}")
        found += [self.copy_trouble] if self.copy_trouble else []
        if source.lies:
            found.append(
                f"{source.server.shown} gives one ETag to two policies, so keyfence asks for the whole one"
            )
        return found

    def status(self, now: float) -> dict[str, Any] | None:
        """The state of the server; None: there is none."""
        source = self.source
        if source is None:
            return None
        return {
            "url": source.server.shown,
            "poll": source.server.poll,
            "confirmed": source.held.confirmed if source.held is not None else None,
            "age": source.age(now),
            "stale_after": source.server.stale_after or None,
            "then": source.server.then,
            "is_stale": source.is_stale(now),
            "is_copy": source.is_copy,
            "trouble": source.trouble,
        }


async def _fetch(source: PolicySource, etag: str, wait: float) -> Answer:
    """Ask a server. Its library is imported when it is asked. Raises NotFetched."""
    if source.server.is_redis:
        from keyfence.fleet.redis_store import fetch

        known = source.candidate or Offer()
        return await fetch(source.server, etag, wait, known.signature)
    from keyfence.fleet.http import fetch as fetch_https

    return await fetch_https(source.server, etag, wait)


def start(origin: Origin, candidate: str) -> tuple[Loaded, Provision]:
    """Load for a start: the files, and what the policy's server has; if that is away, or what it has is
    faulty, the copy on disk. Raises FileError."""
    server = origin.policy_server()
    provision = Provision(origin)
    if origin.config:
        provision.floor.read()
    if server is None:
        loaded = origin.above(provision.floor.known).load_with(candidate)
        provision.files = WatchedFiles(loaded.seen)
        asyncio.run(provision.accepted(None, None, loaded.settings.policy_signed))
        return loaded, provision
    source = provision.source = PolicySource(server, read_copy(provision.path, server.id))
    asyncio.run(provision.ask(source))
    faults: FileError | None = None
    choices = provision.choices(source)
    for choice in choices:
        try:
            loaded = choice.origin.load_with(candidate)
        except FileError as exc:
            faults = faults or exc
            continue
        provision.files = WatchedFiles(loaded.seen)
        provision.refused_at_start = faults
        if faults is not None:
            for fault in faults.diagnostics:
                warn(str(fault))
            warn(f"{server.shown} has a policy that was refused; the copy on disk is in force")
        provision.tried(source, choices[0])
        asyncio.run(provision.accepted(source, choice.copy, loaded.settings.policy_signed))
        return loaded, provision
    if faults is None:
        text = f"this server {source.trouble}, and there is no copy of its policy in {provision.path}"
        raise file_error(server.shown, text)
    raise faults
