"""One failover with all clients at work, and what each of them has seen."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import redis

from benchmarks.failovers.clients import Client, Route
from benchmarks.failovers.libraries import clients, sentinel_of
from benchmarks.failovers.outcomes import CONTROL, SUBSCRIBER_SECONDS, THROUGH, Failover, Outcome
from tests.clients.running import eventually
from tests.sentinel import NAME, Watched, following, running_sentinels
from tests.servers import PATIENCE_SECONDS

DOWN_AFTER = 500  # milliseconds without an answer, after which the Sentinels take the primary for dead
PAUSE_MILLISECONDS = 5000  # for which the primary holds back writes in a graceful failover
CONTROL_SECONDS = 8.0  # within which the controls have written again, or it is taken that they never will
QUIET_SECONDS = 0.3  # of work before the failover, and after it


class Listener(threading.Thread):
    """Notes which nodes the Sentinels report as the primary, and when they begin to."""

    def __init__(self, ports: Sequence[int]) -> None:
        super().__init__(daemon=True)
        self.primaries: dict[str, float] = {}
        self.ends = False
        self._ports = ports

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            heard = []
            for port in self._ports:
                client = stack.enter_context(redis.Redis(port=port))
                heard.append(stack.enter_context(client.pubsub(ignore_subscribe_messages=True)))
                heard[-1].subscribe("+switch-master")
            while not self.ends:
                for message in filter(None, (one.get_message(timeout=0.001) for one in heard)):
                    primary = message["data"].decode().split(" ", 3)[-1]
                    self.primaries.setdefault(primary, time.monotonic())


def measure(kind: str, folder: Path, *, control: bool = True) -> Failover:
    """One failover, as each client saw it through keyfence, and with `control` straight at Redis too."""
    with contextlib.ExitStack() as stack:
        watched = stack.enter_context(running_sentinels(folder, DOWN_AFTER, replicas=2))
        keyfence = stack.enter_context(following(folder, watched, told="is 127"))
        routes = [Route(THROUGH, keyfence.address(), watched.sentinels)]
        if control:
            routes.append(Route(CONTROL, None, watched.sentinels))
        at_work = [client for route in routes for client in clients(route)]
        listener = Listener(watched.sentinels)
        listener.start()
        _work(kind, watched, at_work)
        listener.ends = True
        listener.join()
        host, port = sentinel_of(routes[0]).discover_master(NAME)
        with redis.Redis(host, port, decode_responses=True) as primary:
            kept = {one.list: Counter(primary.lrange(one.list, 0, -1)) for one in at_work}
    switched = [*listener.primaries.values()]
    return Failover(kind, len(switched), [outcome_of(one, kept[one.list], switched[0]) for one in at_work])


def _work(kind: str, watched: Watched, at_work: Sequence[Client]) -> None:
    """Have all clients work during a failover, until each writes again; a control may never do so."""
    for one in at_work:
        one.start()
    try:
        eventually(lambda: all(one.is_at_work() for one in at_work), "clients begin to work")
        time.sleep(QUIET_SECONDS)
        (_crash if kind == "crash" else _fail_over)(watched)
        at = time.monotonic()
        through = [one for one in at_work if one.path == THROUGH]
        eventually(lambda: all(one.is_at_work(at) for one in through), "clients write again")
        while time.monotonic() < at + CONTROL_SECONDS and not all(one.is_at_work(at) for one in at_work):
            time.sleep(0.01)
        time.sleep(SUBSCRIBER_SECONDS + QUIET_SECONDS)
    finally:
        for one in at_work:
            one.end()
        for one in at_work:
            one.join()


def _crash(watched: Watched) -> None:
    watched.primary.kill()


def _fail_over(watched: Watched) -> None:
    """Have the Sentinels fail over once a replica has all writes, as SENTINEL FAILOVER COORDINATED does."""
    with watched.primary.client() as primary:
        primary.client_pause(PAUSE_MILLISECONDS, all=False)
        eventually(lambda: _is_caught_up(primary.info("replication")), "the replicas have all writes")
    watched.begin_to_fail_over()


def _is_caught_up(info: dict[str, object]) -> bool:
    replicas = [one for name, one in info.items() if name.startswith("slave") and isinstance(one, dict)]
    return all(int(one["offset"]) >= int(str(info["master_repl_offset"])) for one in replicas)


def outcome_of(client: Client, kept: Counter[str], switched: float) -> Outcome:
    """What a client has seen, beside what the new primary keeps of its list."""
    seen = client.seen
    again = seen.served_again()
    there = [element in kept for element, _ in seen.confirmed]
    resumed = [at >= again for _, at in seen.confirmed]
    before = [is_there for is_there, is_after in zip(there, resumed, strict=True) if not is_after]
    after = [is_there for is_there, is_after in zip(there, resumed, strict=True) if is_after]
    return Outcome(
        client=client.name,
        path=client.path,
        without_service=seen.without_service(),
        after_report=again - switched,
        confirmed=len(there),
        lost=there.count(False),
        lost_before_kept=before[: _last(before) + 1].count(False) + after.count(False),
        twice=sum(number > 1 for number in kept.values()),
        wrong=len(seen.wrong),
        falls=seen.falls,
        subscriber=seen.heard_again(again, PATIENCE_SECONDS),
        is_back=seen.is_back(),
        errors=dict(seen.errors),
    )


def _last(kept: Sequence[bool]) -> int:
    """The place of the last element that was kept; -1: none was."""
    return max((place for place, is_kept in enumerate(kept) if is_kept), default=-1)
