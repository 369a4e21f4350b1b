"""One client's commands as a cluster would take them: what the candidate of a rehearsal reports beyond rules.

Rule: it looks only at commands that reach Redis. What it keeps of a client is bounded: a few keys of its open
transaction and of its WATCHes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from keyfence.commands.extract import extract
from keyfence.commands.model import MANY, Streamed, Touches
from keyfence.policy.compiled.hash_slots import hash_slot
from keyfence.policy.compiled.hash_tags import MAX_KEY, NOWHERE, Place, place_of
from keyfence.policy.compiled.obstacles import (
    CHANNEL,
    COMMAND,
    DATABASE,
    RUNS_SCRIPT,
    SCRIPT,
    SHARD_CHANNELS,
    SORT,
    TRANSACTION,
    UNDECLARED,
    WATCH,
    Seen,
    of_command,
    slot_obstacle,
)
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.compiled.tenants import Values
from keyfence.policy.engine.asker import Transaction
from keyfence.policy.engine.scripts import script_name
from keyfence.policy.verdict import Ruling

_UNWATCHING = frozenset({"EXEC", "DISCARD", "UNWATCH", "RESET"})
CROSS = "slot.cross"


class _Queue:
    """The open transaction: its first key or shard channel, and what was reported of it."""

    __slots__ = ("crosses", "first", "of", "works")

    def __init__(self, of: Transaction | None) -> None:
        self.of = of
        self.first = b""
        self.works = False  # it was counted as one that would work
        self.crosses = False


class Rehearsed:
    """What a rehearsal knows of one client."""

    def __init__(self, policy: CompiledPolicy, values: Values) -> None:
        self._policy = policy
        self._values = values
        self._queue = _Queue(None)
        self._watched = b""  # the first watched key

    def queued(self, transaction: Transaction, argv: Sequence[bytes]) -> Iterator[Seen]:
        """Yields what a command of a transaction shows, all of whose keys are in its hash slot."""
        touches = extract(argv)
        if touches.accesses and touches.command is not None:
            yield from self._in_queue(touches.command.name, transaction, touches.accesses[0].key)

    def seen(self, transaction: Transaction | None, touches: Touches, ruling: Ruling) -> Iterator[Seen]:
        """Yields what a command shows that was evaluated. `ruling` is the candidate's."""
        name = touches.command.name if touches.command is not None else "other"
        met = list(of_command(self._policy, self._values, touches))
        runs = touches.script if name in RUNS_SCRIPT else None
        script = "" if runs is None else script_name(self._policy, runs)
        for obstacle in met:
            yield Seen(obstacle, name, script=script if obstacle == UNDECLARED else "")
        if runs is not None and UNDECLARED not in met:
            yield Seen(UNDECLARED, name, works=True)
        if touches.databases and DATABASE not in met:
            yield Seen(DATABASE, name, works=True)
        crossing = next((one.key for one, _ in ruling.findings if one.rule == CROSS), None)
        if SORT in met:
            crossing = None  # it may be a pattern of BY or GET, which are an obstacle of their own
        for seen in self._of_slots(name, transaction, touches, crossing):
            if not (seen.works and met and transaction is None):  # what fails for another reason does not do
                yield seen._replace(script=script) if seen.obstacle == SCRIPT else seen
        if name in _UNWATCHING:
            self._watched = b""
        elif name == "WATCH" and touches.accesses:
            self._watched = self._watched or _held(touches.accesses[0].key)

    def _of_slots(
        self, name: str, transaction: Transaction | None, touches: Touches, crossing: bytes | None
    ) -> Iterator[Seen]:
        channels = touches.channels if name in SHARD_CHANNELS else ()
        first = touches.accesses[0].key if touches.accesses else channels[0].name if channels else None
        if transaction is not None:
            if first is not None and crossing is None:
                yield from self._in_queue(name, transaction, first)
            elif crossing is not None:
                yield from self._crossed(name, transaction, first or crossing, crossing)
        elif len(channels) > 1:
            yield _of_channels(name, [one.name for one in islice(channels, MANY) if _held(one.name)])
        elif crossing is not None:
            place = NOWHERE if first is None else self._place(first)
            yield Seen(slot_obstacle(name, in_transaction=False), name, place, self._place(crossing))
        elif name == "WATCH" and first is not None and self._is_elsewhere(self._watched, first):
            yield Seen(WATCH, name, self._place(self._watched), self._place(first))
        elif name in RUNS_SCRIPT and first is not None:
            yield Seen(SCRIPT, name, works=True)
        elif len(touches.accesses) > 1:
            yield Seen(COMMAND if name != "WATCH" else WATCH, name, works=True)

    def _in_queue(self, name: str, transaction: Transaction, key: bytes) -> Iterator[Seen]:
        """A key or shard channel of a transaction whose keys so far are in one hash slot."""
        queue = self._of(transaction)
        if not queue.first:
            queue.first = _held(key)
            if self._is_elsewhere(self._watched, key):
                yield Seen(WATCH, "WATCH", self._place(self._watched), self._place(key))
        elif _held(key) and self._is_elsewhere(queue.first, key):  # the rules compare keys only
            yield from self._crossed(name, transaction, queue.first, key)
        elif not queue.works and not queue.crosses:
            queue.works = True
            yield Seen(TRANSACTION, "EXEC", works=True)

    def _crossed(self, name: str, transaction: Transaction, first: bytes, crossing: bytes) -> Iterator[Seen]:
        """A transaction counts once, by its first key in another hash slot."""
        queue = self._of(transaction)
        if queue.crosses:
            return
        queue.crosses = True
        if queue.works:
            yield Seen(TRANSACTION, "EXEC", times=-1, works=True)
        place = self._place(queue.first or first) if queue.first or first != crossing else NOWHERE
        yield Seen(TRANSACTION, name, place, self._place(crossing))

    def _of(self, transaction: Transaction) -> _Queue:
        if self._queue.of is not transaction:
            self._queue = _Queue(transaction)
        return self._queue

    def _place(self, key: bytes) -> Place:
        return place_of(self._policy, key)

    @staticmethod
    def _is_elsewhere(one: bytes, other: bytes) -> bool:
        return bool(one) and hash_slot(one) != hash_slot(other)


def _of_channels(name: str, channels: Sequence[bytes]) -> Seen:
    """What the shard channels of a command show. No entry of the policy describes them."""
    other = next((one for one in channels if hash_slot(one) != hash_slot(channels[0])), None)
    if other is None:
        return Seen(CHANNEL, name, works=True)
    return Seen(CHANNEL, name, Place("", channels[0]), Place("", other))


def _held(key: bytes) -> bytes:
    """A key that is kept until the transaction ends: none that is long, whose hash slot a part would not
    show."""
    return b"" if isinstance(key, Streamed) or len(key) > MAX_KEY else bytes(key)
