# cython: annotation_typing=False
"""The entries that a key would belong to behind a scope's prefix, for the hint about a key of no entry.

Rule: an entry whose keys belong to single callers is never among them, so the hint is the same for all
callers.
"""

from __future__ import annotations

from keyfence.policy.compiled.policy import MAX_CONFIRMED, CompiledPolicy, Target
from keyfence.policy.patterns.automaton import Automaton, Classifier

from .prepared import Filler, Text

MAX_PREFIXES = 64

_MAX_CONFIRMED = MAX_CONFIRMED  # as a C integer, where this runs compiled


class MissingPrefixes:
    """The prefixes of one policy's scopes that may be missing before a key, at most MAX_PREFIXES."""

    def __init__(self, policy: CompiledPolicy) -> None:
        found = [
            one.pattern.literal_prefix
            for one in policy.targets
            if one.kind == "scope" and one.pattern.is_prefix
        ]
        self._prefixes = tuple(dict.fromkeys(prefix for prefix in found if prefix))[:MAX_PREFIXES]
        self._policy = policy
        self._classifier: Classifier = policy.classifier
        self._automaton: Automaton = policy.classifier.automaton
        self._fits = bytes(one.kind == "entry" and one.tenancy is None for one in policy.targets)
        self._states = [self._automaton.state_after(prefix) for prefix in self._prefixes]
        sets = self._automaton.sets
        self._may_fit = bytes(any(self._fits[index] for index in members) for members in sets)

    def may_complete(self, key: bytes) -> bool:
        """Whether a prefix may make this key an entry's key. False is certain."""
        for at in range(len(self._states)):
            accept = self._automaton.accept_of(self._automaton.walk(self._states[at], key))
            if accept >= 0 and self._may_fit[accept]:
                return True
        return False

    def entries(self, key: bytes) -> list[tuple[bytes, Target]]:
        """Returns the key behind each prefix that makes it an entry's key, with that entry's target."""
        found: list[tuple[bytes, Target]] = []
        if len(key) > _MAX_CONFIRMED or not self.may_complete(key):
            return found
        for prefix in self._prefixes:
            behind = prefix + key
            if len(behind) > _MAX_CONFIRMED:
                target = self._policy.target(behind)
                if target is not None and target.kind == "entry" and target.tenancy is None:
                    found.append((behind, target))
                continue
            index = self._classifier.first(behind)
            if index >= 0 and self._fits[index]:
                found.append((behind, self._policy.targets[index]))
        return found


class Instead(Filler):
    """Makes the hint about a key of no entry."""

    def __init__(self, text: Text, missing: MissingPrefixes, otherwise: str) -> None:
        """`text` makes the hint for any key. It is `otherwise` for keys that no prefix makes an entry's."""
        super().__init__(text)
        self._missing = missing
        self._otherwise = otherwise.encode("utf-8", "backslashreplace")

    def fill(self, key: bytes) -> bytes:
        if not self._missing.may_complete(key):
            return self._otherwise
        return self.text(key).encode("utf-8", "backslashreplace")
