"""The words of violations.

Rule: a text contains only what the caller sent and what the policy says, with secrets masked. It names other
services only if the policy allows that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from keyfence.policy.compiled.policy import CompiledPolicy, Target
from keyfence.policy.services import UNKNOWN
from keyfence.policy.verdict import Severity

from .masking import shown_in
from .prepared import Draft, Filler, ShownKey, Text

Words = Callable[[], tuple[str, str]]  # a message and a hint


def said(message: str, hint: str) -> Words:
    """Returns words that are known already."""
    return lambda: (message, hint)


class Wording:
    """Words what one policy says about a command."""

    __slots__ = ("draft", "policy")

    def __init__(self, policy: CompiledPolicy, draft: Draft | None = None) -> None:
        """With a draft, the words have marks in place of what depends on the key."""
        self.policy = policy
        self.draft = draft

    def who(self, service: int) -> str:
        """Returns the name of a service for messages."""
        name = self.policy.services[service]
        return "an unidentified client" if name == UNKNOWN else name

    def shown(self, key: bytes, target: Target | None) -> str:
        """Returns a key, channel or pattern as people may see it."""
        if self.draft is not None:
            return self.draft.mark(key, ShownKey(self.policy, target))
        return shown_in(self.policy, key, target)

    def of_key(self, key: bytes, text: Text, filler: Filler | None = None) -> str:
        """Returns `text(key)`. Every word that depends on the key, except the key as it is shown, comes from
        here. `filler` makes it in prepared replies, if there is a faster one."""
        if self.draft is not None:
            return self.draft.mark(key, filler if filler is not None else Filler(text))
        return text(key)

    def who_may(self, verb: str, who: Sequence[str]) -> str:
        """Returns the hint that names those who have a right."""
        if not self.policy.name_services:
            return "ask for the right"
        return f"its {verb}: {', '.join(who)}" if who else f"it has no {verb}"

    def severity(self, rule: str, target: Target | None = None) -> Severity:
        """Returns whether a rule refuses on the keys of a target, or only reports."""
        is_common = target is None or target.kind in ("keyspace", "keyevent")
        should = self.policy.should if is_common or target is None else target.should
        return "should" if rule in should else "must"

    def with_page(self, words: tuple[str, str], target: Target | None) -> tuple[str, str]:
        """Returns message and hint; the hint ends with the page that describes the convention, if there is
        one, at the entry's part."""
        home = self.policy.home(target)
        if not home.docs:
            return words
        message, hint = words
        entry = target.name if target is not None and target.entry is not None else ""
        return message, f"{hint}{'; ' if hint else ''}see {home.page_of(entry)}"
