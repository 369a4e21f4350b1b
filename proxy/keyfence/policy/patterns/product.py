"""The product of two classifiers: which pairs of their patterns decide the same key.

Rule: each pair comes with a key that both patterns decide. A pair without such a key is left out if the
search ends within the allowed states; otherwise the pair is reported with a similar key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .automaton import NOTHING, Classifier
from .patterns import KeyPattern
from .set_operations import TooLarge, joint_samples, shortest_key

__all__ = ["NOTHING", "Product"]

# To decide a key, a pattern must come before all others that match it. With more rivals than this, the search
# for an exact key is skipped.
MAX_RIVALS = 24


class Product:
    """Pairs of patterns of `old` and `new`, by index. NOTHING stands for keys that no pattern decides."""

    def __init__(self, old: Classifier, new: Classifier) -> None:
        self._old = _Side(old)
        self._new = _Side(new)

    def pairs(self, same: Callable[[int, int], bool]) -> Iterator[tuple[tuple[int, int], bytes]]:
        """Every pair that decides some key and is not `same`, with such a key. Raises `TooLarge`."""
        seen: set[tuple[int, int]] = set()
        for (left, right), sample in joint_samples(self._old.automaton, self._new.automaton).items():
            for pair in (
                (one, other) for one in self._old.deciding(left) for other in self._new.deciding(right)
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
            return None  # another pattern with the same keys comes first
        for key in (*(pattern.example() for pattern in inside), sample):
            if (self._old.first(key), self._new.first(key)) == pair:
                return key
        if len(before) > MAX_RIVALS:
            return sample
        try:
            return shortest_key(inside, sorted(before, key=lambda pattern: pattern.text))
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

    def deciding(self, accept: int) -> Iterator[int]:
        """The patterns that can decide a key of this accept set, and NOTHING if its length may fit none."""
        for index in self.automaton.sets[accept] if accept >= 0 else ():
            yield index
            if not self._patterns[index].needs_verification:
                return
        yield NOTHING

    def pattern(self, index: int) -> list[KeyPattern]:
        return [] if index == NOTHING else [self._patterns[index]]

    def rivals(self, index: int) -> list[KeyPattern]:
        """The patterns that come before this one."""
        return [self._patterns[rival] for rival in sorted(self._rivals.get(index, ()))]
