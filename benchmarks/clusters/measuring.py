"""Changes one after another with all clients at work, and what each client has seen of each."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Generator, Sequence
from pathlib import Path

from benchmarks.clusters.arm import ANEW, Arm, Load
from benchmarks.clusters.changes import Changing
from benchmarks.clusters.outcomes import CONTROL, LISTENERS, ONE_ADDRESS, Change, Outcome
from benchmarks.clusters.speakers import LIBRARIES, NODE, Target
from tests.cluster import MASTERS, NO_CLUSTER, cluster_binary, running_cluster
from tests.end_to_end.clusters import POLICY, keyfence_with, running_keyfence
from tests.servers import PATIENCE_SECONDS, ServerBinary

NODE_TIMEOUT = 1000  # milliseconds without an answer, after which the nodes take one for dead
BACK_SECONDS = 5.0  # within which a client is back, or it is taken that it will never be
LOOK_SECONDS = 0.05
SINGLE = """policy: policy.yaml
upstream: {{cluster: [{seeds}], expose: single}}
listeners: [{{listen: "127.0.0.1:0", service: app}}]
admin: "127.0.0.1:0"
findings: none
modes: [{{mode: enforce}}]
"""


def installed() -> list[str]:
    """The libraries that are installed here."""
    has_node = bool(shutil.which("node")) and (NODE / "node_modules").is_dir()
    has = {"redis-py": True, "redis-cli": bool(shutil.which("redis-cli"))}
    return [one for one in LIBRARIES if has.get(one.split(" ")[0], has_node)]


def measured(
    kind: str,
    folder: Path,
    binary: ServerBinary | None = None,
    libraries: Sequence[str] = (),
    load: Load = Load(),  # noqa: B008
    back: float = BACK_SECONDS,
) -> Generator[Change, None, None]:
    """Makes changes of one kind to a cluster, without end. A client of keyfence that is not back within
    `back` seconds is started anew, and a control after BACK_SECONDS."""
    binary = binary or cluster_binary()
    assert binary is not None, NO_CLUSTER
    settings = {"cluster-node-timeout": NODE_TIMEOUT}
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(replicas=MASTERS, binary=binary, settings=settings))
        ports = [one.port for one in cluster.masters if one.port is not None]
        targets = {CONTROL: Target(ports, True)}
        for path in (LISTENERS, ONE_ADDRESS):
            (folder / path).mkdir()
        listeners = stack.enter_context(running_keyfence(folder / LISTENERS, cluster))
        targets[LISTENERS] = Target([listeners.address()[1]], True)
        config = SINGLE.format(seeds=", ".join(f'"127.0.0.1:{port}"' for port in ports))
        single = stack.enter_context(keyfence_with(folder / ONE_ADDRESS, POLICY, config))
        targets[ONE_ADDRESS] = Target([single.address()[1]], False)
        arms = []
        for path, target in targets.items():
            for library in libraries or installed():
                arms.append(Arm(library, path, target, load))
                stack.callback(arms[-1].close)
        changing = Changing(cluster, binary)
        nodes = [f"127.0.0.1:{one.port}" for one in changing.servers]
        while True:
            _waited(arms, time.monotonic(), PATIENCE_SECONDS)
            for arm in arms:
                arm.seen(ANEW)
            time.sleep(load.quiet)
            changing.change(kind)
            yield _change_seen(kind, changing, arms, nodes, back)


def _change_seen(
    kind: str, changing: Changing, arms: Sequence[Arm], nodes: Sequence[str], back: float
) -> Change:
    """What the clients have seen of a change that has just been made. Then it is mended."""
    begun = time.monotonic()
    away = _waited([arm for arm in arms if arm.path != CONTROL], begun, back)
    away += _waited([arm for arm in arms if arm.path == CONTROL], begun, BACK_SECONDS)
    outcomes = []
    for arm in arms:
        seen = arm.seen(ANEW)
        named = 0 if arm.path == CONTROL else sum(any(map(text.__contains__, nodes)) for text in seen.texts)
        outcomes.append(Outcome.of(arm.library, arm.path, seen, named, is_back=arm not in away))
    changing.mend()
    for arm in away:
        arm.restart()
    return Change(kind, outcomes)


def _waited(arms: Sequence[Arm], since: float, seconds: float) -> list[Arm]:
    """Waits until each of these has written all of its keys since then, at most so many seconds from then on.
    Returns those that have not."""
    left = list(arms)
    while True:
        is_last = time.monotonic() >= since + seconds
        left = [arm for arm in left if arm.seen().waiting >= time.monotonic() - since]
        if is_last or not left:
            return left
        time.sleep(LOOK_SECONDS)
