# cython: annotation_typing=False
"""The decision cache: admits one service's commands without asking the evaluator again.

Rule: every answer is one that the evaluator gave for the same command form and target. So if the cache admits
a command, the evaluator finds no violation; if the cache has a violation counter for it, the evaluator finds
the same violations (tests/policy/engine/test_decision_cache.py). Whatever depends on the key's name, the
value or the caller is checked in each call; whatever depends on the time is never kept. Tables are bounded.
"""

from __future__ import annotations

from array import array
from collections.abc import Container

from keyfence.commands import cache_forms
from keyfence.commands.call_layouts import CALL_LAYOUTS
from keyfence.commands.extract import KEYLESS, ONE_KEY, OneKey, extract
from keyfence.commands.model import Access, Touches
from keyfence.policy.compiled.hash_slots import slot_in
from keyfence.policy.compiled.named import TypeWords
from keyfence.policy.compiled.policy import MAX_CONFIRMED, Entry, Target
from keyfence.policy.compiled.tenants import Values
from keyfence.policy.compiled.written import BY_THE_FORM, WrittenCheck, can_check, checked_by
from keyfence.policy.patterns.automaton import Automaton, Classifier
from keyfence.policy.verdict import COVERED

from . import checks
from .asker import Transaction
from .calls import Calls, OwnKeys
from .content import breaks
from .counts import Admitted, ViolationCounter
from .evaluation import Evaluation
from .evaluator import Evaluator
from .evidence import Evidence, evidence_of
from .forms import (
    COMMAND,
    CONTENT,
    FORM,
    KEY,
    RECENT_NAMES,
    RULE,
    WAIVED,
    CachedDecision,
    CommandForm,
    Lookup,
    name_bucket,
    new_lookup,
    places_of,
    stands,
)

MAX_COUNTERS = 4_096  # violation counters; beyond this number, all are forgotten and found anew

# As C integers when compiled.
_MAX_CONFIRMED = MAX_CONFIRMED
_NO_OPTIONS, _TO_END = cache_forms.NO_OPTIONS, cache_forms.TO_END
_SEVERAL_KEYS, _KEYLESS = cache_forms.SEVERAL_KEYS, cache_forms.KEYLESS
_WAIVED = WAIVED

