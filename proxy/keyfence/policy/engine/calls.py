# cython: annotation_typing=False
"""Commands with several keys, a script, a pattern or a channel, for the decision cache.

Rule: one answer of the evaluator holds for all commands whose deciding arguments are equal and whose keys
have the same targets. `cache_forms.CALL_LAYOUTS` says which arguments decide. What depends on a key's name,
on a value or on the caller is checked in each call; what depends on the time is never kept. Tables are
bounded.

The evaluator is asked about a command with one key of each target: further keys of the same targets break
nothing that these do not break. Rules about several keys together (hash slots) are left to the evaluator.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from keyfence.commands.cache_forms import CALL_LAYOUTS, CallLayout
from keyfence.commands.exceptions import XREAD_OPTIONS
from keyfence.commands.extract import extract
from keyfence.commands.model import MANY, Access, Content, Touches
from keyfence.commands.table import KeySpec
from keyfence.policy.compiled.policy import MAX_CONFIRMED, Target
from keyfence.policy.compiled.scripts import Registration
from keyfence.policy.compiled.sizes import questions
from keyfence.policy.compiled.tenants import Values, fixed_places
from keyfence.policy.compiled.ttl import FINE, UNSIZED
from keyfence.policy.patterns.automaton import Classifier

from . import checks
from .evaluator import Evaluator
from .evidence import evidence_of
from .forms import COMMAND, CONTENT, FORM, KEY, KEYS, RULE, UNKNOWN, Call, KeyKind, Lookup, new_lookup, stands

MAX_FORMS = 64  # of one command; beyond this number, all are forgotten and asked for anew …
MAX_CALLS = 256  # … and so are the answers for one form …
MAX_KINDS = 16_384  # … and so is everything beyond this number of kinds of keys
LONGEST_FORM = 16  # arguments that decide …
MOST_BYTES = 1024  # … and their length

_NAME, _VALUE = 1, 2  # what is checked in each call (`KeyKind.looks`)
_MANY = MANY
_MAX_CONFIRMED = MAX_CONFIRMED
_ZERO, _NINE = 48, 57
_MOST_DIGITS = 5

_NO_COMMAND = new_lookup(None, COMMAND, -1)
_NO_FORM = new_lookup(None, FORM, -1)
_LONG_KEY = new_lookup(None, KEY, -1)
_WRONG_CONTENT = new_lookup(None, CONTENT, -1)
_UNSURE = new_lookup(None, RULE, -1)
_DIFFERENT = new_lookup(None, KEYS, -1)

# Doubts that depend on a key's name in ways that are not checked here, or on the time.
_NEVER_KEPT = checks.TYPE_IN_KEY | checks.TIME
# Doubts that do not depend on whether a grant covers the key.
_WITH_GRANTS = checks.NAME | checks.CONTENT | checks.OPEN


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


class Run:
    """A run of keys (or one channel) in commands of one layout."""

    def __init__(self, spec: KeySpec | None, at: int = 0) -> None:
        """Without a spec, it is the single argument `at`."""
        self.is_channel = spec is None
        self.start = at if spec is None else spec.start
        self.last = 0 if spec is None else spec.last
        self.step = 1 if spec is None else spec.step
        self.limit = 1 if spec is None else max(spec.limit, 1)
        self.keyword = b"" if spec is None else spec.keyword
        self.is_counted = spec is not None and spec.find == "keynum"
        self.count_at = 0 if spec is None else spec.start + spec.count_at
        self.first = 0 if spec is None else spec.start + spec.first
        self.at = self.stop = 0  # its place in the command that was placed last

    def place(self, argv: list[bytes]) -> bool:
        """Find the run in a command. False: its place is unclear, or it is empty."""
        size = len(argv)
        at = self.start
        if self.is_counted:
            at = self.first
            stop = at + self.step * (_number(argv[self.count_at]) if self.count_at < size else -1)
        else:
            if self.keyword:
                at = _after(argv, self.keyword)
            if self.last >= 0:
                stop = at + self.last + 1
            else:
                if (size - at) % self.limit != 0:
                    return False
                stop = at + (size - at) // self.limit + self.last + 1
        if at < 1 or stop <= at or stop > size or (stop - at) % self.step != 0:
            return False
        self.at = at
        self.stop = stop
        return True


class CallForm:
    """Commands of one layout whose deciding arguments are equal."""

    def __init__(self, runs: int) -> None:
        # By run and target: what keys of the target have in common.
        self.kinds: list[dict[int, KeyKind]] = [{} for _ in range(runs)]
        # The answers by the kinds of their keys. None: something may be wrong.
        self.calls: dict[frozenset[KeyKind], Call | None] = {}
        self.is_seen = False  # such a command has come before
        self.recent: Call | None = None  # the answer found last …
        self.recent_kinds: list[KeyKind] = []  # … and the kinds of its keys


class Placed:
    """One layout, and what is known of its commands."""

    def __init__(self, layout: CallLayout) -> None:
        self.layout = layout
        self.runs = [Run(spec) for spec in layout.keys]
        if layout.channel_at:
            self.runs.append(Run(None, layout.channel_at))
        self.decides_from, self.decides_to = layout.decides
        self.is_decided_by_keys = not self.decides_from
        self.only = CallForm(len(self.runs))  # if only keys decide
        self.forms: dict[tuple[bytes, ...], CallForm] = {}

    def form(self, argv: list[bytes]) -> CallForm | None:
        """The form of a command; None for one whose deciding arguments are many or long."""
        if self.is_decided_by_keys:
            return self.only
        options = tuple(argv[self.decides_from : self.decides_to or len(argv)])
        form = self.forms.get(options)
        if form is not None:
            return form
        if len(options) > LONGEST_FORM or sum(map(len, options)) > MOST_BYTES:
            return None
        if len(self.forms) >= MAX_FORMS:
            self.forms.clear()
        form = self.forms[options] = CallForm(len(self.runs))
        return form

    def shortened(self, argv: list[bytes], chosen: list[int]) -> list[bytes]:
        """A command of the same form that has only these keys of the last run."""
        if not self.is_decided_by_keys or not self.runs:
            return argv
        run = self.runs[len(self.runs) - 1]
        kept = [argv[at + more] for at in chosen for more in range(run.step)]
        before, behind = argv[: run.at], argv[run.stop :]
        if run.is_counted:
            before[run.count_at] = b"%d" % len(chosen)
        return before + kept + (behind[: len(chosen)] if run.limit > 1 else behind)


class Calls:
    """The answers for one service."""

    def __init__(self, evaluator: Evaluator, service: int, among: Container[str], own: OwnKeys) -> None:
        """`among` are the commands that may be admitted."""
        policy = evaluator.policy
        self._evaluator = evaluator
        self._service = service
        self._among = among
        self._own = own
        self._targets: tuple[Target, ...] = policy.targets
        self._classifier: Classifier = policy.classifier
        self._channels: Classifier = policy.channel_classifier
        self._placed: dict[bytes, Placed] = {}
        self._kept = 0  # kinds of keys
        self._turn = 0  # the number of the current command

    def find(self, argv: list[bytes], values: Values) -> Lookup:
        """Looks up a command. Asks the evaluator if its form, or the set of its keys' kinds, is new."""
        placed = self._placed.get(argv[0])
        if placed is None:
            placed = self._place(argv[0])
            if placed is None:
                return _NO_COMMAND
        for run in placed.runs:
            if not run.place(argv):
                return _NO_COMMAND
        form = placed.form(argv)
        if form is None:
            return _NO_FORM
        chosen: list[KeyKind] = []  # the kinds of its keys
        own, needs_own = self._own, self._own.matter
        self._turn += 1
        count = early = 0
        binds = False
        opens: list[tuple[KeyKind, int]] | None = None
        for number in range(len(placed.runs)):
            run = placed.runs[number]
            kinds = form.kinds[number]
            at = run.at
            while at < run.stop:
                key = argv[at]
                if len(key) > _MAX_CONFIRMED:
                    return _LONG_KEY
                target = self._channels.first(key) if run.is_channel else self._classifier.first(key)
                if target < 0:
                    return _DIFFERENT
                if needs_own and not run.is_channel and not own.holds(target, key, 0, len(key), values):
                    return _UNSURE
                kind = kinds.get(target)
                if kind is None:
                    kind = self._learn(placed, form, number, at, target, argv)
                if kind.looks != 0 and not self._looks_right(kind, argv, at):
                    return _UNSURE if kind.looks < 0 else _WRONG_CONTENT
                if kind.turn != self._turn:
                    kind.turn = self._turn
                    kind.at = at
                    chosen.append(kind)
                    binds = binds or kind.binds
                count += 1
                if count == _MANY:
                    early = len(chosen)
                if kind.outcome != 0:
                    if opens is None:
                        opens = []
                    opens.append((kind, at))
                at += run.step
        if (count > _MANY and len(chosen) != early) or (binds and count > 1):
            return _DIFFERENT  # the first keys alone count as evidence
        call = form.recent
        if call is None or not _are_same(chosen, form.recent_kinds):
            call = self._call(placed, form, chosen, argv, values)
            if call is None:
                return _DIFFERENT if placed.is_decided_by_keys else _UNSURE
        if opens is None:
            return call.hit
        return new_lookup(None, "", 0, call, opens)

    def _place(self, name: bytes) -> Placed | None:
        layout = CALL_LAYOUTS.get(name)
        if layout is None or layout.command.name not in self._among:
            return None  # not remembered, because clients choose the names
        placed = self._placed[name] = Placed(layout)
        return placed

    def _looks_right(self, kind: KeyKind, argv: list[bytes], at: int) -> bool:
        """Checks what differs between keys of one kind."""
        if kind.looks < 0 or (
            kind.looks & _NAME and not self._evaluator.is_well_named(argv[at], kind.target)
        ):
            return False
        if not kind.looks & _VALUE:
            return True
        entry, value = kind.target.entry, argv[at + 1]
        if entry is None or (entry.max_value is not None and len(value) > entry.max_value):
            return False
        return entry.values is None or bool(entry.values.accepts(value))

    def _call(
        self, placed: Placed, form: CallForm, chosen: list[KeyKind], argv: list[bytes], values: Values
    ) -> Call | None:
        """The answer for commands of a form with keys of these kinds."""
        kinds = frozenset(chosen)
        if kinds not in form.calls:
            if not placed.runs and not form.is_seen:
                form.is_seen = True
                return None  # a pattern takes long, so the session evaluates it first, in its turn
            if len(form.calls) >= MAX_CALLS:
                form.calls.clear()
            found = self._ask(placed, chosen, argv, values)
            if self._evaluator.budget.spent:
                return None  # the evaluator does not remember the pattern
            form.calls[kinds] = found
        form.recent, form.recent_kinds = form.calls[kinds], chosen
        return form.recent

    # -- asking the evaluator

    def _learn(
        self, placed: Placed, form: CallForm, number: int, at: int, target: int, argv: list[bytes]
    ) -> KeyKind:
        """What all keys of a target in a run have in common. The outcome follows with the first answer."""
        run, name = placed.runs[number], placed.layout.command.name
        if run.is_channel:
            what = self._evaluator.policy.channels[target]
            is_sure = what.tenancy is None
            kind = KeyKind(name, what, 0 if is_sure else -1, number)
            kind.outcome = FINE
        else:
            what = self._targets[target]
            is_last = number == len(placed.runs) - 1
            alone = placed.shortened(argv, [at if is_last else placed.runs[-1].at])
            wanted = run.at if is_last and alone is not argv else at
            touches = extract(alone)
            accesses = [one for one in touches.accesses if one.position == wanted]
            looks = self._looks(placed, accesses[0], what) if len(accesses) == 1 else -1
            kind = KeyKind(name, what, looks, number)
        if self._kept >= MAX_KINDS:
            self._placed.clear()
            self._kept = 0
        self._kept += 1
        form.kinds[number][target] = kind
        return kind

    def _looks(self, placed: Placed, access: Access, target: Target) -> int:
        """What to check in each call of a key; -1: something that is not checked here."""
        command = placed.layout.command
        if self._evaluator.policy.cluster:
            return -1  # hash slots are about several keys
        doubts = self._evaluator.standing_of_all(self._service, command, access, target).doubts
        if doubts & _NEVER_KEPT:
            return -1
        if doubts & ~_WITH_GRANTS and self._evaluator.has_grants(self._service, command.name):
            return -1
        looks = _NAME if doubts & checks.NAME else 0
        content = access.content
        if not doubts & checks.CONTENT or content is None or content.carried is not None:
            return looks
        if content != Content(content.value, access.position + 1):
            return -1
        entry = target.entry
        is_any = entry is None or (entry.values is None and entry.max_value is None)
        return looks if is_any else looks | _VALUE

    def _ask(self, placed: Placed, chosen: list[KeyKind], argv: list[bytes], values: Values) -> Call | None:
        """The evaluator's answer about a command with one key of each kind; None if it finds a violation, or
        its answer may be another one for the next command."""
        if not placed.is_decided_by_keys and len(argv) > MANY:
            return None
        last = len(placed.runs) - 1
        one = placed.shortened(argv, [kind.at for kind in chosen if kind.run == last])
        touches = extract(one)
        if not self._is_kept(placed, one, touches):
            return None
        evaluator = self._evaluator
        # What a pattern reaches depends on the caller; what it reaches without values, it reaches with them.
        asked_with = values if touches.pattern is None else ()
        if evaluator.evaluate(self._service, one, touches, values=asked_with).violations:
            return None
        left = {open_key.access.position: open_key for open_key in evaluator.left_open}
        for access in touches.accesses:
            kind = self._kind_at(placed, chosen, access)
            open_key = left.get(access.position)
            found = FINE if open_key is None else open_key.outcome
            if kind is None or kind.outcome not in (UNKNOWN, found):
                return None
            kind.outcome = found
            if open_key is not None and found in UNSIZED and open_key.target.entry is not None:
                kind.questions = tuple(questions(open_key.target.entry, open_key.access))
        evidence = evidence_of(evaluator.policy, self._service, touches)
        is_trusted = touches.script is not None and evaluator.policy.shares(touches.script)
        return Call(placed.layout.command, evidence, is_trusted)

    def _kind_at(self, placed: Placed, chosen: list[KeyKind], access: Access) -> KeyKind | None:
        """The kind of one key of a command that was placed last."""
        target = self._targets[self._classifier.first(access.key)]
        for kind in chosen:
            run = placed.runs[kind.run]
            if kind.target is target and access.position in range(run.at, run.stop, run.step):
                return kind
        return None

    def _is_kept(self, placed: Placed, argv: list[bytes], touches: Touches) -> bool:
        """Whether an answer about a command holds for others like it, and at any time. It places the
        command."""
        evaluator, command = self._evaluator, placed.layout.command
        keys: list[int] = []
        channels: list[int] = []
        for run in placed.runs:
            if not run.place(argv):
                return False
            (channels if run.is_channel else keys).extend(range(run.at, run.stop, run.step))
        if keys != [one.position for one in touches.accesses]:
            return False
        if channels != [one.position for one in touches.channels]:
            return False
        if touches.problem is not None or touches.databases:
            return False
        if touches.pattern is not None:
            return not evaluator.may_lapse
        if touches.script is None and not touches.channels:
            return bool(keys)
        if evaluator.may_lapse or evaluator.has_grants(self._service, command.name):
            return False
        registration = None if touches.script is None else evaluator.policy.registration(touches.script)
        if registration is None:
            return True
        return _touches_its_keys_alone(
            registration, [self._targets[self._classifier.first(one.key)] for one in touches.accesses]
        )


