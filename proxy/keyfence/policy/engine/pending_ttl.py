# cython: annotation_typing=False
"""Keys whose time to live will be asked of Redis: what a command left open and a later one may still mend.

Rule: bounded, and no one is accused in doubt. Of a full table the oldest key is dropped and counted; a key is
found wrong only by what Redis says of it a whole grace time after a write, when nothing has mended it since
and no later write is within its own grace time. The last write is accused: one before it may have left a
key that was right, or removed it.

A table belongs to one process and to its event loop's thread. It does no I/O: `due` says what to ask, and
`answer` takes what Redis said.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from keyfence.policy.compiled.policy import Target
from keyfence.policy.compiled.ttl import (
    ASKS_ALL,
    ASKS_GONE,
    ASKS_PRESENCE,
    FAULTS,
    FINE,
    GIVES,
    GONE,
    NO_TTL,
    REQUIRED,
    SETTLES,
    SIZED,
    TtlRule,
    late_fault,
)
from keyfence.policy.verdict import Peer

from .pending_sizes import PendingSizes

if TYPE_CHECKING:
    from .authorizer import Authorizer
    from .decision_cache import DecisionCache
    from .forms import CachedDecision

# As C integers, where this runs compiled.
_FINE, _REQUIRED, _FIRST_FAULT, _LAST_FAULT = FINE, REQUIRED, min(FAULTS), max(FAULTS)
_FIRST_SIZED = SIZED[FINE]
_ASKS_PRESENCE, _ASKS_ALL, _ASKS_GONE, _GIVES, _SETTLES = ASKS_PRESENCE, ASKS_ALL, ASKS_GONE, GIVES, SETTLES

MAX_KEYS: Final = 10_000
MAX_KEY: Final = 1024  # bytes; a longer key isn't followed, and counts as dropped
MAX_ASKED: Final = 1_000  # keys given out at once
SOON: Final = 0.2  # seconds; a script that removes its key has run by then, and few keys are made anew


class Pending:
    """One key, and the write that left its time to live open. Times are of the table's clock, in seconds."""

    def __init__(
        self,
        judge: Authorizer,
        service: int,
        client: Peer | str,
        command: str,
        sender: object,
        transaction: object,
        database: int,
        key: bytes,
        position: int,
        target: Target,
        rule: TtlRule,
        everything: bool,
        now: float,
    ) -> None:
        self.judge = judge  # that let the command pass, and will word what is found
        self.service = service
        self.client = client
        self.command = command
        self.sender = sender  # the connection, on which commands run in order
        self.transaction = transaction  # the one that the command is queued in, if any
        self.database = database
        self.key = key
        self.position = position  # of the key in the command
        self.target = target  # what the key is
        self.rule = rule
        self.everything = everything  # else only whether it has a time to live at all
        self.since = self.last = now  # the write that is asked about, and the last one
        self.due = now + rule.grace / 1000
        self.alone = True  # nothing was written to it since on another connection or in another transaction
        self.asked = False
        self.twice = False  # it was found wrong once, while a later write was within its grace time
        self.later: Pending | None = None  # the last write since, where another command or client wrote
        self.may_be_gone = False  # the write may have removed the key, so that is asked first


