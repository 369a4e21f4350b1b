"""Compiles the naming rules into automata: one for each rule, and their product, which accepts names that
keep all rules.

Rule: every rule except those about lengths is a regular language, and the automaton has all its counters, so
the product alone decides. Whether an entry's keys can break a rule at all is computed here, once.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from keyfence.policy.compiled.names import Check, Kind, LengthLimit, Names, hash_tag_fault
from keyfence.policy.compiled.policy import Target
from keyfence.policy.patterns.automaton import DEAD, NODE, NOTHING, Automaton
from keyfence.policy.patterns.classes import class_named
from keyfence.policy.patterns.determinize import TooManyStates, build, byte_classes
from keyfence.policy.patterns.matching import Simulation
from keyfence.policy.patterns.patterns import ClassExpression, Hole, KeyPattern, Literal, PatternError
from keyfence.policy.patterns.regular import (
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
from keyfence.policy.source.model import HashTag, NameRules
from keyfence.policy.verdict import Severity

from .context import CompilerContext

MAX_STATES = 20_000
MAX_COMPARED = 20_000  # joint states of an entry and the rules

_CAPITALS = sum(1 << byte for byte in range(ord("A"), ord("Z") + 1))
_WORD_BYTES = sum(1 << byte for byte in b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_ANYTHING = Repeat(Bytes(ANY_BYTE), 0, None)
_LEVEL = Repeat(Bytes(ANY_BYTE & ~SEPARATOR_MASK), 0, None)
_FILLED_LEVEL = Repeat(Bytes(ANY_BYTE & ~SEPARATOR_MASK), 1, None)
_SEPARATOR = Bytes(SEPARATOR_MASK)


class _Unrolled(ClassExpression):
    """A language that the automaton takes with all its counters."""

    @cached_property
    def relaxed(self) -> Node:
        return self.node


def build_names(context: CompilerContext) -> Names:
    """Builds the policy's naming rules; faults are recorded in the context."""
    found: list[Check] = []
    limits: list[LengthLimit] = []
    model = context.model.names
    groups: tuple[tuple[Severity, NameRules, tuple[str, ...]], ...] = (
        ("must", model, ("names",)),
        ("should", model.should, ("names", "should")),
    )
    for severity, rules, path in groups:
        try:
            found.extend(_Rules(context, severity, rules, path).checks())
        except TooManyStates:
            context.error(path, f"a naming rule needs more than {MAX_STATES} states", of_key=True)
        if rules.max_length is not None:
            limits.append(LengthLimit(severity, rules.max_length))
    automaton = None

    if found and not context.faults:
        automaton = _all_kept(found)
        if automaton is None:
            context.error(("names",), f"the naming rules need more than {MAX_STATES} states", of_key=True)
    rest = [check for check in found if check.kind != "lowercase"]
    if automaton is None or len(rest) == len(found):
        return Names(found, automaton, limits)
    return Names(found, automaton, limits, Names(rest, _all_kept(rest) if rest else None, limits))


def has_capitals(target: Target) -> bool:
    """Whether a pattern's own text has capital letters. Values of bound placeholders do not count."""
    texts = [part.text for part in target.pattern.parts if isinstance(part, Literal)]
    for _, value in target.bound:
        texts = [text.replace(value, b"") for text in texts]
    return any(_CAPITALS >> byte & 1 for text in texts for byte in text)


def _all_kept(checks: Sequence[Check]) -> Automaton | None:
    """Returns the automaton of the names that keep every rule; None if it would be too large.

    It rejects a name as soon as one rule is broken for good. Otherwise it would need states for all
    combinations of broken rules.
    """
    hopeful = [_hopeful(check) for check in checks]
    classes = byte_classes(_masks(one.classes for one in (check.automaton for check in checks)))
    bytes_in_turn = [classes.index(number) for number in range(max(classes) + 1)]
    start = tuple(check.automaton.start for check in checks)
    numbers = {start: 1}  # 0 is the dead state
    queue = [start]
    moves: list[list[int]] = [[0] * len(bytes_in_turn)]
    accepts = [NOTHING]
    for states in queue:  # grows while it is walked
        kept = all(
            (check.automaton.accept_of(state) >= 0) != check.forbids
            for check, state in zip(checks, states, strict=True)
        )
        accepts.append(0 if kept else NOTHING)
        rows = [check.automaton.successors(state) for check, state in zip(checks, states, strict=True)]
        move = []
        for byte in bytes_in_turn:
            after = tuple(row[check.automaton.classes[byte]] for row, check in zip(rows, checks, strict=True))
            if not all(state in hope for state, hope in zip(after, hopeful, strict=True)):
                move.append(0)
                continue
            if after not in numbers:
                if len(numbers) >= MAX_STATES:
                    return None
                numbers[after] = len(numbers) + 1
                queue.append(after)
            move.append(numbers[after])
        moves.append(move)
    return _tables(classes, moves, accepts)


