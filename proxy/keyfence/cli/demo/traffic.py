"""The demo's traffic: a minute of what CubeSandbox' four services send, and their mistakes.

Rule: every key holds the minute's tag, so that it was in no Redis before; only the lifecycle registry and its
events have no tag.
"""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from keyfence.policy.show import printable

MASTER, PROXY, API, SIDECAR = SERVICES = ("CubeMaster", "CubeProxy", "CubeAPI", "cube-proxy-sidecar")
ROUNDS = 6  # of ten seconds each

META = "cube:v1:shared:sandbox:lifecycle:meta"
EVENTS = "cube:v1:shared:sandbox:lifecycle:events"
RELEASE = "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0"


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


def new_tag() -> str:
    """A tag that no Redis has seen. It always has a letter and a digit, so that its keys have one shape."""
    return f"{secrets.token_hex(3)}c7"


class Minute:
    """A minute of the four services' traffic. `tag` is part of every id."""

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
