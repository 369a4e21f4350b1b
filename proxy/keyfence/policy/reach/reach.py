"""The reach of globs: whether every name that a glob can match is one that a service may touch.

Rule: rights decide about SCAN, KEYS, PSUBSCRIBE and similar commands, never the pattern's form. A pattern
passes if the service has the right on every name that it can match, names that break an entry's form
included.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from heapq import nsmallest
from typing import Generic, TypeVar

from keyfence.commands.arguments import glob_escape
from keyfence.commands.model import WRITE
from keyfence.policy.budget import PATTERN_STEPS, Budget
from keyfence.policy.compiled.policy import Grant, Target
from keyfence.policy.compiled.tenants import Place, Places, Values, value_in
from keyfence.policy.patterns.automaton import Classifier
from keyfence.policy.patterns.globs import Glob, Graph, KeySet, included, positions_after
from keyfence.policy.patterns.patterns import Hole, KeyPattern, Literal

MAX_CACHED = 1000
MAX_GLOB = 1024  # bytes; no answer is sought about a longer pattern

NOWHERE: frozenset[Place] = frozenset()

Holds = Callable[[Target], bool]
Question = TypeVar("Question", bound=tuple[object, ...])
Answer = TypeVar("Answer")


def holding(
    service: int, right: int, grants: Sequence[Grant], own: frozenset[Place] = NOWHERE, by: str = ""
) -> Holds:
    """Returns a function that says whether a service has a right on all keys of a target, by its rights or by
    one of these grants.

    `own` are the places where these keys have the caller's own value. `by` is the registered script that
    makes the access, "" for a plain command.
    """

    def holds(target: Target) -> bool:
        held, tenancy = target.rights[service], target.tenancy
        if tenancy is not None:
            held = tenancy.held(service, target.rights, own)
        held &= ~target.denied[service]
        if right & WRITE and not target.is_written_by(by):
            held = 0
        return bool(held & right) or any(grant.includes(target) for grant in grants)

    return holds


class Remembered(Generic[Question, Answer]):
    """Answers about patterns; at least the latest ones are kept.

    There are two generations: an answer that is used again outlives answers that are used once, however many
    these are. So a client cannot displace what others need.
    """

    def __init__(self, most: int = MAX_CACHED) -> None:
        self._most = most // 2
        self._young: dict[Question, Answer | None] = {}
        self._old: dict[Question, Answer | None] = {}

    def get(self, key: Question, budget: Budget, find: Callable[[Budget], Answer | None]) -> Answer | None:
        """Returns the answer, or finds it by `find`; None if that takes too long. None is kept too, unless
        only the rest of a budget was too small."""
        if key in self._young:
            return self._young[key]
        if key in self._old:
            answer = self._old[key]
        elif not budget.left:
            return None
        else:
            within = Budget(min(PATTERN_STEPS, budget.left))
            is_full = within.limit == PATTERN_STEPS
            glob = key[1]
            reads = len(glob) if isinstance(glob, bytes) else 0
            answer = find(within) if within.take(1 + reads) else None
            budget.take(within.spent)
            if answer is None and not is_full:
                return None
        if len(self._young) >= self._most:
            self._old, self._young = self._young, {}
        self._young[key] = answer
        return answer


class Reach:
    """Answers about one set of targets (a policy's keys, or its channels). The answers are kept."""

    def __init__(self, classifier: Classifier, targets: Sequence[Target], *, elsewhere: bool = False) -> None:
        """`elsewhere` is the answer for names of no target."""
        self.targets = targets
        self._elsewhere = elsewhere
        self._classifier = classifier
        self._graph: Graph | None = None
        self._key_sets: dict[Hashable, KeySet] = {}
        self._places = Places(target.tenancy for target in targets)
        self._has_places = any(target.tenancy is not None for target in targets)
        self._known: Remembered[tuple[Hashable, bytes, bytes], bool | None] = Remembered()

    def own_places(self, glob: bytes, values: Values) -> frozenset[Place]:
        """Returns the places at which every name that the glob can match has the caller's own value."""
        if not self._has_places:
            return NOWHERE
        parsed = Glob(glob[:MAX_GLOB])
        beginning = parsed.literal_prefix
        return self._places.own(beginning, len(beginning) == len(parsed.widest), values)

    def covers(
        self,
        glob: bytes,
        holds: Holds,
        who: Hashable,
        budget: Budget,
        *,
        behind: KeyPattern | None = None,
        own: frozenset[Place] = NOWHERE,
    ) -> bool | None:
        """Whether `holds` is true of the target of every name that the glob can match.

        `own` are the places where these names have the caller's own value. For the kept answers, `who` and
        `own` identify `holds`. So an answer is the same for all callers with their own values at these
        places.

        With `behind`, the names are what the glob can match after a name of that pattern (the key in
        `__keyspace@0__:key`). None: the answer takes more steps than the budget has left, or than one pattern
        may take.
        """
        if len(glob) > MAX_GLOB:
            return None
        return self._known.get(
            ((who, own), glob, behind.text.encode() if behind else b""),
            budget,
            lambda within: self._ask(Glob(glob), self._key_set(holds, who, own), behind, within),
        )

    def _ask(self, glob: Glob, key_set: KeySet, behind: KeyPattern | None, budget: Budget) -> bool | None:
        if behind is None:
            return included(glob, key_set, budget)
        positions = positions_after(glob, behind, budget)
        if not positions:
            return None if positions is None else True
        return included(glob, key_set, budget, positions=positions)

    def _key_set(self, holds: Holds, who: Hashable, own: frozenset[Place]) -> KeySet:
        who = (who, own)
        if who not in self._key_sets:
            if self._graph is None:
                self._graph = Graph(self._classifier.automaton)
            if len(self._key_sets) >= MAX_CACHED:
                self._key_sets.clear()
            self._key_sets[who] = KeySet(self._graph, lambda accept: self._all_hold(accept, holds, own))
        return self._key_sets[who]

    def _all_hold(self, accept: int, holds: Holds, own: frozenset[Place]) -> bool:
        """Whether `holds` is true of every target that may decide about names with this accepting state."""
        if accept < 0:
            return self._elsewhere
        for index in self._classifier.automaton.sets[accept]:
            target = self.targets[index]
            if not holds(target):
                return False
            if not _may_be_another(target, own):
                return True  # it has every such name, so the targets behind it never decide
        return self._elsewhere  # by its lengths, the name may be of no target


def _may_be_another(target: Target, own: frozenset[Place]) -> bool:
    """Whether a name that the automaton accepts for a target may have a wrong length for it. A value that is
    the caller's own has the right length."""
    if target.tenancy is None or not own:
        return target.pattern.needs_verification
    fitting = {place.name for place in target.tenancy.places if place in own}
    return any(hole.language.is_counted for hole in target.pattern.holes if hole.name not in fitting)


def scan_pattern(target: Target) -> bytes:
    """Returns the glob that enumerates the keys of a target: its literal prefix and a star."""
    prefix = glob_escape(target.pattern.literal_prefix)
    return prefix if target.pattern.is_literal else prefix + b"*"


def own_scan_pattern(target: Target, values: Values, glob: bytes = b"") -> tuple[bytes, bytes] | None:
    """Returns two globs for the caller's own keys of a target; None if the caller has no value.

    Both have the values that `glob` shows for other placeholders. The second has the caller's own values. The
    first has the values that `glob` shows in their place, so its distance from `glob` is a measure for both.
    """
    parts = target.pattern.parts
    bound = (
        {place.name: place.binding for place in target.tenancy.places} if target.tenancy is not None else {}
    )
    last = max(
        (at for at, part in enumerate(parts) if isinstance(part, Hole) and part.name in bound), default=-1
    )
    begins: bytes | None = Glob(glob[:MAX_GLOB]).literal_prefix  # the rest of it; None: it differs
    theirs = own = b""
    for at, part in enumerate(parts):
        if isinstance(part, Literal):
            theirs, own = theirs + glob_escape(part.text), own + glob_escape(part.text)
            begins = begins[len(part.text) :] if begins is not None and begins.startswith(part.text) else None
            continue
        held, begins = _held(begins, parts[at + 1 : at + 2])
        if part.name in bound:
            value = value_in(values, bound[part.name])
            if value is None:
                return None
            theirs, own = theirs + glob_escape(value if held is None else held), own + glob_escape(value)
        elif at > last or held is None:
            return theirs + b"*", own + b"*"
        else:
            theirs, own = theirs + glob_escape(held), own + glob_escape(held)
    return theirs, own


def _held(text: bytes | None, behind: Sequence[Literal | Hole]) -> tuple[bytes | None, bytes | None]:
    """Returns the value of a placeholder at the beginning of a text, and the rest of the text. Both are None
    if the text does not show where the value ends."""
    end = text.find(behind[0].text[:1]) if text and behind and isinstance(behind[0], Literal) else -1
    return (text[:end], text[end:]) if text is not None and end >= 0 else (None, None)


class Nearest:
    """Finds the patterns that begin like a glob, without looking at each."""

    def __init__(self, patterns: Iterable[bytes]) -> None:
        self._sorted = sorted(patterns)

    def to(self, glob: bytes, most: int) -> list[bytes]:
        """Returns at most `most` patterns: first those that share the longest beginning with the glob, and of
        these the shorter ones first."""
        found: list[bytes] = []
        first = last = 0
        glob = glob[:MAX_GLOB]
        at = bisect_left(self._sorted, glob)
        longest = max((_shared(glob, text) for text in self._sorted[max(at - 1, 0) : at + 1]), default=0)
        for size in range(longest, -1, -1):
            beginning = glob[:size]
            low = bisect_left(self._sorted, beginning)
            high = bisect_right(self._sorted, beginning, lo=low, key=lambda text: text[: len(beginning)])
            if high - low > last - first:
                if first == last:
                    first = last = high
                fresh = self._sorted[low:first] + self._sorted[last:high]
                found += nsmallest(most - len(found), fresh, key=len)
                first, last = low, high
            if len(found) >= most:
                break
        return found


def _shared(one: bytes, other: bytes) -> int:
    """Returns the length of the beginning that both share."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))
