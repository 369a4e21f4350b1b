"""`keyfence demo`: plays a minute of CubeSandbox traffic, mistakes included, and shows the findings.

Rule: at its end the demo has stopped everything that it started and deleted everything that it wrote. It
changes no mode of a running keyfence, and touches no key that was in that keyfence's Redis before.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import secrets
import shlex
import signal
import sys
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import redis.asyncio
from redis.exceptions import NoPermissionError, RedisError
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from keyfence.admin.client import AskError, ask
from keyfence.config.loading import load_settings
from keyfence.config.models import ListenerModel
from keyfence.config.settings import Overrides, Settings
from keyfence.downstream.listeners import Listeners
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.diagnostics import did_you_mean
from keyfence.policy.loading.load import load_policy
from keyfence.policy.show import printable
from keyfence.policy.verdict import Mode
from keyfence.process.serving.runtime import Runtime
from keyfence.telemetry.reports.by_command import rows_from_snapshot
from keyfence.telemetry.tally import Row
from keyfence.telemetry.telemetry import Telemetry
from keyfence.upstream.embedded import EmbeddedRedis
from keyfence.upstream.health import UpstreamAddress

from .shipped import shipped_policies

MASTER, PROXY, API, SIDECAR = SERVICES = ("CubeMaster", "CubeProxy", "CubeAPI", "cube-proxy-sidecar")
ROUNDS = 6  # of ten seconds each
MAX_KEYS = 10_000  # with more keys than this in a shared Redis, `KEYS *` would block its other clients
CLIENT_TIMEOUT = 10.0  # seconds
MAX_FAILURES_SHOWN = 20

META = "cube:v1:shared:sandbox:lifecycle:meta"
EVENTS = "cube:v1:shared:sandbox:lifecycle:events"
RELEASE = "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0"


class DemoError(Exception):
    """The demo cannot be played. The message is one line for the user."""


def play(connect: str, policy: str) -> None:
    """Plays the traffic and prints the findings. Raises DemoError, EmbeddedRedisError, FileError.

    `connect` is the admin URL of a running keyfence. If it is empty, the demo starts a private keyfence with
    its own Redis. `policy` is the private keyfence's policy file; if it is empty, the shipped cubesandbox.
    """
    if connect and policy:
        raise DemoError("a running keyfence uses its own policy; give either --admin or --policy, not both")
    try:
        asyncio.run(_until_terminated(_play_through(connect) if connect else _play_privately(policy)))
    except asyncio.CancelledError:
        raise DemoError("ended by SIGTERM") from None


async def _until_terminated(job: Awaitable[None]) -> None:
    """Awaits the job, and lets SIGTERM end it as Ctrl-C does, so that it cleans up."""
    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(NotImplementedError, RuntimeError):  # not in the main thread, or on Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await job
    if task.cancelling():
        raise asyncio.CancelledError  # a library that was awaited at that moment swallowed it


# -- the traffic


class Step(NamedTuple):
    """A command that a service sends. `mistake` describes what is wrong with it; empty if it is correct."""

    service: str
    argv: tuple[str, ...]
    mistake: str = ""

    @property
    def text(self) -> str:
        return printable(" ".join(self.argv).encode(), 96)

    def names(self, key: str) -> bool:
        return key in self.argv


def _step(service: str, command: str, mistake: str = "") -> Step:
    return Step(service, tuple(shlex.split(command)), mistake)


class Minute:
    """A minute of the four services' traffic.

    `tag` is part of every id, so that no key existed before. Only the lifecycle registry and its events have
    no id.
    """

    def __init__(self, tag: str) -> None:
        self.nodes = [f"node-{tag}-{number}" for number in (1, 2, 3)]
        self.sandboxes = [f"sb-{tag}-{number}" for number in (1, 2, 3, 4)]
        self.tag = tag

    def steps(self) -> Iterator[Step]:
        yield _step(SIDECAR, f"XGROUP CREATE {EVENTS} demo-{self.tag} $ MKSTREAM")
        for number in range(ROUNDS):
            yield from self._round(number)
        for sandbox in self.sandboxes[2:]:
            yield from self._destroy(sandbox, ROUNDS * 10)
        yield from self._consume()

    def _round(self, number: int) -> Iterator[Step]:
        for node in self.nodes:
            yield from self._heartbeat(node, number * 10)
        if number < len(self.sandboxes):
            yield from self._create(self.sandboxes[number], number * 10)
        yield from self._consume()
        for sandbox in self.sandboxes[max(0, number - 3) : number + 1]:
            yield from self._request(sandbox)
        yield from self._pause_and_resume(self.sandboxes[min(number, len(self.sandboxes) - 1)])
        yield from self._mistakes(number)
        if 2 <= number < 4:
            yield from self._destroy(self.sandboxes[number - 2], number * 10)

    def _heartbeat(self, node: str, second: int) -> Iterator[Step]:
        key = f"cube:v1:master:node:metric:{node}"
        yield _step(
            MASTER,
            f"HSET {key} ins_id {node} update_at {1_760_000_000 + second} quota_cpu_usage {1500 + second} "
            f"quota_mem_mb_usage 2048 mvm_num 12 nic_queues 4 data_disk_usage_per 41.5",
        )
        yield _step(MASTER, f"EXPIRE {key} 600")
        yield _step(MASTER, f"HGETALL {key}")

    def _create(self, sandbox: str, second: int) -> Iterator[Step]:
        lock, task = f"cube:v1:master:lock:sandbox:{sandbox}", f"cube:v1:master:task:describe:{sandbox}"
        when = 1_760_000_000_000 + second * 1000
        meta = json.dumps({"state": "running", "node": self.nodes[0]}, separators=(",", ":"))
        yield _step(MASTER, f"SET {lock} holder-1 NX EX 30")
        yield _step(
            MASTER,
            f"HSET cube:v1:shared:sandbox:proxy:{sandbox} HostIP 10.0.0.7 SandboxIP 172.16.0.2 "
            f"CreatedAt {when} 8080 32001 22 32002",
        )
        yield _step(MASTER, f"HSET cube:v1:master:instance:info:{sandbox} ins_id {sandbox} host_ip 10.0.0.7")
        yield Step(MASTER, ("HSET", META, sandbox, meta))
        yield _step(
            MASTER, f"XADD {EVENTS} MAXLEN ~ 100000 * op create sandbox_id {sandbox} ts {when} payload {{}}"
        )
        yield _step(MASTER, f"HSET {task} task_id {sandbox} status done error_code 0 error_message ''")
        yield _step(MASTER, f"EXPIRE {task} 86400")
        yield Step(MASTER, ("EVAL", RELEASE, "1", lock, "holder-1"))
        yield _step(API, f"SET cube:v1:api:setting:quota-{self.tag} 5 EX 300")

    def _consume(self) -> Iterator[Step]:
        """Yields a read by the consumer group. The player acknowledges the items of the reply."""
        yield _step(
            SIDECAR, f"XREADGROUP GROUP demo-{self.tag} sidecar-1 COUNT 100 BLOCK 20 STREAMS {EVENTS} >"
        )

    def _request(self, sandbox: str) -> Iterator[Step]:
        yield _step(PROXY, f"HGETALL cube:v1:shared:sandbox:proxy:{sandbox}")
        yield _step(PROXY, f"HGET cube:v1:shared:sandbox:proxy:{sandbox} 8080")
        yield _step(API, f"GET cube:v1:api:setting:quota-{self.tag}")
        yield _step(SIDECAR, f"HGET {META} {sandbox}")

    def _pause_and_resume(self, sandbox: str) -> Iterator[Step]:
        key, lock = (
            f"cube:v1:shared:sandbox:lifecycle:state:{sandbox}",
            f"cube:v1:shared:lock:pause:{sandbox}",
        )
        yield _step(SIDECAR, f"SET {lock} sidecar-1 NX EX 30")
        yield _step(SIDECAR, f"set {key} pausing ex 60 nx")
        yield _step(SIDECAR, f"set {key} paused ex 60")
        yield _step(SIDECAR, f"get {key}")
        yield _step(SIDECAR, f"del {key}")
        yield Step(SIDECAR, ("EVAL", RELEASE, "1", lock, "sidecar-1"))

    def _destroy(self, sandbox: str, second: int) -> Iterator[Step]:
        when = 1_760_000_000_000 + second * 1000
        yield _step(MASTER, f"XADD {EVENTS} MAXLEN ~ 100000 * op delete sandbox_id {sandbox} ts {when}")
        yield _step(MASTER, f"HDEL {META} {sandbox}")
        yield _step(MASTER, f"DEL cube:v1:shared:sandbox:proxy:{sandbox}")
        yield _step(MASTER, f"DEL cube:v1:master:instance:info:{sandbox}")
        yield _step(MASTER, f"HGETALL cube:v1:master:task:describe:{sandbox}")

    def _mistakes(self, number: int) -> Iterator[Step]:
        """Yields the mistakes that an observe run finds, some in every round, some once."""
        sandbox, node = self.sandboxes[min(number, 3)], self.nodes[0]
        route, state = (
            f"cube:v1:shared:sandbox:proxy:{sandbox}",
            f"cube:v1:shared:sandbox:lifecycle:state:{sandbox}",
        )
        yield _step(PROXY, f"HSET {route} HostIP 10.0.0.8", "CubeProxy writes to shared")
        yield _step(MASTER, f"HSET {node} ins_id {node} mvm_num 12", "the key is a bare id")
        if number % 2 == 0:
            yield _step(
                MASTER, f"HSET bypass_host_proxy:{sandbox} HostIP 10.0.0.7", "a write to a legacy key"
            )
            yield _step(MASTER, f"HSET cube:v1:master:node:metric:{node} cpu_util 0.42", "an unknown field")
            yield _step(SIDECAR, f"SET {state} paused", "no time to live")
            job = f"template_image_job_pull_progress:{self.tag}"
            yield _step(MASTER, f"HSET {job} pct {number * 10}", "an unregistered key")
        if number == 1:
            yield _step(MASTER, f"EXPIRE {route} 3600", "a route gets a time to live")
            yield _step(PROXY, f"GET {route}", "a string command on a hash")
            yield _step(MASTER, f"HSET {route}:admin HostIP 10.0.0.7", "an id with a colon")
            yield _step(SIDECAR, f"set {state} killed ex 60", "an unknown state")
            yield _step(API, f"SET session:{self.tag} user-1 EX 60", "a key without the prefix")
            yield _step(MASTER, "KEYS *", "all key names are listed")


# -- playing it


class Outcome(NamedTuple):
    """The reply that a client got for a step."""

    step: Step
    got: str  # "OK", or the error line
    passed: bool  # whether keyfence let the command through, even if Redis answered with an error


@dataclasses.dataclass
class Player:
    """One connection per service, and the outcome of each command."""

    clients: dict[str, redis.asyncio.Redis]
    outcomes: list[Outcome] = dataclasses.field(default_factory=list)

    async def play(self, steps: Iterable[Step]) -> None:
        for step in steps:
            reply = await self._send(step)
            if step.argv[0] == "XREADGROUP" and isinstance(reply, list):
                for ids in (tuple(item_id.decode() for item_id, _ in items) for _, items in reply):
                    group, stream = step.argv[2], step.argv[-2]
                    await self._send(Step(step.service, ("XACK", stream, group, *ids)))

    async def _send(self, step: Step) -> Any:
        try:
            reply = await self.ask(step.service, *step.argv)
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as exc:
            raise DemoError(f"{step.service}'s connection broke at {step.text}: {exc}") from None
        except RedisError as exc:
            refused = isinstance(exc, NoPermissionError)
            # redis-py removes the error code from the message.
            line = f"NOPERM {exc}" if refused else str(exc)
            self.outcomes.append(Outcome(step, line, not refused))
            return None
        self.outcomes.append(Outcome(step, "OK", True))
        return reply

    async def ask(self, service: str, *argv: str) -> Any:
        return await self.clients[service].execute_command(*argv)  # type: ignore[no-untyped-call]


@contextlib.asynccontextmanager
async def _player(addresses: dict[str, tuple[str, int]]) -> AsyncIterator[Player]:
    """Yields a player whose clients connect to these addresses."""
    async with contextlib.AsyncExitStack() as stack:
        clients = {}
        for service, (host, port) in addresses.items():
            client = redis.asyncio.Redis(
                host=host,
                port=port,
                protocol=2,
                single_connection_client=True,
                socket_timeout=CLIENT_TIMEOUT,
                socket_connect_timeout=CLIENT_TIMEOUT,
            )
            stack.push_async_callback(client.aclose)
            clients[service] = client
        yield Player(clients)


# -- through a private keyfence


async def _play_privately(policy_file: str) -> None:
    path = policy_file or str(_shipped_policy())
    policy = load_policy(path)
    _check_services(policy)
    settings = dataclasses.replace(
        load_settings("", Overrides(policy=path)),
        listeners=tuple(ListenerModel(listen="127.0.0.1:0", service=service) for service in SERVICES),
    )
    with EmbeddedRedis() as embedded:
        address = UpstreamAddress("unix", path=str(embedded.socket_path), shown=embedded.url)
        out = _console()
        out.print(f"A private keyfence in front of its own Redis {embedded.version}; policy {policy.name}.\n")
        rows, outcomes = await _played("observe", settings, policy, address)
        out.print("[bold]1. observe[/]: everything passes; these are the findings", highlight=False)
        _print_found(out, rows)
        _print_passed(out, outcomes)
        _empty(embedded)
        _, outcomes = await _played("enforce", settings, policy, address)
        out.print("\n[bold]2. enforce[/]: the same minute again; these are the replies", highlight=False)
        _print_got(out, outcomes)
        _print_passed(out, outcomes)
    out.print("\nBoth have stopped and left nothing behind.")


async def _played(
    mode: Mode, settings: Settings, policy: CompiledPolicy, address: UpstreamAddress
) -> tuple[list[Row], list[Outcome]]:
    """Plays the minute in a mode. Returns the findings and the clients' outcomes."""
    flags = load_settings("", Overrides(policy=settings.policy, mode=mode))
    telemetry = Telemetry.to(None)
    runtime = Runtime(dataclasses.replace(settings, modes=flags.modes), policy, telemetry)
    upstream = runtime.open_upstream(address)
    listeners = Listeners(runtime.server_context(upstream))
    try:
        await upstream.probe()
        for one in settings.listeners:
            listeners.open(one)
        await listeners.start()
        addresses = {service: _host_port(where, "") for where, service in listeners.bound}
        async with _player(addresses) as player:
            await player.play(Minute(secrets.token_hex(3)).steps())
        return telemetry.tally.snapshot(), player.outcomes
    finally:
        await listeners.close()
        telemetry.close()


