"""All workloads of `python -m benchmarks`, as data.

Rule: a row says what is sent and to whom; `workloads` sends it. A goal in `results` names a row.
"""

from __future__ import annotations

from benchmarks.disturbances import DISTURBANCES
from benchmarks.targets import FUNCTION, SCRIPT, SCRIPT_SHA1
from benchmarks.traffic import EVENTS, GROUP, ROUTE, STATE
from benchmarks.workloads import KEY, Workload

_OWN = ("direct", "haproxy", "keyfence", "dedicated")


def _basic() -> list[Workload]:
    found = []
    for load in ("set", "get"):
        for clients, pipeline, requests in (
            (1, 1, 20_000),
            (1, 16, 200_000),
            (1, 100, 500_000),
            (50, 1, 100_000),
            (50, 16, 600_000),
            (50, 100, 1_000_000),
            (500, 1, 100_000),
            (500, 16, 600_000),
            (500, 100, 1_000_000),
        ):
            many = f"{clients} client{'s' if clients > 1 else ''}"
            text = f"{load.upper()} of 64 bytes, {many}, {pipeline} per round trip"
            is_quick = load == "set" and (clients, pipeline) in ((1, 1), (50, 1), (50, 16), (50, 100))
            found.append(
                Workload(
                    f"{load}-{clients}x{pipeline}",
                    text,
                    clients,
                    pipeline,
                    load,
                    requests,
                    is_quick=is_quick,
                )
            )
    return found


# -- CubeSandbox's commonest commands: each 50 × 1 and 50 × 16

COMMON = {
    "hset": ("CubeMaster", ("HSET", f"{ROUTE}sb-__rand_int__", "HostIP", "10.0.0.7")),
    "hget": ("CubeMaster", ("HGET", f"{ROUTE}sb-__rand_int__", "HostIP")),
    "set-px": ("cube-proxy-sidecar", ("SET", f"{STATE}sb-__rand_int__", "paused", "PX", "60000")),
    "get-state": ("cube-proxy-sidecar", ("GET", f"{STATE}sb-__rand_int__")),
}
_COMMON_KEYS = 100_000


def _common() -> list[Workload]:
    return [
        Workload(
            f"common-{name}-50x{pipeline}",
            f"{argv[0]}{' … PX' * (name == 'set-px')}, 50 clients, {pipeline} per round trip",
            50,
            pipeline,
            "command",
            requests,
            targets=("direct", "twemproxy", "keyfence"),
            argv=argv,
            keys=_COMMON_KEYS,
            service=service,
        )
        for pipeline, requests in ((1, 100_000), (16, 600_000))
        for name, (service, argv) in COMMON.items()
    ]


# -- commands whose elements and options the policy checks, beside a plain SET (set-50x16)

WRITTEN = {  # argv and target
    "xadd": (
        ("XADD", EVENTS, "MAXLEN", "~", "100000", "*", "op", "create", "sandbox_id", "__rand_int__"),
        "keyfence",
    ),
    "sadd": (("SADD", "app:tags:__rand_int__", "tag-7"), "elements"),
    "zadd": (("ZADD", "app:board:__rand_int__", "17", "4711"), "elements"),
}


def _written() -> list[Workload]:
    return [
        Workload(
            f"written-{name}",
            f"{argv[0]} with forms, 50 clients × 16",
            50,
            16,
            "command",
            600_000,
            targets=("direct", target),
            argv=argv,
            keys=_COMMON_KEYS,
        )
        for name, (argv, target) in WRITTEN.items()
    ]


# -- ten keys in one command, beside the same command with one key (set-50x16, get-50x16, several-del-1)

SEVERAL = 10
_ONE_OF_SEVERAL = {"del": ("DEL", KEY)}
_SEVERAL = {
    "mset": ("MSET", *(KEY, "x" * 64) * SEVERAL),
    "mget": ("MGET", *(KEY,) * SEVERAL),
    "del": ("DEL", *(KEY,) * SEVERAL),
}


