"""Requests with several keys, scripts, patterns, channels and streams, for `sessions`.

Rule: benchmarks/several.yaml admits all of them in enforce. `KEYS` says how many keys a request has, so that
its cost can be compared with that of as many single commands.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from keyfence.resp.encode import command

SHA1 = "fab5aabdaac7aab1eaa85bbed1724dee07d7744a"
VALUE = "x" * 64

Request = list[str]
Make = Callable[[random.Random], Request]


def _keys(choose: random.Random, kind: str, count: int) -> list[str]:
    return [f"app:{kind}:{choose.randrange(10**6):012}" for _ in range(count)]


def _mset(choose: random.Random) -> Request:
    return ["MSET", *(word for key in _keys(choose, "text", 10) for word in (key, VALUE))]


def _mixed(choose: random.Random) -> Request:
    """DEL of keys of two entries, in any order."""
    return ["DEL", *(_keys(choose, choice, 1)[0] for choice in choose.choices(("text", "other"), k=10))]


def _group(choose: random.Random) -> Request:
    read = ["GROUP", "workers", f"worker-{choose.randrange(1000)}", "COUNT", "10", "BLOCK", "1000"]
    return ["XREADGROUP", *read, "STREAMS", *_keys(choose, "events", 1), ">"]


def _union(choose: random.Random) -> Request:
    return ["ZUNIONSTORE", *_keys(choose, "zset", 1), "2", *_keys(choose, "zset", 2)]


def _owned(choose: random.Random) -> Request:
    return ["1", *_keys(choose, "lock", 1), f"owner-{choose.randrange(10**6)}"]


def _scan(choose: random.Random) -> Request:
    return ["SCAN", str(choose.randrange(10**9)), "MATCH", "app:text:*", "COUNT", "100"]


MAKE: dict[str, Make] = {
    "MGET of 10": lambda choose: ["MGET", *_keys(choose, "text", 10)],
    "MSET of 10": _mset,
    "DEL of 10": lambda choose: ["DEL", *_keys(choose, "text", 10)],
    "DEL of 10, of two entries": _mixed,
    "EXISTS of 10": lambda choose: ["EXISTS", *_keys(choose, "text", 10)],
    "SUNION of 5": lambda choose: ["SUNION", *_keys(choose, "set", 5)],
    "ZUNIONSTORE": _union,
    "EVALSHA": lambda choose: ["EVALSHA", SHA1, *_owned(choose)],
    "FCALL": lambda choose: ["FCALL", "bump", *_owned(choose)],
    "XREADGROUP": _group,
    "BLPOP": lambda choose: ["BLPOP", *_keys(choose, "queue", 1), "5"],
    "SCAN": _scan,
    "PUBLISH": lambda choose: ["PUBLISH", *_keys(choose, "news", 1), VALUE],
}
KEYS = {
    "MGET of 10": 10,
    "MSET of 10": 10,
    "DEL of 10": 10,
    "DEL of 10, of two entries": 10,
    "EXISTS of 10": 10,
}
KEYS |= {"SUNION of 5": 5, "ZUNIONSTORE": 3}


def requests(name: str, count: int) -> list[bytes]:
    """Returns `count` requests of one kind, with random keys."""
    choose = random.Random(1)
    return [command(*MAKE[name](choose)) for _ in range(count)]
