# cython: annotation_typing=False
"""Keys that keyfence will ask Redis about: a command left their time to live (`PendingTtls`) or their size
(`PendingSizes`) open, and a later command may still correct it.

Rule: the tables are bounded, and a doubt is not a violation. A full table drops its oldest key and counts it.
A key is found wrong only if Redis says so some time after a write (for times to live, a whole grace time),
and nothing has settled the key since. A later write has a grace time of its own, but only once, so a key that
is written all the time is found too. The violation is the last write's, because an earlier one may have left
the key correct, or removed it.

Tables belong to one process and to the thread of its event loop. They do no I/O: `due` returns the keys to
ask about, and `answer` takes Redis' answer.
"""

from __future__ import annotations

import dataclasses
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from keyfence.policy.compiled.policy import Target
from keyfence.policy.compiled.sizes import LATE_SECONDS, Question
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
from keyfence.policy.verdict import Finding

from .asker import Asker
from .decision_cache import DecisionCache
from .forms import KeyKind
from .writes import MAX_KEY, MAX_KEYS, LateAuthorizer, Write, new_write

# As C integers, where this runs compiled.
_FINE, _REQUIRED, _FIRST_FAULT, _LAST_FAULT = FINE, REQUIRED, min(FAULTS), max(FAULTS)
_FIRST_SIZED = SIZED[FINE]
_ASKS_PRESENCE, _ASKS_ALL, _ASKS_GONE, _GIVES, _SETTLES = ASKS_PRESENCE, ASKS_ALL, ASKS_GONE, GIVES, SETTLES

MAX_ASKED: Final = 1_000  # keys that one call of `due` returns
MAX_SIZES_ASKED: Final = 200  # the same for sizes; each key has up to six questions
SOON: Final = (
    0.2  # seconds; a script that removes its key has run by then, and few keys are recreated so soon
)


class PendingTtl:
    """A key, and the write that left its time to live open. Times are of the table's clock, in seconds."""

    write: Write
    rule: TtlRule
    everything: bool  # False: only whether there is a time to live at all
    since: float  # of the write that Redis is asked about …
    last: float  # … and of the last one
    due: float
    alone: bool  # no other connection or transaction has written the key since
    asked: bool
    twice: bool  # found wrong once already, while a later write was within its grace time
    later: PendingTtl | None  # the last write since, if its command or client is another one
    may_be_gone: bool  # the write may have removed the key; Redis is asked about that first

    @property
    def database(self) -> int:
        return self.write.database

    @property
    def key(self) -> bytes:
        return self.write.key

    def findings(self, remaining: int) -> tuple[Finding, ...]:
        """Returns the findings if Redis answers PTTL with `remaining`; they cannot be refused any more."""
        return self.write.authorizer.late_ttl(self.write, self.rule, self.everything, remaining)


def _new_pending(write: Write, rule: TtlRule, everything: bool, now: float) -> PendingTtl:
    """Makes a pending key, like `new_write`."""
    asked = PendingTtl.__new__(PendingTtl)
    asked.write = write
    asked.rule = rule
    asked.everything = everything
    asked.since = now
    asked.last = now
    asked.due = now + rule.grace / 1000
    asked.alone = True
    asked.asked = False
    asked.twice = False
    asked.later = None
    asked.may_be_gone = False
    return asked


def _is_same(one: Asker, other: Asker) -> bool:
    """Whether a report shows the same client for both."""
    return one is other or (one.service == other.service and one.peer == other.peer)


