# cython: annotation_typing=False
"""The short way to a yes: what one service may do, as far as one look at command and key shows it.

Rule: it admits, or repeats what was found of a command of the same kind, or says nothing. Where it admits,
`Evaluator.judge` finds no violation, and where it repeats, the same ones
(tests/policy/engine/test_decision_cache.py). What it knows of a command and a target it has asked the decider
once: only what does not depend on key, value and time. Tables are bounded.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

from keyfence.commands.extract import KEYLESS, ONE_KEY, OneKey, extract
from keyfence.commands.model import Access, Command
from keyfence.policy.compiled.policy import MAX_CONFIRMED, Entry, Fields, Target
from keyfence.policy.compiled.tenants import Values, fixed_places
from keyfence.policy.patterns.automaton import Classifier
from keyfence.policy.patterns.value_forms import BUILTIN, Form
from keyfence.policy.verdict import COVERED
from keyfence.policy.wording.masking import shown_in
from keyfence.shapes.skeleton import skeleton

from . import checks
from .counts import Admitted, Repeat
from .forms import LONGEST_FORM, is_trimmed, looks_at_elements, options_before_scores, trims

if TYPE_CHECKING:
    from .evaluator import Evaluator

# Ways of calling a command (`EX 60`) that are remembered of it; further ones take the long way.
MAX_FORMS = 64
# Repeats that are kept; beyond, all are forgotten and found anew.
MAX_REPEATS = 4_096

# Names of fields whose form is remembered, for each target: so many, and so long.
MAX_FIELDS = 1_024
LONGEST_FIELD = 64

# How many ways are found again without a look-up: commands of which the first letter and the length differ.
_SEEN = 16
_ZERO, _NINE = 48, 57
_MAX_CONFIRMED = MAX_CONFIRMED  # as a C integer, where this runs compiled

# What is known of a form and a target: a sum of these, and the outcome for the time to live (`ttl.outcome`)
# in the bits above.
_UNSURE = 1  # the decider has to look
_NAME = 2  # the key's name must be looked at …
_VALUE = 4  # … or the value
_FIELDS = 8  # … or the fields
_OUTCOME = 16
_MOST_OUTCOMES = 15
_UNASKED = 255
_UNTOLD = -2  # no slot: what is wrong with such a command can't be told from what else may be wrong
_MOST_FAULTS = 15  # of a kind in one command that are told apart

# Why a command isn't admitted at a glance: labels of a metric (docs/operations.md).
COMMAND = "command"
FORM = "form"
KEYS = "keys"
KEY = "key"
CONTENT = "content"
RULE = "rule"

# How a form is found.
_CONSTANT = 0  # there is one: no argument but the key decides anything
_BEHIND_VALUE = 1  # SET key value …
_BEHIND_KEY = 2  # EXPIRE key …
_BEFORE_VALUE = 3  # SETEX key seconds value
_XADD = 4  # XADD key MAXLEN ~ n * field value …
_SEVERAL = 5  # DEL key …
_SCORED = 6  # ZADD key [options] score member …
_KEYLESS = 7  # PING
_KINDS = {
    "SET": _BEHIND_VALUE,
    "EXPIRE": _BEHIND_KEY,
    "PEXPIRE": _BEHIND_KEY,
    "GETEX": _BEHIND_KEY,
    "SETEX": _BEFORE_VALUE,
    "PSETEX": _BEFORE_VALUE,
    "XADD": _XADD,
    "ZADD": _SCORED,
    "GEOADD": _SCORED,
}
_XADD_ID = 5
# Where the value is, and where the first field.
_VALUE_AT = {"SET": 2, "SETNX": 2, "GETSET": 2, "SETEX": 3, "PSETEX": 3}
_FIELDS_AT = {"HSET": 2, "HMSET": 2, "HSETNX": 2}  # and XADD's, by its form
_ANY = BUILTIN["any"]


class CommandForm(Admitted):
    """One form of one command: what of it is the same for every key and value."""

    def __init__(self, one: OneKey, kind: int, targets: int, spelled: bytes) -> None:
        name = one.command.name
        super().__init__(name)
        self.index = one.key_at  # of the key
        self.known = bytearray(b"\xff" * targets)
        self.forms: dict[tuple[bytes, ...], CommandForm | None] = {}
        self.spelled = spelled  # the command's name as the client writes it
        self.written = b""  # of a form: its options as they stand in a request
        self.recent: CommandForm | None = None  # the form that was found last
        self.looks: dict[int, int] = {}  # what of a command must be looked at, by target, once it was asked
        # What is wrong with each such command, by `DecisionCache._slot`; of keys that no entry covers, by the
        # key's skeleton too.
        self.repeats: dict[int, Repeat] = {}
        self.shaped: dict[int, dict[bytes, Repeat]] = {}
        self.one = one
        self.kind = kind
        self.has_more = kind == _SEVERAL  # all that stands behind the key are keys too
        self.shows_content = one.shows_content
        self.value_at = _VALUE_AT.get(name, 0)
        self.fields_at = _FIELDS_AT.get(name, 0)


class DecisionCache:
    """What one service's commands are admitted by."""

    def __init__(self, evaluator: Evaluator, service: int, among: Container[str]) -> None:
        """`among` are the names of the commands that may be admitted so."""
        policy = evaluator.policy
        self.policy = policy
        self.is_current = True  # False: the decider has another policy now, or none
        # Of the command looked at last: what it means for its key's time to live, the index of its key's
        # target (-1: none), and if it wasn't admitted, why.
        self.found = 0
        self.target = -1
        self.why = COMMAND
        # Its way, where the decider has to look each time.
        self.missed: CommandForm | None = None
        self._evaluator = evaluator
        self.service = service  # its number
        self._among = among
        self._classifier: Classifier = policy.classifier
        self.targets: tuple[Target, ...] = policy.targets
        self._ways: dict[bytes, CommandForm | None] = {}
        self._covers = bytes(one.kind in COVERED for one in policy.targets)
        self._sized = bytes(one.entry is not None and one.entry.is_sized for one in policy.targets)
        self._kept: list[CommandForm] = []  # those with repeats, one for each of these
        self._binds = any(one.alike for one in policy.targets)
        # By target, where a caller's own keys have its values (the number of the value, how far behind the
        # key's beginning, the byte behind it), if what it may do depends on that.
        self._places = [fixed_places(one.tenancy) for one in policy.targets] if policy.bindings else []
        self._asks_whose = any(self._places)
        self._fields: dict[int, dict[bytes, Form]] = {}  # by target: those of known names
        self.multi = Admitted("MULTI")  # those that went on in one piece with all up to their EXEC …
        self.execution = Admitted("EXEC")  # … and these
        self._transactions = -1  # whether they are admitted; -1: not asked yet
        self._seen: list[CommandForm | None] = [None] * _SEEN  # ways, to find one again by a look at its name

    def admits(self, argv: list[bytes], values: Values = ()) -> CommandForm | None:
        """The way that the command takes if nothing is wrong with it; None says nothing. `values` are the
        caller's (CompiledPolicy.values)."""
        try:
            return self._admits(argv, values)
        except Exception:
            self.why = RULE
            return None  # the decider will meet the same, and tell of it

    def admits_in(
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
    ) -> CommandForm | None:
        """As `admits`, for a request of `count` arguments in `data`: where its name and its second argument
        lie, where what stands behind the third begins, and where the request ends.

        It makes no object, and so it knows only what was seen before, and nothing to be looked into.
        """
        self.missed = None
        way = self._seen[(data[name_at] + name_end - name_at) % _SEEN] if name_end > name_at else None
        if way is None or count < 2 or way.index != 1 or not _stands(way.spelled, data, name_at, name_end):
            return None
        kind = way.kind
        if kind == _SEVERAL:
            if count > 2:
                return None
        elif kind in (_BEHIND_VALUE, _BEHIND_KEY):
            way = way.recent
            behind = options_at if kind == _BEHIND_VALUE else key_end + 2
            if way is None or (kind == _BEHIND_VALUE and count < 3):
                return None
            if not _stands(way.written, data, behind, end):
                return None
        elif kind != _CONSTANT:
            return None
        if key_end - key_at > _MAX_CONFIRMED:
            return None
        target = self._classifier.first_in(data, key_at, key_end)
        self.target = target
        if target < 0:
            self.missed = way
            return None
        if self._asks_whose and not self._is_own(target, data, key_at, key_end, values):
            return None
        known = way.known[target]
        if known & (_UNSURE | _NAME | _VALUE | _FIELDS):  # _UNASKED has them all
            if known & _UNSURE and known != _UNASKED:
                self.missed = way
            return None
        self.found = known // _OUTCOME
        return way

    def _is_own(self, target: int, data: bytes, start: int, end: int, values: Values) -> bool:
        """Whether what the decider says of a target holds for the key at `data[start:end]`, which it takes:
        it is the caller's own, or nobody's in particular."""
        for number, before, after in self._places[target]:
            if number < 0 or number >= len(values):
                return False
            value = values[number]
            if value is None:
                return False
            begins = start + before
            ends = begins + len(value)
            if ends > end or not _stands(value, data, begins, ends):
                return False
            if after < 0:
                if ends != end:
                    return False
            elif ends >= end or data[ends] != after:
                return False
        return True

    def _admits(self, argv: list[bytes], values: Values) -> CommandForm | None:
        self.missed = None
        name = argv[0]
        way = self._ways[name] if name in self._ways else self._way(name)
        if way is None:
            self.why = COMMAND
            return None
        self._seen[(name[0] + len(name)) % _SEEN] = way
        if way.kind == _KEYLESS:
            self.found = 0
            return way
        if way.index >= len(argv):
            self.why = COMMAND
            return None
        if way.kind == _SEVERAL:
            if len(argv) > way.index + 1:
                return self._admits_several(way, argv, values)
        elif way.kind != _CONSTANT:
            way = self._form(way, argv)
            if way is None:
                self.why = FORM
                return None
        return self._admits_key(way, argv, way.index, values)

    def _admits_key(self, way: CommandForm, argv: list[bytes], at: int, values: Values) -> CommandForm | None:
        """The same for one key of a command, at `at`, of which the way is known."""
        key = argv[at]
        if len(key) > _MAX_CONFIRMED:
            self.why = KEY
            return None
        target = self._classifier.first(key)
        self.target = target
        if target < 0:
            self.missed = way
            self.why = RULE
            return None
        if self._asks_whose and not self._is_own(target, key, 0, len(key), values):
            self.missed = None
            self.why = RULE
            return None
        known = way.known[target]
        if known == _UNASKED:
            known = self._ask(way, target, argv)
        if known & _UNSURE:
            self.missed = way
            self.why = RULE
            return None
        if known & (_NAME | _VALUE | _FIELDS) and self._faults(way, known, target, argv, at) != 0:
            self.missed = way
            self.why = CONTENT
            return None
        self.found = known // _OUTCOME
        return way

    def _admits_several(self, way: CommandForm, argv: list[bytes], values: Values) -> CommandForm | None:
        """The same for a command whose arguments are keys, all with the same outcome."""
        found = -1
        for at in range(way.index, len(argv)):
            if (
                self._binds
                or self._admits_key(way, argv, at, values) is None
                or (found >= 0 and found != self.found)
            ):
                self.missed = None
                self.why = KEYS
                return None
            found = self.found
        return way

    @property
    def admits_transactions(self) -> bool:
        """Whether nothing is wrong with MULTI and EXEC, as far as they themselves go."""
        if self._transactions < 0:
            alone = (self._evaluator.admits_alone(self.service, name) for name in (b"MULTI", b"EXEC"))
            self._transactions = all(alone)
        return self._transactions == 1

    def repeat(self, argv: list[bytes]) -> Repeat | None:
        """What is found wrong with each command like the one that was missed last, if that is known. `found`
        says what such a command means for its key's time to live."""
        way = self.missed
        if way is None:
            return None
        try:
            repeat = self._repeat(way, argv)
        except Exception:
            return None  # the decider will meet the same, and tell of it
        if repeat is None or not repeat.live:
            return None
        self.found = repeat.found
        return repeat

    def _repeat(self, way: CommandForm, argv: list[bytes]) -> Repeat | None:
        slot = self._slot(way, argv)
        if slot == _UNTOLD:
            return None
        if self._is_covered(self.target):
            return way.repeats.get(slot)
        shaped = way.shaped.get(slot)
        return shaped.get(skeleton(argv[way.index])) if shaped is not None else None

    def repeat_in(self, data: bytes, key_at: int, key_end: int) -> Repeat | None:
        """As `repeat`, for a request that `admits_in` has missed; where nothing of what it writes has to be
        looked at, and it passes."""
        way, target = self.missed, self.target
        if way is None or (target >= 0 and way.looks.get(target, _UNASKED) != 0):
            return None
        if self._is_covered(target):
            repeat = way.repeats.get(target)
        else:
            shaped = way.shaped.get(target)
            repeat = shaped.get(skeleton(data[key_at:key_end])) if shaped is not None else None
        if repeat is None or not repeat.live or repeat.refusal is not None:
            return None
        self.found = repeat.found
        return repeat

    def may_repeat(self, argv: list[bytes]) -> bool:
        """Whether the command that was missed last is of those that can be told from others that may be wrong
        in other ways."""
        way = self.missed
        if way is None or self._slot(way, argv) == _UNTOLD:
            return False
        return self._is_covered(self.target) or skeleton(argv[way.index]) != b""

    def remember(self, argv: list[bytes], repeat: Repeat) -> None:
        """The same is wrong with each command like the one that was missed last, of which `may_repeat` says
        yes."""
        way = self.missed
        if way is None:
            return
        if len(self._kept) >= MAX_REPEATS:
            for one in self._kept:
                one.repeats.clear()
                one.shaped.clear()
            self._kept.clear()
        self._kept.append(way)
        slot = self._slot(way, argv)
        if self._is_covered(self.target):
            way.repeats[slot] = repeat
        else:
            way.shaped.setdefault(slot, {})[skeleton(argv[way.index])] = repeat

    def refusal(self, repeat: Repeat, argv: list[bytes]) -> bytes:
        """The reply to a command that is one of `repeat`'s, which are refused; empty where there is none."""
        way, target = self.missed, self.target
        if way is None or repeat.refusal is None:
            return b""
        try:
            shown = shown_in(self.policy, argv[way.index], self.targets[target] if target >= 0 else None)
            return shown.encode("utf-8", "backslashreplace").join(repeat.refusal)
        except Exception:
            return b""  # the decider will meet the same, and tell of it

    def _is_covered(self, target: int) -> bool:
        """Whether violations on the keys of this target are counted together, not by the keys' shapes."""
        return target >= 0 and self._covers[target] != 0

    def _slot(self, way: CommandForm, argv: list[bytes]) -> int:
        """A number for the target of the command missed last, and for what is wrong with what it writes
        there; _UNTOLD where that takes a closer look, or its key's name is wrong."""
        target = self.target
        if target < 0:
            return target
        looks = way.looks.get(target, _UNASKED)
        if looks == _UNASKED:
            looks = way.looks[target] = self._must_look(way, self.targets[target])
        if looks == 0:
            return target
        faults = -1 if looks < 0 else self._faults(way, looks, target, argv, way.index)
        return _UNTOLD if faults < 0 else faults * len(self.targets) + target

    def _must_look(self, way: CommandForm, target: Target) -> int:
        """What has to be looked at of a command of this way on a target: the name, the value, the fields; -1:
        something else, too."""
        more = self._looks_at(way, target.entry) if target.kind in ("entry", "scope") else 0
        return -1 if more < 0 else more + (0 if target.names_sure else _NAME)

    def _looks_at(self, way: CommandForm, entry: Entry | None) -> int:
        """The same of what the command writes."""
        if entry is None or not way.shows_content or not entry.looks_into_values:
            return 0
        if way.value_at:
            return _VALUE if entry.values is not None or entry.max_value is not None else 0
        if way.fields_at:
            sized = entry.max_value is not None or entry.max_fields is not None
            return _FIELDS if entry.fields is not None or sized else 0
        looks = looks_at_elements(way.name, entry)
        return -1 if looks is None else _VALUE if looks else 0

    def _way(self, name: bytes) -> CommandForm | None:
        one = ONE_KEY.get(name)
        if one is None:
            return self._keyless(name)
        way = None
        command = one.command.name
        if command in self._among and (not one.options_decide or command in _KINDS):
            kind = _SEVERAL if one.may_have_more else _KINDS.get(command, _CONSTANT)
            way = CommandForm(one, kind, len(self.targets), name)
        self._ways[name] = way
        return way

    def _keyless(self, name: bytes) -> CommandForm | None:
        """The way of a command that touches nothing, if nothing is wrong with it."""
        command = KEYLESS.get(name)
        if command is None:
            return None  # not remembered: names are the client's to word
        way = None
        if command.name in self._among and self._evaluator.admits_alone(self.service, name):
            way = CommandForm(OneKey(command, 0, False, False, False), _KEYLESS, 0, name)
        self._ways[name] = way
        return way

    def _form(self, way: CommandForm, argv: list[bytes]) -> CommandForm | None:
        """The way for the options that this call has; None for one that is rare."""
        size = len(argv)
        if way.kind == _BEHIND_VALUE:
            if size == 3:
                options: tuple[bytes, ...] = ()
            elif size > 3 + LONGEST_FORM:
                return None
            else:
                options = tuple(argv[3:])
        elif way.kind == _BEHIND_KEY:
            if size > 2 + LONGEST_FORM:
                return None
            options = tuple(argv[2:])
        elif way.kind == _BEFORE_VALUE:
            if size != 4:
                return None
            options = (argv[2],)
        elif way.kind == _SCORED:
            options = options_before_scores(argv)
            if len(options) == LONGEST_FORM:
                return None
        elif size > 2 and argv[2] == b"*":
            options = ()
        elif size <= _XADD_ID or argv[_XADD_ID] != b"*":
            return None
        else:
            options = tuple(argv[2:_XADD_ID])
        if options in way.forms:
            found = way.forms[options]
            if found is not None:
                way.recent = found
            return found
        if len(way.forms) >= MAX_FORMS or max(map(len, options), default=0) > 32:
            return None
        form: CommandForm | None = CommandForm(way.one, way.kind, len(self.targets), way.spelled)
        if form is not None and way.kind == _XADD:
            form.fields_at = 3 + len(options)
            if options and not is_trimmed(options):
                form = None
        if form is not None:
            form.written = b"".join([b"$%d\r\n%b\r\n" % (len(option), option) for option in options])
            way.recent = form
        way.forms[options] = form
        return form

    def _ask(self, way: CommandForm, target: int, argv: Sequence[bytes]) -> int:
        """Ask the decider about a form and a target, and remember what it says."""
        touches = extract(argv[: way.index + 1] if way.kind == _SEVERAL else argv)
        known = _UNSURE
        if touches.command is not None and [one.position for one in touches.accesses] == [way.index]:
            known = self._answer(way, touches.command, touches.accesses[0], self.targets[target])
        way.known[target] = known
        return known

    def _answer(self, way: CommandForm, command: Command, access: Access, target: Target) -> int:
        doubts, found = self._evaluator.standing_of_all(self.service, command, access, target)
        if doubts & ~(checks.NAME | checks.CONTENT | checks.OPEN) or found > _MOST_OUTCOMES:
            return _UNSURE
        known = found * _OUTCOME + (0 if target.names_sure else _NAME)
        entry = target.entry
        more = self._looks_at(way, entry)
        if more < 0 or (way.kind == _XADD and entry is not None and not trims(access, entry)):
            return _UNSURE
        return known + more

    def _faults(self, way: CommandForm, looks: int, target: int, argv: list[bytes], at: int) -> int:
        """Look at what isn't the same for every command of the form: the name of the key at `at`, the value,
        the fields. 0: all is right; else a number for how much of which kind is wrong with what is written;
        -1: the name is wrong, or there is too much to tell."""
        what = self.targets[target]
        if looks & _NAME and not self._evaluator.is_well_named(argv[at], what):
            return -1
        if not looks & (_VALUE | _FIELDS):
            return 0
        entry = what.entry
        if entry is None:
            return -1
        if looks & _VALUE:
            if way.value_at == 0:
                return 0 if _are_few_and_short(argv, at + 1, 1, entry.max_value, entry.max_members) else -1
            if way.value_at >= len(argv):
                return -1
            value = argv[way.value_at]
            if not self._sized[target] and entry.values is not None:
                return 0 if _has_form(value, entry.values) else 1
            wrong = entry.values is not None and not _has_form(value, entry.values)
            too_long = entry.max_value is not None and len(value) > entry.max_value
            return (1 if wrong else 0) + (2 if too_long else 0)
        if self._sized[target] and not _are_few_and_short(
            argv, way.fields_at + 1, 2, entry.max_value, entry.max_fields
        ):
            return -1
        return self._faults_of_fields(target, entry.fields, argv, way.fields_at) if entry.fields else 0

    def _faults_of_fields(self, target: int, fields: Fields | None, argv: list[bytes], at: int) -> int:
        """The same for the pairs from `at` on: how many values are wrong, how many fields not listed."""
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


def _are_few_and_short(
    argv: list[bytes], start: int, step: int, longest: int | None, most: int | None
) -> bool:
    """Whether the arguments from `start` on, `step` apart, are surely within limits."""
    if most is not None and len(argv) - start > most * step:
        return False
    return longest is None or max(map(len, argv[start::step]), default=0) <= longest


def _has_form(value: bytes, form: Form) -> bool:
    return _is_plain_number(value, form.digits) or bool(form.accepts(value))


def _is_plain_number(value: bytes, most: int) -> bool:
    """Whether these are decimal digits, one at least and so many at most."""
    size = len(value)
    if size == 0 or size > most:
        return False
    for byte in value:  # noqa: SIM110 - a loop in C, where it is compiled
        if byte < _ZERO or byte > _NINE:
            return False
    return True


def _stands(text: bytes, data: bytes, start: int, end: int) -> bool:
    """Whether `text` is what stands in `data` from `start` to `end`, a span within it."""
    size = len(text)
    if end - start != size or end > len(data) or start < 0:
        return False
    one, other = text, data
    for at in range(size):  # noqa: SIM110 - a loop in C, where it is compiled
        if one[at] != other[start + at]:
            return False
    return True
