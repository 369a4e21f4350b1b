"""`keyfence run`: builds the process, prints the ready line, serves, and ends.

Rule: everything that can fail at the start fails before the ready line, with one clear message. After it,
only a signal ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from typing import Any

from keyfence.admin.access import Access
from keyfence.admin.acting import acting_as
from keyfence.admin.token import token_warnings, tokens_of
from keyfence.config.advice import advice
from keyfence.config.settings import Settings
from keyfence.net import passed
from keyfence.net.addresses import Address, why_not
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.process.workers.nodes import NodeDoors
from keyfence.process.workers.parent import Workers
from keyfence.process.workers.sockets import CannotBind, Place, bind_places
from keyfence.process.workers.worker import Start
from keyfence.telemetry.log_relay import LogRelay
from keyfence.telemetry.operator_log import warn
from keyfence.telemetry.telemetry import Named, Telemetry
from keyfence.upstream.address import UpstreamAddress
from keyfence.upstream.embedded import EmbeddedRedis

from .control import ProcessControl
from .findings import FindingsDesk
from .in_process import InProcess
from .looking import Looking
from .news import News
from .operators import OperatorListeners
from .provision import Provision
from .serving.backend import Backend
from .serving.cluster import ClusterNodes
from .serving.command_recorder import Recorder
from .serving.jobs import background
from .serving.packing import Packed, pack
from .serving.runtime import Runtime, StartError, telemetry_of
from .serving.single import OneAddress
from .serving.topology_follower import Doors, TopologyFollower
from .serving.upstreams import ServedUpstream
from .systemd import READY, STOPPING, notifier


async def serve(
    provision: Provision,
    settings: Settings,
    policy: CompiledPolicy | None,
    candidate: tuple[str, Packed, str] | None = None,
    *,
    to_the_end: bool = False,
    looking: Looking | None = None,
) -> None:
    """Run until SIGINT or SIGTERM. `provision` is where settings and policy come from; `candidate` is the
    file of a candidate policy, the policy, and its purpose (`PackedCandidate`). `to_the_end`: what is found
    only later, by asking Redis, is found before the end. `looking`, of `keyfence look`: services are told
    apart by their clients, in the findings and the command log. Raises StartError, EmbeddedRedisError."""
    notify = notifier()
    async with contextlib.AsyncExitStack() as stack:
        _receive_sockets(stack)
        telemetry, relay = _telemetry(settings, stack, looking)
        places = _bind(settings, stack)
        address, embedded = _upstream_address(settings, stack)
        findings = FindingsDesk.open(settings, telemetry.counters)
        stack.push_async_callback(findings.close)
        runtime = Runtime(settings, policy, telemetry)
        findings.policy_taken(runtime.authorizer, settings)
        served = await runtime.reach_upstream(address)
        doors = NodeDoors(settings.workers) if settings.workers else None
        cluster = _followed(runtime, served, doors)
        backend = _backend(runtime, served, address, policy, places, relay, findings)
        if cluster is not None and doors is not None and isinstance(backend, Workers):
            backend.follow(cluster, doors)
        at_once = asyncio.Event()
        stack.push_async_callback(backend.drain, 0.0, at_once)  # if the start fails
        access = Access(settings.admin_names, tokens_of(settings))
        control = ProcessControl(provision, runtime, backend, access, notify, findings, cluster)
        control.looking = looking
        await _compare(control, runtime, candidate)
        operators = OperatorListeners(settings)
        stack.push_async_callback(operators.close)
        if cluster is None:  # the ports of a cluster's nodes are taken later
            _check_sockets()
        stop = _on_signals(control, at_once)
        chores = [*runtime.chores(), *control.chores(), findings.notify_forever()]
        chores.append(News(findings, runtime).run_forever())
        chores += [cluster.follow_forever()] if cluster is not None else []
        async with background(*chores, findings.write_forever(lambda: backend.is_open)):
            if cluster is not None:
                await cluster.found.wait()
            await control.check_age()
            await backend.open()
            _announce(settings, policy, backend, operators, address, embedded)
            runtime.announced()
            notify(READY)
            answering = operators.serve(control, access, runtime, findings.history.head)
            async with background(answering, findings.open_default()):
                await stop.wait()
                control.draining = True
                notify(STOPPING)
                await _drain(backend, runtime, at_once)
            if to_the_end:
                await runtime.ask_now()
                await backend.tick()


async def _compare(
    control: ProcessControl, runtime: Runtime, candidate: tuple[str, Packed, str] | None
) -> None:
    """Begin with a candidate policy beside the one in force, if there is one."""
    if candidate is not None:
        await control.candidates.begin(*candidate)
        runtime.tell(control.candidates.told())


async def _drain(backend: Backend, runtime: Runtime, at_once: asyncio.Event) -> None:
    """Close all clients, which have the configured time."""
    runtime.tell(f"draining: clients have {runtime.settings.drain:g} s to end")
    await backend.drain(runtime.settings.drain, at_once)


def _upstream_address(
    settings: Settings, stack: contextlib.AsyncExitStack
) -> tuple[UpstreamAddress, EmbeddedRedis | None]:
    """The configured Redis, or an embedded one, which is started. Raises EmbeddedRedisError."""
    if settings.upstream is not None:
        return settings.upstream, None
    # In this thread: Linux ties the child's life to the thread that forked it.
    embedded = EmbeddedRedis().start()
    stack.callback(embedded.stop)
    return UpstreamAddress("unix", path=str(embedded.socket_path), shown=embedded.url), embedded


def _telemetry(
    settings: Settings, stack: contextlib.AsyncExitStack, looking: Looking | None
) -> tuple[Telemetry, LogRelay]:
    """The telemetry of this process, and the writer of its workers' log lines. Raises StartError."""
    own_log = None if settings.workers else settings.decision_log or None
    try:
        telemetry = telemetry_of(settings, own_log)
        stack.callback(telemetry.close)
        relay = LogRelay(telemetry.counters, asyncio.get_running_loop().call_soon)
        if settings.workers:
            relay.write_to(settings.decision_log)
    except OSError as exc:
        text = f"the decision log {settings.decision_log} cannot be written: {exc.strerror}"
        raise StartError(text) from None
    if settings.record:
        recorder = telemetry.recorder = _recorder(settings, stack)
        if looking is not None:
            telemetry.name_by(Named(looking.service_of, recorder))
    return telemetry, relay


