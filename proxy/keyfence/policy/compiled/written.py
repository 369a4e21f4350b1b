# cython: annotation_typing=False, boundscheck=False, wraparound=False
"""The requirements of an entry on the values, fields and elements that a command writes, ready to be checked
in the bytes where these lie.

Rule: a requirement is checked here only if `DECLARED` says so, and then a fault is counted exactly if the
evaluator finds it (`engine.content`). Automata accept most values without an object for each; only what they
do not accept is checked in Python.

All indexes are in bounds: `places` has two numbers for each of `count` arguments, and each argument's number
is below `count`; a field's number comes from the automaton of this very list.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from functools import lru_cache

from keyfence.commands.cache_forms import ELEMENTS, FIELDS, LENGTH, VALUE, Layout
from keyfence.policy.patterns.automaton import Classifier
from keyfence.policy.patterns.determinize import TooManyStates, classify
from keyfence.policy.patterns.expressions import escape, parse_class
from keyfence.policy.patterns.patterns import Hole, KeyPattern, exact_pattern
from keyfence.policy.patterns.set_operations import TooLarge, overlap
from keyfence.policy.patterns.value_forms import Form

from .policy import Entry

MOST_FAULTS = 15  # faults of one kind in one command that are counted exactly
MAX_STATES = 4_096  # of one automaton; forms that need more are checked in Python
MAX_AUTOMATA = 4_096

# How the decision cache checks a requirement in commands that write one kind of content (`cache_forms`).
IN_THE_BYTES = "in the bytes"  # `WrittenCheck` finds every fault
BY_THE_FORM = "by the form"  # options decide, so the evaluator's answer holds for all commands of the form
UNTOUCHED = "untouched"  # such commands write nothing that the requirement is about
_KINDS = (VALUE, FIELDS, ELEMENTS, LENGTH)


def _checked(*kinds: int, way: str = IN_THE_BYTES) -> dict[int, str]:
    return dict.fromkeys(_KINDS, UNTOUCHED) | dict.fromkeys(kinds, way)


# By requirement and kind of content. The cache gives up on commands on an entry that has a requirement for
# which nothing is declared.
DECLARED: Mapping[str, Mapping[int, str]] = {
    "values": _checked(VALUE),
    "fields": _checked(FIELDS),
    "members": _checked(ELEMENTS),
    "scores": _checked(ELEMENTS),
    "max_value": dict.fromkeys((VALUE, FIELDS, ELEMENTS), IN_THE_BYTES),
    "max_fields": _checked(FIELDS),
    "max_members": _checked(ELEMENTS),
    "maxlen": _checked(FIELDS, way=BY_THE_FORM),
}

# As C integers when compiled.
_VALUE, _FIELDS, _ELEMENTS, _MOST_FAULTS = VALUE, FIELDS, ELEMENTS, MOST_FAULTS
_ZERO, _NINE, _MINUS, _POINT = 48, 57, 45, 46
_SAFE_DIGITS = 15  # a double represents every integer of this many digits exactly


def _may_hold_a_case_of(names: Iterable[bytes], pattern: KeyPattern) -> bool:
    """Whether a pattern may match one of these names in some mix of upper and lower case."""
    for name in names:
        letters = (bytes((byte,)) for byte in name)
        text = "".join(
            f"[{one.lower().decode()}{one.upper().decode()}]" if one.isalpha() else escape(one)
            for one in letters
        )
        in_any_case = KeyPattern(text, (Hole("name", parse_class(text)),))
        try:
            if overlap(pattern, in_any_case) is not None:
                return True
        except TooLarge:
            return True
    return False


@lru_cache(MAX_AUTOMATA)
def _classifier(patterns: tuple[KeyPattern, ...]) -> Classifier | None:
    """The automaton of these patterns, for all entries that have them; None if it would be too large."""
    try:
        return classify(patterns, MAX_STATES)
    except TooManyStates:
        return None


def can_check(entry: Entry, content: int) -> bool:
    """Whether the cache can check everything that an entry requires of commands that write this content."""
    return all(content in DECLARED.get(item, {}) for item in entry.on_content)


def checked_by(way: str, entry: Entry, content: int) -> list[str]:
    """The requirements of an entry that are checked in this way in commands that write this content."""
    return [item for item in entry.on_content if DECLARED.get(item, {}).get(content) == way]


class FormCheck:
    """Checks values against one form."""

    def __init__(self, form: Form) -> None:
        pattern = form.pattern()
        self._accepts = form.accepts
        self._classifier = _classifier((pattern,)) if pattern is not None else None

    def accepts(self, data: bytes, start: int, end: int) -> bool:
        """Whether `data[start:end]` has the form."""
        if self._classifier is not None and self._classifier.first_in(data, start, end) >= 0:
            return True
        raw = data
        return bool(self._accepts(raw[start:end]))


def _check_of(form: Form | None) -> FormCheck | None:
    return FormCheck(form) if form is not None and form.restricts else None


class Arrangement:
    """How a command lists what it writes."""

    def __init__(self, layout: Layout) -> None:
        self.step = layout.step
        self.last = layout.last
        self.is_single = layout.is_single
        self.is_scored = layout.is_scored


class WrittenCheck:
    """Checks what commands write to an entry's keys: values, fields, or elements."""

    def __init__(self, entry: Entry, content: int) -> None:
        """`content` is what the commands write: VALUE, FIELDS or ELEMENTS of `cache_forms`."""
        self._content = content
        items = checked_by(IN_THE_BYTES, entry, content)
        self._form: FormCheck | None = None  # of the value, or of each element
        self._fields = entry.fields if "fields" in items else None
        self._names: Classifier | None = None  # of the fields' names
        self._forms: list[FormCheck | None] = []  # for each of these names, the form of its value …
        self._numbers: dict[int, int] = {}  # … and its place in this list, by the form's id
        self._scores = entry.scores if "scores" in items else None
        self._low, self._high = (self._scores.low, self._scores.high) if self._scores else (0.0, 0.0)
        self._longest = entry.max_value if "max_value" in items and entry.max_value is not None else -1
        self._most = -1
        for item in ("max_fields", "max_members"):
            if item in items:
                self._most = getattr(entry, item)
        for item in ("values", "members"):
            if item in items:
                self._form = _check_of(getattr(entry, item))
        if self._fields is not None:
            self._read_fields()
        parts = (self._form, self._fields, self._scores)
        self.requires = any(part is not None for part in parts) or max(self._most, self._longest) >= 0

    def _read_fields(self) -> None:
        fields = self._fields
        if fields is None:
            return
        forms = [*fields.named.values(), *(form for _, form in fields.patterned)]
        self._forms = [_check_of(form) for form in forms]
        self._numbers = {id(form): number for number, form in enumerate(forms)}
        names = [exact_pattern(name) for name in fields.named]
        for of_name, _ in fields.patterned:
            pattern = of_name.regular
            if not isinstance(pattern, KeyPattern):
                break  # the names of later patterns may be of this one
            if fields.exact and _may_hold_a_case_of(fields.named, pattern):
                break  # such a name is a fault
            names.append(pattern)
        self._names = _classifier(tuple(names))

    def faults(self, data: bytes, places: array[int], count: int, at: int, arrangement: Arrangement) -> int:
        """Checks what a command of `count` arguments writes; `places` holds where each begins and ends in
        `data`.

        The first value, field or element is argument `at`, and each next one begins `step` arguments further.
        An element has its score first, and a field its name. `last` is the offset of the last argument that
        belongs to one. 0: nothing is wrong. -1: more is wrong than the result can express. Otherwise it
        encodes the number of unknown fields, or of values that are too long, and that of invalid values.
        """
        step, last = arrangement.step, arrangement.last
        has_value = self._content != _FIELDS or last > 0
        if self._most >= 0 and count - at > self._most * step:
            return -1
        unknown = wrong = 0
        while at + last < count:
            form = self._form
            if self._fields is not None:
                number = self._field(data, places[2 * at], places[2 * at + 1])
                if number < -1:
                    return -1
                if number < 0:
                    unknown += 1
                else:
                    form = self._forms[number]
            if has_value:
                start, end = places[2 * (at + last)], places[2 * (at + last) + 1]
                if self._longest >= 0 and end - start > self._longest:
                    if self._content != _VALUE:
                        return -1
                    unknown += 1
                if form is not None and not form.accepts(data, start, end):
                    wrong += 1
            if arrangement.is_scored and not self._is_in_range(data, places[2 * at], places[2 * at + 1]):
                return -1
            if arrangement.is_single:
                break
            at += step
        if unknown > _MOST_FAULTS or wrong > _MOST_FAULTS or (wrong and self._content == _ELEMENTS):
            return -1
        return unknown * (_MOST_FAULTS + 1) + wrong

    def _field(self, data: bytes, start: int, end: int) -> int:
        """The number of a field's form. -1: it is not listed; -2: a listed one differs only in case, and the
        policy counts that as another fault."""
        if self._names is not None:
            number = self._names.first_in(data, start, end)
            if number >= 0:
                return number
        fields, raw = self._fields, data
        name = raw[start:end]
        form = fields.form_of(name) if fields is not None else None
        if form is not None:
            return self._numbers[id(form)]
        return -2 if fields is not None and fields.exact and fields.meant(name) is not None else -1

    def _is_in_range(self, data: bytes, start: int, end: int) -> bool:
        """Whether a score is in the entry's range. Plain numbers are read as C's strtod reads them: the
        quotient of two integers that doubles represent exactly is the nearest double."""
        scores = self._scores
        if scores is None:
            return True
        raw = data
        at = start
        negative = at < end and raw[at] == _MINUS
        if negative:
            at += 1
        number = 0
        digits = 0
        divisor = 0.0
        while at < end and digits <= _SAFE_DIGITS:
            byte = raw[at]
            if _ZERO <= byte <= _NINE:
                number = number * 10 + (byte - _ZERO)
                digits += 1
                divisor *= 10.0
            elif byte == _POINT and divisor == 0.0:
                divisor = 1.0
            else:
                break
            at += 1
        if at < end or digits == 0 or digits > _SAFE_DIGITS:
            return scores.accepts(raw[start:end])
        value = float(number) if divisor == 0.0 else number / divisor
        if negative:
            value = -value
        return self._low <= value <= self._high
