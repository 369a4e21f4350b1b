"""Two classifiers over one key space: which pairs of their patterns decide one and the same key.

Rule: a pair is told with a key that shows it. One that no key shows is left out, where that can be found out
within the states allowed; else the pair is told, with a key that is near.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .automaton import NOTHING, Classifier
from .patterns import KeyPattern
from .set_operations import TooLarge, between, joint_samples

__all__ = ["NOTHING", "Product"]

# A key that one pattern decides is none of those before it; with more of them than this the search is left.
MAX_RIVALS = 24


class Product:
    """The pairs of the patterns of `old` and `new`, by their indexes; NOTHING where no pattern decides."""

    def __init__(self, old: Classifier, new: Classifier) -> None:
        self._old = _Side(old)
        self._new = _Side(new)

    def pairs(self, same: Callable[[int, int], bool]) -> Iterator[tuple[tuple[int, int], bytes]]:
        """Every pair that decides some key and isn't `same`, with such a key. Raises `TooLarge`."""
        seen: set[tuple[int, int]] = set()
        for (left, right), sample in joint_samples(self._old.automaton, self._new.automaton).items():
            for pair in (
                (one, other) for one in self._old.evaluators(left) for other in self._new.evaluators(right)
            ):
                if pair in seen or pair == (NOTHING, NOTHING):
                    continue
                seen.add(pair)
                if NOTHING not in pair and same(*pair):
                    continue
                key = self._key(pair, sample)
                if key is not None:
                    yield pair, key

    def _key(self, pair: tuple[int, int], sample: bytes) -> bytes | None:
        one, other = pair
        inside = [*self._old.pattern(one), *self._new.pattern(other)]
        before = {*self._old.rivals(one), *self._new.rivals(other)}
        if any(pattern in before for pattern in inside):
            return None  # what is of this form is decided before
        for key in (*(pattern.example() for pattern in inside), sample):
            if (self._old.first(key), self._new.first(key)) == pair:
                return key
        if len(before) > MAX_RIVALS:
            return sample
        try:
            return between(inside, sorted(before, key=lambda pattern: pattern.text))
        except TooLarge:
            return sample


class _Side:
    def __init__(self, classifier: Classifier) -> None:
        self.automaton = classifier.automaton
        self.first = classifier.first
        self._patterns: tuple[KeyPattern, ...] = classifier.patterns  # type: ignore[assignment]
        self._rivals: dict[int, set[int]] = {}
        for members in self.automaton.sets:
            for at, index in enumerate(members):
                self._rivals.setdefault(index, set()).update(members[:at])
            self._rivals.setdefault(NOTHING, set()).update(members)

    def evaluators(self, accept: int) -> Iterator[int]:
        """The patterns that can decide a key of this accept set; NOTHING where its lengths may fit none."""
        for index in self.automaton.sets[accept] if accept >= 0 else ():
            yield index
            if not self._patterns[index].needs_verification:
                return
        yield NOTHING

    def pattern(self, index: int) -> list[KeyPattern]:
        return [] if index == NOTHING else [self._patterns[index]]

    def rivals(self, index: int) -> list[KeyPattern]:
        """The patterns that would decide before this one."""
        return [self._patterns[rival] for rival in sorted(self._rivals.get(index, ()))]