def _empty(embedded: EmbeddedRedis) -> None:
    with redis.Redis(unix_socket_path=str(embedded.socket_path)) as direct:
        direct.flushall()


def _shipped_policy() -> Path:
    """Returns the file of the shipped cubesandbox policy. Raises DemoError if this installation lacks it."""
    path = shipped_policies().get("cubesandbox")
    if path is None:
        raise DemoError(
            "this installation has no shipped policies; name a CubeSandbox policy with --policy FILE"
        )
    return path


def _check_services(policy: CompiledPolicy) -> None:
    missing = [service for service in SERVICES if service not in policy.services]
    if missing:
        known = did_you_mean(missing[0], policy.services)
        raise DemoError(
            f"the policy {policy.name} has no service {', '.join(missing)}{known}; the demo needs "
            "CubeSandbox' services"
        )


# -- through a running keyfence


async def _play_through(admin: str) -> None:
    addresses = _running_addresses(admin)
    before = _running_rows(admin)
    out = _console()
    out.print(f"Through the keyfence at {admin}, in its configured modes.\n", markup=False, highlight=False)
    async with _player(addresses) as player:
        minute = Minute(secrets.token_hex(3))
        steps = await _spare(player, list(minute.steps()), out)
        try:
            await player.play(steps)
            found = _difference(_running_rows(admin), before)
        finally:
            left = await _clean_up(player)
    out.print("[bold]Findings[/]", highlight=False)
    _print_found(out, found)
    out.print("\n[bold]Replies to the clients[/]", highlight=False)
    _print_got(out, player.outcomes)
    _print_passed(out, player.outcomes)
    if left:
        raise DemoError(f"could not delete these keys of the demo: {', '.join(left)}")
    out.print(
        "\nThe demo has deleted the keys that it wrote (keyfence counts violations of these commands too)."
    )


