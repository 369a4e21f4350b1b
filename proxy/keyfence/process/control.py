"""What the admin listener and signals ask of a running keyfence.

Rule: one place holds what is in force (policy, configuration, break-glass) and hands it to whoever serves the
clients: this process, or its workers. Nothing that is asked here ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from keyfence import __version__
from keyfence.admin.access import Access
from keyfence.admin.token import token_of, token_warnings
from keyfence.downstream.listeners import Listeners
from keyfence.downstream.tls import listener_context
from keyfence.policy.analysis.explain import explain
from keyfence.policy.compiled.tenants import NOBODY, Caller
from keyfence.policy.diagnostics import FileError
from keyfence.policy.enforcement.modes import BreakGlass, advised
from keyfence.policy.rules import RULES
from keyfence.process.workers.handle import WorkerFailed
from keyfence.telemetry.counters import Counters
from keyfence.telemetry.metrics import exposition
from keyfence.telemetry.operator_log import warn
from keyfence.telemetry.tally import Row

from .serving.reload import Origin, Packed, admit, changed_settings, unpack
from .serving.runtime import Runtime
from .systemd import READY, Notify, reloading

MAX_GLASS = 100


class Backend(Protocol):
    """Who serves the clients. `InProcess` and `workers.parent.Workers` implement it."""

    @property
    def bound(self) -> Sequence[tuple[str, str]]:
        """(address, service) of each listener."""

    @property
    def is_open(self) -> bool:
        """Whether clients are served."""

    async def open(self) -> None:
        """Serve. Raises StartError."""

    def prepare(self, decision_log: str) -> None:
        """Log to this file from now on. Raises OSError, and changes nothing then."""

    async def take(self, packed: Packed, loaded_at: float) -> None:
        """Serve by this from now on; returns once that is so everywhere."""

    async def set_glass(self, glass: Sequence[BreakGlass]) -> None:
        """The same for break-glass."""

    async def counters(self) -> Counters: ...
    async def rows(self) -> list[Row]: ...
    def listing(self) -> list[dict[str, Any]]: ...
    def reopen_log(self) -> None: ...
    async def tick(self) -> None: ...
    async def restart(self) -> int:
        """A rolling restart; returns how many were replaced. Raises WorkerFailed."""

    async def drain(self, seconds: float, at_once: asyncio.Event) -> None:
        """Take leave of the clients, and end."""


class InProcess:
    """This process serves the clients itself."""

    def __init__(self, runtime: Runtime, listeners: Listeners) -> None:
        self.is_open = False
        self._runtime = runtime
        self._listeners = listeners
        self._since = time.time()

    @property
    def bound(self) -> Sequence[tuple[str, str]]:
        return self._listeners.bound

    async def open(self) -> None:
        await self._listeners.start()
        self.is_open = True

    def prepare(self, decision_log: str) -> None:
        self._runtime.telemetry.log_to(decision_log or None)

    async def take(self, packed: Packed, _loaded_at: float) -> None:
        """The runtime is this process's own, and has taken it already."""
        contexts = [listener_context(packed.settings, i) for i in range(len(packed.settings.listeners))]
        self._listeners.replace_tls(contexts)

    async def set_glass(self, _glass: Sequence[BreakGlass]) -> None:
        """The authorizer reads this very list."""

    async def counters(self) -> Counters:
        return self._runtime.telemetry.counters

    async def rows(self) -> list[Row]:
        return self._runtime.telemetry.tally.snapshot()

    def listing(self) -> list[dict[str, Any]]:
        counters = self._runtime.telemetry.counters
        return [
            {
                "slot": 0,
                "pid": os.getpid(),
                "state": "serving" if self.is_open else "starting",
                "started": self._since,
                "revisions": {name: revision for name, (revision, _) in counters.policies.items()},
                "connections": sum(counters.connections_open.values()),
            }
        ]

    def reopen_log(self) -> None:
        self._runtime.telemetry.reopen()

    async def tick(self) -> None:
        """The runtime's own chores do it."""

    async def restart(self) -> int:
        raise WorkerFailed(
            "keyfence runs as one process; run it with --workers 1 or more for rolling restarts"
        )

    async def drain(self, seconds: float, at_once: asyncio.Event) -> None:
        await self._listeners.close(seconds, at_once)


