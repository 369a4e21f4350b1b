"""A running keyfence: what `keyfence run` puts together, and what the admin listener asks of it.

Rule: everything that can fail fails before the ready line is printed, with one clear message; after it,
nothing that an operator does at run time ends the process but a signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import errno
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .admin import start_admin
from .client import Gate, report_fault
from .commands.extract import adopt
from .commands.learn import learn
from .config import DEFAULT_ADMIN, Settings
from .listeners import Listeners
from .policy.compiled import CompiledPolicy
from .policy.explain import explain
from .policy.judge import Judge
from .policy.load import load_policy
from .policy.modes import BreakGlass, Modes
from .policy.verdict import RULES
from .sockets import host_port
from .telemetry.metrics import exposition
from .telemetry.telemetry import Telemetry
from .tls import listener_context, upstream_context
from .upstream.embedded import EmbeddedRedis
from .upstream.learning import CannotLearn, Learner, NotAllowed
from .upstream.target import Upstream, UpstreamAddress


class StartError(Exception):
    """keyfence can't start; the message is one line for the user."""


class Runtime:
    """One process: judge, upstream, listeners, telemetry. Implements `admin.Control`."""

    def __init__(self, settings: Settings, policy: CompiledPolicy | None, telemetry: Telemetry) -> None:
        """`policy` None: splice mode, nothing is read."""
        self.settings = settings
        self.telemetry = telemetry
        self.glass: list[BreakGlass] = []
        self.judge: Judge | None = None
        self.listeners: Listeners | None = None
        self.upstream: Upstream | None = None
        self.learner: Learner | None = None
        self.told: list[str] | None = []  # what waits for the ready line; None: it is out
        if policy is not None:
            modes = Modes(settings.modes, policy.services, settings.waived())
            self.judge = Judge(policy, modes, self.glass, time.time, self._decision_failed)
            telemetry.counters.policy_loaded(policy.name, policy.revision, time.time())
        self._count_lapsed()

    def _decision_failed(self, exc: Exception) -> None:
        self.telemetry.counters.internal_error("decision")
        report_fault(exc)

    def open_upstream(self, address: UpstreamAddress) -> Upstream:
        counters = self.telemetry.counters
        self.upstream = Upstream(
            address,
            upstream_context(self.settings),
            self.settings.connect_timeout,
            on_change=self._upstream_changed,
            on_failure=lambda: counters.upstream_connect_failed(address.shown),
        )
        if self.judge is not None:
            self.learner = Learner(self.upstream, self._adopt_commands, self._cannot_learn)
        return self.upstream

    def _upstream_changed(self, up: bool) -> None:
        assert self.upstream is not None
        self.telemetry.counters.upstream_state(self.upstream.address.shown, up)
        if self.learner is not None:
            self.learner.upstream_changed(up)

    def _adopt_commands(self, reply: object) -> None:
        learned = learn(reply)
        adopt(learned)
        if self.judge is not None:
            self.judge.decider.forget_permissions()
        if learned.rows:
            self._tell(f"the upstream has {len(learned.rows)} commands that keyfence knows from it alone")
        if learned.unreadable or learned.dropped:
            self._tell(f"{learned.unreadable + learned.dropped} of the upstream's commands stay unknown")

    def _cannot_learn(self, reason: CannotLearn) -> None:
        """Where clients bring all credentials, keyfence may not ask: then it is no fault."""
        text = f"the upstream doesn't tell its commands ({reason}): what its modules have stays unknown"
        if isinstance(reason, NotAllowed):
            self._tell(f"{text}; give its URL a user that may run COMMAND")
        else:
            _say(text)

    def _tell(self, text: str) -> None:
        """Something for operators where nothing is wrong; the ready line stays the first line."""
        if self.told is None:
            print(f"keyfence: {text}", flush=True)
        else:
            self.told.append(text)

    def announced(self) -> None:
        """The ready line is out: what waited for it may follow."""
        waiting, self.told = self.told or [], None
        for text in waiting:
            self._tell(text)

    async def learn_forever(self) -> None:
        if self.learner is not None:
            await self.learner.learn_forever()

    def gate(self, upstream: Upstream) -> Gate:
        settings = self.settings
        services = self.judge.policy.services if self.judge else ()
        return Gate(
            None if self.judge is None else self._current_judge,
            settings.identities(services),
            upstream,
            self.telemetry,
            settings.limits.of_requests(),
            settings.limits.of_clients(),
        )

    def _current_judge(self) -> Judge:
        assert self.judge is not None
        return self.judge

    async def tick_forever(self) -> None:
        """What is done each second: merged log lines, the end of a break-glass, lapsed exceptions."""
        while True:
            await asyncio.sleep(1)
            self.telemetry.flush()
            self._end_lapsed_glass()
            self._count_lapsed()

    def _end_lapsed_glass(self) -> None:
        now = time.time()
        if self.glass and all(one.until <= now for one in self.glass):
            _say("break-glass has ended: modes are as configured again")
            self.glass.clear()
        self.telemetry.counters.set_break_glass(bool(self.glass))

    def _count_lapsed(self) -> None:
        today = datetime.datetime.now(datetime.UTC).date()
        counters = self.telemetry.counters
        dates: dict[str, list[datetime.date]] = {
            "legacy": [],
            "grants": [],
            "waivers": [one.until for one in self.settings.waivers],
        }
        if self.judge is not None:
            for kind, until in self.judge.policy.exceptions:
                dates[kind].append(until)
        for kind, untils in dates.items():
            counters.set_exceptions_lapsed(kind, sum(until < today for until in untils))

    # -- what the admin listener asks

    def ready(self) -> tuple[bool, list[str]]:
        reasons = []
        if self.listeners is None or not self.listeners.bound:
            reasons.append("listeners are not open yet")
        if self.upstream is None or not self.upstream.up:
            reasons.append(self.upstream.state if self.upstream else "no upstream yet")
        return not reasons, reasons

    def metrics(self) -> bytes:
        return exposition(self.telemetry.counters)

    def report(self) -> Sequence[Mapping[str, Any]]:
        return self.telemetry.tally.snapshot()

    def modes(self) -> dict[str, Any]:
        if self.judge is None:
            return {"splice": True}
        return {
            "policy": self.judge.policy.name,
            "revision": self.judge.policy.revision,
            "should": sorted(self.judge.policy.should),
            "modes": self.judge.modes.matrix(),
            "break_glass": [dataclasses.asdict(one) for one in self.glass],
        }

    def addresses(self) -> list[dict[str, str]]:
        bound = self.listeners.bound if self.listeners else []
        return [{"address": address, "service": service} for address, service in bound]

    def explain(self, service: str, argv: Sequence[bytes]) -> dict[str, Any]:
        """The live policy's verdict, and what the live modes and waivers make of it. Raises ValueError."""
        if self.judge is None:
            raise ValueError("keyfence runs with --splice: it judges nothing")
        told = explain(self.judge.policy, service, argv)
        ruling = self.judge.rule(self.judge.number(service), argv)
        told["actions"] = [
            {"rule": found.violation.rule, "action": found.action} for found in ruling.findings
        ]
        told["refused"] = ruling.refused_by is not None
        return told

    def observe(self, seconds: float, rule: str | None, service: str | None) -> dict[str, Any]:
        """Break-glass: refuse nothing (of a rule, of a service) for so long. Raises ValueError."""
        if self.judge is None:
            raise ValueError("keyfence runs with --splice: it refuses nothing")
        if rule and rule not in RULES:
            raise ValueError(f"{rule!r} is no rule")
        if service and service not in self.judge.policy.services:
            raise ValueError(f"{service!r} is no service of the policy")
        glass = BreakGlass(time.time() + seconds, rule or "", service or "")
        self.glass.append(glass)
        self.telemetry.counters.set_break_glass(True)
        of = " ".join(
            part for part in (f"of {rule}" if rule else "", f"by {service}" if service else "") if part
        )
        _say(f"break-glass: violations {of or 'of every rule'} are only observed for {seconds:g} s")
        return dataclasses.asdict(glass)

    def end_observe(self) -> dict[str, Any]:
        ended = len(self.glass)
        self.glass.clear()
        self.telemetry.counters.set_break_glass(False)
        _say("break-glass was ended: modes are as configured again")
        return {"ended": ended}