def _hopeful(check: Check) -> frozenset[int]:
    """Returns the states of a rule's automaton from which a name can still keep the rule."""
    automaton = check.automaton
    before: dict[int, set[int]] = {}
    places = range(0, automaton.states * NODE, NODE)
    for state in places:
        for after in automaton.successors(state):
            before.setdefault(after, set()).add(state)
    reached = {state for state in places if (automaton.accept_of(state) >= 0) != check.forbids}
    queue = list(reached)
    for state in queue:  # grows while it is walked
        fresh = before.get(state, set()) - reached
        reached |= fresh
        queue.extend(fresh)
    return frozenset(reached)


def _minimal(automaton: Automaton) -> Automaton:
    """Returns the smallest automaton of the same language (Moore's algorithm), to keep the product small."""
    places = range(0, automaton.states * NODE, NODE)
    moves = [[after // NODE for after in automaton.successors(state)] for state in places]
    block_of = [int(automaton.accept_of(state) >= 0) for state in places]
    while True:
        kinds: dict[tuple[int, ...], int] = {}
        finer = [
            kinds.setdefault((block_of[at], *[block_of[after] for after in moves[at]]), len(kinds))
            for at in range(len(moves))
        ]
        if max(finer) == max(block_of):
            break
        block_of = finer
    if block_of[0] == block_of[1]:
        return automaton  # the start is equal to the dead state: no name is accepted
    # Tables have the dead state's block first, then the start's.
    first_of = {block: at for at, block in reversed(list(enumerate(block_of)))}
    number = {block: new for new, block in enumerate(dict.fromkeys(block_of))}
    small = [[number[block_of[after]] for after in moves[first_of[block]]] for block in number]
    accepts = [0 if automaton.accept_of(first_of[block] * NODE) >= 0 else NOTHING for block in number]
    return _tables(automaton.classes, small, accepts)


def _masks(all_classes: Iterable[bytes]) -> Iterator[int]:
    for classes in all_classes:
        for number in range(max(classes) + 1):
            yield sum(1 << byte for byte in range(256) if classes[byte] == number)


def _tables(classes: bytes, moves: Sequence[Sequence[int]], accepts: Sequence[int]) -> Automaton:
    rows: dict[tuple[int, ...], int] = {}
    nodes = array("i")
    for move, accept in zip(moves, accepts, strict=True):
        row = tuple([NODE * state for state in move])
        at = rows.setdefault(row, len(rows) * len(row))
        nodes.extend((-1, DEAD, at, accept))
    return Automaton(classes, nodes, array("i", [state for row in rows for state in row]), ((0,),))


class _Rules:
    """One group of naming rules."""

    def __init__(
        self, context: CompilerContext, severity: Severity, rules: NameRules, path: tuple[str, ...]
    ) -> None:
        self.context = context
        self.severity = severity
        self.rules = rules
        self.path = path

    def checks(self) -> Iterator[Check]:
        # In the order in which messages list them: rules about every byte first.
        rules = self.rules
        if rules.charset is not None:
            allowed = self._class(rules.charset, "charset")
            if allowed is not None and (shortest(allowed.node), longest(allowed.node)) != (1, 1):
                self._error("charset", f"{rules.charset!r}: write a class for one byte, such as [a-z0-9:_]")
            elif allowed is not None:
                yield self._check("charset", Repeat(allowed.node, 0, None), text=allowed.text)
        if rules.lowercase:
            yield self._check("lowercase", Repeat(Bytes(ANY_BYTE & ~_CAPITALS), 0, None))
        if rules.levels is not None:
            least, most = rules.levels.min or 0, rules.levels.max
            if most is not None and least > most:
                self._error("levels", "min is above max: no name can keep this")
            yield self._check("levels", _levels(least, most), least=least, most=most)
        if rules.level is not None:
            level = self._level_class(rules.level, "level")
            if level is not None:
                yield self._check("level", _joined(level.node), text=rules.level, level=level)
        if rules.after:
            yield from self._after()
        if rules.avoid:
            yield from self._avoid()

    def _after(self) -> Iterator[Check]:
        marks = []
        for mark, text in self.rules.after.items():
            if not mark or ":" in mark:
                message = f"{mark!r} is not a level of a key; write the word between two colons"
                self._error("after", message, mark)
            form = self._level_class(text, "after", mark)
            if form is not None:
                marks.append((mark, form))
        other = _other_than([mark.encode() for mark, _ in marks])
        pairs = [concat([literal(mark.encode()), _SEPARATOR, form.node]) for mark, form in marks]
        yield self._check("after", _joined(either([other, *pairs])), after=tuple(marks))

    def _avoid(self) -> Iterator[Check]:
        words = []
        for word, better in self.rules.avoid.items():
            if not word.isascii() or not word.isalnum():
                self._error("avoid", f"{word!r} is not an abbreviation; use letters and digits", word)
                continue
            words.append((word, better))
        if not words:
            return
        no_word = Bytes(ANY_BYTE & ~_WORD_BYTES)
        before = either([EMPTY, concat([_ANYTHING, no_word])])
        after = either([EMPTY, concat([no_word, _ANYTHING])])
        node = concat([before, either([literal(word.encode()) for word, _ in words]), after])
        yield self._check("avoid", node, forbids=True, avoid=tuple(words))

    def _check(self, kind: Kind, language: Node, **details: Any) -> Check:
        automaton = build([KeyPattern("", (Hole("", _Unrolled("", language)),))], MAX_STATES)
        return Check(kind, self.severity, _minimal(automaton), **details)

    def _class(self, text: str, *at: str) -> ClassExpression | None:
        """Returns a class by its name, by <placeholder> or by an expression; None after recording a fault."""
        if text.startswith("<") and text.endswith(">"):
            known = self.context.classes.get(text[1:-1])
            if known is None:
                near = self.context.undeclared(text[1:-1])
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
            self._error(at[0], f"{text!r} may hold a colon, and a level has none", *at[1:])
            return None
        return found

    def _error(self, field: str, message: str, *below: str) -> None:
        self.context.error((*self.path, field, *below), message)


def _joined(level: Node) -> Node:
    """Returns one level or more, separated by colons. A level may be empty if `level` admits that."""
    return concat([level, Repeat(concat([_SEPARATOR, level]), 0, None)])


def _levels(least: int, most: int | None) -> Node:
    level = _FILLED_LEVEL if least else _LEVEL
    more = concat([_SEPARATOR, level])
    return concat([level, repeat(more, max(least - 1, 0), None if most is None else most - 1)])


def _other_than(words: Sequence[bytes]) -> Node:
    """Returns every level, the empty one included, except these."""
    ends = b"" in words
    heads = sorted({word[0] for word in words if word})
    others = ANY_BYTE & ~SEPARATOR_MASK & ~sum(1 << head for head in heads)
    others_here: list[Node] = [] if ends else [EMPTY]
    others_here.append(concat([Bytes(others), _LEVEL]))
    for head in heads:
        rest = _other_than([word[1:] for word in words if word and word[0] == head])
        others_here.append(Concat((Bytes(1 << head), rest)))
    return either(others_here)


class Against(NamedTuple):
    """Whether some keys of a pattern keep the naming rules, and some break them."""

    some_keep: bool
    some_break: bool


def compare(pattern: KeyPattern, names: Names) -> Against:
    """Whether keys of a pattern can keep and can break the naming rules. Long counters are left out. If the
    comparison would be too large, the answer is that both are possible."""
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
            clean = automaton.accept_of(place) >= 0
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


def surely_short(pattern: KeyPattern, names: Names) -> bool:
    """Whether no key of the pattern is too long."""
    limit = names.shortest_limit
    return limit is None or pattern.longest <= min(limit, UNBOUNDED - 1)


_BRACES = 1 << ord("{") | 1 << ord("}")


def surely_tagged(pattern: KeyPattern, wanted: HashTag) -> bool:
    """Whether every key of the pattern has the hash tag that it must have: its literal text has the braces,
    and what they enclose is never empty."""
    if wanted == "any":
        return True
    if any(hole.expression.alphabet & _BRACES or nullable(hole.expression.node) for hole in pattern.holes):
        return False
    return hash_tag_fault(pattern.example(), wanted) is None
