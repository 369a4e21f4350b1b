"""The keys of one command, classified.

Rule: each key is classified once. The result holds for the same bytes under the same policy, so it may be
handed on.
"""

from __future__ import annotations

from collections.abc import Callable

from keyfence.commands.model import Streamed
from keyfence.policy.compiled.policy import CompiledPolicy, Target

Classify = Callable[[bytes], Target | None]  # returns the target of a key


class KeyTargets:
    """The targets of the keys of one command under one policy."""

    __slots__ = ("_known", "policy")

    def __init__(self, policy: CompiledPolicy, known: dict[bytes, Target | None] | None = None) -> None:
        """`known` has the targets of keys that are classified already."""
        self.policy = policy
        self._known = {} if known is None else known

    def target(self, key: bytes) -> Target | None:
        """Returns the target of a key; None if no target covers it."""
        if isinstance(key, Streamed):
            return self.policy.target(key)  # only its beginning is held, which is another key's name
        if key not in self._known:
            self._known[key] = self.policy.target(key)
        return self._known[key]