def load(settings: Settings) -> CompiledPolicy:
    """The policy that the settings name, checked against them. Raises FileError."""
    policy = load_policy(settings.policy, name_services=settings.name_services)
    settings.check_against(policy.services)
    return policy


async def serve(settings: Settings, policy: CompiledPolicy | None) -> None:
    """Run until SIGINT or SIGTERM. Raises StartError, EmbeddedRedisError."""
    loop = asyncio.get_running_loop()
    try:
        telemetry = Telemetry.to(
            settings.decision_log or None, mask_keys=settings.mask_keys, schedule=loop.call_soon
        )
    except OSError as exc:
        raise StartError(
            f"the decision log {settings.decision_log} can't be written: {exc.strerror}"
        ) from None
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(telemetry.close)
        runtime = Runtime(settings, policy, telemetry)
        embedded = None
        address = settings.upstream
        if address is None:
            # In this thread: Linux ties the child's life to the thread that forked it.
            embedded = EmbeddedRedis().start()
            stack.callback(embedded.stop)
            address = UpstreamAddress("unix", path=str(embedded.socket_path), shown=embedded.url)
        upstream = runtime.open_upstream(address)
        if await upstream.probe() and runtime.learner is not None:
            await runtime.learner.learn()
        listeners = Listeners(runtime.gate(upstream))
        stack.push_async_callback(listeners.close)
        _listen(listeners, settings)
        runtime.listeners = listeners
        admin = await _admin(runtime, settings, stack)
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        async with _background(upstream.probe_forever(), runtime.tick_forever(), runtime.learn_forever()):
            await listeners.start()
            _announce(listeners, admin, upstream, embedded, spliced=policy is None)
            runtime.announced()
            await stop.wait()


