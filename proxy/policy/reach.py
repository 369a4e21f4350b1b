"""Which names a glob can reach, against what a service may touch.

Rule: SCAN, KEYS, PSUBSCRIBE and their like are judged by rights, never by grammar: a pattern passes if every
name that it can match lies where the service has the right, also the names that break an entry's form.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from ..commands.mentions import glob_escape
from .automaton import Classifier
from .compiled import Target
from .globs import Glob, Graph, Territory, included, places_after
from .patterns import KeyPattern

MAX_CACHED = 1000
MAX_GLOB = 1024  # bytes; a longer pattern isn't looked into

Holds = Callable[[Target], bool]


class Reach:
    """Answers over one set of targets (a policy's keys, or its channels), and remembers the answers."""

    def __init__(self, classifier: Classifier, targets: Sequence[Target]) -> None:
        self.targets = targets
        self._classifier = classifier
        self._graph: Graph | None = None
        self._territories: dict[Hashable, Territory] = {}
        self._known: dict[tuple[Hashable, bytes, bytes], bool] = {}

    def covers(self, glob: bytes, holds: Holds, who: Hashable, *, behind: KeyPattern | None = None) -> bool:
        """Whether every name that the glob can match lies in targets for which `holds` is true.

        `who` identifies `holds`, for the cache. With `behind`, the names are what the glob can match after it
        has matched something of that pattern (the key in `__keyspace@0__:key`). False also where the question
        is too large to answer.
        """
        if len(glob) > MAX_GLOB:
            return False
        key = who, glob, behind.text.encode() if behind else b""
        if key not in self._known:
            if len(self._known) >= MAX_CACHED:
                self._known.clear()
            self._known[key] = self._ask(Glob(glob), self._territory(holds, who), behind)
        return self._known[key]

    def _ask(self, glob: Glob, territory: Territory, behind: KeyPattern | None) -> bool:
        if behind is None:
            return included(glob, territory).inside is True
        places = places_after(glob, behind)
        return not places or included(glob, territory, places=places).inside is True

    def _territory(self, holds: Holds, who: Hashable) -> Territory:
        if who not in self._territories:
            if self._graph is None:
                self._graph = Graph(self._classifier.automaton)
            if len(self._territories) >= MAX_CACHED:
                self._territories.clear()
            self._territories[who] = Territory(self._graph, lambda accept: self._all_hold(accept, holds))
        return self._territories[who]

    def _all_hold(self, accept: int, holds: Holds) -> bool:
        """Whether `holds` is true of every target that may decide what the automaton accepts so."""
        if accept < 0:
            return False
        for index in self._classifier.automaton.sets[accept]:
            target = self.targets[index]
            if not holds(target):
                return False
            if not target.pattern.needs_verification:
                return True  # it takes every such name; what comes behind it never decides
        return False  # its lengths may fit no target at all


def scan_pattern(target: Target) -> bytes:
    """The glob under which the keys of a target are enumerated: its literal prefix and a star."""
    prefix = glob_escape(target.pattern.literal_prefix)
    return prefix if target.pattern.is_literal else prefix + b"*"


def nearest(patterns: Sequence[bytes], glob: bytes) -> list[bytes]:
    """The patterns, those first that begin like the glob, the shorter ones before the longer."""
    return sorted(patterns, key=lambda text: (-_shared(text, glob), len(text)))


def _shared(one: bytes, other: bytes) -> int:
    """How many bytes both begin with."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))
