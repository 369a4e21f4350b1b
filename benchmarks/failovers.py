"""Measures failovers with clients at work: `python -m benchmarks.failovers --count 3 --kind graceful`.

Rule: each failover has new servers (a primary, two replicas, three Sentinels) and a new keyfence. The same
clients work through keyfence and, as a control, straight at the primary that redis-py is told by the
Sentinels. No client tries again by itself, so that each lost connection counts.

A graceful failover is one without loss: the primary holds back writes (CLIENT PAUSE) until a replica has all
of them; then the Sentinels are told to fail over. In a crash the primary is killed; what it had confirmed
and not yet replicated is lost by Redis itself.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from benchmarks.processes import machine
from tests.sentinel import NAME, Watched, following, running_sentinels
from tests.servers import PATIENCE_SECONDS

KINDS = ("graceful", "crash")
CONTROL, THROUGH = "redis-py with Sentinel", "through keyfence"
DOWN_AFTER = 500  # milliseconds without an answer, after which the Sentinels take the primary for dead
PAUSE_SECONDS = 0.001  # between a client's rounds
SUBSCRIBER_SECONDS = 1.0  # within which a subscriber receives again or is closed, once writes succeed
QUIET_SECONDS = 0.5  # of work before the failover, and after it
CHANNEL = "app:news"

MakeClient = Callable[[], redis.Redis]


@dataclasses.dataclass
class Seen:
    """What one client has seen."""

    confirmed: list[tuple[str, float]] = dataclasses.field(default_factory=list)  # elements, and when
    unconfirmed: set[str] = dataclasses.field(default_factory=set)  # they may be in the list or not
    wrong: list[str] = dataclasses.field(default_factory=list)  # replies of other requests
    falls: int = 0  # of a value that only rises
    errors: Counter[str] = dataclasses.field(default_factory=Counter)


class Writer(threading.Thread):
    """A client that writes, and checks each reply."""

    def __init__(self, path: str, make: MakeClient, number: int) -> None:
        super().__init__(daemon=True)
        self.path = path
        self.seen = Seen()
        self.list = f"app:{path}:{number}:list"
        self._make = make
        self._prefix = f"app:{path}:{number}"
        self._highest = 0
        self.ends = False

    def run(self) -> None:
        client = self._make()
        for number in itertools.count():
            if self.ends:
                break
            self._attempt(lambda number=number: self._round(client, number))  # type: ignore[misc]
            time.sleep(PAUSE_SECONDS)
        with contextlib.suppress(redis.RedisError):
            client.close()

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (redis.ConnectionError, redis.TimeoutError) as exc:
            self.seen.errors[type(exc).__name__] += 1
        except redis.ResponseError as exc:
            self.seen.errors[str(exc).split(" ")[0]] += 1

    def _round(self, client: redis.Redis, number: int) -> None:
        nonce = f"{self._prefix}:{number}"
        self._same(nonce, client.echo(nonce))
        with client.pipeline(transaction=False) as pipeline:
            replies = pipeline.echo(f"{nonce}:a").get(f"{self._prefix}:none").echo(f"{nonce}:b").execute()
        self._same([f"{nonce}:a", None, f"{nonce}:b"], replies)
        self.seen.unconfirmed.add(nonce)
        try:
            client.rpush(self.list, nonce)
        except redis.ReadOnlyError:
            self.seen.unconfirmed.discard(nonce)  # it has not run
            raise
        self.seen.unconfirmed.discard(nonce)
        self.seen.confirmed.append((nonce, time.monotonic()))
        value = client.incr(f"{self._prefix}:count")
        if value <= self._highest:
            self.seen.falls += 1
        self._highest = value
        client.publish(CHANNEL, nonce)

    def _same(self, expected: object, reply: object) -> None:
        if reply != expected:
            self.seen.wrong.append(f"{reply!r} in place of {expected!r}")

    def without_service(self) -> float:
        """The longest time between two confirmed writes."""
        times = [at for _, at in self.seen.confirmed]
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)

    def served_again(self) -> float:
        """When the first write after the longest time without one was confirmed."""
        times = [at for _, at in self.seen.confirmed]
        return max(itertools.pairwise(times), key=lambda two: two[1] - two[0])[1]


class Subscriber(threading.Thread):
    """A client that subscribes, and again if its connection is closed."""

    def __init__(self, path: str, make: MakeClient) -> None:
        super().__init__(daemon=True)
        self.path = path
        self.signs: list[float] = []  # when a message came, or the connection ended
        self.ends = False
        self._make = make

    def run(self) -> None:
        while not self.ends:
            try:
                with self._make() as client, client.pubsub() as heard:
                    heard.subscribe(CHANNEL)
                    while not self.ends:
                        if heard.get_message(timeout=0.1) is not None:
                            self.signs.append(time.monotonic())
            except redis.RedisError:
                self.signs.append(time.monotonic())
                time.sleep(0.02)

    def back(self, since: float) -> float:
        """How long after this time there was a sign."""
        return next((at - since for at in self.signs if at >= since), PATIENCE_SECONDS)


class Listener(threading.Thread):
    """Notes when a Sentinel first reports that another node is the primary."""

    def __init__(self, ports: Sequence[int]) -> None:
        super().__init__(daemon=True)
        self.switched: float | None = None
        self.ends = False
        self._ports = ports

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            heard = []
            for port in self._ports:
                client = stack.enter_context(redis.Redis(port=port))
                heard.append(stack.enter_context(client.pubsub(ignore_subscribe_messages=True)))
                heard[-1].subscribe("+switch-master")
            while not self.ends and self.switched is None:
                if any(one.get_message(timeout=0.001) for one in heard):
                    self.switched = time.monotonic()


@dataclasses.dataclass
class Outcome:
    """What one path has shown in one failover."""

    path: str
    without_service: float  # seconds, of the client that had to wait longest
    after_report: float = 0.0  # seconds from the Sentinels' report until all clients had written again
    confirmed: int = 0
    lost: int = 0  # confirmed writes that the new primary does not have
    twice: int = 0
    lost_before_kept: int = (
        0  # lost ones that were confirmed before one that was kept: replication cannot do this
    )
    wrong: int = 0
    falls: int = 0
    subscriber: float = 0.0  # seconds until it received again or was closed, after writes succeeded
    errors: Counter[str] = dataclasses.field(default_factory=Counter)

    def faults(self, kind: str) -> list[str]:
        """What must not be."""
        checks = {
            "replies of other requests": self.wrong,
            "elements that stand twice": self.twice,
            "confirmed writes that are lost": self.lost if kind == "graceful" else self.lost_before_kept,
            "values that fell": self.falls if kind == "graceful" else 0,
            "subscribers that heard nothing": int(self.subscriber > SUBSCRIBER_SECONDS),
        }
        return [f"{self.path}: {number} {what}" for what, number in checks.items() if number]


def measure(kind: str, folder: Path, *, control: bool = True) -> list[Outcome]:
    """One failover, and what it was like through keyfence, and with `control` straight at Redis."""
    with contextlib.ExitStack() as stack:
        watched = stack.enter_context(running_sentinels(folder, DOWN_AFTER, replicas=2))
        keyfence = stack.enter_context(following(folder, watched, told="is 127"))
        sentinel = Sentinel([("127.0.0.1", port) for port in watched.sentinels])
        options = {"decode_responses": True, "retry": Retry(NoBackoff(), 0), "socket_timeout": 5.0}
        paths: dict[str, Callable[[int], redis.Redis]] = {
            THROUGH: lambda protocol: keyfence.client(protocol=protocol, **options),
        }
        if control:
            paths[CONTROL] = lambda protocol: sentinel.master_for(NAME, protocol=protocol, **options)
        writers, subscribers = [], []
        for path, make in paths.items():
            for p in (2, 3):
                writers.append(Writer(path, lambda make=make, p=p: make(p), p))  # type: ignore[misc]
            subscribers += [Subscriber(path, lambda make=make, p=p: make(p)) for p in (2, 3)]  # type: ignore[misc]
        listener = Listener(watched.sentinels)
        _work(kind, watched, [listener, *writers, *subscribers], writers)
        assert listener.switched is not None
        host, port = sentinel.discover_master(NAME)
        with redis.Redis(host, port, decode_responses=True) as primary:
            lists = {one.list: primary.lrange(one.list, 0, -1) for one in writers}
    return [
        _outcome(
            path,
            [one for one in writers if one.path == path],
            [one for one in subscribers if one.path == path],
            lists,
            listener.switched,
        )
        for path in paths
    ]


def _work(
    kind: str, watched: Watched, threads: Sequence[Writer | Subscriber | Listener], writers: Sequence[Writer]
) -> None:
    """Have all clients work during a failover, until each writes again."""
    for one in threads:
        one.start()
    try:
        time.sleep(QUIET_SECONDS)
        at = time.monotonic()
        (_crash if kind == "crash" else _fail_over)(watched)
        deadline = at + PATIENCE_SECONDS
        later = max(at, time.monotonic())
        while not all(one.seen.confirmed and one.seen.confirmed[-1][1] > later for one in writers):
            assert time.monotonic() < deadline, "clients never wrote again"
            time.sleep(0.02)
        time.sleep(SUBSCRIBER_SECONDS + QUIET_SECONDS)
    finally:
        for one in threads:
            one.ends = True
        for one in threads:
            one.join()


def _crash(watched: Watched) -> None:
    watched.primary.kill()


def _fail_over(watched: Watched) -> None:
    """Have the Sentinels fail over once a replica has all writes, as SENTINEL FAILOVER COORDINATED does."""
    with watched.primary.client() as primary:
        primary.client_pause(5000, all=False)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _is_caught_up(primary.info("replication")):
            assert time.monotonic() < deadline, "the replicas never had all writes"
            time.sleep(0.002)
    watched.begin_to_fail_over()


def _is_caught_up(info: dict[str, object]) -> bool:
    replicas = [one for name, one in info.items() if name.startswith("slave") and isinstance(one, dict)]
    return all(int(one["offset"]) >= int(str(info["master_repl_offset"])) for one in replicas)


def _outcome(
    path: str,
    writers: Sequence[Writer],
    subscribers: Sequence[Subscriber],
    lists: dict[str, list[str]],
    switched: float,
) -> Outcome:
    outcome = Outcome(path, max(one.without_service() for one in writers))
    for writer in writers:
        kept = Counter(lists[writer.list])
        seen = writer.seen
        there = [element in kept for element, _ in seen.confirmed]
        outcome.confirmed += len(there)
        outcome.lost += there.count(False)
        resumed = [at >= writer.served_again() for _, at in seen.confirmed]
        before = [is_there for is_there, is_after in zip(there, resumed, strict=True) if not is_after]
        outcome.lost_before_kept += sum(not one for one in before[: _last(before) + 1])
        outcome.lost_before_kept += sum(not one for one, after in zip(there, resumed, strict=True) if after)
        outcome.twice += sum(number > 1 for number in kept.values())
        outcome.wrong += len(seen.wrong)
        outcome.falls += seen.falls
        outcome.errors += seen.errors
    again = max(one.served_again() for one in writers)
    outcome.after_report = again - switched
    outcome.subscriber = max(one.back(again) for one in subscribers)
    return outcome


def _last(kept: Sequence[bool]) -> int:
    """The place of the last element that was kept; -1: none was."""
    return max((place for place, is_kept in enumerate(kept) if is_kept), default=-1)


HEAD = (
    f"{'':24}{'ms':>7}{'report':>8}{'confirmed':>11}"
    f"{'lost':>6}{'twice':>7}{'wrong':>7}{'fell':>6}{'sub ms':>8}  errors"
)


def row(outcome: Outcome) -> str:
    errors = ", ".join(f"{name} {number}" for name, number in sorted(outcome.errors.items()))
    return (
        f"{outcome.path:24}{1000 * outcome.without_service:7.0f}{1000 * outcome.after_report:8.0f}"
        f"{outcome.confirmed:11}{outcome.lost:6}"
        f"{outcome.twice:7}{outcome.wrong:7}{outcome.falls:6}{1000 * outcome.subscriber:8.0f}  {errors}"
    )


def summary(outcomes: Sequence[Outcome]) -> Iterator[str]:
    for path in (THROUGH, CONTROL):
        of_path = [one for one in outcomes if one.path == path]
        for what in ("without_service", "after_report"):
            times = sorted(1000 * getattr(one, what) for one in of_path)
            middle = statistics.median(times)
            yield f"{path:24}{middle:7.0f} in the middle, {times[0]:.0f} to {times[-1]:.0f}: {what}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=3, help="failovers of each kind")
    parser.add_argument("--kind", choices=KINDS, action="append", help="default: both")
    asked = parser.parse_args()
    print(machine())
    faults = []
    for kind in asked.kind or KINDS:
        print(f"\n{kind}\n{HEAD}")
        outcomes: list[Outcome] = []
        for _ in range(asked.count):
            with tempfile.TemporaryDirectory() as folder:
                found = measure(kind, Path(folder))
            outcomes += found
            for one in found:
                print(row(one), flush=True)
                faults += one.faults(kind) if one.path == THROUGH else []
        print("\n".join(summary(outcomes)), flush=True)
    for text in faults:
        print(text)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
