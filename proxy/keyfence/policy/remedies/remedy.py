"""Remedies, and the violation that a remedy answers.

Rule: only two kinds of remedy claim to fix a violation: a command to send instead, which the evaluator has
checked, and lines to add to the policy (tests/policy/remedies/test_remedies_hold.py applies each).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from keyfence.commands.extract import extract
from keyfence.commands.model import Access, Streamed, Touches
from keyfence.policy.compiled.policy import CompiledPolicy, Target
from keyfence.policy.compiled.tenants import Values
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.show import printable, shown_name
from keyfence.policy.verdict import Violation
from keyfence.policy.wording.masking import shown_in


class Remedy(NamedTuple):
    """One change that makes a command keep a rule, or a hint that helps to find one."""

    rule: str
    text: str
    command: Sequence[bytes]  # to send instead, with its secrets; empty if there is none
    # Lines to add to the policy: mappings are merged, lists united. Empty if there are none.
    add: Mapping[str, Any]


class Proposal(NamedTuple):
    """A remedy without its rule: the rule is that of the question."""

    text: str
    command: Sequence[bytes] = ()
    add: Mapping[str, Any] = MappingProxyType({})


# None: other work may be done meanwhile.
Proposals = Iterator[Proposal | None]


class Question(NamedTuple):
    """A violation of one command of one service."""

    policy: CompiledPolicy
    evaluator: Evaluator
    service: int
    argv: Sequence[bytes]
    touches: Touches
    violation: Violation
    values: Values = ()

    @property
    def asker(self) -> Asker:
        return Asker(self.service, self.values)

    @property
    def who(self) -> str:
        return self.policy.services[self.service]

    @property
    def target(self) -> Target | None:
        """The target of the violation's key; None if the violation concerns no single key of the policy."""
        key = self.violation.key
        return self.policy.target(key) if key is not None and self.violation.entry else None

    @property
    def access(self) -> Access | None:
        """The access that breaks the rule; None if a script makes it or the value is at fault."""
        at, key = self.violation.position, self.violation.key
        found = (one for one in self.touches.accesses if one.position == at or one.key == key)
        return next(found, None)

    @property
    def name(self) -> str:
        return self.touches.command.name if self.touches.command else shown_name(self.argv[0])

    @property
    def key_is_shown(self) -> bool:
        """Whether texts show the key unmasked."""
        key = self.violation.key
        return key is not None and shown_in(self.policy, key, self.policy.target(key)) == printable(key)

    @property
    def place(self) -> tuple[str, str]:
        """The policy's section and name for the violation's target; empty strings if it has no target."""
        target = self.target
        if target is None:
            return "", ""
        return "scopes" if target.kind == "scope" else "keys", target.name.rpartition("/")[2]

    def instead(self, changed: Sequence[bytes]) -> list[bytes]:
        """Returns the changed command if it keeps the rule and breaks no further rule; otherwise empty."""
        after = extract(changed)
        if after.command is None or not after.command.takes(len(changed)):
            return []
        before = {one.rule for one in self.evaluator.decide(self.service, self.argv, self.values).violations}
        broken = {one.rule for one in self.evaluator.evaluate(self.asker, changed, after).violations}
        return list(changed) if self.violation.rule not in broken and broken <= before else []

    def would_pass(self, policy: CompiledPolicy) -> bool:
        """Whether the violation disappears under another policy."""
        found = Evaluator(policy).evaluate(self.asker, self.argv, self.touches).violations
        rule, at, key = self.violation.rule, self.violation.position, self.violation.key
        return not any((one.rule, one.position, one.key) == (rule, at, key) for one in found)

    def breaks(self, changed: Sequence[bytes]) -> list[str]:
        """Returns the rules that the changed command breaks, each once."""
        return list(
            dict.fromkeys(
                one.rule for one in self.evaluator.decide(self.service, changed, self.values).violations
            )
        )

    def with_key(self, key: bytes) -> list[bytes]:
        """Returns the command with another key; empty if its key is not a complete argument."""
        at, argv = self.violation.position, list(self.argv)
        if not 0 < at < len(argv) or isinstance(argv[at], Streamed):
            return []
        argv[at] = key
        return argv
