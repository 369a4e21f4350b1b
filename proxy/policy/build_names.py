"""The naming rules as one automaton.

Rule: every rule but those about lengths is a regular language, taken whole (no counter is left out), so that
the automaton alone decides; and whether an entry's keys can break a rule at all is found out here, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .build_automaton import TooManyStates, build
from .builtin_classes import class_named
from .diagnostics import did_you_mean
from .draft import Draft
from .matching import Simulation
from .model import HashTag, NameRules
from .names import Check, LengthLimit, Names, hash_tag_fault
from .patterns import ClassExpression, KeyPattern, PatternError
from .regular import (
    ANY_BYTE,
    EMPTY,
    SEPARATOR_MASK,
    UNBOUNDED,
    Bytes,
    Concat,
    Node,
    Repeat,
    concat,
    either,
    literal,
    longest,
    nullable,
    repeat,
    shortest,
)
from .verdict import Severity

MAX_STATES = 20_000
MAX_COMPARED = 20_000  # joint states, for an entry against the rules

_CAPITALS = sum(1 << byte for byte in range(ord("A"), ord("Z") + 1))
_WORD_BYTES = sum(1 << byte for byte in b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_ANYTHING = Repeat(Bytes(ANY_BYTE), 0, None)
_LEVEL = Repeat(Bytes(ANY_BYTE & ~SEPARATOR_MASK), 0, None)
_FILLED_LEVEL = Repeat(Bytes(ANY_BYTE & ~SEPARATOR_MASK), 1, None)
_SEPARATOR = Bytes(SEPARATOR_MASK)


class _Language(KeyPattern):
    """A language that the automaton takes as it is, its counters unrolled."""

    def __init__(self, node: Node) -> None:
        super().__init__("", ())
        self.__dict__["node"] = node
        self.__dict__["relaxed"] = node


def build_names(draft: Draft) -> Names:
    """The policy's naming rules, with faults noted in the draft."""
    found: list[tuple[Check, Node]] = []
    limits: list[LengthLimit] = []
    model = draft.model.names
    groups: tuple[tuple[Severity, NameRules, tuple[str, ...]], ...] = (
        ("must", model, ("names",)),
        ("should", model.should, ("names", "should")),
    )
    for severity, rules, path in groups:
        found.extend(_Rules(draft, severity, rules, path).checks())
        if rules.max_length is not None:
            limits.append(LengthLimit(severity, rules.max_length))
    automaton = None
    if found and not draft.faults:
        try:
            automaton = build([_Language(node) for _, node in found], MAX_STATES)
        except TooManyStates:
            draft.error(("names",), f"the naming rules need more than {MAX_STATES} states", of_key=True)
    return Names([check for check, _ in found], automaton, limits)


class _Rules:
    """One group of naming rules, as languages."""

    def __init__(self, draft: Draft, severity: Severity, rules: NameRules, path: tuple[str, ...]) -> None:
        self.draft = draft
        self.severity = severity
        self.rules = rules
        self.path = path

    def checks(self) -> Iterator[tuple[Check, Node]]:
        # In the order in which they are told: what holds of every byte first.
        rules, severity = self.rules, self.severity
        if rules.charset is not None:
            allowed = self._class(rules.charset, "charset")
            if allowed is not None and (shortest(allowed.node), longest(allowed.node)) != (1, 1):
                self._error("charset", f"{rules.charset!r}: write a class for one byte, as [a-z0-9:_]")
            elif allowed is not None:
                yield Check("charset", severity, text=rules.charset), Repeat(allowed.node, 0, None)
        if rules.lowercase:
            yield Check("lowercase", severity), Repeat(Bytes(ANY_BYTE & ~_CAPITALS), 0, None)
        if rules.levels is not None:
            least, most = rules.levels.min or 0, rules.levels.max
            if most is not None and least > most:
                self._error("levels", "min is above max: no name would do")
            yield Check("levels", severity, least=least, most=most), _levels(least, most)
        if rules.level is not None:
            level = self._level_class(rules.level, "level")
            if level is not None:
                yield Check("level", severity, text=rules.level, level=level), _joined(level.node)
        if rules.after:
            yield from self._after()
        if rules.avoid:
            yield from self._avoid()

    def _after(self) -> Iterator[tuple[Check, Node]]:
        marks = []
        for mark, text in self.rules.after.items():
            if not mark or ":" in mark:
                message = f"{mark!r} is no level of a key; write the word between two colons"
                self._error("after", message, mark)
            form = self._level_class(text, "after", mark)
            if form is not None:
                marks.append((mark, form))
        other = _other_than([mark.encode() for mark, _ in marks])
        pairs = [concat([literal(mark.encode()), _SEPARATOR, form.node]) for mark, form in marks]
        yield Check("after", self.severity, after=tuple(marks)), _joined(either([other, *pairs]))

    def _avoid(self) -> Iterator[tuple[Check, Node]]:
        words = []
        for word, better in self.rules.avoid.items():
            if not word.isascii() or not word.isalnum():
                self._error("avoid", f"{word!r} is no abbreviation; use letters and digits", word)
                continue
            words.append((word, better))
        if not words:
            return
        no_word = Bytes(ANY_BYTE & ~_WORD_BYTES)
        before = either([EMPTY, concat([_ANYTHING, no_word])])
        behind = either([EMPTY, concat([no_word, _ANYTHING])])
        node = concat([before, either([literal(word.encode()) for word, _ in words]), behind])
        yield Check("avoid", self.severity, forbids=True, avoid=tuple(words)), node

    def _class(self, text: str, *at: str) -> ClassExpression | None:
        """A class by its name, as <placeholder>, or as an expression."""
        if text.startswith("<") and text.endswith(">"):
            known = self.draft.classes.get(text[1:-1])
            if known is None:
                near = did_you_mean(text[1:-1], self.draft.classes)
                self._error(at[0], f"{text} is not declared under placeholders{near}", *at[1:])
            return known
        try:
            return class_named(text)
        except PatternError as exc:
            self._error(at[0], f"{text!r}: {exc}", *at[1:])
            return None

    def _level_class(self, text: str, *at: str) -> ClassExpression | None:
        found = self._class(text, *at)
        if found is not None and found.alphabet & SEPARATOR_MASK:
            self._error(at[0], f"{text!r} may hold a colon, which no level does", *at[1:])
            return None
        return found

    def _error(self, field: str, message: str, *below: str) -> None:
        self.draft.error((*self.path, field, *below), message)