class PendingTtls:
    """The keys of one process whose time to live is open; `sizes` holds those whose size is."""

    def __init__(self, limit: int = MAX_KEYS, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self.dropped = 0  # keys that the table had no room for
        self._clock = clock
        # In a plain dict, finding the first item takes longer and longer while items are removed at the
        # front.
        self._table: OrderedDict[tuple[int, bytes], PendingTtl] = OrderedDict()
        self.sizes = PendingSizes(limit, clock)

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[PendingTtl]:
        """All pending keys, the oldest first."""
        return iter(tuple(self._table.values()))

    def keep_open(
        self,
        authorizer: LateAuthorizer,
        asker: Asker,
        cache: DecisionCache,
        decision: KeyKind,
        outcome: int,
        key: bytes,
    ) -> None:
        """Record the question that a command admitted by the cache leaves open; `outcome` is its
        `ttl.outcome`."""
        form = decision.form
        target = cache.targets[decision.number]
        if self._settles(asker, target, outcome, key):
            return
        write = new_write(authorizer, asker, form.name, asker.database, key, form.index, target)
        questions: Sequence[Question] = ()
        if outcome >= _FIRST_SIZED:
            questions = authorizer.size_questions(form.name, form.index, decision.number)
        self._keep_write(write, outcome, questions)

    def keep_key_open(
        self, authorizer: LateAuthorizer, asker: Asker, kind: KeyKind, position: int, key: bytes
    ) -> None:
        """The same for one key, at `position`, of a command with several keys."""
        target = kind.target
        if target is not None and not self._settles(asker, target, kind.outcome, key):
            write = new_write(authorizer, asker, kind.name, asker.database, key, position, target)
            self._keep_write(write, kind.outcome, kind.questions)

    def _settles(self, asker: Asker, target: Target, outcome: int, key: bytes) -> bool:
        """Whether a command with this outcome leaves nothing open; then settle the key."""
        if outcome not in (_GIVES, _SETTLES):
            return False
        if self._table and target.entry is not None and target.entry.ttl is not None:
            self.settle(asker.database, key, outcome, asker)
        return True

    def _keep_write(self, write: Write, outcome: int, questions: Sequence[Question]) -> None:
        """`questions` are those about the size, if the outcome leaves it open."""
        if outcome >= _FIRST_SIZED:
            self.sizes.ask(write, questions)
            outcome -= _FIRST_SIZED
        entry = write.target.entry
        if entry is not None and entry.ttl is not None:
            self.apply(write, entry.ttl, outcome)

    def apply(self, write: Write, rule: TtlRule, outcome: int) -> None:
        """Take in the outcome (`ttl.outcome`) of a command that passes for its key's time to live."""
        if outcome in (_GIVES, _SETTLES):
            self.settle(write.database, write.key, outcome, write.asker)
            return
        if outcome == _FINE:
            return
        question = outcome
        if _FIRST_FAULT <= outcome <= _LAST_FAULT:
            if not self.knows(write.database, write.key):
                return
            if write.asker.transaction is None:
                self.reported(write.database, write.key, outcome)
                return
            # The transaction may never run; then the earlier question stays open.
            question = _ASKS_PRESENCE if outcome == _REQUIRED else _ASKS_ALL
        self.ask(write, rule, question)

    def ask(self, write: Write, rule: TtlRule, question: int) -> None:
        """Ask Redis about a key later, unless it is settled before: `question` is one of `ttl.QUESTIONS`."""
        name = (write.database, write.key)
        known = self._table.get(name)
        everything = question != _ASKS_PRESENCE
        now = self._clock()
        begins = known is None or (everything and not known.everything)
        if known is not None and not begins:
            known.last = now
            earlier, asker = known.write, write.asker
            if earlier.asker.sender != asker.sender or earlier.asker.transaction is not asker.transaction:
                known.alone = False
            if question == _ASKS_GONE:
                known.twice = False
            if known.later is not None:
                earlier = known.later.write
            if earlier.command == write.command and _is_same(earlier.asker, asker):
                return
        asked = _new_pending(write, rule, everything, now)
        if known is not None and not begins:
            known.later = asked
            return
        if question == _ASKS_GONE and write.asker.transaction is None:  # a transaction may run much later
            asked.may_be_gone = True
            asked.due = min(asked.due, now + SOON)
        self._keep(name, known, asked)

    def _keep(self, name: tuple[int, bytes], known: PendingTtl | None, asked: PendingTtl) -> None:
        """Put a key into the table, in place of its earlier record (`known`)."""
        if known is not None:
            del self._table[name]  # the key was replaced as a whole, which ends the earlier write
        elif len(name[1]) > MAX_KEY:
            self.dropped += 1
            return
        elif len(self._table) >= self.limit:
            self._table.popitem(last=False)
            self.dropped += 1
        self._table[name] = asked

    def has_keys(self) -> bool:
        """Whether the time to live of any key is open."""
        return len(self._table) > 0

    def knows(self, database: int, key: bytes) -> bool:
        """Whether the table holds the key."""
        return (database, key) in self._table

    def reported(self, database: int, key: bytes, fault: int) -> None:
        """A command that passes leaves the key with a fault (one of `ttl.FAULTS`), which is reported at once.
        No earlier write is reported for it."""
        name = (database, key)
        known = self._table.get(name)
        if known is None:
            return
        if fault == _REQUIRED:
            del self._table[name]
        else:
            known.everything = False

    def settle(self, database: int, key: bytes, how: int, asker: Asker) -> None:
        """A command sets the time to live, or removes the key: `how` is one of `ttl.SETTLING`.

        The key is settled only if this command runs after all of its writes. That is certain if the same
        sender has sent them. A transaction may be dropped, so a command in it settles only writes of the same
        transaction. Otherwise keyfence asks Redis later.
        """
        name = (database, key)
        known = self._table.get(name)
        if known is None:
            return
        wrote, transaction = known.write.asker, asker.transaction
        ends_it = known.alone and wrote.sender == asker.sender
        if not ends_it or (transaction is not None and wrote.transaction is not transaction):
            if how != _GIVES:  # the key may be correct now, or gone; then the next write begins a new life
                known.twice = False
                known.last = self._clock()
            return
        if how != _GIVES or not known.everything:
            del self._table[name]

    def due(self, limit: int = MAX_ASKED) -> list[PendingTtl]:
        """Returns keys to ask Redis about now. Call `answer` or `unanswered` for each of them."""
        now = self._clock()
        found = []
        for pending in self._table.values():
            if pending.due <= now and not pending.asked:
                pending.asked = True
                found.append(pending)
                if len(found) >= limit:
                    break
        return found

    def answer(self, pending: PendingTtl, remaining: int) -> bool:
        """Whether the key is wrong if Redis answers PTTL with `remaining` (`PendingTtl.findings`)."""
        write = pending.write
        name = (write.database, write.key)
        if self._table.get(name) is not pending:
            return False  # it was settled or dropped meanwhile
        if pending.may_be_gone:
            pending.may_be_gone = False
            if remaining != GONE or pending.last > pending.since:
                pending.due = pending.since + pending.rule.grace / 1000
                pending.asked = False
                return False
        wrong = late_fault(remaining, pending.everything, pending.rule, write.command, "") is not None
        if pending.last > pending.since and not (wrong and pending.twice):
            # The later write has a grace time too, but only once: a key that is written all the time is
            # found as well.
            self._table[name] = _asked_about_last(pending, remaining, wrong)
            return False
        del self._table[name]
        return wrong

    def unanswered(self, pending: PendingTtl) -> None:
        """Redis could not be asked: forget the key."""
        name = (pending.write.database, pending.write.key)
        if self._table.get(name) is pending:
            del self._table[name]


def _asked_about_last(pending: PendingTtl, remaining: int, wrong: bool) -> PendingTtl:
    """Returns the question about the last write to a key, whose PTTL was `remaining` before the grace time of
    that write was over."""
    later = pending.later
    asked = pending
    if later is not None and (later.everything or remaining in (NO_TTL, GONE)):
        asked = later
        asked.alone = False
        asked.last = pending.last
    asked.since = pending.last
    asked.due = pending.last + asked.rule.grace / 1000
    asked.twice = wrong
    asked.asked = False
    return asked


class SizeDoubt(NamedTuple):
    """A write that may have made a key too large, and the question that decides it."""

    write: Write
    question: Question

    def findings(self, size: int) -> tuple[Finding, ...]:
        """Returns the findings if Redis answers with `size`; they cannot be refused any more."""
        return self.write.authorizer.late_size(self.write, self.question, size)


@dataclasses.dataclass(slots=True)
class PendingSize:
    """One key. Times are of the table's clock, in seconds."""

    database: int
    key: bytes
    # The last doubt for each command that asks. Redis may have refused a write that is for another type.
    doubts: dict[bytes, SizeDoubt]
    since: float  # the write that Redis is asked about
    last: float  # the last write
    due: float
    asked: bool = False
    twice: bool = False  # found too large once already, while a later write was recent

    @property
    def questions(self) -> list[Question]:
        """The questions to ask Redis."""
        return [doubt.question for doubt in self.doubts.values()]


class PendingSizes:
    """The keys of one process whose size is open."""

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self.limit = limit
        self.dropped = 0  # keys that the table had no room for
        self._clock = clock
        self._table: OrderedDict[tuple[int, bytes], PendingSize] = OrderedDict()  # by `due`

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[PendingSize]:
        """All pending keys, the oldest first."""
        return iter(tuple(self._table.values()))

    def ask(self, write: Write, questions: Sequence[Question]) -> None:
        """Ask Redis about the size of a key later."""
        name = (write.database, write.key)
        doubts = {question.command: SizeDoubt(write, question) for question in questions}
        now = self._clock()
        known = self._table.get(name)
        if known is not None:
            known.last = now
            known.doubts.update(doubts)
            return
        if len(write.key) > MAX_KEY:
            self.dropped += 1
            return
        if len(self._table) >= self.limit:
            self._table.popitem(last=False)
            self.dropped += 1
        self._table[name] = PendingSize(write.database, write.key, doubts, now, now, now + LATE_SECONDS)

    def due(self, limit: int = MAX_SIZES_ASKED) -> list[PendingSize]:
        """Returns keys to ask Redis about now. Call `answer` or `unanswered` for each of them."""
        now = self._clock()
        found: list[PendingSize] = []
        for pending in self._table.values():
            if pending.due > now or len(found) >= limit:
                break
            if not pending.asked:
                pending.asked = True
                found.append(pending)
        return found

    def answer(
        self, pending: PendingSize, asked: Sequence[Question], sizes: Sequence[int | None]
    ) -> tuple[SizeDoubt, int] | None:
        """Returns the doubt that Redis confirms, and the size in its answer; None if the key is not too
        large, or a later write is too recent. None among `sizes` means that the question `asked` does not fit
        the key's type."""
        name = (pending.database, pending.key)
        if self._table.get(name) is not pending:
            return None
        wrong: tuple[SizeDoubt, int] | None = None
        for question, size in zip(asked, sizes, strict=True):
            if size is not None and size > question.most:
                wrong = pending.doubts[question.command], size
        if pending.last > pending.since and not (wrong and pending.twice):
            # A key that a later command trims may be too large for a moment. A key that is written all the
            # time is found as well.
            pending.twice, pending.asked = wrong is not None, False
            pending.since = pending.last
            pending.due = self._clock() + LATE_SECONDS
            self._table.move_to_end(name)
            return None
        del self._table[name]
        return wrong

    def unanswered(self, pending: PendingSize) -> None:
        """Redis could not be asked: forget the key."""
        name = (pending.database, pending.key)
        if self._table.get(name) is pending:
            del self._table[name]