class PendingTtls:
    """The table of one process."""

    def __init__(self, limit: int = MAX_KEYS, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self.dropped = 0  # keys forgotten for want of room
        self._clock = clock
        # A plain dict takes ever longer to find its first item where items go at the front.
        self._table: OrderedDict[tuple[int, bytes], Pending] = OrderedDict()
        self.sizes = PendingSizes(limit, clock)  # the same for sizes

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[Pending]:
        """All that is open, the oldest first."""
        return iter(tuple(self._table.values()))

    def keep_open(
        self,
        judge: Authorizer,
        cache: DecisionCache,
        decision: CachedDecision,
        outcome: int,
        key: bytes,
        transaction: object,
        database: int,
        client: Peer | str,
        sender: object,
    ) -> None:
        """Keeps what a command leaves open that the decision cache admits, by its `ttl.outcome`."""
        found = outcome
        if found >= _FIRST_SIZED:
            judge.keep_size_open(cache, decision, key, database, client)
            found -= _FIRST_SIZED
        form = decision.form
        target = cache.targets[decision.target]
        rule = target.entry.ttl if target.entry is not None else None
        if rule is not None:
            self.keep(
                judge,
                cache.service,
                client,
                form.name,
                sender,
                transaction,
                database,
                key,
                form.index,
                target,
                rule,
                found,
            )

    def keep(
        self,
        judge: Authorizer,
        service: int,
        client: Peer | str,
        command: str,
        sender: object,
        transaction: object,
        database: int,
        key: bytes,
        position: int,
        target: Target,
        rule: TtlRule,
        found: int,
    ) -> None:
        """A command that passes means this for the time to live of its key (`ttl.outcome`)."""
        if found in (_GIVES, _SETTLES):
            if self._table:
                self.settle(database, key, found, transaction, sender)
            return
        if found == _FINE:
            return
        question = found
        if _FIRST_FAULT <= found <= _LAST_FAULT:
            if not self.knows(database, key):
                return
            if transaction is None:
                self.told(database, key, found)
                return
            # It may never run, so that what was open before may still be.
            question = _ASKS_PRESENCE if found == _REQUIRED else _ASKS_ALL
        self.ask(
            judge,
            service,
            client,
            command,
            sender,
            transaction,
            database,
            key,
            position,
            target,
            rule,
            question,
        )

    def ask(
        self,
        judge: Authorizer,
        service: int,
        client: Peer | str,
        command: str,
        sender: object,
        transaction: object,
        database: int,
        key: bytes,
        position: int,
        target: Target,
        rule: TtlRule,
        question: int,
    ) -> None:
        """A command leaves a key's time to live open: `question` is one of `ttl.QUESTIONS`."""
        name = (database, key)
        known = self._table.get(name)
        everything = question != _ASKS_PRESENCE
        now = self._clock()
        begins = known is None or (everything and not known.everything)
        if known is not None and not begins:
            known.last = now
            if known.sender != sender or known.transaction is not transaction:
                known.alone = False
            if question == _ASKS_GONE:
                known.twice = False
            newest = known if known.later is None else known.later
            is_same_client = newest.client is client or newest.client == client
            if newest.command == command and newest.service == service and is_same_client:
                return
        asked = Pending(
            judge,
            service,
            client,
            command,
            sender,
            transaction,
            database,
            key,
            position,
            target,
            rule,
            everything,
            now,
        )
        if known is not None and not begins:
            known.later = asked
            return
        if question == _ASKS_GONE and transaction is None:  # else it may run much later
            asked.may_be_gone = True
            asked.due = min(asked.due, now + SOON)
        self._keep(name, known, asked)

    def _keep(self, name: tuple[int, bytes], known: Pending | None, asked: Pending) -> None:
        """Put a key into the table, in place of what is `known` of it."""
        if known is not None:
            del self._table[name]  # the key was replaced as a whole, so the earlier write is over
        elif len(asked.key) > MAX_KEY:
            self.dropped += 1
            return
        elif len(self._table) >= self.limit:
            self._table.popitem(last=False)
            self.dropped += 1
        self._table[name] = asked

    def knows(self, database: int, key: bytes) -> bool:
        """Whether something about the key is open."""
        return (database, key) in self._table

    def told(self, database: int, key: bytes, fault: int) -> None:
        """A command that passes leaves the key with what is wrong, one of `ttl.FAULTS`, and that is told of
        at once: no earlier write answers for it."""
        name = (database, key)
        known = self._table.get(name)
        if known is None:
            return
        if fault == _REQUIRED:
            del self._table[name]
        else:
            known.everything = False

    def settle(self, database: int, key: bytes, how: int, transaction: object, sender: object) -> None:
        """A command brings the time to live, or removes the key: `how` is one of `ttl.SETTLING`.

        It counts only where it surely runs behind all writes: the same `sender` sent it, and not in a
        transaction that they are outside of, which may never be executed. Otherwise Redis will be asked.
        """
        name = (database, key)
        known = self._table.get(name)
        if known is None:
            return
        ends_it = known.alone and known.sender == sender
        if not ends_it or (transaction is not None and known.transaction is not transaction):
            if how != _GIVES:  # the key may be right by now, or gone: what comes then is another one
                known.twice = False
                known.last = self._clock()
            return
        if how != _GIVES or not known.everything:
            del self._table[name]

    def due(self, limit: int = MAX_ASKED) -> list[Pending]:
        """Keys to ask Redis about now. Each is awaited until `answer` or `unanswered` is called for it."""
        now = self._clock()
        found = []
        for pending in self._table.values():
            if pending.due <= now and not pending.asked:
                pending.asked = True
                found.append(pending)
                if len(found) >= limit:
                    break
        return found

    def answer(self, pending: Pending, left: int) -> bool:
        """Whether Redis' PTTL shows the key to be wrong, as `ttl.late_fault` words it."""
        name = (pending.database, pending.key)
        if self._table.get(name) is not pending:
            return False  # settled or dropped meanwhile
        if pending.may_be_gone:
            pending.may_be_gone = False
            if left != GONE or pending.last > pending.since:
                pending.due = pending.since + pending.rule.grace / 1000
                pending.asked = False
                return False
        wrong = late_fault(left, pending.everything, pending.rule, pending.command, "") is not None
        if pending.last > pending.since and not (wrong and pending.twice):
            # The later write has a grace time too; but once only: a key that is always written to is found.
            self._table[name] = _asked_about_last(pending, left, wrong)
            return False
        del self._table[name]
        return wrong

    def unanswered(self, pending: Pending) -> None:
        """Redis couldn't be asked: the key is let go."""
        name = (pending.database, pending.key)
        if self._table.get(name) is pending:
            del self._table[name]


def _asked_about_last(pending: Pending, left: int, wrong: bool) -> Pending:
    """What is asked about the last write to a key, of which Redis' PTTL was `left` before its grace time
    was over."""
    later = pending.later
    asked = pending
    if later is not None and (later.everything or left in (NO_TTL, GONE)):
        asked = later
        asked.alone = False
        asked.last = pending.last
    asked.since = pending.last
    asked.due = pending.last + asked.rule.grace / 1000
    asked.twice = wrong
    asked.asked = False
    return asked