def _several() -> list[Workload]:
    found = [(f"several-{name}-1", argv) for name, argv in _ONE_OF_SEVERAL.items()]
    found += [(f"several-{name}", argv) for name, argv in _SEVERAL.items()]
    return [
        Workload(
            name,
            f"{argv[0]} of {f'{SEVERAL} keys' if len(argv) > 2 else 'one key'}, 50 clients × 16",
            50,
            16,
            "command",
            100_000 if len(argv) > 2 else 600_000,
            targets=("direct", "keyfence"),
            argv=argv,
        )
        for name, argv in found
    ]


# -- commands that are not one key and a value, beside a plain SET (others-set)

_LIST, _ZSET = "cube:v1:master:bench:list:a", "cube:v1:master:bench:zset:"
_FILL = "for _ = 1, ARGV[1] do redis.call('RPUSH', KEYS[1], 'x') end"
_READ = ("XREADGROUP", "GROUP", GROUP, "one", "COUNT", "1", "STREAMS", EVENTS, ">")
_MATCH = ("SCAN", "0", "MATCH", "cube:v1:master:instance:meta:*", "COUNT", "1")
_Other = tuple[tuple[str, ...], tuple[tuple[str, ...], ...], str]
OTHERS: dict[str, _Other] = {  # argv, what is done before each round, service
    "set": (("SET", KEY, "x" * 64), (), "CubeMaster"),
    "evalsha": (("EVALSHA", SCRIPT_SHA1, "1", KEY), (("SCRIPT", "LOAD", SCRIPT),), "CubeMaster"),
    "fcall": (("FCALL", "bench", "1", KEY), (("FUNCTION", "LOAD", "REPLACE", FUNCTION),), "CubeMaster"),
    "xreadgroup": (_READ, (), "cube-proxy-sidecar"),
    "blpop": (
        ("BLPOP", _LIST, "1"),
        (("DEL", _LIST), ("EVAL", _FILL, "1", _LIST, "{requests}")),
        "CubeMaster",
    ),
    "zunionstore": (
        ("ZUNIONSTORE", f"{_ZSET}a", "2", f"{_ZSET}b", f"{_ZSET}c"),
        (("ZADD", f"{_ZSET}b", "1", "x"), ("ZADD", f"{_ZSET}c", "2", "y")),
        "CubeMaster",
    ),
    "scan": (_MATCH, (), "CubeMaster"),
    "publish": (("PUBLISH", "bench:events", "x" * 64), (), "CubeMaster"),
}


def _others() -> list[Workload]:
    return [
        Workload(
            f"others-{name}",
            f"{argv[0]}, 50 clients × 16",
            50,
            16,
            "command",
            600_000 if name == "set" else 200_000,
            targets=("direct", "others"),
            argv=argv,
            service=service,
            before=before,
        )
        for name, (argv, before, service) in OTHERS.items()
    ]


# -- a policy that asks for much, beside one that asks for little

RICH = {  # argv and target
    "plain": ("shop:a:item:{__rand_int__}", "plain", "a policy with one entry"),
    "same": (
        "shop:a:item:{__rand_int__}",
        "rich",
        "with type words, hash slots, naming rules, bound placeholders",
    ),
    "should": (
        f"shop:a:item:{{__rand_int__-{'x' * 40}}}",
        "rich",
        "every command breaks a rule under should",
    ),
    "waived": ("shop:c:item:{__rand_int__}", "rich", "every command is waived"),
}


def _rich() -> list[Workload]:
    return [
        Workload(
            f"rich-{name}",
            f"SET, 50 clients × 16, {text}",
            50,
            16,
            "command",
            400_000,
            targets=("direct", target),
            argv=("SET", key, "x" * 64),
        )
        for name, (key, target, text) in RICH.items()
    ]


# -- latency at half the throughput of the slowest target, alone and while something else happens

_PACED_TARGETS = {
    "": ("direct", "haproxy", "keyfence", "2000-entries"),
    "violations": ("haproxy", "keyfence"),
    "reloads": ("2000-entries",),
    "computing": ("haproxy", "2000-entries"),
    "slow reader": ("haproxy", "keyfence"),
}


