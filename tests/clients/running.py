"""Observations of a running keyfence from outside: its metrics, its log, its files."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.servers import PATIENCE_SECONDS, PROJECT, Keyfence, RedisServer

POLICY = PROJECT / "policies" / "cubesandbox.yaml"
ROUTE = "cube:v1:shared:sandbox:proxy:7c8f"
SERVICES = ("CubeMaster", "CubeProxy", "cube-proxy-sidecar", "unknown")


def configure(folder: Path, upstream: str, *more: str, mode: str = "") -> Path:
    """Writes a configuration with a listener for each of SERVICES and a decision log next to it."""
    lines = [
        f"policy: {POLICY}",
        "admin: 127.0.0.1:0",
        "decision_log: decisions.jsonl",
        *([] if any(line.startswith("upstream:") for line in more) else [f"upstream: {upstream}"]),
        "listeners:",
        *(f'  - {{listen: "127.0.0.1:0", service: {name}}}' for name in SERVICES),
        *([f"modes: [{{mode: {mode}}}]"] if mode else []),
        *more,
    ]
    path = folder / "keyfence.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


def ask(keyfence: Keyfence, path: str, body: object = None, method: str = "") -> tuple[int, str]:
    """Sends one request to the admin listener. Returns status and body."""
    data = None if body is None else json.dumps(body).encode()
    headers = {} if body is None else {"Content-Type": "application/json"}
    request = urllib.request.Request(keyfence.ready.admin + path, data, headers, method=method or None)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def metric(keyfence: Keyfence, name: str, **labels: str) -> float:
    """Returns the sum of a metric's samples with these labels."""
    families = text_string_to_metric_families(ask(keyfence, "/metrics")[1])
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def decisions(folder: Path) -> list[dict[str, object]]:
    """Returns the lines of the decision log so far."""
    return [json.loads(line) for line in (folder / "decisions.jsonl").read_text().splitlines()]


def eventually(check: Callable[[], object], what: str) -> None:
    """Waits until `check` holds, for events that happen soon but give no signal.

    Nothing passes by waiting.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not check():
        assert time.monotonic() < deadline, f"it never came to pass that {what}"
        time.sleep(0.005)


def settle(keyfence: Keyfence) -> None:
    """Waits for what opens after the ready line: the admin listener and the default findings store."""
    ask(keyfence, "/findings")


def open_files(keyfence: Keyfence) -> Counter[str]:
    """Returns the process's open files by kind. Sockets are one kind. The files of the findings store count
    as one, because it opens them again if it reads and writes at the same time."""
    folder = Path(f"/proc/{keyfence.process.pid}/fd")
    found = Counter(_kind(path) for path in folder.iterdir())
    found["store"] = min(found["store"], 1)
    return found


def _kind(path: Path) -> str:
    try:
        link = os.readlink(path)
        return "store" if ".db" in Path(link).suffix else link.partition(":")[0]
    except FileNotFoundError:  # closed since it was listed
        return "gone"


def resident_bytes(keyfence: Keyfence) -> int:
    """Returns the memory of the process, in bytes."""
    pages = int(Path(f"/proc/{keyfence.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def normal_clients(server: RedisServer) -> int:
    """Returns the number of Redis' connections, without the asking one."""
    with server.client() as client:
        return len(client.client_list()) - 1


def calls(server: RedisServer, commands: Iterable[str]) -> dict[str, int]:
    """Returns how often Redis executed each of the commands since the last reset of its statistics."""
    with server.client() as client:
        stats = client.info("commandstats")
    return {name: int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in commands}