def _joined(level: Node) -> Node:
    """One level or more, with the separator between; a level may be empty where `level` admits that."""
    return concat([level, Repeat(concat([_SEPARATOR, level]), 0, None)])


def _levels(least: int, most: int | None) -> Node:
    level = _FILLED_LEVEL if least else _LEVEL
    more = concat([_SEPARATOR, level])
    return concat([level, repeat(more, max(least - 1, 0), None if most is None else most - 1)])


def _other_than(words: Sequence[bytes]) -> Node:
    """Every level, the empty one too, but these."""
    ends = b"" in words
    heads = sorted({word[0] for word in words if word})
    others = ANY_BYTE & ~SEPARATOR_MASK & ~sum(1 << head for head in heads)
    ways: list[Node] = [] if ends else [EMPTY]
    ways.append(concat([Bytes(others), _LEVEL]))
    for head in heads:
        rest = _other_than([word[1:] for word in words if word and word[0] == head])
        ways.append(Concat((Bytes(1 << head), rest)))
    return either(ways)


class Against(NamedTuple):
    """How the keys of a pattern stand to the naming rules."""

    some_keep: bool
    some_break: bool


def compare(pattern: KeyPattern, names: Names) -> Against:
    """Whether keys of a pattern can keep and can break what the automaton asks. Long counters are left out;
    both are said to be possible where the question is too large."""
    automaton = names.automaton
    if automaton is None:
        return Against(True, False)
    simulation = Simulation(pattern.relaxed)
    by_reader: dict[tuple[int, int], int] = {}
    for byte in range(256):
        by_reader.setdefault((simulation.readers(byte), automaton.classes[byte]), byte)
    kinds = [byte for (readers, _), byte in by_reader.items() if readers]
    start = (simulation.START, automaton.start)
    seen = {start}
    queue = [start]
    keep = broken = False
    for state, place in queue:  # grows while it is walked
        if state & simulation.last:
            clean = names.accepts_cleanly(automaton.accept_of(place))
            keep, broken = keep or clean, broken or not clean
            if keep and broken:
                break
        row = automaton.successors(place)
        for byte in kinds:
            after = simulation.step(state, byte), row[automaton.classes[byte]]
            if after[0] and after not in seen:
                if len(seen) >= MAX_COMPARED:
                    return Against(True, True)
                seen.add(after)
                queue.append(after)
    return Against(keep, broken)


def surely_named(pattern: KeyPattern, names: Names) -> bool:
    """Whether every key of the pattern keeps all naming rules, so that none need be asked."""
    limit = names.shortest_limit
    if limit is not None and pattern.longest > min(limit, UNBOUNDED - 1):
        return False
    return not compare(pattern, names).some_break


_BRACES = 1 << ord("{") | 1 << ord("}")


def surely_tagged(pattern: KeyPattern, wanted: HashTag) -> bool:
    """Whether every key of the pattern has the hash tag that it must have: literal braces make it, around
    what is never empty."""
    if wanted == "any":
        return True
    if any(hole.expression.alphabet & _BRACES or nullable(hole.expression.node) for hole in pattern.holes):
        return False
    return hash_tag_fault(pattern.example(), wanted) is None
