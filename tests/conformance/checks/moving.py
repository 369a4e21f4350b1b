"""A cluster that changes: hash slots move, a replica takes over, a primary ends.

Rule: a plain client sees none of it but, at most, the end of its connection or a clear error while a primary
is away; never a redirect, and never the loss of an acknowledged write, unless a primary has died.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator

from tests.conformance.check import Failed, Need, NotChecked, all_same, check, holds, same
from tests.conformance.trial import Trial, shards
from tests.conformance.wire import OK, Address, Connection, Ended, Silence, bulk, bulks, shown, value

GROUP = "a cluster that changes"
_NEEDS = (Need.DIRECT, Need.CLUSTER, Need.DISTURB)
_SECONDS = 45.0
_LONG_SECONDS = 90.0
_TAKE_OVER_SECONDS = 40.0  # after one failover, Redis refuses the next one for a while
_REDIRECTS = (b"-MOVED", b"-ASK", b"-TRYAGAIN", b"-READONLY")


class _Load:
    """Writes and reads all its keys again and again, in a thread, and counts what comes."""

    def __init__(self, trial: Trial, keys: list[str]) -> None:
        self.rounds = 0
        self.wrong: Counter[str] = Counter()
        self.ends = 0
        self.lost = ""  # a value that was acknowledged, and is not there
        self._trial = trial
        self._keys = keys
        self._written: dict[str, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> _Load:
        self._thread.start()
        self.goes_on()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(5)

    def _work(self) -> None:
        while not self._over.is_set():
            try:
                one = self._trial.connect()
                while not self._over.is_set():
                    self._round(one)
            except (Ended, OSError):
                self.ends += 1
                time.sleep(0.05)
            except Silence:
                return

    def _round(self, one: Connection) -> None:
        number = self.rounds + 1
        for key in self._keys:
            self._count(one.ask("SET", key, number), key, number)
        commands = [words for key in self._keys for words in (("GET", key), ("SET", key, number))]
        came = one.pipeline(commands)
        for key, got, was_set in zip(self._keys, came[::2], came[1::2], strict=True):
            if got.startswith(b"-"):
                self.wrong[shown(got, 60)] += 1
            elif value(got) is None or int(value(got)) < self._written.get(key, 0):
                self.lost = self.lost or f"{key} is {value(got)!r} after {self._written.get(key)} was written"
            self._count(was_set, key, number)
        self.rounds = number

    def _count(self, came: bytes, key: str, number: int) -> None:
        if came == OK:
            self._written[key] = number
        else:
            self.wrong[shown(came, 60)] += 1

    def goes_on(self, seconds: float = 10) -> None:
        """Waits for two more whole rounds."""
        last = self.rounds + 2
        self._trial.until(
            lambda: self.rounds >= last,
            "commands that go on",
            lambda: f"none: {self.wrong} {self.ends}",
            seconds,
        )

    def saw_nothing(self) -> None:
        """Ends the check unless no client noticed anything."""
        holds(not self.wrong, "no error", dict(self.wrong))
        holds(not self.lost, "no write lost", self.lost)

    def saw_no_redirect(self) -> None:
        seen = [text for text in self.wrong if text.encode().startswith(_REDIRECTS)]
        holds(not seen, "no redirect", seen)


def _moved(slot: int, source: Connection, target: Connection, to: Address) -> Iterator[None]:
    """Moves a hash slot as redis-cli does, and pauses while some of its keys are here and some there."""
    ids = [value(each.ask("CLUSTER", "MYID")) for each in (source, target)]
    same(target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0]), OK)
    same(source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1]), OK)
    yield
    while keys := value(source.ask("CLUSTER", "GETKEYSINSLOT", slot, 4)):
        login = ("AUTH2", to.user or "default", to.password) if to.password else ()
        came = source.ask("MIGRATE", to.host, to.port, "", 0, 1000, *login, "KEYS", *keys)
        holds(came in (OK, b"+NOKEY\r\n"), "OK for MIGRATE", came)
        yield
    for node in (target, source):
        same(node.ask("CLUSTER", "SETSLOT", slot, "NODE", ids[1]), OK)
    yield


class _Mover:
    """Moves the hash slot of a key to another primary, and then back."""

    def __init__(self, trial: Trial, key: str) -> None:
        self.slot = value(trial.directly().ask("CLUSTER", "KEYSLOT", key))
        here = [nodes[0] for first, last, nodes in shards(trial.place) if first <= self.slot <= last]
        there = [nodes[0] for *_, nodes in shards(trial.place) if nodes[0] not in here]
        self._ends = here[0], there[0]
        self._nodes = {address: trial.directly(address) for address in self._ends}

    def steps(self) -> Iterator[None]:
        for source, target in (self._ends, self._ends[::-1]):
            yield from _moved(self.slot, self._nodes[source], self._nodes[target], target)


@check(GROUP, *_NEEDS, seconds=_SECONDS)
def _(trial: Trial) -> None:
    """While a hash slot moves there and back, a client notices nothing."""
    keys = trial.keys(15, "t")
    mover = _Mover(trial, keys[0])
    with _Load(trial, [*keys, *trial.keys(6)]) as load:
        for _ in mover.steps():
            load.goes_on()
    load.saw_nothing()


@check(GROUP, *_NEEDS, seconds=_SECONDS)
def _(trial: Trial) -> None:
    """Transactions and MGET in a hash slot that moves are whole or refused."""
    keys = trial.keys(12, "t")
    one, mover = trial.connect(), _Mover(trial, keys[0])
    all_same(one.pipeline([("SET", key, 0) for key in keys]), [OK] * 12)
    failed: list[Exception] = []

    def move() -> None:
        try:
            for _ in mover.steps():
                time.sleep(0.05)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=move, daemon=True)
    thread.start()
    number = 0
    while thread.is_alive():
        number += 1
        came = one.pipeline([("MULTI",), *(("SET", key, number) for key in keys), ("EXEC",)])[-1]
        holds(came[:1] in (b"*", b"-"), "replies or an error", came)
        holds(not came.startswith((b"-MOVED", b"-ASK")), "no redirect", came)
        values = set(one.pipeline([("GET", key) for key in keys]))
        holds(len(values) == 1, "one value in all keys", [shown(each) for each in values])
        got = one.ask("MGET", *keys)
        whole = got == bulks(*[value(next(iter(values)))] * 12)
        holds(whole or got.startswith((b"-TRYAGAIN", b"-CROSSSLOT")), "all values, or TRYAGAIN", got)
    if failed:
        raise failed[0]


def _replicated(trial: Trial) -> tuple[Address, Address]:
    """A primary, and a replica that follows it, once all nodes agree on who has which role."""
    ends_at = time.monotonic() + 10  # a node that has just become a replica is not known to all at once
    while time.monotonic() < ends_at:
        views = [
            sorted(shards(trial.place, address)) for *_, nodes in shards(trial.place) for address in nodes
        ]
        for *_, nodes in views[0] if all(view == views[0] for view in views) else ():
            for replica in nodes[1:]:
                if b"master_link_status:up" in trial.directly(replica).ask("INFO", "replication"):
                    return nodes[0], replica
        time.sleep(0.1)
    raise NotChecked("no primary has a replica that follows it")


def _takes_over(trial: Trial, heir: Address, order: str = "") -> None:
    """Waits until a replica is a primary with hash slots. An order that was not carried out is given again. A
    cluster in which no replica takes over is no fault of the proxy."""
    node = trial.directly(heir)
    ordered_at = 0.0
    ends_at = time.monotonic() + _TAKE_OVER_SECONDS
    while not any(nodes[0] == heir for *_, nodes in shards(trial.place)):
        if order and time.monotonic() > ordered_at + 6:
            same(node.ask("CLUSTER", order), OK)
            ordered_at = time.monotonic()
        if time.monotonic() > ends_at:
            raise NotChecked(
                f"no replica took over within {_TAKE_OVER_SECONDS:g} s: that is the cluster's own affair"
            )
        time.sleep(0.02)


@check(GROUP, *_NEEDS, seconds=_SECONDS)
def _(trial: Trial) -> None:
    """While a replica takes over by order, no redirect comes and none is lost."""
    _, heir = _replicated(trial)
    with _Load(trial, trial.keys(12)) as load:
        _takes_over(trial, heir, "FAILOVER")
        load.goes_on()
    load.saw_no_redirect()
    holds(not load.lost, "no write lost", load.lost)


@check(GROUP, *_NEEDS, seconds=_SECONDS)
def _(trial: Trial) -> None:
    """A client that stays is served after a replica has taken over."""
    _, heir = _replicated(trial)
    one, keys = trial.connect(), trial.keys(12)
    all_same(one.pipeline([("SET", key, 1) for key in keys]), [OK] * 12)
    _takes_over(trial, heir, "FAILOVER")
    time.sleep(0.5)
    all_same(one.pipeline([("GET", key) for key in keys]), [bulk(1)] * 12)


@check(GROUP, *_NEEDS, seconds=_LONG_SECONDS)
def _(trial: Trial) -> None:
    """When a primary has ended, its replica is found, and no redirect comes."""
    primary, heir = _replicated(trial)
    with _Load(trial, trial.keys(12)) as load:
        with contextlib.suppress(Ended):
            trial.directly(primary).ask("SHUTDOWN", "NOSAVE", "NOW", "FORCE")
            raise Failed("the primary's end", "a reply to SHUTDOWN")
        _takes_over(trial, heir)
        load.goes_on(15)
    load.saw_no_redirect()
