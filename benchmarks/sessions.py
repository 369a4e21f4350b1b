"""A client's session and its loads, without sockets: read, evaluate, count, forward, and read replies.

`micro` measures its time, and `instructions` counts its instructions.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import NamedTuple

from benchmarks import several, traffic
from keyfence.identity.resolver import make_resolver
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.enforcement.modes import Mode, ModeRule, Modes, Waiver
from keyfence.policy.engine.authorizer import Authorizer, Candidate, InForce
from keyfence.policy.engine.pending import PendingTtls
from keyfence.policy.loading.load import load_policy, parse_policy
from keyfence.resp.encode import command
from keyfence.session.conversation import conversation
from keyfence.session.conversation.context import ClientOrigin, SessionContext
from keyfence.session.session import Session
from keyfence.telemetry.candidate.changes import Changes
from keyfence.telemetry.telemetry import Telemetry

POLICY = Path(__file__).parents[1] / "policies" / "cubesandbox.yaml"
SEVERAL = Path(__file__).with_name("several.yaml")
VALUE = b"x" * 64
conversation.TURN_SECONDS = 3600.0  # a load is one turn, also under callgrind

# Entries with forms that policies/cubesandbox.yaml has none of.
ELEMENTS = """
policy: elements
services: [app, CubeMaster, CubeProxy, cube-proxy-sidecar]  # the latter three for the listeners of targets.py
placeholders: {id: "[0-9]{1,12}"}
scopes: {all: {prefix: "app:", writers: [app, CubeMaster]}}
keys:
  tags: {key: "app:tags:<id>", type: set, members: "[a-z][a-z0-9_-]{0,31}"}
  board: {key: "app:board:<id>", type: zset, members: "<id>", scores: "0..1000000"}
"""

# A small policy, and what a policy may require beside it: each on its own, and all together.
SHOP = """policy: shop
claims: ["shop:"]
services: [app, other]
placeholders: {id: "[A-Za-z0-9_.-]{1,128}", kind: "[a-z]{1,16}"}
"""
PREFIX = """scopes: {a: {prefix: "shop:a:", writers: [app]}}
keys:
"""
BOUND = """bind: {part: {app: [a, b], other: c}}
scopes: {part: {prefix: "shop:<part>:", writers: [app, other]}}
keys:
"""
ITEM = """  item: {key: "shop:a:item:{<id>}", type: string}
"""
OF_A_KIND = """  item: {key: "shop:a:<kind>:{<id>}"}
"""
OF_A_PART = """  item: {key: "shop:<part>:<kind>:{<id>}"}
"""
SLOTS = "cluster: true\n"
WORDS = "type_words: {item: string, list: list}\n"
NAMES = """names:
  max_length: 128
  hash_tag: optional
  levels: {min: 3, max: 6}
  should: {max_length: 40, charset: "[A-Za-z0-9:_.{}-]", avoid: {itm: item}}