def _running_addresses(admin: str) -> dict[str, tuple[str, int]]:
    """Returns the address for each of the four services. Raises DemoError if one has no listener."""
    if _ask(admin, "/modes").get("splice"):
        raise DemoError(f"{admin}: this keyfence runs with --splice and applies no policy")
    host = urllib.parse.urlsplit(admin).hostname or "127.0.0.1"
    found = {
        one["service"]: _host_port(one["address"], host)
        for one in reversed(_ask(admin, "/listeners"))
        if not one["address"].startswith("unix:")
    }
    missing = [service for service in SERVICES if service not in found]
    if missing:
        there = ", ".join(service or "unknown" for service in found) or "none"
        raise DemoError(
            f"{admin}: no listener for {', '.join(missing)} (it has: {there}); the demo needs a listener for "
            "each of CubeSandbox' services"
        )
    return {service: found[service] for service in SERVICES}


def _host_port(address: str, any_host: str) -> tuple[str, int]:
    """Returns the address to connect to. `any_host` replaces a host that means every interface."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    return (any_host if host in ("", "0.0.0.0", "::") else host), int(port)


def _running_rows(admin: str) -> list[Row]:
    try:
        return rows_from_snapshot(_ask(admin, "/report"))
    except ValueError as exc:
        raise DemoError(f"{admin}/report: {exc}") from None


def _ask(admin: str, path: str) -> Any:
    try:
        return ask(admin, path)
    except AskError as exc:
        raise DemoError(str(exc)) from None


def _difference(after: list[Row], before: list[Row]) -> list[Row]:
    """Returns the rows with the violations counted between two reports."""
    counted = {_label(row): row["count"] for row in before}
    rows = [cast(Row, {**row, "count": row["count"] - counted.get(_label(row), 0)}) for row in after]
    return [row for row in rows if row["count"] > 0]


def _label(row: Row) -> tuple[str, str, str, str, str]:
    return row["service"], row["rule"], row["command"], row["entry"], row["shape"]


async def _spare(player: Player, steps: list[Step], out: Console) -> list[Step]:
    """Returns the steps that disturb no other client of this Redis, and prints which ones it leaves out.

    Others may use the keys without an id, and KEYS over many keys blocks Redis.
    """
    left_out = []
    for key in (META, EVENTS):
        if await _answered(player, MASTER, "EXISTS", key) != 0:
            left_out.append(f"commands on {key}: the key is in use")
            steps = [step for step in steps if not step.names(key)]
    known = await _answered(player, MASTER, "INFO", "keyspace")
    spaces = known.values() if isinstance(known, dict) else None
    if spaces is None or sum(space.get("keys", MAX_KEYS) for space in spaces) > MAX_KEYS:
        left_out.append("KEYS: it would block other clients")
        steps = [step for step in steps if step.argv[0] != "KEYS"]
    for what in left_out:
        out.print(f"Left out: {what}.", markup=False, highlight=False)
    return steps


async def _answered(player: Player, service: str, *argv: str) -> Any:
    """Returns a reply, None if it is an error. Raises DemoError if there is no reply."""
    try:
        return await player.ask(service, *argv)
    except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as exc:
        raise DemoError(f"{service}'s listener does not answer: {exc}") from None
    except RedisError:
        return None


async def _clean_up(player: Player) -> list[str]:
    """Deletes each key as the service that wrote it. Returns the keys that it could not delete."""
    written: dict[str, str] = {}
    for step, got, _ in player.outcomes:
        name = step.argv[0].upper()
        if name in _KEY_OF_WRITE and got == "OK":
            # CubeProxy's mistakes write to CubeMaster's keys.
            written[step.argv[_KEY_OF_WRITE[name]]] = MASTER if step.service == PROXY else step.service
    stayed = []
    for key, service in written.items():
        if key == META:  # others may have added fields; Redis deletes the hash with its last field
            fields = {step.argv[2] for step, _, _ in player.outcomes if step.argv[:2] == ("HSET", META)}
            command = ("HDEL", META, *sorted(fields))
        else:
            command = ("DEL", key)
        with contextlib.suppress(DemoError):
            if await _answered(player, service, *command) is not None:
                continue
        stayed.append(key)
    return stayed


# The argument that is the key in each command that the demo writes with.
_KEY_OF_WRITE = {"SET": 1, "HSET": 1, "XADD": 1, "XGROUP": 2}


# -- what is printed


def _console() -> Console:
    """Returns a console on standard output: coloured on a terminal, else 400 columns wide."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(width=400, no_color=True, highlight=False)


