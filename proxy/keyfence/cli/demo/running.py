"""What the demo asks of a running keyfence, and how it spares the Redis behind it.

Rule: the demo touches no key that was in that Redis before, and deletes each key that it wrote.
"""

from __future__ import annotations

import contextlib
import urllib.parse
from typing import Any, cast

from keyfence.admin.client import RELOAD_TIMEOUT, TIMEOUT, AskError, ask
from keyfence.telemetry.reports.by_command import rows_from_snapshot
from keyfence.telemetry.tally import Row

from .player import DemoError, Player
from .traffic import EVENTS, MASTER, META, PROXY, SERVICES, Step

MAX_KEYS = 10_000  # with more keys than this in a shared Redis, `KEYS *` would block its other clients
# The argument that is the key in each command that the demo writes with.
_KEY_OF_WRITE = {"SET": 1, "HSET": 1, "XADD": 1, "XGROUP": 2}


def addresses_of(admin: str) -> dict[str, tuple[str, int]]:
    """Returns the address for each of the four services. Raises DemoError if one has no listener."""
    if asked(admin, "/modes").get("splice"):
        raise DemoError(f"{admin}: this keyfence runs with --splice and applies no policy")
    host = urllib.parse.urlsplit(admin).hostname or "127.0.0.1"
    found = {
        one["service"]: host_port(one["address"], host)
        for one in reversed(asked(admin, "/listeners"))
        if not one["address"].startswith("unix:") and not one.get("sentinel")
    }
    missing = [service for service in SERVICES if service not in found]
    if missing:
        there = ", ".join(service or "unknown" for service in found) or "none"
        raise DemoError(
            f"{admin}: no listener for {', '.join(missing)} (it has: {there}); the demo needs a listener for "
            "each of CubeSandbox' services"
        )
    return {service: found[service] for service in SERVICES}


def host_port(address: str, any_host: str) -> tuple[str, int]:
    """Returns the address to connect to. `any_host` replaces a host that means every interface."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    return (any_host if host in ("", "0.0.0.0", "::") else host), int(port)


def rows_of(admin: str) -> list[Row]:
    """Returns the findings so far. Raises DemoError."""
    try:
        return rows_from_snapshot(asked(admin, "/report"))
    except ValueError as exc:
        raise DemoError(f"{admin}/report: {exc}") from None


def asked(admin: str, path: str, body: dict[str, Any] | None = None, token_file: str = "") -> Any:
    """Returns the answer of the admin listener. Raises DemoError."""
    try:
        # A change reads a policy in a process of its own, which takes a busy machine long.
        return ask(admin, path, body, TIMEOUT if body is None else RELOAD_TIMEOUT, token_file)
    except AskError as exc:
        raise DemoError("; ".join((str(exc), *exc.details))) from None


def difference(after: list[Row], before: list[Row]) -> list[Row]:
    """Returns the rows with the violations counted between two reports."""
    counted = {_label(row): row["count"] for row in before}
    rows = [cast(Row, {**row, "count": row["count"] - counted.get(_label(row), 0)}) for row in after]
    return [row for row in rows if row["count"] > 0]


def _label(row: Row) -> tuple[str, str, str, str, str]:
    return row["service"], row["rule"], row["command"], row["entry"], row["shape"]


async def spare(player: Player, steps: list[Step]) -> tuple[list[Step], list[str]]:
    """Returns the steps that disturb no other client of this Redis, and which ones are left out.

    Others may use the keys without an id, and KEYS over many keys blocks Redis.
    """
    left_out = []
    for key in (META, EVENTS):
        if await player.answered(MASTER, "EXISTS", key) != 0:
            left_out.append(f"commands on {key}: the key is in use")
            steps = [step for step in steps if not step.names(key)]
        elif key == EVENTS and not await _may_delete(player, key):
            left_out.append(f"commands on {key}: the policy lets nobody delete the key afterwards")
            steps = [step for step in steps if not step.names(key)]
    known = await player.answered(MASTER, "INFO", "keyspace")
    spaces = known.values() if isinstance(known, dict) else None
    if spaces is None or sum(space.get("keys", MAX_KEYS) for space in spaces) > MAX_KEYS:
        left_out.append("KEYS: it would block other clients")
        steps = [step for step in steps if step.argv[0] != "KEYS"]
    return steps, left_out


async def _may_delete(player: Player, key: str) -> bool:
    """Whether a key could be deleted. Nothing is: the command is queued and discarded."""
    await player.answered(MASTER, "MULTI")
    answer = await player.answered(MASTER, "DEL", key)
    await player.answered(MASTER, "DISCARD")
    return answer is not None


async def clean_up(player: Player) -> list[str]:
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
            if await player.answered(service, *command) is not None:
                continue
        stayed.append(key)
    return stayed
