"""The targets of the benchmarks: Redis itself, other proxies, and keyfence in several configurations.

Rule: each target is a separate process in front of the same Redis, on loopback, with one worker thread unless
its name says otherwise. This module starts it, and ends it by its process id. A target that is not installed
is left out, and the report gives the reason.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import traffic
from benchmarks.sessions import ELEMENTS
from keyfence import _compiled
from tests.servers import Keyfence, RedisServer, free_port

CUBE = Path(__file__).parents[1] / "policies" / "cubesandbox.yaml"
ENTRIES = 2_000
PATIENCE = 30.0
MAX_CONNECTIONS = 6_000  # each takes two file descriptors
# keyfence has a listener for each of these services. redis-benchmark uses the first one.
SERVICES = ("CubeMaster", *(one for one in traffic.SERVICES if one != "CubeMaster"))


class Target(NamedTuple):
    """A process that the workloads send load to."""

    name: str
    ports: dict[str, int]  # by service; "": for clients without a service
    pid: int  # 0: unknown process, so its CPU time and memory are unknown
    about: str
    is_slow: bool = False  # gets fewer requests, so that a round ends in time

    def port(self, service: str) -> int:
        return self.ports.get(service, self.ports[""])


class Field:
    """All targets of one run, and the Redis that they use."""

    def __init__(self, redis: RedisServer, folder: Path) -> None:
        self.redis = redis
        self.folder = folder
        self.targets: dict[str, Target] = {}
        self.skipped: list[str] = []
        self.sizes: dict[str, float] = {}  # KiB of memory of each target before any load
        self.rate = 0.0  # requests per second of paced workloads; 0: not measured yet

    @property
    def policy_of_many(self) -> Path:
        """The policy of the target 2000-entries."""
        return self.folder / "large.yaml"

    @property
    def redis_port(self) -> int:
        assert self.redis.port is not None
        return self.redis.port

    def add(self, target: Target) -> None:
        try:
            wait_for_port(target.ports[""])
        except OSError as exc:
            self.skipped.append(f"{target.name}: nothing listens on its port ({exc})")
        else:
            self.targets[target.name] = target


def wait_for_port(port: int) -> None:
    """Waits until a port is open, since redis-benchmark retries a closed port forever.

    Raises OSError if the port stays closed for PATIENCE seconds.
    """
    until = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def start(stack: contextlib.ExitStack, field: Field, names: set[str], peers: list[str]) -> None:
    """Starts the targets with these names (all if `names` is empty), and adds the peers."""

    def wanted(name: str) -> bool:
        return not names or name in names

    field.add(Target("direct", {"": field.redis_port}, 0, f"Redis {field.redis.version} itself"))
    if wanted("haproxy"):
        _haproxy(stack, field)
    if wanted("twemproxy"):
        _twemproxy(stack, field)
    compiled = any(_compiled.status().values())
    if not compiled:
        field.skipped.append(
            "keyfence compiled: the extensions are not built (`make build` needs a C compiler)"
        )
    if wanted("keyfence") and compiled:
        start_keyfence(stack, field, "keyfence", f"hot modules {_compiled.describe()}")
    if wanted("interpreted"):
        start_keyfence(
            stack,
            field,
            "interpreted",
            "keyfence with KEYFENCE_PURE=1",
            env={"KEYFENCE_PURE": "1"},
            slow=True,
        )
    if wanted("dedicated"):
        start_keyfence(stack, field, "dedicated", "keyfence, upstream.mode: dedicated", mode="dedicated")
    if wanted("observe"):
        start_keyfence(
            stack,
            field,
            "observe",
            "keyfence, every rule in observe mode, decision log to a file",
            rules="observe",
        )
    if wanted("2000-entries"):
        field.policy_of_many.write_text(large_policy(ENTRIES))
        about = "keyfence, the policy has 2,000 more entries"
        start_keyfence(stack, field, "2000-entries", about, policy=field.policy_of_many)
    for name, (about, text, waivers) in MORE_POLICIES.items():
        if wanted(name):
            policy = field.folder / f"{name}.policy.yaml"
            policy.write_text(text)
            more = ""
            if waivers:
                policy.with_name(f"{name}.waivers.yaml").write_text(waivers)
                more = f"waivers: {name}.waivers.yaml"
            start_keyfence(stack, field, name, about, policy=policy, more=more)
    if wanted("candidate"):
        about = "keyfence, with the same policy as a candidate"
        start_keyfence(stack, field, "candidate", about, options=("--candidate", str(CUBE)))
    if wanted("2-workers"):
        start_keyfence(stack, field, "2-workers", "keyfence, two worker processes", workers=2)
    for peer in peers:
        name, _, address = peer.partition("=")
        host, _, port = address.rpartition(":")
        if host not in ("127.0.0.1", "localhost") or not port.isdigit():
            field.skipped.append(f"{peer}: not NAME=127.0.0.1:PORT (all targets must be on this machine)")
            continue
        field.add(Target(name, {"": int(port)}, _listener(int(port)), f"peer at {address}"))


def _listener(port: int) -> int:
    """Returns the id of the process that listens on a port, or 0 if it is unknown."""
    found = subprocess.run(["ss", "-Hltnp", f"sport = :{port}"], capture_output=True, text=True, check=False)
    _, _, rest = found.stdout.partition("pid=")
    digits = rest.partition(",")[0]
    return int(digits) if digits.isdigit() else 0


@contextlib.contextmanager
def running(argv: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _version(*argv: str) -> str:
    run = subprocess.run(argv, capture_output=True, text=True, check=False)
    return (run.stdout + run.stderr).strip().partition("\n")[0]


def _haproxy(stack: contextlib.ExitStack, field: Field) -> None:
    path = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
    if path is None:
        field.skipped.append("HAProxy: not installed (apt install haproxy)")
        return
    port, file = free_port(), field.folder / "haproxy.cfg"
    file.write_text(
        f"""global
  nbthread 1
  maxconn {MAX_CONNECTIONS}
