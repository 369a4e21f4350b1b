# cython: annotation_typing=False
"""The decision cache: admits one service's commands without asking the evaluator again.

Rule: every answer is one that the evaluator gave for the same command form and kinds of keys (`answers`). So
if the cache admits a command, the evaluator finds no violation; if the cache has a violation counter for it,
the evaluator finds the same violations (tests/policy/engine/test_decision_cache.py, test_calls.py). Whatever
depends on a key's name, a value, hash slots or the caller is checked in each call; whatever depends on the
time is never kept. Tables are bounded.

A command is looked up where its bytes lie: `places` has two numbers for each argument, where it begins and
where it ends. The cache learns only from a command that is a list of arguments.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Sequence

from keyfence.commands import cache_forms
from keyfence.commands.extract import extract
from keyfence.commands.model import MANY, Touches
from keyfence.policy.budget import Budget
from keyfence.policy.compiled.hash_slots import slot_in
from keyfence.policy.compiled.key_targets import KeyTargets
from keyfence.policy.compiled.policy import MAX_CONFIRMED, Target
from keyfence.policy.compiled.tenants import Values, fixed_places
from keyfence.policy.patterns.automaton import Automaton, Classifier

from .answers import Answers
from .asker import Transaction
from .command_evidence import evidence_of
from .counts import Admitted, ViolationCounter
from .evaluation import NOTHING_KNOWN, Known
from .evaluator import Evaluator
from .forms import (
    COMMAND,
    CONTENT,
    FORM,
    KEY,
    KEYS,
    MAX_KINDS,
    RECENT_NAMES,
    RULE,
    WAIVED,
    Call,
    CommandForm,
    CommandForms,
    KeyKind,
    Lookup,
    name_bucket,
    new_lookup,
    places_of,
    stands,
)
from .runs import Run

MAX_COUNTERS = 4_096  # violation counters; beyond this number, all are forgotten and found anew
MAX_CALLS = 256  # answers about commands with several keys, for one form; the same holds for them …
MAX_MEMBERS = 65_536  # … and for the kinds in all the sets that have an answer
MOST_LOOKED_AT = 64  # arguments, where others than the keys decide: each kind of key is learned from all

# As C integers when compiled.
_MAX_CONFIRMED, _MANY, _MOST_LOOKED_AT = MAX_CONFIRMED, MANY, MOST_LOOKED_AT
_NO_OPTIONS, _TO_END = cache_forms.NO_OPTIONS, cache_forms.TO_END
_WAIVED = WAIVED
# In place of a target, beside -1 for none: the key is long, may not be the caller's own, or is in another
# hash slot than the command's earlier keys.
_LONG, _FOREIGN, _CROSSING = -2, -3, -4
_UNCLASSIFIED = -6  # in place of the target of a key that was not looked at yet

# Lookups without a known decision.
_NO_COMMAND = new_lookup(None, COMMAND, -1)
_NO_FORM = new_lookup(None, FORM, -1)
_LONG_KEY = new_lookup(None, KEY, -1)
ELSEWHERE = new_lookup(None, KEYS, -1)  # a key is in another hash slot than an earlier one that it must share
_WRONG_CONTENT = new_lookup(None, CONTENT, -1)
_UNSURE = new_lookup(None, RULE, -1)
_DIFFERENT = new_lookup(None, KEYS, -1)
_MISSES = [_UNSURE, _DIFFERENT, _LONG_KEY, _UNSURE, ELSEWHERE]  # by what stands in place of a target, negated


class OwnKeys:
    """Which decisions about a target hold for a caller's own keys only."""

    def __init__(self, targets: Sequence[Target], has_bindings: bool) -> None:
        # By target, if a caller's rights depend on its own values: their places in a key (the value's number,
        # its offset, the byte after it).
        self._places = [fixed_places(one.tenancy) for one in targets] if has_bindings else []
        self.matter = any(self._places)

    def holds(self, target: int, data: bytes, start: int, end: int, values: Values) -> bool:
        """Whether a decision about a target holds for the key at `data[start:end]`: the key is the caller's
        own, or the target's keys belong to no single caller."""
        for number, before, after in self._places[target]:
            if number < 0 or number >= len(values):
                return False
            value = values[number]
            if value is None:
                return False
            begins = start + before
            ends = begins + len(value)
            if ends > end or not stands(value, data, begins, ends):
                return False
            if after < 0:
                if ends != end:
                    return False
            elif ends >= end or data[ends] != after:
                return False
        return True