def _print_table(out: Console, headings: Sequence[str], rows: Sequence[Sequence[Text | str]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right" if heading == "count" else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    if out.is_terminal:
        out.print(table)
        return
    with out.capture() as captured:
        out.print(table)
    for line in captured.get().splitlines():  # rich fills the last column with spaces
        out.print(Text(line.rstrip(" ")))


def _print_found(out: Console, rows: list[Row]) -> None:
    cells = [
        (
            row["service"],
            Text(row["rule"], "bold" if row["severity"] == "must" else ""),
            row["command"],
            row["shape"] or row["entry"] or "–",
            str(row["count"]),
            row["hint"],
        )
        for row in sorted(rows, key=lambda row: -row["count"])
    ]
    _print_table(out, ("service", "rule", "command", "entry or key shape", "count", "hint"), cells)


def _print_got(out: Console, outcomes: Sequence[Outcome]) -> None:
    """Prints each mistake once, and every other command that got an error."""
    shown: dict[tuple[str, str], Outcome] = {}
    for outcome in outcomes:
        step = outcome.step
        if step.mistake or outcome.got != "OK":
            shown.setdefault((step.service, step.mistake or step.argv[0]), outcome)
    rows = [
        (outcome.step.service, _exchange(outcome)) for outcome in list(shown.values())[:MAX_FAILURES_SHOWN]
    ]
    _print_table(out, ("service", "command and reply"), rows)


def _exchange(outcome: Outcome) -> Text:
    style = "green" if outcome.passed else "red"
    wrong = f"  ({outcome.step.mistake})" if outcome.step.mistake else ""
    return Text.assemble(f"> {outcome.step.text}", (wrong, "dim"), "\n", (outcome.got, style))


def _print_passed(out: Console, outcomes: Sequence[Outcome]) -> None:
    refused = [outcome for outcome in outcomes if not outcome.passed]
    mistakes = sum(bool(outcome.step.mistake) for outcome in outcomes if outcome.passed)
    text = f"{len(outcomes) - len(refused)} of {len(outcomes)} commands passed"
    if mistakes:
        text += f", {mistakes} mistakes among them"
    if refused:
        text += f"; {len(refused)} were refused and never reached Redis"
    out.print(text + ".")