defaults
  mode tcp
  timeout connect 5s
  timeout client 1h
  timeout server 1h
listen redis
  bind 127.0.0.1:{port}
  server redis 127.0.0.1:{field.redis_port}
"""
    )
    process = stack.enter_context(running([path, "-db", "-f", str(file)]))
    field.add(Target("haproxy", {"": port}, process.pid, f"TCP mode, one thread ({_version(path, '-v')})"))


def _twemproxy(stack: contextlib.ExitStack, field: Field) -> None:
    path = shutil.which("nutcracker") or shutil.which("nutcracker", path="/usr/sbin")
    if path is None:
        field.skipped.append("twemproxy: not installed (apt install nutcracker)")
        return
    port, file = free_port(), field.folder / "twemproxy.yml"
    file.write_text(
        f"""redis:
  listen: 127.0.0.1:{port}
  redis: true
  hash: fnv1a_64
  distribution: ketama
  preconnect: true
  servers:
   - 127.0.0.1:{field.redis_port}:1
"""
    )
    process = stack.enter_context(
        running([path, "-c", str(file), "-a", "127.0.0.1", "-s", str(free_port()), "-v", "0"])
    )
    field.add(Target("twemproxy", {"": port}, process.pid, _version(path, "-V")))


def start_keyfence(
    stack: contextlib.ExitStack,
    field: Field,
    name: str,
    about: str,
    *,
    policy: Path = CUBE,
    mode: str = "shared",
    rules: str = "enforce",
    env: dict[str, str] | None = None,
    workers: int = 0,
    slow: bool = False,
    more: str = "",
    options: Sequence[str] = (),
) -> None:
    """Starts a keyfence and adds it. `more` are further lines of its configuration, and `options` further
    ones of `keyfence run`."""
    file = field.folder / f"{name}.yaml"
    listeners = "\n".join(f'  - {{listen: "127.0.0.1:0", service: {one}}}' for one in SERVICES)
    file.write_text(
        f"""policy: {policy}