def _touches_its_keys_alone(registration: Registration, targets: list[Target]) -> bool:
    """Whether a script touches nothing but its declared keys, and may do so with any keys of these
    targets."""
    if registration.reads or registration.writes or registration.publishes:
        return False
    patterns = registration.patterns
    return not patterns or (len(patterns) == len(targets) == 1 and patterns[0] == targets[0].pattern)


def _are_same(one: list[KeyKind], other: list[KeyKind]) -> bool:
    """Whether two lists have the same kinds in the same order."""
    if len(one) != len(other):
        return False
    for at in range(len(one)):  # noqa: SIM110 - a loop in C, where it is compiled
        if one[at] is not other[at]:
            return False
    return True


def _after(argv: list[bytes], keyword: bytes) -> int:
    """The position after a keyword, before which only known options stand; -1: something else does."""
    at = 1
    size = len(argv)
    while at < size:
        name = argv[at].upper()
        if name == keyword:
            return at + 1
        taken = XREAD_OPTIONS.get(name)
        if taken is None:
            return -1
        at += taken
    return -1


def _number(digits: bytes) -> int:
    """A plain decimal number; -1 for anything else."""
    size = len(digits)
    if size == 0 or size > _MOST_DIGITS or digits[0] == _ZERO:
        return -1
    number = 0
    for byte in digits:
        if byte < _ZERO or byte > _NINE:
            return -1
        number = number * 10 + (byte - _ZERO)
    return number
