"""What one client's session costs: read, judge, count, send on, and take the replies in; no socket.

Run it from the repository's root: `python -m benchmarks.micro_relay`; with KEYFENCE_PURE=1 it measures what
runs without a compiler. Figures are CPU microseconds a command, the least of several rounds: what others do
on the machine only adds to them.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

from benchmarks import traffic
from proxy import _compiled
from proxy.policy.compiled import CompiledPolicy
from proxy.policy.judge import InForce, Judge
from proxy.policy.load import load_policy
from proxy.policy.modes import ModeRule, Modes
from proxy.policy.pending import PendingTtls
from proxy.relay.identity import Identities
from proxy.relay.session import Session
from proxy.telemetry.telemetry import Telemetry
from proxy.wire.encode import command

POLICY = Path(__file__).parents[1] / "policies" / "cubesandbox.yaml"
ROUNDS = 7
COMMANDS = 6_400
PIPELINES = (1, 16, 100)


def session_of(policy: CompiledPolicy, service: str, mode: str = "enforce") -> Session:
    """A session that shares a connection, with telemetry and no log."""
    pending = PendingTtls()
    judge = Judge(policy, Modes((ModeRule(mode),), policy.services), pending=pending)  # type: ignore[arg-type]
    identities = Identities(frozenset(policy.services))
    return Session(InForce(judge), identities, service, "127.0.0.1:1", Telemetry(), sharing=True)


def pieces(requests: list[bytes], pipeline: int) -> list[tuple[bytes, int]]:
    """What comes in one read, and how many requests that is."""
    groups = [requests[at : at + pipeline] for at in range(0, len(requests), pipeline)]
    return [(b"".join(group), len(group)) for group in groups]


def serve(session: Session, reads: list[tuple[bytes, int]]) -> None:
    """Let the session have each read, and then the replies to what it sends on."""
    for data, _ in reads:
        session.from_client(data)
        for count in session.counts:
            session.from_shared(b"+OK\r\n" * count, count, True)
        session.counts = []
        session.to_upstream = []
        session.to_client = []


def cost(session: Session, reads: list[tuple[bytes, int]]) -> float:
    commands = sum(count for _, count in reads)
    serve(session, reads)
    found = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        serve(session, reads)
        found.append((time.process_time() - begun) / commands * 1e6)
    return min(found)


def sets(prefix: str = "cube:v1:master:instance:meta:", count: int = COMMANDS) -> list[bytes]:
    choose = random.Random(1)
    return [command("SET", f"{prefix}{choose.randrange(10**6):012}", b"x" * 64) for _ in range(count)]


def transactions(pipeline: int) -> list[tuple[bytes, int]]:
    """The same in transactions, as redis-py sends a pipeline."""
    begin, end = command("MULTI"), command("EXEC")
    return [(begin + data + end, count + 2) for data, count in pieces(sets(), pipeline)]


def main() -> None:
    policy = load_policy(POLICY)
    print(f"hot modules: {_compiled.describe()}; µs a command")
    strangers = traffic.offences(random.Random(1), COMMANDS, b"x" * 64)
    loads: list[tuple[str, str, str, list[bytes]]] = [("SET", "CubeMaster", "enforce", sets())]
    loads += [
        (f"traffic of {kind.service}", kind.service, "enforce", traffic.requests(kind, 1, COMMANDS))
        for kind in traffic.KINDS
    ]
    loads += [
        ("SET, refused", "CubeMaster", "enforce", sets("cube:v1:proxy:x:")),
        ("SET, refused: key.unregistered", "CubeMaster", "enforce", sets("bench:user:")),
        ("observed: no right", "CubeMaster", "observe", sets("cube:v1:proxy:x:")),
        ("observed: of no entry", "CubeMaster", "observe", sets("bench:user:")),
        ("observed: an entry's, no right", "CubeProxy", "observe", sets()),
        ("observed: without its TTL", "cube-proxy-sidecar", "observe", sets("cube:v1:shared:lock:x:")),
        ("observed: all sorts", "CubeMaster", "observe", strangers),
    ]
    for text, service, mode, requests in loads:
        session = session_of(policy, service, mode)
        show(text, [cost(session, pieces(requests, pipeline)) for pipeline in PIPELINES])
    session = session_of(policy, "CubeMaster")
    show("SET, in MULTI and EXEC", [cost(session, transactions(pipeline)) for pipeline in PIPELINES])


def show(text: str, costs: list[float]) -> None:
    print(f"{text:32} " + "  ".join(f"{one:6.2f}" for one in costs) + "   (1, 16, 100 a read)")


if __name__ == "__main__":
    main()