def _recorder(settings: Settings, stack: contextlib.AsyncExitStack) -> Recorder:
    """The command log. With workers nothing is recorded here; this only checks that the file can be
    written."""
    try:
        recorder = Recorder(settings.record)
    except OSError as exc:
        raise StartError(f"the command log {settings.record} cannot be written: {exc.strerror}") from None
    stack.callback(recorder.close)
    return recorder


def _backend(
    runtime: Runtime,
    served: ServedUpstream,
    address: UpstreamAddress,
    policy: CompiledPolicy | None,
    places: list[Place],
    relay: LogRelay,
    findings: FindingsDesk,
) -> Backend:
    settings = runtime.settings
    if not settings.workers:
        runtime.serve(served, places[0])
        return InProcess(runtime, findings.feed, findings.ledger)
    loaded_at = next((at for _, at in runtime.telemetry.counters.policies.values()), 0.0)
    start = Start(pack(settings, policy), loaded_at, address, ())
    return Workers(places, runtime, relay, start, findings.feed, findings.ledger)


def _followed(runtime: Runtime, entry: ServedUpstream, doors: Doors | None) -> TopologyFollower[Any] | None:
    """The nodes of the cluster that the upstream is a node of; None: it is none. Raises StartError."""
    announce = runtime.settings.announce
    if announce is None and runtime.settings.expose is None:
        return None
    if runtime.policy is None:
        raise StartError("a cluster's replies name its nodes, so keyfence must read them: leave out --splice")
    if announce is None:
        return OneAddress(runtime, entry, doors)
    return ClusterNodes(runtime, entry, announce, doors)