def _paced() -> list[Workload]:
    return [
        Workload(
            f"paced-{beside.replace(' ', '-')}" if beside else "paced",
            f"SET at a fixed rate, 50 clients, {f'beside {beside}' if beside else 'quiet'}",
            50,
            1,
            "paced",
            0,
            targets=_PACED_TARGETS[beside],
            beside=beside,
        )
        for beside in ("", *DISTURBANCES)
    ]


WORKLOADS = [
    *(
        Workload(
            f"idle-{clients}",
            f"{clients:,} idle connection{'s' if clients > 1 else ''}",
            clients,
            1,
            "idle",
            0,
            targets=("haproxy", "twemproxy", "keyfence", "dedicated"),
        )
        for clients in (1, 1_000, 5_000)
    ),
    *_basic(),
    Workload("set-64k", "SET of 64 KiB, 50 clients", 50, 1, "set", 20_000, size=65_536),
    Workload("get-64k", "GET of 64 KiB, 50 clients", 50, 1, "get", 20_000, size=65_536),
    Workload("replay", "CubeSandbox's own traffic, 50 clients", 50, 1, "replay", 60_000, is_quick=True),
    Workload(
        "replay-16", "CubeSandbox's own traffic, 50 clients, 16 per round trip", 50, 16, "replay", 200_000
    ),
    Workload("sets", "SET, 50 clients, by the generator", 50, 1, "refused", 60_000, targets=_OWN),
    Workload(
        "refused-5",
        "SET, 50 clients, by the generator, 5 % refused",
        50,
        1,
        "refused",
        60_000,
        share=0.05,
        targets=("direct", "keyfence", "dedicated"),
    ),
    Workload(
        "violated",
        "SET, 50 clients × 16, every command violates an observed rule",
        50,
        16,
        "foreign",
        400_000,
        targets=("direct", "observe"),
        is_quick=True,
    ),
    Workload(
        "strange",
        "SET, 50 clients × 16, every key is unknown to the policy, observed",
        50,
        16,
        "strange",
        400_000,
        targets=("direct", "observe"),
        is_quick=True,
    ),
    Workload(
        "mixed",
        "SET, 50 clients × 16, by the generator, keys that violate various rules",
        50,
        16,
        "violating",
        200_000,
        targets=("direct", "observe"),
    ),
    Workload(
        "observed",
        "SET, 50 clients × 16, no violations",
        50,
        16,
        "set",
        400_000,
        targets=("direct", "observe"),
        is_quick=True,
    ),
    Workload(
        "multi-16", "pipelines of 16 in MULTI and EXEC, 50 clients", 50, 16, "multi", 300_000, targets=_OWN
    ),
    Workload(
        "fan-out",
        "PUBLISH to 50 subscribers (counts messages)",
        50,
        1,
        "fan-out",
        200_000,
        targets=("direct", "haproxy", "others"),
    ),
    Workload(
        "entries",
        "SET, 50 clients × 16, with 12 and with 2,000 entries",
        50,
        16,
        "set",
        600_000,
        targets=("direct", "keyfence", "2000-entries"),
        is_quick=True,
    ),
    Workload(
        "candidate",
        "SET, 50 clients × 16, with and without a candidate policy",
        50,
        16,
        "set",
        600_000,
        targets=("direct", "keyfence", "candidate"),
    ),
    Workload(
        "workers",
        "SET, 50 clients, with one process and with two workers",
        50,
        1,
        "set",
        100_000,
        targets=("direct", "keyfence", "2-workers"),
    ),
    Workload(
        "workers-one",
        "SET, 25 clients, with one process: half of the clients, as each of two workers has",
        25,
        1,
        "set",
        100_000,
        targets=("direct", "keyfence"),
    ),
    *_common(),
    *_written(),
    *_several(),
    *_others(),
    *_rich(),
    *_paced(),
    Workload("start", "from the start of the process to its ready line", 0, 0, "start", 0),
]