class Control:
    """Implements `admin.Control` over the authorizer of this process and whoever serves the clients."""

    def __init__(
        self,
        origin: Origin,
        runtime: Runtime,
        front: Backend,
        access: Access | None = None,
        notify: Notify = lambda _message: None,
    ) -> None:
        """`access` is that of the admin listener, which a reload may change; `notify` sends to the
        supervisor."""
        self.draining = False
        self._access = access
        self._notify = notify
        self._origin = origin
        self._runtime = runtime
        self._front = front
        self._reloading = asyncio.Lock()
        self._started = time.time()

    # -- what is

    def ready(self) -> tuple[bool, list[str]]:
        reasons = []
        if self.draining:
            reasons.append("keyfence is ending")
        elif not self._front.is_open:
            reasons.append("listeners are not open yet")
        upstream = self._runtime.upstream
        if upstream is None or not upstream.up:
            reasons.append(upstream.state if upstream else "no upstream yet")
        return not reasons, reasons

    async def metrics(self) -> bytes:
        return exposition(await self._front.counters())

    async def report(self) -> Sequence[Mapping[str, Any]]:
        return await self._front.rows()

    def workers(self) -> list[dict[str, Any]]:
        return self._front.listing()

    def modes(self) -> dict[str, Any]:
        authorizer = self._runtime.authorizer
        if authorizer is None:
            return {"splice": True}
        return {
            "policy": authorizer.policy.name,
            "revision": authorizer.policy.revision,
            "should": sorted(authorizer.policy.should),
            "advised": advised(authorizer.policy),
            "modes": authorizer.modes.matrix(),
            "break_glass": [dataclasses.asdict(one) for one in self._runtime.glass],
        }

    async def status(self) -> dict[str, Any]:
        """What runs here, and since when; all times are Unix seconds."""
        ready, reasons = self.ready()
        counters = await self._front.counters()
        clients: dict[str, int] = {}
        for (service, _), number in counters.connections_open.items():
            clients[service] = clients.get(service, 0) + number
        return {
            "version": __version__,
            "pid": os.getpid(),
            "started": self._started,
            "ready": ready,
            "reasons": reasons,
            "policy": self._policy_status(),
            "upstream": self._upstream_status(),
            "listeners": self.addresses(),
            "workers": self.workers(),
            "clients": clients,
            "modes": self._modes_in_numbers(),
            "break_glass": [dataclasses.asdict(one) for one in self._runtime.glass],
            "waivers": len(self._runtime.settings.waivers),
        }

    def _policy_status(self) -> dict[str, Any] | None:
        authorizer = self._runtime.authorizer
        if authorizer is None:
            return None
        name, revision = authorizer.policy.name, authorizer.policy.revision
        loaded = self._runtime.telemetry.counters.policies.get(name, (revision, self._started))[1]
        return {"name": name, "revision": revision, "file": self._runtime.settings.policy, "loaded": loaded}

    def _upstream_status(self) -> dict[str, Any] | None:
        upstream = self._runtime.upstream
        if upstream is None:
            return None
        return {
            "address": upstream.address.shown,
            "up": bool(upstream.up),
            "since": upstream.since,
            "reason": "" if upstream.up else upstream.reason,
        }

    def _modes_in_numbers(self) -> dict[str, dict[str, int]]:
        """service → mode → how many rules."""
        authorizer = self._runtime.authorizer
        found: dict[str, dict[str, int]] = {}
        for by_service in authorizer.modes.matrix().values() if authorizer is not None else ():
            for service, mode in by_service.items():
                row = found.setdefault(service, {"enforce": 0, "observe": 0, "disabled": 0})
                row[mode] += 1
        return found

    def waivers(self) -> list[dict[str, Any]]:
        """The waivers in force, as their file has them."""
        return [one.model_dump(mode="json") for one in self._runtime.settings.waivers]

    def addresses(self) -> list[dict[str, str]]:
        return [{"address": address, "service": service} for address, service in self._front.bound]

    def explain(self, service: str, argv: Sequence[bytes], caller: Caller = NOBODY) -> dict[str, Any]:
        """The live policy's verdict, and what the live modes and waivers make of it. Raises ValueError."""
        authorizer = self._runtime.authorizer
        if authorizer is None:
            raise ValueError("keyfence runs with --splice: it evaluates nothing")
        told = explain(authorizer.policy, service, argv, caller)
        ruling = authorizer.rule(authorizer.number(service), argv, authorizer.policy.values(caller))
        told["actions"] = [
            {"rule": found.violation.rule, "action": found.action} for found in ruling.findings
        ]
        told["refused"] = ruling.refused_by is not None
        return told

    # -- break-glass

    async def observe(self, seconds: float, rule: str | None, service: str | None) -> dict[str, Any]:
        """Break-glass: refuse nothing (of a rule, of a service) for so long. Raises ValueError."""
        authorizer = self._runtime.authorizer
        if authorizer is None:
            raise ValueError("keyfence runs with --splice: it refuses nothing")
        if rule and rule not in RULES:
            raise ValueError(f"{rule!r} is no rule")
        if service and service not in authorizer.policy.services:
            raise ValueError(f"{service!r} is no service of the policy")
        if len(self._runtime.glass) >= MAX_GLASS:
            raise ValueError(f"{MAX_GLASS} are open already; end them with keyfence observe --end")
        one = BreakGlass(time.time() + seconds, rule or "", service or "")
        self._runtime.glass.append(one)
        self._runtime.telemetry.counters.set_break_glass(True)
        await self._front.set_glass(self._runtime.glass)
        of = " ".join(
            part for part in (f"of {rule}" if rule else "", f"by {service}" if service else "") if part
        )
        warn(f"break-glass: violations {of or 'of every rule'} are only observed for {seconds:g} s")
        return dataclasses.asdict(one)

    async def end_observe(self) -> dict[str, Any]:
        ended = len(self._runtime.glass)
        await self._set_glass([])
        warn("break-glass was ended: modes are as configured again")
        return {"ended": ended}

    async def _set_glass(self, glass: Sequence[BreakGlass]) -> None:
        self._runtime.glass[:] = glass
        self._runtime.telemetry.counters.set_break_glass(bool(glass))
        await self._front.set_glass(self._runtime.glass)

    async def tick_forever(self) -> None:
        """What is done each second: the end of a break-glass, and what the front has to do."""
        while True:
            await asyncio.sleep(1)
            await self._front.tick()
            now = time.time()
            left = [one for one in self._runtime.glass if one.until > now]
            if len(left) != len(self._runtime.glass):
                if not left:
                    warn("break-glass has ended: modes are as configured again")
                await self._set_glass(left)

    # -- reload and restart

    async def reload(self) -> dict[str, Any]:
        """Put policy, configuration and waivers in force as their files are now. Raises FileError, and what
        was in force stays so."""
        async with self._reloading:
            self._notify(reloading())
            try:
                return await self._reload()
            except FileError as exc:
                authorizer = self._runtime.authorizer
                name = authorizer.policy.name if authorizer is not None else ""
                self._runtime.telemetry.counters.policy_load_failed(name)
                for fault in exc.diagnostics:
                    warn(str(fault))
                warn("nothing was reloaded: policy and configuration stay as they were")
                raise
            finally:
                self._notify(READY)

    async def _reload(self) -> dict[str, Any]:
        packed = await self._origin.load_apart()
        before, authorizer = self._runtime.settings, self._runtime.authorizer
        revision_before = authorizer.policy.revision if authorizer is not None else ""
        settings, waiting = admit(before, packed.settings)
        packed = packed._replace(settings=settings)
        policy = await asyncio.to_thread(unpack, packed)
        token = token_of(settings)
        if settings.decision_log != before.decision_log:
            try:
                self._front.prepare(settings.decision_log)
            except OSError as exc:
                text = f"the decision log {settings.decision_log} can't be written: {exc.strerror}"
                raise FileError([settings.fault(("decision_log",), text)]) from None
        now = time.time()
        self._runtime.take(settings, policy, now)  # may yet fail, and changes nothing then
        if self._access is not None:
            self._access.take(settings.admin_names, token)
        await self._front.take(packed, now)
        revision = "" if policy is None else policy.revision
        changed = ["policy"] if revision != revision_before else []
        changed += changed_settings(before, settings)
        told = f"reloaded: policy {policy.name}, revision {revision}" if policy is not None else "reloaded"
        self._runtime.tell(f"{told}; changed: {', '.join(changed) or 'nothing'}")
        for text in token_warnings(settings):
            warn(text)
        for name in waiting:
            warn(f"{name} has changed in the configuration: that needs a restart")
        return {
            "policy": "" if policy is None else policy.name,
            "revision": revision,
            "changed": changed,
            "needs_restart": waiting,
        }

    def reload_on_signal(self) -> asyncio.Task[None]:
        """SIGHUP: the log file anew, as logrotate wants it, then everything else."""
        self._front.reopen_log()
        return asyncio.ensure_future(self._quietly_reload())

    async def _quietly_reload(self) -> None:
        with contextlib.suppress(FileError):  # told already
            await self.reload()

    async def restart(self) -> dict[str, Any]:
        """A rolling restart of the workers. Raises ValueError where there are none, or one doesn't start."""
        try:
            restarted = await self._front.restart()
        except WorkerFailed as exc:
            raise ValueError(str(exc)) from None
        self._runtime.tell(f"restarted {restarted} workers")
        return {"restarted": restarted}

    def restart_on_signal(self) -> asyncio.Task[None]:
        return asyncio.ensure_future(self._quietly_restart())

    async def _quietly_restart(self) -> None:
        try:
            await self.restart()
        except ValueError as exc:
            warn(f"no rolling restart: {exc}")