"""
WAIVED = (
    Waiver("app", "scope.write", keys="shop:c:*"),
    Waiver("app", "scope.write", entry="item", command="SET", keys="shop:c:item:<*>"),
    Waiver("app", "scope.write", keys="shop:d:<uuid>"),
)
RICH = {  # the policy's text, the keys' beginning and end, the waivers
    "a simple policy": (SHOP + PREFIX + ITEM, "shop:a:item:{", "}", ()),
    "hash slots": (SHOP + SLOTS + PREFIX + ITEM, "shop:a:item:{", "}", ()),
    "names kept": (SHOP + NAMES + PREFIX + ITEM, "shop:a:item:{", "}", ()),
    "names broken": (SHOP + NAMES + PREFIX + ITEM, "shop:a:item:{", f"-{'x' * 40}}}", ()),
    "type words": (SHOP + WORDS + PREFIX + OF_A_KIND, "shop:a:item:{", "}", ()),
    "bound": (SHOP + BOUND + OF_A_PART, "shop:a:item:{", "}", ()),
    "waived": (SHOP + BOUND + OF_A_PART, "shop:c:item:{", "}", WAIVED),
    "all of it": (SHOP + SLOTS + WORDS + NAMES + BOUND + OF_A_PART, "shop:a:item:{", "}", WAIVED),
}

Reads = list[tuple[bytes, int]]  # the bytes of each read, and the number of requests in them


class Load(NamedTuple):
    """The reads of a session of `service`."""

    name: str
    service: str
    mode: Mode
    reads: Reads
    has_candidate: bool = False  # a candidate policy beside the one in force, which finds the same
    text: str = ""  # of the policy; "": policies/cubesandbox.yaml
    waivers: tuple[Waiver, ...] = ()

    @property
    def commands(self) -> int:
        return sum(count for _, count in self.reads)


@cache
def policy(text: str = "") -> CompiledPolicy:
    return parse_policy(text) if text else load_policy(POLICY)


def session_for(load: Load) -> Session:
    """Returns a session that shares an upstream connection, with telemetry and without a decision log."""
    loaded, telemetry = policy(load.text), Telemetry()
    modes = Modes((ModeRule(load.mode),), loaded.services, load.waivers)
    candidate = None
    if load.has_candidate:
        telemetry.beside = changes = Changes(1, telemetry.counters)
        candidate = Candidate(Authorizer(loaded, modes), changes)
    authorizer = Authorizer(loaded, modes, pending=PendingTtls(), candidate=candidate)
    identities = make_resolver(frozenset(loaded.services))
    context = SessionContext(InForce(authorizer), identities, telemetry, sharing=True)
    return Session(context, ClientOrigin(load.service, "127.0.0.1:1"))


def serve(session: Session, reads: Reads) -> None:
    """Feeds each read to the session, then the replies to the requests that it forwards."""
    conversation, replies = session.conversation, session.conversation.replies
    for data, size in reads:
        session.from_client(data)
        for count in conversation.counts:
            session.from_shared(b"+OK\r\n" * count, count, True)
        if not conversation.route.is_shared:  # blocking commands and scripts are on a connection of its own
            session.from_upstream(b"+OK\r\n" * size)
        conversation.counts = []
        conversation.to_upstream = []
        replies.to_client = []


def sets(count: int, prefix: str = "cube:v1:master:instance:meta:", end: str = "") -> list[bytes]:
    """Returns SETs of 64 bytes with random keys."""
    choose = random.Random(1)
    return [command("SET", f"{prefix}{choose.randrange(10**6):012}{end}", VALUE) for _ in range(count)]


# Commands whose values, fields or elements the policy requires a form of: the service, and the command with
# a random id and a random byte.
WRITES = {
    "SET with options": (
        "cube-proxy-sidecar",
        "SET cube:v1:shared:sandbox:lifecycle:state:{:012} paused EX 60",
    ),
    "HSET of a listed field": ("CubeMaster", "HSET cube:v1:shared:sandbox:proxy:{:012} HostIP 10.0.0.{}"),
    "XADD with MAXLEN": ("CubeMaster", f"XADD {traffic.EVENTS} MAXLEN ~ 100000 * op create sandbox_id {{}}"),
    "SADD with a form": ("app", "SADD app:tags:{:012} tag-{}"),
    "ZADD with a range": ("app", "ZADD app:board:{:012} {} 4711"),
}


def writes(count: int, template: str) -> list[bytes]:
    """Returns commands of one kind of WRITES."""
    choose = random.Random(1)
    filled = (template.format(choose.randrange(10**6), choose.randrange(256)) for _ in range(count))
    return [command(*text.split()) for text in filled]


def pieces(requests: list[bytes], pipeline: int) -> Reads:
    groups = [requests[at : at + pipeline] for at in range(0, len(requests), pipeline)]
    return [(b"".join(group), len(group)) for group in groups]


def in_transactions(reads: Reads) -> Reads:
    """Puts each read into a transaction, as redis-py does with a pipeline."""
    begin, end = command("MULTI"), command("EXEC")
    return [(begin + data + end, size + 2) for data, size in reads]


def loads(commands: int, pipeline: int) -> list[Load]:
    """Returns the loads that sessions are measured with, `pipeline` requests per read."""
    permitted, foreign, unknown = (
        sets(commands),
        sets(commands, "cube:v1:proxy:x:"),
        sets(commands, "bench:user:"),
    )
    violating = traffic.violating_sets(random.Random(1), commands, VALUE)
    found = [
        Load("SET", "CubeMaster", "enforce", pieces(permitted, pipeline)),
        Load("SET, in MULTI", "CubeMaster", "enforce", in_transactions(pieces(permitted, pipeline))),
        Load("SET, no right, refused", "CubeMaster", "enforce", pieces(foreign, pipeline)),
        Load("SET, no right, observed", "CubeMaster", "observe", pieces(foreign, pipeline)),
        Load("SET, unknown key, refused", "CubeMaster", "enforce", pieces(unknown, pipeline)),
        Load("SET, unknown key, observed", "CubeMaster", "observe", pieces(unknown, pipeline)),
        Load("SET, all sorts, observed", "CubeMaster", "observe", pieces(violating, pipeline)),
    ]
    compared = (("SET", permitted, "enforce"), ("SET, no right, observed", foreign, "observe"))
    found += [
        Load(f"{name}, with a candidate", "CubeMaster", mode, pieces(requests, pipeline), has_candidate=True)
        for name, requests, mode in compared
    ]
    for name, (service, template) in WRITES.items():
        reads, text = pieces(writes(commands, template), pipeline), ELEMENTS if service == "app" else ""
        found.append(Load(name, service, "enforce", reads, text=text))
    for kind in traffic.KINDS:
        requests = traffic.requests(kind, 1, commands)
        found.append(Load(f"traffic of {kind.service}", kind.service, "enforce", pieces(requests, pipeline)))
    for name in several.MAKE:
        reads = pieces(several.requests(name, commands), pipeline)
        found.append(Load(name, "app", "enforce", reads, text=SEVERAL.read_text()))
    for name, (text, beginning, end, waivers) in RICH.items():
        reads = pieces(sets(commands, beginning, end), pipeline)
        found.append(Load(f"SET, {name}", "app", "enforce", reads, text=text, waivers=waivers))
    (slots, beginning, end, _), name = RICH["hash slots"], "SET, hash slots, in MULTI"
    one = [sets(1, beginning, end)[0]] * commands  # all keys of a transaction are in one slot
    found.append(Load(name, "app", "enforce", in_transactions(pieces(one, pipeline)), text=slots))
    for count in (1, 10):
        requests = [command("DEL", *[f"{beginning}{at:08}{end}"] * count) for at in range(commands)]
        reads = pieces(requests, pipeline)
        found.append(Load(f"DEL of {count}, hash slots", "app", "enforce", reads, text=slots))
    return [load._replace(name=f"{load.name}, {pipeline} a read") for load in found]