def _on_signals(control: ProcessControl, at_once: asyncio.Event) -> asyncio.Event:
    """The event that the first SIGINT or SIGTERM sets; the second one sets `at_once`."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        (at_once if stop.is_set() else stop).set()

    tasks: set[asyncio.Task[Any]] = set()

    def do(name: str, start: Any) -> None:
        with acting_as(name):
            task = start()
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    loop.add_signal_handler(signal.SIGHUP, do, "SIGHUP", control.reload_on_signal)
    loop.add_signal_handler(signal.SIGUSR2, do, "SIGUSR2", control.restart_on_signal)
    return stop


def _receive_sockets(stack: contextlib.AsyncExitStack) -> None:
    """Take over the sockets that a supervisor has passed. Raises StartError."""
    stack.callback(passed.close_left)
    try:
        passed.receive()
    except passed.CannotTake as exc:
        raise StartError(str(exc)) from None


def _check_sockets() -> None:
    """Raises StartError if clients of a passed socket would wait for ever."""
    if left := passed.left():
        what = f"no listener has the address {left[0]} of a socket that was passed to keyfence"
        raise StartError(f"{what}; give one this address, or take the socket out of the socket unit")


def _bind(settings: Settings, stack: contextlib.ExitStack | contextlib.AsyncExitStack) -> list[Place]:
    """Bind every address, once for each worker; the stack closes them. Raises StartError."""
    try:
        places = bind_places(settings.listeners, max(settings.workers, 1))
    except CannotBind as exc:
        raise StartError(f"cannot listen on {exc.listen}: {why_not(exc.fault)}") from None
    for place in places:
        for bound in place:
            stack.callback(bound.close)
    return places


def _announce(
    settings: Settings,
    policy: CompiledPolicy | None,
    backend: Backend,
    operators: OperatorListeners,
    upstream: UpstreamAddress,
    embedded: EmbeddedRedis | None,
) -> None:
    """Print the ready line, what is to be known about the settings, and what a newcomer may try."""
    admin, metrics = operators.url("admin"), operators.url("metrics")
    listeners = zip(backend.bound, settings.listeners, strict=True)
    whose = ", ".join(f"{settings.whose(model)} on {address}" for (address, _), model in listeners)
    parts = [f"keyfence: ready: {whose}", f"admin {admin or 'none'}"]
    parts += [f"metrics {metrics}"] if metrics else []
    parts.append(f"upstream {upstream.shown}")
    parts += [f"environment {settings.environment}"] if settings.environment else []
    workers = backend.listing()
    if any(worker["pid"] != os.getpid() for worker in workers):
        parts.append(f"workers {len(workers)}")
    if policy is None:
        parts.append("SPLICE: nothing is read")
    print("; ".join(parts), flush=True)
    for text in (*token_warnings(settings), *advice(settings, policy)):
        warn(str(text))
    if embedded is not None:
        bound = zip(backend.bound, settings.listeners, strict=True)
        serving = [one for one, model in bound if not model.primaries]
        print(_things_to_try(serving, admin, embedded), flush=True)


def _things_to_try(serving: Sequence[tuple[str, str]], admin: str, embedded: EmbeddedRedis) -> str:
    """Commands for a newcomer to try, with the addresses in force and their services."""
    by_service = {service: _redis_cli(address) for address, service in serving}
    first = next(iter(by_service.values()))
    master, proxy = by_service.get("CubeMaster", first), by_service.get("CubeProxy", first)
    lines = [
        f"  An embedded Redis {embedded.version} is the upstream (its data ends with this process). Try:",
        f"    {master} HSET cube:v1:shared:sandbox:proxy:7c8f HostIP 10.0.0.7 8080 32001",
        f"    {proxy} HGETALL cube:v1:shared:sandbox:proxy:7c8f",
        f"    {proxy} HSET cube:v1:shared:sandbox:proxy:7c8f HostIP 10.0.0.8",
        f"    {master} HSET 7c8fbcd45ffe450fb8f7fb223ad45507 ins_id node1",
    ]
    if admin:
        lines += [
            f"    {_own_name()} report {admin}        violations so far",
            f"    curl {admin}/metrics",
            f"  Then open {admin}/ in a browser.",
        ]
    return "\n".join([*lines, "  Ctrl-C ends it all."])


def _redis_cli(address: str) -> str:
    """The redis-cli command for an address of this machine."""
    path = Address(address).unix_path
    return f"redis-cli -s {path}" if path else f"redis-cli -p {Address(address).host_port[1]}"


def _own_name() -> str:
    """The command that runs keyfence again."""
    return "keyfence" if shutil.which("keyfence") else sys.argv[0]