class DecisionCache:
    """The cache of one service."""

    def __init__(
        self,
        evaluator: Evaluator,
        service: int,
        among: Container[str],
        waived: Automaton | None = None,
    ) -> None:
        """`among` are the commands that may be admitted. `waived` tells apart the keys that the service's
        waivers name; None: they name none."""
        policy = evaluator.policy
        self.validity = evaluator.validity
        self.policy = policy
        self.service = service  # its number
        self.targets: tuple[Target, ...] = policy.targets
        self.has_slots = policy.cluster
        # Then: whether keys of a target must share a hash slot with the other keys of a command and of its
        # transaction; the last one is about keys of no target.
        homes = (policy.home(one) for one in (*policy.targets, None))
        self._slotted = bytes(home.cluster for home in homes) if self.has_slots else b""
        self._hash_slot = -1  # of the keys of the command with several that was looked up last; -1: any
        self._waived = waived
        evidence = evidence_of(policy, service, Touches(None), basis=evaluator.basis)
        self.multi = Admitted("MULTI", evidence)  # MULTIs whose whole transaction was sent as one piece …
        self.execution = Admitted("EXEC", evidence)  # … and their EXECs
        self._evaluator = evaluator
        self._answers = Answers(evaluator, service, among)
        self._classifier: Classifier = policy.classifier
        self._channels: Classifier = policy.channel_classifier
        self._own = OwnKeys(policy.targets, bool(policy.bindings))
        self._commands: dict[bytes, CommandForms | None] = {}
        self._recent: list[CommandForms | None] = [None] * RECENT_NAMES
        self._counted: list[KeyKind] = []  # kinds with counters, once for each counter
        self._kept = 0  # kinds of keys …
        self.members = 0  # … and those in sets with an answer, once for each set
        self._turn = 0  # the number of the current command with several keys
        self._transactions = -1  # whether whole transactions are admitted; -1: not asked yet

    # -- looking up

    def find_unread(self, data: bytes, places: array[int], count: int, values: Values) -> Lookup:
        """Looks up a request of `count` arguments in its raw bytes. If the answer has neither a decision nor
        a call, `find` may know more.

        `places` holds where each argument begins and ends in `data`; `values` are the caller's
        (CompiledPolicy.values). No object is made for an argument. So this knows only forms that `find` has
        seen lately.
        """
        start, end = places[0], places[1]
        command = self._recent[name_bucket(data, start, end)] if end - start > 1 else None
        if command is None or not stands(command.spelled, data, start, end):
            return _NO_COMMAND
        form = command.only
        if form is None:
            at = command.options_at
            stop = count if command.options == _TO_END else command.options_end(data, places, count)
            if stop < at or stop > count:
                return _NO_FORM
            form = command.sent_with(data, places[2 * at - 1] + 2, places[2 * stop - 1] + 2)
            if form is None:
                return _NO_FORM
        index = form.index
        if index > 0 and (count == index + 1 or not command.has_several):
            if count <= index:
                return _NO_COMMAND
            start, end = places[2 * index], places[2 * index + 1]
            if end - start > _MAX_CONFIRMED:
                return _LONG_KEY
            target = self._classifier.first_in(data, start, end)
            kind = form.on_no_target if target < 0 else form.kinds[target] if form.kinds else None
            if kind is None or (self._own.matter and self._is_foreign(target, data, start, end, values)):
                return new_lookup(None, RULE, -1, None, None, form, target)
            faults = kind.faults(data, places, count, index) if kind.looks > 0 else kind.looks
            return kind.hit if kind.is_clean and faults == 0 else self._miss(kind, faults, data, start, end)
        try:
            return self._several(command, form, data, places, count, values, None)
        except Exception:
            return _UNSURE  # `find` meets the same fault

    def find(self, argv: list[bytes], values: Values = (), unread: Lookup | None = None) -> Lookup:
        """Looks up a command. Asks the evaluator if its form, or the kinds of its keys, are new. `unread` is
        what `find_unread` has just found of the same request, so a single key is not classified again."""
        try:
            if unread is not None and unread.form is not None:
                return self._one_key(unread.form, argv, values, unread.number)
            return self._find(argv, values)
        except Exception:
            return _UNSURE  # the evaluator will meet the same fault, and report it

    def _find(self, argv: list[bytes], values: Values) -> Lookup:
        name, count = argv[0], len(argv)
        command = self._commands[name] if name in self._commands else self._command(name)
        if command is None:
            return _NO_COMMAND
        if command.index == 0 and not command.has_several:
            return _NO_COMMAND if command.only is None else command.only.on_no_target.hit
        if len(name) > 1:
            self._recent[name_bucket(name, 0, len(name))] = command
        if 0 < command.index >= count:
            return _NO_COMMAND
        form = command.with_options(argv)
        if form is None:
            return _NO_FORM
        if form.index > 0 and (count == form.index + 1 or not command.has_several):
            return self._one_key(form, argv, values, _UNCLASSIFIED)
        return self._several(command, form, b"".join(argv), places_of(argv), count, values, argv)

    def _one_key(self, form: CommandForm, argv: list[bytes], values: Values, target: int) -> Lookup:
        """Looks up a command with one key, of this target. It is joined only if what it writes is checked."""
        index = form.index
        key = argv[index]
        if len(key) > _MAX_CONFIRMED:
            return _LONG_KEY
        if target == _UNCLASSIFIED:
            target = self._classifier.first_in(key, 0, len(key))
        if self._own.matter and self._is_foreign(target, key, 0, len(key), values):
            return new_lookup(None, RULE, -1, None, None, form, target)
        kind = form.on_no_target if target < 0 else form.kinds[target] if form.kinds else None
        known = None
        if kind is None:
            known = Known(extract(argv), self._classified(key, target))
            kind = self._keep(self._answers.kind(form, None, index, target, argv, known))
        faults = kind.looks
        if faults > 0 and kind.written is None:
            faults = kind.key_faults(key, 0, len(key))
        elif faults > 0:
            faults = kind.faults(b"".join(argv), places_of(argv), len(argv), index)
        if kind.is_clean and faults == 0:
            return kind.hit
        lookup = self._miss(kind, faults, key, 0, len(key))
        if known is not None:
            lookup = new_lookup(kind, lookup.reason, lookup.faults)
            lookup.known = known
        return lookup

    def known(self, lookup: Lookup, argv: list[bytes]) -> Known:
        """What `find` has found of a command, for the evaluator."""
        form = lookup.form
        if lookup.known is not None:
            return lookup.known
        if form is None or form.index == 0:
            return NOTHING_KNOWN
        return Known(None, self._classified(argv[form.index], lookup.number))

    def _classified(self, key: bytes, target: int) -> KeyTargets:
        return KeyTargets(self.policy, {key: self.targets[target] if target >= 0 else None})

    def _miss(self, decision: KeyKind, faults: int, data: bytes, start: int, end: int) -> Lookup:
        """The answer for a command with the key `data[start:end]` that is not admitted."""
        if self._waived is not None and faults >= 0:
            faults += _WAIVED * (1 + self._waived.match_span(data, start, end))
        if faults == 0:
            return decision.miss
        known = decision.recent_miss
        if known is None or known.faults != faults:
            known = new_lookup(decision, CONTENT if decision.is_clean else RULE, faults)
            decision.recent_miss = known
        return known

    def _several(
        self,
        command: CommandForms,
        form: CommandForm,
        data: bytes,
        places: array[int],
        count: int,
        values: Values,
        argv: list[bytes] | None,
    ) -> Lookup:
        """Looks up a command with several keys, a script, a pattern or a channel. Without `argv`, it makes no
        object for an argument, and knows only what was asked before."""
        if count > _MOST_LOOKED_AT and command.options != _NO_OPTIONS:
            return _NO_FORM
        for run in command.runs:
            if not run.place(data, places, count):
                return _NO_COMMAND
        chosen: KeyKind | None = None  # the last kind of its keys
        kinds = size = 0
        is_recent, binds = form.recent is not None, False
        opens: list[tuple[KeyKind, int]] | None = None
        self._turn += 1
        self._hash_slot = -1
        for run in command.runs:
            at, first = run.at, run.number * command.targets
            while at < run.stop:
                target = self._target_in(run, data, places[2 * at], places[2 * at + 1], values)
                if target < 0:
                    return _MISSES[-target]
                kind = form.kinds[first + target] if form.kinds else None
                if kind is None:
                    if argv is None or size >= _MANY:
                        return _UNSURE
                    kind = self._keep(self._answers.kind(form, run, at, target, argv))
                if not kind.joins:
                    return _UNSURE
                if kind.looks != 0 and kind.faults(data, places, count, at) != 0:
                    return _WRONG_CONTENT
                if kind.turn != self._turn:
                    if size >= _MANY:
                        return _DIFFERENT  # the first keys alone count as evidence
                    kind.turn, kind.at, kind.before = self._turn, at, chosen
                    chosen = kind
                    kinds += 1
                    binds = binds or kind.binds
                    is_recent = is_recent and kind.recent is form.recent
                size += 1
                if kind.outcome != 0:
                    if opens is None:
                        opens = []
                    opens.append((kind, at))
                at += run.step
        if binds and size > 1:
            return _DIFFERENT
        call, several = form.recent, self.has_slots and size > 1  # of these, one rule more is asked
        if not is_recent or kinds != form.recent_kinds or several != form.recent_several:
            call = self._call(form, chosen, several, argv, values)
        if call is None:
            return _DIFFERENT if command.options == _NO_OPTIONS else _UNSURE
        return call.hit if opens is None else new_lookup(None, "", 0, call, opens)

    def _is_foreign(self, target: int, data: bytes, start: int, end: int, values: Values) -> bool:
        """Whether the key `data[start:end]` may be another caller's, so that no decision holds for it."""
        return target >= 0 and not self._own.holds(target, data, start, end, values)

    def _target(self, data: bytes, start: int, end: int, values: Values) -> int:
        """The number of the target of the key `data[start:end]`; -1: there is none. Below -1: no decision is
        kept for such a key."""
        if end - start > _MAX_CONFIRMED:
            return _LONG
        target = self._classifier.first_in(data, start, end)
        if self._own.matter and self._is_foreign(target, data, start, end, values):
            return _FOREIGN
        return target

    def _target_in(self, run: Run, data: bytes, start: int, end: int, values: Values) -> int:
        """The same for a key or channel of a command with several, whose hash slots are compared."""
        if run.is_channel:
            return self._channels.first_in(data, start, end) if end - start <= _MAX_CONFIRMED else _LONG
        target = self._target(data, start, end, values)
        if self.has_slots and target >= 0 and self._slotted[target]:
            slot = slot_in(data, start, end)
            if self._hash_slot < 0:
                self._hash_slot = slot
            elif self._hash_slot != slot:
                return _CROSSING
        return target

    def _call(
        self,
        form: CommandForm,
        last: KeyKind | None,
        several: bool,
        argv: list[bytes] | None,
        values: Values,
    ) -> Call | None:
        """The answer for commands of a form with keys of these kinds."""
        chosen: list[KeyKind] = []
        while last is not None:
            chosen.append(last)
            last = last.before
        known = (frozenset(chosen), several)
        if known not in form.calls:
            if argv is None:
                return None
            if not form.command.runs and not form.is_seen:
                form.is_seen = True
                return None  # a pattern takes long, so the session evaluates it first, in its turn
            if len(form.calls) >= MAX_CALLS:
                form.calls.clear()
            budget = Budget()
            found = self._answers.call(form, chosen[::-1], several, argv, values, budget)
            if budget.spent:
                return None  # the evaluator does not remember the pattern
            if self.members >= MAX_MEMBERS:
                self._forget()
            self.members += len(chosen)
            form.calls[known] = found
        form.find_first(form.calls[known], chosen, several)
        return form.recent

    # -- hash slots

    def shares_slot(
        self, decision: KeyKind, data: bytes, start: int, end: int, transaction: Transaction
    ) -> bool:
        """Whether the key `data[start:end]` of a command is in the hash slot of its transaction's earlier
        keys, if it must be. The first key decides the slot, whatever else comes of its command."""
        if decision.form.index == 0 or not self._slotted[decision.number]:
            return True
        slot = slot_in(data, start, end)
        if transaction.slot is None:
            transaction.slot = slot
        return transaction.slot == slot

    def call_shares_slot(self, transaction: Transaction) -> bool:
        """Whether the keys of the command with several keys that was looked up last, which lie in one hash
        slot, are in the transaction's."""
        slot = self._hash_slot
        if slot >= 0 and transaction.slot is None:
            transaction.slot = slot
        return slot < 0 or transaction.slot == slot

    @property
    def admits_transactions(self) -> bool:
        """Whether the service may use MULTI and EXEC."""
        if self._transactions < 0:
            alone = (self._evaluator.admits_alone(self.service, name) for name in (b"MULTI", b"EXEC"))
            self._transactions = all(alone)
        return self._transactions == 1

    # -- violation counters

    def remember(self, lookup: Lookup, argv: list[bytes], counter: ViolationCounter) -> None:
        """Remember that every command like this one, which `may_count` admits, has the violations of this
        counter. Every command on a key of the counter's shape shares the counter."""
        decision = lookup.decision
        mark = decision.mark(lookup.faults, argv[decision.form.index]) if decision is not None else None
        if decision is None or (mark is None and not counter.shape):
            return
        if len(self._counted) >= MAX_COUNTERS:
            for one in self._counted:
                one.forget()
            self._counted.clear()
        self._counted.append(decision)
        if mark is not None:
            decision.counters[mark] = counter
            decision.recent_counter = None
        if counter.shape and lookup.faults == 0:
            decision.by_shape[counter.shape] = counter

    def may_count(self, lookup: Lookup, argv: list[bytes]) -> bool:
        """Whether the cache distinguishes this command from all with other violations."""
        decision = lookup.decision
        return decision is not None and decision.mark(lookup.faults, argv[decision.form.index]) is not None

    # -- learning

    def _command(self, name: bytes) -> CommandForms | None:
        """A command that is looked up for the first time; None if the cache does not handle it. A name that
        no server knows is not remembered, because clients choose it."""
        if self._answers.knows(name):
            self._commands[name] = self._answers.command(name)
        return self._commands.get(name)

    def _keep(self, kind: KeyKind) -> KeyKind:
        """Keep what was learned of a kind of key. Beyond MAX_KINDS, all that came before is forgotten."""
        if self._kept >= MAX_KINDS:
            self._forget()
        self._kept += 1
        kind.form.keep(kind)
        return kind

    def _forget(self) -> None:
        """Forget all forms."""
        for command in self._commands.values():
            if command is not None:
                command.forget()
        self._kept = self.members = 0
