"""CubeSandbox's traffic as bytes, for its four kinds of connections.

Rule: no command of a `Kind` violates policies/cubesandbox.yaml, so all of them pass in enforce mode. The
commands and their options are those that CubeMaster, CubeProxy and the sidecar really send.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from keyfence.resp.encode import command

ROUTE = "cube:v1:shared:sandbox:proxy:"
EVENTS = "cube:v1:shared:sandbox:lifecycle:events"
META = "cube:v1:shared:sandbox:lifecycle:meta"
STATE = "cube:v1:shared:sandbox:lifecycle:state:"
METRIC = "cube:v1:master:node:metric:"
INFO = "cube:v1:master:instance:info:"
TASK = "cube:v1:master:task:describe:"
GROUP = "sidecar"
SANDBOXES = 100_000
NODES = 2_000

Request = list[object]  # argv
Step = Callable[[random.Random], list[Request]]


class Kind(NamedTuple):
    """A kind of connection: its service, and its steps with their weights."""

    service: str
    share: int  # out of a hundred connections
    steps: tuple[tuple[int, Step], ...]


def _sandbox(choose: random.Random) -> str:
    return f"sb-{choose.randrange(SANDBOXES):08x}"


def _route(choose: random.Random) -> list[Request]:
    return [["HGETALL", ROUTE + _sandbox(choose)]]


def _heartbeat(choose: random.Random) -> list[Request]:
    """A node's metrics, and their time to live: two commands without a transaction."""
    key = f"{METRIC}node-{choose.randrange(NODES)}"
    fields = {
        "ins_id": f"ins-{choose.randrange(NODES)}",
        "update_at": 1_790_000_000 + choose.randrange(10**6),
        "quota_cpu_usage": choose.randrange(10**5),
        "quota_mem_mb_usage": choose.randrange(10**6),
        "mvm_num": choose.randrange(500),
        "nic_queues": choose.randrange(64),
        "data_disk_usage_per": choose.randrange(100),
        "storage_disk_usage_per": choose.randrange(100),
        "sys_disk_usage_per": choose.randrange(100),
    }
    return [["HSET", key, *_pairs(fields)], ["EXPIRE", key, 600]]


def _create(choose: random.Random) -> list[Request]:
    """A new sandbox: its route, its registry entry, its event."""
    name = _sandbox(choose)
    host = f"10.0.{choose.randrange(256)}.{choose.randrange(1, 255)}"
    fields = {"HostIP": host, "SandboxIP": f"172.16.{choose.randrange(256)}.7", "CreatedAt": 1_790_000_000}
    ports = {str(port): str(choose.randrange(20_000, 60_000)) for port in (8080, 49983)}
    info = {"ins_id": name, "host_ip": host, "cpu": 2, "mem_mb": 2048, "status": "running"}
    about = json.dumps({"sandboxID": name, "hostIP": host, "timeout": 300})
    return [
        ["HSET", ROUTE + name, *_pairs(fields | ports)],
        ["HSET", INFO + name, *_pairs(info)],
        ["HSET", META, name, about],
        _event(choose, "create", name),
    ]


def _delete(choose: random.Random) -> list[Request]:
    name = _sandbox(choose)
    return [["DEL", ROUTE + name], ["HDEL", META, name], _event(choose, "delete", name)]


def _event(choose: random.Random, op: str, name: str) -> Request:
    at = 1_790_000_000_000 + choose.randrange(10**9)
    return ["XADD", EVENTS, "MAXLEN", "~", 100_000, "*", "op", op, "sandbox_id", name, "ts", at]


def _task(choose: random.Random) -> list[Request]:
    name = f"task-{choose.randrange(SANDBOXES):08x}"
    fields = {"task_id": name, "status": "done", "error_code": 0, "error_message": "ok"}
    return [["HSET", TASK + name, *_pairs(fields)], ["EXPIRE", TASK + name, 86_400], ["HGETALL", TASK + name]]


def _pause(choose: random.Random) -> list[Request]:
    """The sidecar coordinates one pause."""
    name = _sandbox(choose)
    key = STATE + name
    return [
        ["set", key, "pausing", "ex", 60, "nx"],
        ["get", key],
        ["set", key, "paused", "ex", 60],
        ["hget", META, name],
        ["del", key],
    ]


def _pairs(fields: dict[str, object]) -> Iterator[object]:
    for name, value in fields.items():
        yield name
        yield value


KINDS = (
    Kind("CubeProxy", 50, ((1, _route),)),
    Kind("CubeMaster", 35, ((5, _heartbeat), (2, _create), (2, _delete), (1, _task))),
    Kind("cube-proxy-sidecar", 15, ((1, _pause),)),
)
SERVICES = tuple(kind.service for kind in KINDS)


# Keys that match no entry, as on the first day in staging.
UNKNOWN_KEYS = ("bench:user:{}", "session:{}:state", "{}", "cube:v1:proxy:x:{}", "cube:queue:{}", "lock_{}")


def violating_sets(choose: random.Random, count: int, value: bytes) -> list[bytes]:
    """Returns `count` SETs that each violate a rule. Their keys belong to several families, at random."""
    return [
        command("SET", choose.choice(UNKNOWN_KEYS).format(f"{choose.randrange(10**6):012}"), value)
        for _ in range(count)
    ]


def kind_of(connection: int) -> Kind:
    """Returns the kind of the connection with this number. The kinds are spread evenly over the numbers."""
    at = connection * 37 % 100
    for kind in KINDS:
        at -= kind.share
        if at < 0:
            return kind
    raise AssertionError("the shares do not add up to a hundred")


def requests(kind: Kind, seed: int, count: int) -> list[bytes]:
    """Returns at least `count` requests of one connection, in order."""
    choose = random.Random(seed)
    steps = [step for _, step in kind.steps]
    weights = [weight for weight, _ in kind.steps]
    encoded: list[bytes] = []
    while len(encoded) < count:
        [step] = choose.choices(steps, weights)
        encoded += [command(*map(str, argv)) for argv in step(choose)]
    return encoded
