"""Which keys a glob can reach, against what a service may read.

Rule: SCAN, KEYS and their like are judged by rights, never by grammar: a pattern passes if every name that
it can match lies where the service may read, also the names that break an entry's form.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..commands.model import READ
from .compile import CompiledPolicy, Grant, Target
from .globs import Glob, Graph, Territory, included
from .show import printable

MAX_CACHED = 1000


class Reach:
    """Answers, and remembers the answers of, one policy."""

    def __init__(self, policy: CompiledPolicy) -> None:
        self.policy = policy
        self._graph: Graph | None = None
        self._territories: dict[tuple[int, str], Territory] = {}
        self._known: dict[tuple[int, str, bytes], bool] = {}

    def covers(self, service: int, command: str, glob: bytes) -> bool:
        """Whether the service may read every name that the glob can match, by its rights or by a grant of the
        command. False also where the question is too large to answer."""
        key = (service, command, glob)
        if key not in self._known:
            if len(self._known) >= MAX_CACHED:
                self._known.clear()
            self._known[key] = included(Glob(glob), self._territory(service, command)).inside is True
        return self._known[key]

    def _territory(self, service: int, command: str) -> Territory:
        key = (service, command)
        if key not in self._territories:
            if self._graph is None:
                self._graph = Graph(self.policy.classifier.automaton)
            grants = [one for one in self.policy.grants.get(service, ()) if command in one.selectors]
            self._territories[key] = Territory(
                self._graph, lambda accept: self._is_readable(accept, service, grants)
            )
        return self._territories[key]

    def _is_readable(self, accept: int, service: int, grants: Sequence[Grant]) -> bool:
        """Whether the service may read whatever the automaton accepts so."""
        if accept < 0:
            return False
        for index in self.policy.classifier.automaton.sets[accept]:
            target = self.policy.targets[index]
            if not target.rights[service] & ~target.denied[service] & READ and not any(
                grant.includes(target) for grant in grants
            ):
                return False
            if not target.pattern.needs_verification:
                return True  # it takes every such key; what comes behind it never decides
        return True

    def suggestion(self, service: int, glob: bytes) -> str:
        """A pattern near the glob that would pass; "" where the service may read nothing."""
        readable = [
            scan_pattern(target)
            for target in self.policy.targets
            if target.kind in ("entry", "scope") and target.rights[service] & ~target.denied[service] & READ
        ]
        nearest = sorted(readable, key=lambda text: (-_shared(text, glob), len(text)))
        passing = (text for text in nearest[:20] if self.covers(service, "SCAN", text))
        return printable(next(passing, b""))


def scan_pattern(target: Target) -> bytes:
    """The glob under which the keys of a target are enumerated: its literal prefix and a star."""
    prefix = target.pattern.literal_prefix
    escaped = b"".join(b"\\" + bytes([byte]) if byte in b"*?[]\\" else bytes([byte]) for byte in prefix)
    return escaped if target.pattern.is_literal else escaped + b"*"


def _shared(one: bytes, other: bytes) -> int:
    """How many bytes both begin with."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))
