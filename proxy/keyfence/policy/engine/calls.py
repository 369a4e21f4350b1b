# cython: annotation_typing=False
"""Commands with several keys, a script, a pattern or a channel, for the decision cache.

Rule: one answer of the evaluator holds for all commands whose deciding arguments are equal and whose keys
have the same targets. `call_layouts.CALL_LAYOUTS` says which arguments decide. What depends on a key's name,
on a value or on the caller is checked in each call; what depends on the time is never kept. Tables are
bounded.

A command is looked up where its bytes lie: `places` has two numbers for each argument, where it begins and
where it ends. A command that is a list of arguments is joined first. Only such a command is learned from.

The evaluator is asked about a command with one key of each target. If that command breaks no rule, one with
more keys of these targets breaks none either. Hash slots are compared here.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Sequence

from keyfence.commands.cache_forms import VALUE
from keyfence.commands.call_layouts import CALL_LAYOUTS, CallLayout
from keyfence.commands.extract import extract
from keyfence.commands.model import MANY, Access, Content, Touches
from keyfence.commands.table import COMMANDS
from keyfence.policy.budget import Budget, driven
from keyfence.policy.compiled.hash_slots import slot_in
from keyfence.policy.compiled.policy import MAX_CONFIRMED, Target
from keyfence.policy.compiled.scripts import Registration
from keyfence.policy.compiled.sizes import questions
from keyfence.policy.compiled.tenants import Values, fixed_places
from keyfence.policy.compiled.ttl import FINE, UNSIZED
from keyfence.policy.compiled.written import BY_THE_FORM, Arrangement, WrittenCheck, can_check, checked_by
from keyfence.policy.patterns.automaton import Classifier

from . import checks
from .evaluator import Evaluator
from .evidence import evidence_of
from .forms import (
    COMMAND,
    CONTENT,
    FORM,
    KEY,
    KEYS,
    RECENT_NAMES,
    RULE,
    UNKNOWN,
    Call,
    KeyKind,
    Lookup,
    name_bucket,
    new_lookup,
    places_of,
    stands,
)
from .runs import Run

MAX_FORMS = 64  # of one command; beyond this number, all are forgotten and asked for anew …
MAX_CALLS = 256  # … and so are the answers for one form …
MAX_KINDS = 16_384  # … and so is everything beyond this number of kinds of keys …
MAX_MEMBERS = 65_536  # … or of kinds in all the sets that have an answer
LONGEST_FORM = 16  # arguments that decide …
MOST_BYTES = 1024  # … and their length
MOST_LOOKED_AT = 64  # arguments, where others than the keys decide: each kind of key is learned from all

_RECENT = MAX_FORMS  # as a C integer, when compiled
_MANY = MANY
_MOST_LOOKED_AT = MOST_LOOKED_AT
_VALUE = Arrangement(COMMANDS[b"SET"].facts.layout)  # a value behind each key: MSET
_MAX_CONFIRMED = MAX_CONFIRMED
# In place of a target, beside -1 for none: the key is long, may not be the caller's own, or is in another
# hash slot than the command's earlier keys.
_LONG, _FOREIGN, _CROSSING = -2, -3, -4

_NO_COMMAND = new_lookup(None, COMMAND, -1)
_NO_FORM = new_lookup(None, FORM, -1)
_LONG_KEY = new_lookup(None, KEY, -1)
ELSEWHERE = new_lookup(None, KEYS, -1)  # a key is in another hash slot than an earlier one that it must share
_WRONG_CONTENT = new_lookup(None, CONTENT, -1)
_UNSURE = new_lookup(None, RULE, -1)
_DIFFERENT = new_lookup(None, KEYS, -1)
_MISSES = [_UNSURE, _DIFFERENT, _LONG_KEY, _UNSURE, ELSEWHERE]  # by what stands in place of a target, negated

# Doubts that are checked in each call, whether a grant covers the key or not.
_CHECKED = checks.NAME | checks.CONTENT | checks.OPEN
# Doubts about which the evaluator's answer holds for all keys of one target, unless a grant may cover some of
# them. An answer about any other doubt is not kept.
_ALIKE = checks.COMMANDS | checks.RIGHTS | checks.FORM | checks.TYPE | checks.LIFETIME | checks.CARRIED


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


class CallForm:
    """Commands of one layout whose deciding arguments are equal."""

    def __init__(self, runs: int, options: tuple[bytes, ...]) -> None:
        self.options = options  # these arguments
        # By run and target: what keys of the target have in common.
        self.kinds: list[dict[int, KeyKind]] = [{} for _ in range(runs)]
        self.last: list[KeyKind | None] = [None] * runs  # the kind of the last key of each run
        # The answers by the kinds of their keys. None: something may be wrong.
        self.calls: dict[frozenset[KeyKind], Call | None] = {}
        self.is_seen = False  # such a command has come before
        self.recent: Call | None = None  # the answer found last …
        self.recent_kinds = 0  # … and the number of the kinds of its keys: those whose `recent` it is too
        self.is_several = False  # it is about commands with several keys only
        self._several: CallForm | None = None  # the same form, about those only

    def of_several(self) -> CallForm:
        """What is known of these commands with several keys, if that is known apart."""
        several = self._several
        if several is None:
            several = self._several = CallForm(len(self.kinds), self.options)
            several.is_several = True
        return several

    def remember(self, call: Call | None, chosen: Sequence[KeyKind]) -> None:
        """Find this answer first, if the next command has keys of the same kinds."""
        self.recent, self.recent_kinds = call, len(chosen)
        for kind in chosen:
            kind.recent = call


class Placed:
    """One layout, and what is known of its commands."""

    def __init__(self, layout: CallLayout, spelled: bytes = b"") -> None:
        """`spelled` is the command's name as the client spells it."""
        self.layout = layout
        self.spelled = spelled
        self.runs = [Run(number, spec) for number, spec in enumerate(layout.keys)]
        if layout.channel_at:
            self.runs.append(Run(len(self.runs), None, layout.channel_at))
        self.decides_from, self.decides_to = layout.decides
        self.is_decided_by_keys = not self.decides_from
        self.forget()

    def forget(self) -> None:
        """Forget all commands."""
        self.only = CallForm(len(self.runs), ())  # if only keys decide
        self.forms: dict[tuple[bytes, ...], CallForm] = {}
        # Those found last, by a few bytes of their deciding arguments (`form`).
        self.recent: list[CallForm | None] = [None] * _RECENT

    def form(self, data: bytes, places: array[int], count: int, argv: list[bytes] | None) -> CallForm | None:
        """The form of a command. None for one whose deciding arguments are many or long, or that was not
        found lately and is no list of arguments."""
        if self.is_decided_by_keys:
            return self.only
        raw = data
        first = min(self.decides_from, count)
        stop = min(self.decides_to, count) if self.decides_to else count
        bucket = stop - first
        for at in range(first, stop):
            start, end = places[2 * at], places[2 * at + 1]
            if end - start > 1:
                bucket += (
                    end - start + 3 * raw[end - 1] + 5 * raw[end - 2] + 7 * raw[start + (end - start) // 2]
                )
        bucket %= _RECENT
        form = self.recent[bucket]
        if form is not None and len(form.options) == stop - first:
            for at in range(first, stop):
                start, end = places[2 * at], places[2 * at + 1]
                option = form.options[at - first]
                if len(option) != end - start or not data.startswith(option, start):
                    break
            else:
                return form
        return None if argv is None else self._form(tuple(argv[first:stop]), bucket)

    def _form(self, options: tuple[bytes, ...], bucket: int) -> CallForm | None:
        """The form with these deciding arguments, to be found at this place among the recent ones."""
        form = self.forms.get(options)
        if form is None:
            if len(options) > LONGEST_FORM or sum(map(len, options)) > MOST_BYTES:
                return None
            if len(self.forms) >= MAX_FORMS:
                self.forms.clear()
            form = self.forms[options] = CallForm(len(self.runs), options)
        self.recent[bucket] = form
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

    def __init__(
        self, evaluator: Evaluator, service: int, among: Container[str], own: OwnKeys, slotted: bytes
    ) -> None:
        """`among` are the commands that may be admitted. `slotted` says of each target whether its keys must
        share a hash slot; it is empty if no file of the policy requires it."""
        policy = evaluator.policy
        self._evaluator = evaluator
        self._service = service
        self._among = among
        self._own = own
        self._targets: tuple[Target, ...] = policy.targets
        self._classifier: Classifier = policy.classifier
        self._channels: Classifier = policy.channel_classifier
        self._has_slots = bool(slotted)
        self._slotted = slotted
        self.slot = -1  # the hash slot of the last command's keys; -1: they may be in any
        self._placed: dict[bytes, Placed] = {}
        self._recent: list[Placed | None] = [None] * RECENT_NAMES
        self._kept = 0  # kinds of keys …
        self.members = 0  # … and those in sets with an answer, once for each set
        self._turn = 0  # the number of the current command

    def find(self, argv: list[bytes], values: Values) -> Lookup:
        """Looks up a command. Asks the evaluator if its form, or the set of its keys' kinds, is new."""
        name = argv[0]
        placed = self._placed.get(name)
        if placed is None:
            layout = CALL_LAYOUTS.get(name)
            if layout is None or layout.command.name not in self._among:
                return _NO_COMMAND  # not remembered, because clients choose the names
            placed = self._placed[name] = Placed(layout, name)
        self._recent[name_bucket(name, 0, len(name))] = placed
        return self._find(placed, b"".join(argv), places_of(argv), len(argv), values, argv)

    def find_unread(self, data: bytes, places: array[int], count: int, values: Values) -> Lookup | None:
        """The same for a command of `count` arguments in its raw bytes. None: use `find`, if it can know
        more."""
        start, end = places[0], places[1]
        placed = self._recent[name_bucket(data, start, end)] if end - start > 1 else None
        if placed is None or not stands(placed.spelled, data, start, end):
            return None
        try:
            lookup = self._find(placed, data, places, count, values, None)
        except Exception:
            return None  # `find` meets the same fault
        return lookup if lookup.is_admitted else None

    def _find(
        self,
        placed: Placed,
        data: bytes,
        places: array[int],
        count: int,
        values: Values,
        argv: list[bytes] | None,
    ) -> Lookup:
        """Looks up a command of one layout. Without `argv`, it makes no object for an argument, and knows
        only what was asked before."""
        if count > _MOST_LOOKED_AT and not placed.is_decided_by_keys:
            return _NO_FORM
        for run in placed.runs:
            if not run.place(data, places, count):
                return _NO_COMMAND
        form = self._form(placed, data, places, count, argv)
        if form is None:
            return _NO_FORM
        chosen: KeyKind | None = None  # the last kind of its keys
        kinds = size = 0
        is_recent, binds = form.recent is not None, False
        opens: list[tuple[KeyKind, int]] | None = None
        self._turn += 1
        self.slot = -1
        for run in placed.runs:
            kind = form.last[run.number]
            at = run.at
            while at < run.stop:
                target = self._target(run, data, places[2 * at], places[2 * at + 1], values)
                if target < 0:
                    return _MISSES[-target]
                if kind is None or kind.number != target:
                    kind = self._kind(placed, form, run, at, target, argv if size < _MANY else None)
                    if kind is None:
                        return _UNSURE
                if kind.looks != 0 and not self._looks_right(kind, data, places, count, at):
                    return _UNSURE if kind.looks < 0 else _WRONG_CONTENT
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
        call = form.recent
        if not is_recent or kinds != form.recent_kinds:
            call = self._call(placed, form, chosen, argv, values)
        if call is None:
            return _DIFFERENT if placed.is_decided_by_keys else _UNSURE
        return call.hit if opens is None else new_lookup(None, "", 0, call, opens)

    def _form(
        self, placed: Placed, data: bytes, places: array[int], count: int, argv: list[bytes] | None
    ) -> CallForm | None:
        """The form of a command; None if it is not known. For a cluster, a command with several keys is asked
        for one rule more than one with a single key."""
        form = placed.form(data, places, count, argv)
        if form is None or not self._has_slots:
            return form
        keys = 0
        for run in placed.runs:
            if not run.is_channel:
                keys += (run.stop - run.at) // run.step
        return form.of_several() if keys > 1 else form

    def _target(self, run: Run, data: bytes, start: int, end: int, values: Values) -> int:
        """The number of the target of the key or channel at `data[start:end]`. Below 0: there is none that
        a decision is kept for."""
        if end - start > _MAX_CONFIRMED:
            return _LONG
        if run.is_channel:
            return self._channels.first_in(data, start, end)
        target = self._classifier.first_in(data, start, end)
        if target >= 0 and self._own.matter and not self._own.holds(target, data, start, end, values):
            return _FOREIGN
        if self._has_slots and target >= 0 and self._slotted[target]:
            slot = slot_in(data, start, end)
            if self.slot < 0:
                self.slot = slot
            elif self.slot != slot:
                return _CROSSING
        return target

    def _kind(
        self, placed: Placed, form: CallForm, run: Run, at: int, target: int, argv: list[bytes] | None
    ) -> KeyKind | None:
        """What all keys of a target in a run have in common; None if it is not known."""
        kinds = form.kinds[run.number]
        kind = kinds.get(target)
        if kind is None and argv is not None:
            kind = self._learn(placed, form, run, at, target, argv)
        form.last[run.number] = kind
        return kind

    def _looks_right(self, kind: KeyKind, data: bytes, places: array[int], count: int, at: int) -> bool:
        """Checks what differs between keys of one kind."""
        if kind.looks < 0:
            return False
        named, written = kind.named, kind.written
        if named is not None and named.faults(data, places[2 * at], places[2 * at + 1]) != 0:
            return False
        return written is None or written.faults(data, places, count, at + 1, _VALUE) == 0

    def _call(
        self,
        placed: Placed,
        form: CallForm,
        last: KeyKind | None,
        argv: list[bytes] | None,
        values: Values,
    ) -> Call | None:
        """The answer for commands of a form with keys of these kinds."""
        chosen: list[KeyKind] = []
        while last is not None:
            chosen.append(last)
            last = last.before
        kinds = frozenset(chosen)
        if kinds not in form.calls:
            if argv is None:
                return None
            if not placed.runs and not form.is_seen:
                form.is_seen = True
                return None  # a pattern takes long, so the session evaluates it first, in its turn
            if len(form.calls) >= MAX_CALLS:
                form.calls.clear()
            budget = Budget()
            found = self._ask(placed, form, chosen[::-1], argv, values, budget)
            if budget.spent:
                return None  # the evaluator does not remember the pattern
            if self.members >= MAX_MEMBERS:
                self._forget()
            self.members += len(chosen)
            form.calls[kinds] = found
        form.remember(form.calls[kinds], chosen)
        return form.recent

    # -- asking the evaluator

    def _learn(
        self, placed: Placed, form: CallForm, run: Run, at: int, target: int, argv: list[bytes]
    ) -> KeyKind:
        """What all keys of a target in a run have in common. The outcome follows with the first answer."""
        name, number = placed.layout.command.name, run.number
        if run.is_channel:
            channel = self._evaluator.policy.channels[target]
            kind = KeyKind(name, target, channel, number)
            kind.looks = 0 if channel.tenancy is None else -1
            kind.outcome = FINE
        else:
            what = self._targets[target]
            last = placed.runs[-1]
            is_last = run is last
            alone = placed.shortened(argv, [at if is_last else last.at])
            wanted = run.at if is_last and alone is not argv else at
            touches = extract(alone)
            accesses = [one for one in touches.accesses if one.position == wanted]
            kind = KeyKind(name, target, what, number)
            # Without grants, the answer about one key of each target is that about all of them.
            kind.binds = kind.binds and self._evaluator.has_grants(self._service, name)
            if len(accesses) != 1 or not self._can_check(placed, kind, accesses[0]):
                kind.looks = -1
        if self._kept >= MAX_KINDS:
            self._forget()
        self._kept += 1
        form.kinds[number][target] = kind
        return kind

    def _forget(self) -> None:
        """Forget all commands."""
        for placed in self._placed.values():
            placed.forget()
        self._kept = self.members = 0

    def _can_check(self, placed: Placed, kind: KeyKind, access: Access) -> bool:
        """Prepare the checks of each key of a kind. False: something that is not checked here."""
        evaluator, command, target = self._evaluator, placed.layout.command, kind.target
        doubts = evaluator.standing_of_all(self._service, command, access, target).doubts
        alike = 0 if evaluator.has_grants(self._service, command.name) else _ALIKE
        if doubts & ~(_CHECKED | alike):
            return False
        named = evaluator.checks.keys.name_check(target) if doubts & checks.NAME else None
        content, entry, written = access.content, target.entry, None
        if doubts & checks.CONTENT and content is not None and content.carried is None:
            if entry is None or content != Content(content.value, access.position + 1):
                return False
            if not can_check(entry, VALUE) or checked_by(BY_THE_FORM, entry, VALUE):
                return False
            check = WrittenCheck(entry, VALUE)
            written = check if check.requires else None
        kind.checks(named, written)
        return True

    def _ask(
        self,
        placed: Placed,
        form: CallForm,
        chosen: list[KeyKind],
        argv: list[bytes],
        values: Values,
        budget: Budget,
    ) -> Call | None:
        """The evaluator's answer about a command with one key of each kind; None if it finds a violation, or
        its answer may be another one for the next command. It takes its steps from `budget`."""
        last = len(placed.runs) - 1
        one = placed.shortened(argv, [kind.at for kind in chosen if kind.run == last])
        touches = extract(one)
        if not self._is_kept(placed, one, touches):
            return None
        evaluator = self._evaluator
        # What a pattern reaches depends on the caller; what it reaches without values, it reaches with them.
        asked_with = values if touches.pattern is None else ()
        evaluation = evaluator.evaluation(self._service, one, touches, asked_with)
        evaluation.budget = budget
        if driven(evaluator.verdict(evaluation)).violations:
            return None
        left = {open_key.access.position: open_key for open_key in evaluation.left_open}
        for access in touches.accesses:
            kind = self._kind_at(placed, chosen, access)
            open_key = left.get(access.position)
            found = FINE if open_key is None else open_key.outcome
            if kind is None or kind.outcome not in (UNKNOWN, found):
                return None
            kind.outcome = found
            if open_key is not None and found in UNSIZED and open_key.target.entry is not None:
                kind.questions = tuple(questions(open_key.target.entry, open_key.access))
        evidence = evidence_of(
            evaluator.policy, self._service, touches, several=form.is_several, basis=evaluator.basis
        )
        is_trusted = touches.script is not None and evaluator.policy.shares(touches.script)
        return Call(placed.layout.command.name, evidence, is_trusted)

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
        data, places, count = b"".join(argv), places_of(argv), len(argv)
        for run in placed.runs:
            if not run.place(data, places, count):
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
    if registration.reads or registration.writes or registration.publishes or registration.prefixes:
        return False
    patterns = registration.patterns
    return not patterns or (len(patterns) == len(targets) == 1 and patterns[0] == targets[0].pattern)
