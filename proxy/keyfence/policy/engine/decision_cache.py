# cython: annotation_typing=False
"""The decision cache: admits one service's commands without asking the evaluator again.

Rule: every answer is one that the evaluator gave for the same command form and target. So if the cache admits
a command, the evaluator finds no violation; if the cache has a violation counter for it, the evaluator finds
the same violations (tests/policy/engine/test_decision_cache.py). Whatever depends on the key's name, the
value or the caller is checked in each call; whatever depends on the time is never kept. Tables are bounded.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from keyfence.commands import cache_forms
from keyfence.commands.extract import KEYLESS, ONE_KEY, OneKey, extract
from keyfence.commands.model import Access, Touches
from keyfence.policy.compiled.policy import MAX_CONFIRMED, Entry, Fields, Target
from keyfence.policy.compiled.tenants import Values
from keyfence.policy.patterns.automaton import Classifier
from keyfence.policy.patterns.value_forms import BUILTIN, Form
from keyfence.policy.verdict import COVERED

from . import checks
from .calls import Calls, OwnKeys, stands
from .counts import Admitted, Revocable, ViolationCounter
from .evaluator import Evaluator
from .evidence import Evidence, evidence_of
from .forms import (
    COMMAND,
    CONTENT,
    FORM,
    KEY,
    RULE,
    CachedDecision,
    CommandForm,
    Lookup,
    looks_at_elements,
    new_lookup,
    trims,
)

MAX_COUNTERS = 4_096  # violation counters; beyond this number, all are forgotten and found anew

# Field names whose form is remembered for each target: their greatest number, and their greatest length.
MAX_FIELDS = 1_024
LONGEST_FIELD = 64

_RECENT = 16  # command names to find by their first letter and length
_ZERO, _NINE = 48, 57
_MOST_FAULTS = 15  # faults of one kind in one command that are counted exactly
# As C integers when compiled.
_MAX_CONFIRMED = MAX_CONFIRMED
_NO_OPTIONS, _BEHIND_VALUE = cache_forms.NO_OPTIONS, cache_forms.BEHIND_VALUE
_BEHIND_KEY, _SEVERAL_KEYS = cache_forms.BEHIND_KEY, cache_forms.SEVERAL_KEYS
_XADD, _KEYLESS = cache_forms.XADD, cache_forms.KEYLESS

# The things to check in each call (`CachedDecision.looks`).
_NAME = 1
_VALUE = 2
_FIELDS = 4

_ANY = BUILTIN["any"]

# Lookups without a known decision.
_NO_COMMAND = new_lookup(None, COMMAND, -1)
_NO_FORM = new_lookup(None, FORM, -1)
_LONG_KEY = new_lookup(None, KEY, -1)
_UNSURE = new_lookup(None, RULE, -1)


class DecisionCache(Revocable):
    """The cache of one service."""

    def __init__(self, evaluator: Evaluator, service: int, among: Container[str]) -> None:
        """`among` are the commands that may be admitted."""
        super().__init__()
        policy = evaluator.policy
        self.policy = policy
        self.service = service  # its number
        self.targets: tuple[Target, ...] = policy.targets
        evidence = evidence_of(policy, service, Touches(None))
        self.multi = Admitted("MULTI", evidence)  # MULTIs whose whole transaction was sent as one piece …
        self.execution = Admitted("EXEC", evidence)  # … and their EXECs
        self._evaluator = evaluator
        self._among = among
        self._classifier: Classifier = policy.classifier
        self._forms: dict[bytes, CommandForm | None] = {}
        self._recent: list[CommandForm | None] = [None] * _RECENT
        self._counted: list[CachedDecision] = []  # decisions with counters, once for each counter
        self._sized = bytes(one.entry is not None and one.entry.is_sized for one in policy.targets)
        self._own = OwnKeys(policy.targets, bool(policy.bindings))
        self._calls = Calls(evaluator, service, among, self._own)
        self._fields: dict[int, dict[bytes, Form]] = {}  # by target: the forms of known field names
        self._transactions = -1  # whether whole transactions are admitted; -1: not asked yet

    # -- looking up

    def find_unread(
        self,
        data: bytes,
        count: int,
        name_at: int,
        name_end: int,
        key_at: int,
        key_end: int,
        options_at: int,
        end: int,
        values: Values,
    ) -> CachedDecision | None:
        """Looks up a request of `count` arguments in its raw bytes. None: use `find`.

        The offsets in `data` are those of its name, its second argument, the bytes after the third, and its
        end. `values` are the caller's (CompiledPolicy.values). No object is made. So this knows only forms
        that `find` has seen, and only those without a name, value or field to check.
        """
        form = self._recent[(data[name_at] + name_end - name_at) % _RECENT] if name_end > name_at else None
        if form is None or count < 2 or form.index != 1 or not stands(form.spelled, data, name_at, name_end):
            return None
        kind = form.kind
        if kind == _SEVERAL_KEYS:
            if count > 2:
                return None
        elif kind in (_BEHIND_VALUE, _BEHIND_KEY):
            form = form.recent
            behind = options_at if kind == _BEHIND_VALUE else key_end + 2
            if form is None or (kind == _BEHIND_VALUE and count < 3):
                return None
            if not stands(form.written, data, behind, end):
                return None
        elif kind != _NO_OPTIONS:
            return None
        if key_end - key_at > _MAX_CONFIRMED:
            return None
        target = self._classifier.first_in(data, key_at, key_end)
        if target < 0:
            return form.on_no_target
        if self._own.matter and not self._own.holds(target, data, key_at, key_end, values):
            return None
        if target >= form.kept:
            return None
        decision = form.decisions[target]
        return decision if decision is not None and decision.looks == 0 else None

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
        self._recent[(name[0] + len(name)) % _RECENT] = form
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
            return form.on_no_target.miss
        if self._own.matter and not self._own.holds(target, key, 0, len(key), values):
            return _UNSURE
        decision = form.decisions[target] if target < form.kept else None
        if decision is None:
            decision = self._ask(form, target, argv)
        if decision.looks <= 0:
            return decision.hit if decision.is_clean else decision.miss
        faults = self._faults(form, decision.looks, target, argv, form.index)
        if decision.is_clean:
            return decision.hit if faults == 0 else new_lookup(decision, CONTENT, faults)
        return new_lookup(decision, RULE, faults)

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
        counter; and so has every command on a key of the counter's shape."""
        decision = lookup.decision
        mark = decision.mark(lookup.faults, argv[decision.form.index]) if decision is not None else None
        if decision is None or (mark is None and not counter.shape):
            return
        if len(self._counted) >= MAX_COUNTERS:
            for one in self._counted:
                one.counters.clear()
                one.by_shape.clear()
            self._counted.clear()
        self._counted.append(decision)
        if mark is not None:
            decision.counters[mark] = counter
        if counter.shape:
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
        if command in self._among and (not one.options_decide or command in cache_forms.OPTIONS):
            kind = _SEVERAL_KEYS if one.may_have_more else cache_forms.OPTIONS.get(command, _NO_OPTIONS)
            evidence = self._evidence(Touches(one.command, (Access(0, b"", 0),)))
            form = CommandForm(one, kind, len(self.targets), name, evidence)
        self._forms[name] = form
        return form

    def _evidence(self, touches: Touches) -> Evidence:
        return evidence_of(self.policy, self.service, touches)

    def _keyless(self, name: bytes) -> CommandForm | None:
        """The form of a command that touches nothing, if it breaks no rule."""
        command = KEYLESS.get(name)
        if command is None:
            return None  # not remembered, because clients choose the names
        form = None
        if command.name in self._among and self._evaluator.admits_alone(self.service, name):
            one = OneKey(command, 0, False, False, False)
            form = CommandForm(one, _KEYLESS, 0, name, self._evidence(Touches(command)))
        self._forms[name] = form
        return form

    def _ask(self, form: CommandForm, target: int, argv: Sequence[bytes]) -> CachedDecision:
        """Ask the evaluator about a form and a target, and keep the answer."""
        what = self.targets[target]
        looks, is_clean, outcome = self._looks(form, what), False, 0
        touches = extract(argv)
        accesses = touches.accesses
        if looks >= 0 and touches.command is not None and [one.position for one in accesses] == [form.index]:
            access = accesses[0]
            standing = self._evaluator.standing_of_all(self.service, touches.command, access, what)
            outcome = standing.outcome
            is_trimmed = form.kind != _XADD or what.entry is None or trims(access, what.entry)
            is_clean = is_trimmed and not standing.doubts & ~_LOOKED_AT
        evidence = self._evidence(touches)
        decision = CachedDecision(form, target, outcome, looks, is_clean, what.kind in COVERED, evidence)
        form.keep(decision)
        return decision

    def _looks(self, form: CommandForm, target: Target) -> int:
        """The things to check in each command of a form on a target; -1: something that the cache cannot
        check."""
        more = self._looks_at_content(form, target.entry) if target.kind in ("entry", "scope") else 0
        return -1 if more < 0 else more + (0 if target.names_sure else _NAME)

    def _looks_at_content(self, form: CommandForm, entry: Entry | None) -> int:
        """The same for the written content."""
        if entry is None or not form.shows_content or not entry.looks_into_values:
            return 0
        if form.value_at:
            return _VALUE if entry.values is not None or entry.max_value is not None else 0
        if form.fields_at:
            sized = entry.max_value is not None or entry.max_fields is not None
            return _FIELDS if entry.fields is not None or sized else 0
        looks = looks_at_elements(form.name, entry)
        return -1 if looks is None else _VALUE if looks else 0

    # -- checking the written content

    def _faults(self, form: CommandForm, looks: int, target: int, argv: list[bytes], at: int) -> int:
        """Checks the parts in which commands of a form differ: the key's name (at `at`), the value, the
        fields.

        0: nothing is wrong. -1: the name is wrong, or there are more faults than the code can express.
        Otherwise the result encodes the number of unknown fields and of invalid values, or the fault of the
        value.
        """
        what = self.targets[target]
        if looks & _NAME and not self._evaluator.is_well_named(argv[at], what):
            return -1
        if not looks & (_VALUE | _FIELDS):
            return 0
        entry = what.entry
        if entry is None:
            return -1
        if looks & _VALUE:
            if form.value_at == 0:
                return 0 if _are_few_and_short(argv, at + 1, 1, entry.max_value, entry.max_members) else -1
            if form.value_at >= len(argv):
                return -1
            value = argv[form.value_at]
            if not self._sized[target] and entry.values is not None:
                return 0 if _has_form(value, entry.values) else 1
            wrong = entry.values is not None and not _has_form(value, entry.values)
            too_long = entry.max_value is not None and len(value) > entry.max_value
            return (1 if wrong else 0) + (2 if too_long else 0)
        if self._sized[target] and not _are_few_and_short(
            argv, form.fields_at + 1, 2, entry.max_value, entry.max_fields
        ):
            return -1
        return self._faults_of_fields(target, entry.fields, argv, form.fields_at) if entry.fields else 0

    def _faults_of_fields(self, target: int, fields: Fields | None, argv: list[bytes], at: int) -> int:
        """The same for the pairs from `at` on: the number of invalid values and of unlisted fields."""
        if fields is None:
            return -1
        named = self._fields.get(target)
        if named is None:
            named = self._fields[target] = dict(fields.named)
        size = len(argv) - 1
        unknown = wrong = 0
        while at < size:
            form = named.get(argv[at])
            if form is None:
                form = fields.form_of(argv[at])
                if form is not None and len(named) < MAX_FIELDS and len(argv[at]) <= LONGEST_FIELD:
                    named[argv[at]] = form
            if form is None:
                if fields.exact and fields.meant(argv[at]) is not None:
                    return -1
                unknown += 1
            elif form is not _ANY and not _has_form(argv[at + 1], form):
                wrong += 1
            at += 2
        if unknown > _MOST_FAULTS or wrong > _MOST_FAULTS:
            return -1
        return unknown * (_MOST_FAULTS + 1) + wrong


# Doubts of the evaluator that the cache resolves in each call.
_LOOKED_AT = checks.NAME | checks.CONTENT | checks.OPEN


def _are_few_and_short(
    argv: list[bytes], start: int, step: int, longest: int | None, most: int | None
) -> bool:
    """Whether the arguments from `start` on, `step` apart, are certainly within limits."""
    if most is not None and len(argv) - start > most * step:
        return False
    return longest is None or max(map(len, argv[start::step]), default=0) <= longest


def _has_form(value: bytes, form: Form) -> bool:
    return _is_plain_number(value, form.digits) or bool(form.accepts(value))


def _is_plain_number(value: bytes, most: int) -> bool:
    """Whether these are decimal digits, at least one and at most this many."""
    size = len(value)
    if size == 0 or size > most:
        return False
    for byte in value:  # noqa: SIM110 - a loop in C, where it is compiled
        if byte < _ZERO or byte > _NINE:
            return False
    return True