upstream: {{url: "{field.redis.url}", mode: {mode}}}
listeners:
{listeners}
modes: [{{mode: {rules}}}]
decision_log: {field.folder / name}.log
admin: none
{more}
"""
    )
    arguments = ["--config", str(file), *(["--workers", str(workers)] if workers else []), *options]
    keyfence = stack.enter_context(Keyfence(*arguments, expect_stderr="(?s).*", env=env))
    ports = {service: keyfence.address(service)[1] for service in SERVICES}
    ports[""] = ports[SERVICES[0]]
    field.add(Target(name, ports, keyfence.process.pid, about, slow))


SCRIPT = "return redis.call('GET', KEYS[1])"
SCRIPT_SHA1 = hashlib.sha1(SCRIPT.encode()).hexdigest()
FUNCTION = """#!lua name=bench
redis.register_function{function_name='bench', flags={'no-writes'},
  callback=function(keys) return redis.call('GET', keys[1]) end}
"""
# What large_policy adds to the sections of the CubeSandbox policy, in front, and at the end of the file.
SECTIONS = {
    "keys": """  bench-zset: {key: "cube:v1:master:bench:zset:<id>", type: zset}
  bench-list: {key: "cube:v1:master:bench:list:<id>", type: list}
""",
    "scripts": f"  bench: {{sha1: {SCRIPT_SHA1}, keys: 1, declared: read}}\n",
}
AT_THE_END = """functions:
  bench: {keys: 1, declared: read}
channels:
  bench: {channel: "bench:events", publishers: [CubeMaster], subscribers: [CubeMaster]}
"""


def large_policy(entries: int) -> str:
    """Returns the CubeSandbox policy with `entries` more entries in CubeMaster's scope, and with keys, a
    script, a function and a channel for the workloads."""
    more = "".join(
        f'  bench-{number}: {{key: "cube:v1:master:bench{number % 40}:part{number}:<id>", type: string}}\n'
        for number in range(entries)
    )
    text = CUBE.read_text()
    for section, lines in SECTIONS.items():
        head, begin, rest = text.partition(f"\n{section}:\n")
        text = head + begin + lines + (more if section == "keys" else "") + rest
    return f"{text}\n{AT_THE_END}"


# A small policy, and the same with everything that a policy can ask beside it.
_SHOP = """policy: shop
claims: ["shop:"]
services: [CubeMaster, CubeProxy, cube-proxy-sidecar]
placeholders: {id: "[A-Za-z0-9_.-]{1,128}"}
"""
_PLAIN = """scopes: {a: {prefix: "shop:a:", writers: [CubeMaster]}}
keys:
  item: {key: "shop:a:item:{<id>}", type: string}
"""
_RICH = """cluster: true
type_words: {item: string, list: list}
names: {max_length: 128, hash_tag: optional, should: {max_length: 40}}
bind: {part: {CubeMaster: [a, b], CubeProxy: c}}
scopes: {part: {prefix: "shop:<part>:", writers: [CubeMaster, CubeProxy]}}
keys:
  item: {key: "shop:<part>:item:{<id>}"}
"""
_WAIVERS = """waivers:
  - {rule: scope.write, service: CubeMaster, keys: "shop:c:*", owner: o, reason: bench, until: 2099-12-31}
"""
# By target: about it, its policy, its waivers.
MORE_POLICIES = {
    "elements": ("keyfence, the policy requires forms of elements and scores", ELEMENTS, ""),
    "others": ("keyfence, the policy has a script, a function and a channel", large_policy(0), ""),
    "plain": ("keyfence, a policy with one entry", _SHOP + _PLAIN, ""),
    "rich": (
        "keyfence, the same with should, type words, hash slots, bound placeholders and waivers",
        _SHOP + _RICH,
        _WAIVERS,
    ),
}
