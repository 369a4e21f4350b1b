"""The rehearsal of a cluster says what a real cluster says to the same traffic.

The traffic is the commands of a convention's policy tests, and for each service its own keys once more: two
at a time, in transactions, and under WATCH. With KEYFENCE_LONG=1 all conventions are played. Otherwise there
are two: one is written for a cluster, the other is not.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from redis.connection import Connection
from redis.exceptions import RedisError

from keyfence.authoring.testing import read_cases
from keyfence.commands.extract import extract
from keyfence.policy.loading.load import load_policy
from tests.clients.running import ask
from tests.cluster import NO_CLUSTER, Cluster, cluster_binary
from tests.servers import PATIENCE_SECONDS, PROJECT, Keyfence, RedisServer, running_redis, server_binaries

pytestmark = pytest.mark.skipif(cluster_binary() is None, reason=NO_CLUSTER)
CONVENTIONS = ["cosky", "cubesandbox"]
# Redis from 7.4 on sorts by patterns within a hash slot. The rehearsal names them all, because others do not.
SORTS_WITHIN_A_SLOT = server_binaries() and server_binaries()[0].numbers >= (7, 4)
if os.environ.get("KEYFENCE_LONG"):
    CONVENTIONS += ["card-relay", "container-registry", "general"]
MOST_PAIRS = 12  # of the keys of one service
# These change what the connection is, or wait; the rehearsal has nothing to say of them.
LEFT_OUT = {"HELLO", "CLIENT", "SUBSCRIBE", "PSUBSCRIBE", "MULTI", "EXEC", "XREAD", "XREADGROUP"}
SLOTS = ("slots.command", "slots.script", "slots.watch")
Traffic = list[list[list[bytes]]]  # conversations of commands


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as one:
        yield one


def traffic(name: str) -> dict[str, Traffic]:
    """The conversations of a convention by service."""
    found: dict[str, Traffic] = {}
    for case in read_cases(PROJECT / "policies" / f"{name}.test.yaml").cases:
        for step in case.steps:
            if step.argv and step.service != "unknown" and step.argv[0].upper().decode() not in LEFT_OUT:
                found.setdefault(step.service, []).append([step.argv])
    for conversations in found.values():
        conversations += list(together(conversations))
    return found


def together(conversations: Traffic) -> Iterator[list[list[bytes]]]:
    """The keys of a service two at a time, in all ways in which keys can be together."""
    keys = [access.key for one in conversations for argv in one for access in extract(argv).accesses[:1]]
    for one, other in list(pairwise(dict.fromkeys(keys)))[:MOST_PAIRS]:
        yield [[b"MULTI"], [b"EXISTS", one], [b"EXISTS", one, one], [b"EXISTS", other], [b"EXEC"]]
        yield [[b"MULTI"], [b"EXISTS", one], [b"EXISTS", one], [b"EXEC"]]
        yield [[b"EXISTS", one, other]]
        yield [[b"EVAL", b"return 1", b"2", one, other]]
        yield [[b"WATCH", one, other], [b"UNWATCH"]]
    yield [[b"SELECT", b"3"]]
    yield [[b"SELECT", b"0"]]
    yield [[b"MOVE", keys[0], b"1"]]


def said(conversations: Traffic, ports: Sequence[int]) -> Counter[str]:
    """The errors to conversations that only a cluster gives, by kind. Each begins at the first server, and
    goes on where MOVED leads."""
    links = {port: Connection(host="127.0.0.1", port=port, socket_timeout=PATIENCE_SECONDS) for port in ports}
    counts: Counter[str] = Counter()
    try:
        for conversation in conversations:
            port = ports[0]
            errors = said_by(links[port], conversation)
            if len(conversation) == 1 and errors[0].startswith("MOVED"):
                port = int(errors[0].rpartition(":")[2])
                errors = said_by(links[port], conversation)
            if len(conversation) > 2:
                # The first key decides the node of a transaction; every other error of slots is a cluster's.
                moved = next((one for one in errors if one.startswith("MOVED")), None)
                if moved is not None:
                    errors = said_by(links[int(moved.rpartition(":")[2])], conversation)
                broken = any(one.startswith(("MOVED", "CROSSSLOT")) for one in errors)
                counts["transaction"] += broken
                continue
            counts["slots"] += sum(one.startswith("CROSSSLOT") for one in errors)
            # Valkey 9 can have several databases, and has one unless its `cluster-databases` says more.
            counts["database"] += sum(
                "not allowed in cluster mode" in one or "DB index is out of range" in one for one in errors
            )
            counts["sort"] += sum("denied in cluster mode" in one.lower() for one in errors)
    finally:
        for link in links.values():
            link.disconnect()
    return +counts


def said_by(link: Connection, conversation: list[list[bytes]]) -> list[str]:
    """The errors of a conversation; "" for every other reply."""
    for argv in conversation:
        link.send_command(*argv)
    errors = []
    for _ in conversation:
        try:
            reply = link.read_response()
        except RedisError as exc:
            reply = exc
        errors.append(f"{getattr(reply, 'status_code', '')}{reply}" if isinstance(reply, Exception) else "")
    return errors


def rehearsed(keyfence: Keyfence) -> dict[str, dict[str, int]]:
    """What the rehearsal has counted, in the same kinds."""
    counts: dict[str, Counter[str]] = {}
    for row in json.loads(ask(keyfence, "/rehearsal")[1])["rows"]:
        of = counts.setdefault(row["service"], Counter())
        kind = row["obstacle"]
        if kind in SLOTS:
            of["slots"] += row["times"]
        elif kind == "slots.transaction":
            of["transaction"] += row["times"]
        elif kind in ("database", "sort.patterns"):
            of[kind.partition(".")[0]] += row["times"]
    return {service: dict(+of) for service, of in counts.items()}


@pytest.mark.parametrize("name", CONVENTIONS)
def test_the_rehearsal_of_a_convention_agrees_with_a_real_cluster(
    name: str, tmp_path: Path, cluster: Cluster, server: RedisServer
) -> None:
    file = PROJECT / "policies" / f"{name}.yaml"
    services = [one for one in load_policy(file).services if one != "unknown"]
    lines = [
        f"policy: {file}",
        f"upstream: {server.url}",
        "admin: 127.0.0.1:0",
        "findings: none",
        "listeners:",
    ]
    lines += [f'  - {{listen: "127.0.0.1:0", service: {one}}}' for one in services]
    config = tmp_path / "keyfence.yaml"
    config.write_text("\n".join(lines))
    played = traffic(name)
    ports = [one.port for one in cluster.masters if one.port is not None]
    real = {service: dict(said(conversations, ports)) for service, conversations in played.items()}
    with Keyfence("--config", config, "--rehearse", "cluster") as keyfence:
        for service, conversations in played.items():
            assert not said(conversations, [keyfence.address(service)[1]]), (
                "a single Redis refuses none of it"
            )
        found = rehearsed(keyfence)
        standing: Any = json.loads(ask(keyfence, "/rehearsal")[1])["services"]
    if SORTS_WITHIN_A_SLOT:
        for counts in (*found.values(), *real.values()):
            counts.pop("sort", None)
    assert found == {service: counts for service, counts in real.items() if counts}
    assert any(counts["slots"] for counts in real.values() if "slots" in counts)
    readiness = {one["service"]: one["readiness"] for one in standing}
    assert all(readiness[service] == "not ready" for service, counts in real.items() if counts)