# Lookups without a known decision.
_NO_COMMAND = new_lookup(None, COMMAND, -1)
_NO_FORM = new_lookup(None, FORM, -1)
_LONG_KEY = new_lookup(None, KEY, -1)
_UNSURE = new_lookup(None, RULE, -1)


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
        self._waived = waived
        evidence = evidence_of(policy, service, Touches(None), basis=evaluator.basis)
        self.multi = Admitted("MULTI", evidence)  # MULTIs whose whole transaction was sent as one piece …
        self.execution = Admitted("EXEC", evidence)  # … and their EXECs
        self._evaluator = evaluator
        self._among = among
        self._classifier: Classifier = policy.classifier
        self._forms: dict[bytes, CommandForm | None] = {}
        self._recent: list[CommandForm | None] = [None] * RECENT_NAMES
        self._counted: list[CachedDecision] = []  # decisions with counters, once for each counter
        self._own = OwnKeys(policy.targets, bool(policy.bindings))
        self._calls = Calls(evaluator, service, among, self._own, self._slotted)
        # By target and what a command writes.
        self._written: dict[tuple[int, int], WrittenCheck] = {}
        self._transactions = -1  # whether whole transactions are admitted; -1: not asked yet

    # -- looking up

    def find_unread(self, data: bytes, places: array[int], count: int, values: Values) -> Lookup | None:
        """Looks up a request of `count` arguments in its raw bytes. None: use `find`.

        `places` holds where each argument begins and ends in `data`; `values` are the caller's
        (CompiledPolicy.values). No object is made for an argument. So this knows only forms that `find` has
        seen lately.
        """
        name_at, name_end = places[0], places[1]
        form = self._recent[name_bucket(data, name_at, name_end)] if name_end - name_at > 1 else None
        if form is None or form.index != 1 or not stands(form.spelled, data, name_at, name_end):
            return self._calls.find_unread(data, places, count, values)
        if count < 2:
            return None
        if form.kind == _SEVERAL_KEYS:
            if count > 2:
                return self._calls.find_unread(data, places, count, values)
        elif form.kind != _NO_OPTIONS:
            at = form.options_at
            stop = count if form.kind == _TO_END else form.options_end(data, places, count)
            if stop < at or stop > count:
                return None
            form = form.sent_with(data, places[2 * at - 1] + 2, places[2 * stop - 1] + 2)
            if form is None:
                return None
        key_at, key_end = places[2], places[3]
        if key_end - key_at > _MAX_CONFIRMED:
            return None
        target = self._classifier.first_in(data, key_at, key_end)
        decision = form.on_no_target
        if target >= 0:
            if self._own.matter and not self._own.holds(target, data, key_at, key_end, values):
                return None
            known = form.decisions[target] if target < form.kept else None
            if known is None or known.looks < 0:
                return None
            decision = known
        faults = decision.faults(data, places, count) if decision.looks else 0
        if decision.is_clean and faults == 0:
            return decision.hit
        return self._miss(decision, faults, data, key_at, key_end)

    def find(self, argv: list[bytes], values: Values = ()) -> Lookup:
        """Looks up a command. Asks the evaluator if the form or the target is new."""
        try:
            return self._find(argv, values)
        except Exception:
            return _UNSURE  # the evaluator will meet the same fault, and report it

    def _find(self, argv: list[bytes], values: Values) -> Lookup:
        name = argv[0]
        form = self._forms[name] if name in self._forms else self._form(name)
        if form is None:
            return self._calls.find(argv, values)
        if len(name) > 1:
            self._recent[name_bucket(name, 0, len(name))] = form
        if form.kind == _KEYLESS:
            return form.on_no_target.hit
        if form.index >= len(argv):
            return _NO_COMMAND
        if form.kind == _SEVERAL_KEYS:
            if len(argv) > form.index + 1:
                return self._calls.find(argv, values)
        elif form.kind != _NO_OPTIONS:
            form = form.with_options(argv)
            if form is None:
                return _NO_FORM
        return self._find_key(form, argv, values)

    def _find_key(self, form: CommandForm, argv: list[bytes], values: Values) -> Lookup:
        """The same for a command with one key."""
        key = argv[form.index]
        if len(key) > _MAX_CONFIRMED:
            return _LONG_KEY
        target = self._classifier.first(key)
        if target < 0:
            return self._miss(form.on_no_target, 0, key, 0, len(key))
        if self._own.matter and not self._own.holds(target, key, 0, len(key), values):
            return _UNSURE
        decision = form.decisions[target] if target < form.kept else None
        asked = None
        if decision is None:
            asked = self._evaluator.evaluation(self.service, argv, extract(argv), values)
            asked.targets[key] = self.targets[target]
            decision = self._ask(form, target, asked)
        faults = decision.looks
        if faults > 0:
            if decision.written is None:
                faults = decision.key_faults(key, 0, len(key))
            else:
                faults = decision.faults(b"".join(argv), places_of(argv), len(argv))
        if decision.is_clean and faults == 0:
            return decision.hit
        lookup = self._miss(decision, faults, key, 0, len(key))
        if asked is not None:
            lookup = new_lookup(decision, lookup.reason, lookup.faults)
            lookup.asked = asked
        return lookup

    def _miss(self, decision: CachedDecision, faults: int, data: bytes, start: int, end: int) -> Lookup:
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

    def shares_slot(
        self, decision: CachedDecision, data: bytes, start: int, end: int, transaction: Transaction
    ) -> bool:
        """Whether the key `data[start:end]` of a command is in the hash slot of its transaction's earlier
        keys, if it must be. The first key decides the slot, whatever else comes of its command."""
        number = decision.target if decision.target >= 0 else len(self._slotted) - 1
        if decision.form.kind == _KEYLESS or not self._slotted[number]:
            return True
        slot = slot_in(data, start, end)
        if transaction.slot is None:
            transaction.slot = slot
        return transaction.slot == slot

    def call_shares_slot(self, transaction: Transaction) -> bool:
        """Whether the keys of the command with several keys that was looked up last, which lie in one hash
        slot, are in the transaction's."""
        slot = self._calls.slot
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
            decision.recent = None
        if counter.shape and lookup.faults == 0:
            decision.by_shape[counter.shape] = counter

    def may_count(self, lookup: Lookup, argv: list[bytes]) -> bool:
        """Whether the cache distinguishes this command from all with other violations."""
        decision = lookup.decision
        return decision is not None and decision.mark(lookup.faults, argv[decision.form.index]) is not None

    # -- asking the evaluator

    def _form(self, name: bytes) -> CommandForm | None:
        """The form of a command, or the parent of its forms; None if the cache does not handle the
        command."""
        one = ONE_KEY.get(name)
        if one is None:
            return self._keyless(name)
        form = None
        command = one.command.name
        layout = one.layout
        if command in self._among and (not one.options_decide or layout.options != _NO_OPTIONS):
            kind = _SEVERAL_KEYS if one.may_have_more else layout.options
            evidence = self._evidence(Touches(one.command, (Access(0, b"", 0),)))
            form = CommandForm(one, kind, layout, len(self.targets), name, evidence)
        self._forms[name] = form
        return form

    def _evidence(self, touches: Touches) -> Evidence:
        return evidence_of(self.policy, self.service, touches, basis=self._evaluator.basis)

    def _keyless(self, name: bytes) -> CommandForm | None:
        """The form of a command that touches nothing, if it breaks no rule."""
        command = KEYLESS.get(name)
        if command is None:
            if name in CALL_LAYOUTS:
                self._forms[name] = None
            return None  # other names are not remembered, because clients choose them
        form = None
        if command.name in self._among and self._evaluator.admits_alone(self.service, name):
            one = OneKey(command, 0, False, False, False)
            evidence = self._evidence(Touches(command))
            form = CommandForm(one, _KEYLESS, cache_forms.PLAIN, 0, name, evidence)
        self._forms[name] = form
        return form

    def _ask(self, form: CommandForm, target: int, asked: Evaluation) -> CachedDecision:
        """Ask the evaluator about a form and a target, and keep the answer."""
        what = self.targets[target]
        touches = asked.touches
        evidence = evidence_of(
            self.policy, self.service, touches, basis=self._evaluator.basis, target_of=asked.target
        )
        decision = CachedDecision(form, target, what.kind in COVERED, evidence)
        accesses = touches.accesses
        is_alone = touches.command is not None and len(accesses) == 1 and accesses[0].position == form.index
        access = accesses[0] if is_alone else None
        resolved = self._prepare(decision, what, access)
        if resolved < 0:
            decision.looks = -1
        elif touches.command is not None and access is not None:
            standing = self._evaluator.standing_of_all(self.service, touches.command, access, what)
            decision.outcome = standing.outcome
            decision.is_clean = not standing.doubts & ~resolved
        form.keep(decision)
        return decision

    def _prepare(self, decision: CachedDecision, what: Target, access: Access | None) -> int:
        """Prepare the checks of each command that a decision is about. `access` is what the command touches,
        if that is a single key. Returns the doubts of the evaluator that the checks resolve, as a sum; -1: a
        fault is possible that the cache cannot find."""
        resolved = checks.OPEN  # the outcome is kept with the decision
        named = words = written = None
        form = decision.form
        if what.kind in checks.NAMED and not what.names_sure:
            named = self._evaluator.checks.keys.name_check(what)
            resolved |= checks.NAME
        entry = what.entry if what.kind in ("entry", "scope") else None
        if what.kind in ("entry", "scope") and not (entry is not None and entry.types):
            given = self.policy.home(what).type_words
            if given and (access is None or checks.carries(access)):
                return -1
            words = TypeWords(given, access.types) if given and access is not None and access.types else None
            resolved |= checks.TYPE_IN_KEY
        if entry is None or not form.shows_content:
            resolved |= checks.CONTENT
        elif entry.on_content:
            if not can_check(entry, form.content):
                return -1
            written = self._written_check(decision, entry)
            by_form = checked_by(BY_THE_FORM, entry, form.content)
            if access is not None and not breaks(by_form, access, entry):
                resolved |= checks.CONTENT
        decision.checks(named, words, written)
        return resolved

    def _written_check(self, decision: CachedDecision, entry: Entry) -> WrittenCheck | None:
        """The check of what commands of this form write to the keys of an entry, if it requires anything."""
        content = decision.form.content
        check = self._written.get((decision.target, content))
        if check is None:
            check = self._written[decision.target, content] = WrittenCheck(entry, content)
        return check if check.requires else None