@contextlib.asynccontextmanager
async def _background(*jobs: Any) -> Any:
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _listen(listeners: Listeners, settings: Settings) -> None:
    for index, one in enumerate(settings.listeners):
        try:
            listeners.open(one, tls=listener_context(settings, index))
        except OSError as exc:
            raise StartError(f"can't listen on {one.listen}: {_why(exc)}") from None


async def _admin(runtime: Runtime, settings: Settings, stack: contextlib.AsyncExitStack) -> str:
    if settings.admin is None:
        return ""
    host, port = settings.admin.host_port
    try:
        runner, bound = await start_admin(runtime, host, port)
    except OSError as exc:
        # Nobody asked for this very port, so a second keyfence on the machine takes a free one.
        if settings.admin != DEFAULT_ADMIN or exc.errno != errno.EADDRINUSE:
            raise StartError(f"can't listen on {settings.admin} (admin): {_why(exc)}") from None
        runner, bound = await start_admin(runtime, host, 0)
    stack.push_async_callback(runner.cleanup)
    return f"http://{host_port(*bound)}"


def _why(exc: OSError) -> str:
    if exc.errno == errno.EADDRINUSE:
        return "the address is in use already"
    return (exc.strerror or str(exc)).lower()


def _announce(
    listeners: Listeners,
    admin: str,
    upstream: Upstream,
    embedded: EmbeddedRedis | None,
    *,
    spliced: bool,
) -> None:
    whose = ", ".join(f"{service or 'unknown'} on {address}" for address, service in listeners.bound)
    parts = [f"keyfence: ready: {whose}", f"admin {admin or 'none'}", f"upstream {upstream.address.shown}"]
    if spliced:
        parts.append("SPLICE: nothing is read")
    print("; ".join(parts), flush=True)
    if not upstream.up:
        _say(upstream.state)
    if embedded is not None:
        print(_things_to_try(listeners, admin, embedded), flush=True)


def _things_to_try(listeners: Listeners, admin: str, embedded: EmbeddedRedis) -> str:
    """What a newcomer can type, with the addresses that are in force."""
    by_service = {service: address.rpartition(":")[2] for address, service in listeners.bound}
    first = next(iter(by_service.values()))
    master, proxy = by_service.get("CubeMaster", first), by_service.get("CubeProxy", first)
    lines = [
        f"  An embedded Redis {embedded.version} stands behind it (its data ends with this process). Try:",
        f"    redis-cli -p {master} HSET cube:v1:shared:sandbox:proxy:7c8f HostIP 10.0.0.7 8080 32001",
        f"    redis-cli -p {proxy} HGETALL cube:v1:shared:sandbox:proxy:7c8f",
        f"    redis-cli -p {proxy} HSET cube:v1:shared:sandbox:proxy:7c8f HostIP 10.0.0.8",
        f"    redis-cli -p {master} HSET 7c8fbcd45ffe450fb8f7fb223ad45507 ins_id node1",
    ]
    if admin:
        lines += [
            f"    {_own_name()} report {admin}        what was found so far",
            f"    curl {admin}/metrics",
        ]
    return "\n".join([*lines, "  Ctrl-C ends it all."])


def _own_name() -> str:
    """How the user can call keyfence again."""
    return "keyfence" if shutil.which("keyfence") else sys.argv[0]


def _say(text: str) -> None:
    sys.stderr.write(f"keyfence: {text}\n")
    sys.stderr.flush()
