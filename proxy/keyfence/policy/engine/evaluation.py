"""One command that is evaluated: who asks, what the command touches, and what is found on the way.

Rule: everything about one command stands here, and nothing of it on the evaluator, which all clients share.
So an evaluation may pause while those of other clients run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from keyfence.commands.model import Access, Command, Touches
from keyfence.policy.budget import Budget
from keyfence.policy.compiled.key_targets import Classify, KeyTargets
from keyfence.policy.compiled.policy import Target
from keyfence.policy.compiled.scripts import Registration
from keyfence.policy.compiled.ttl import QUESTIONS, UNSIZED, TtlRule
from keyfence.policy.show import shown_name
from keyfence.policy.verdict import COVERED, Found, Violation
from keyfence.policy.wording.messages import Wording, Words
from keyfence.policy.wording.prepared import Draft

from .asker import Asker
from .checks import Standing
from .writes import MAX_KEYS, LeftOpen


@dataclasses.dataclass(slots=True, eq=False)
class Evaluation:
    """One command of one caller under one policy. Its methods make the violations that it finds."""

    wording: Wording  # of the policy
    asker: Asker
    argv: Sequence[bytes]
    touches: Touches
    keys: KeyTargets  # of the same policy
    budget: Budget = dataclasses.field(default_factory=Budget)
    # The outcomes for times to live and sizes, if there are any.
    left_open: list[LeftOpen] = dataclasses.field(default_factory=list)
    not_kept: int = 0  # the number of keys that Redis is not asked about, because there are too many
    standing: tuple[Access, Command | None, Standing] | None = None  # of the access looked at last
    unclean: Access | None = None  # the access that `CommandChecks.admits` did not find clean
    refused: Found | None = None  # the first violation that refuses the command
    # The command's name in upper case, with its subcommand; for an unknown one, what the client sent.
    name: str = dataclasses.field(init=False)
    target: Classify = dataclasses.field(init=False)  # the target of a key

    def __post_init__(self) -> None:
        self.target = self.keys.target
        command = self.touches.command
        self.name = command.name if command is not None else shown_name(self.argv[0])

    def leave_open(self, found: int, access: Access, target: Target, rule: TtlRule | None) -> None:
        """Record the questions to ask Redis, or to ask no longer, for a bounded number of keys."""
        if len(self.left_open) < MAX_KEYS:
            self.left_open.append(LeftOpen(found, access, target, rule))
        else:
            self.not_kept += found in QUESTIONS or found in UNSIZED

    def drafted(self, found: Found) -> tuple[Violation, Draft]:
        """Returns a violation of a command with one key, with marks in place of all words that depend on the
        key, and what fills the marks. From now on, all words of the evaluation have marks."""
        draft = Draft(self.touches.accesses[0].key)
        self.wording = Wording(self.wording.policy, draft)
        return found.worded(), draft

    # -- its violations

    def who(self) -> str:
        """Returns the name of the caller's service for messages."""
        return self.wording.who(self.asker.service)

    def about(self, rule: str, access: Access, target: Target, words: Words) -> Found:
        """Makes a violation of one access."""
        return self.violation(rule, access.position, access.key, target, words)

    def violation(self, rule: str, position: int, key: bytes, target: Target | None, words: Words) -> Found:
        """Makes a violation on a key, a channel or a pattern. `words` returns message and hint; it is called
        before the next violation is found."""
        entry = (target.name or target.kind) if target is not None else ""
        covered = target is not None and target.kind in COVERED

        def worded() -> tuple[str, str, str]:
            wording = self.wording
            return wording.shown(key, target), *wording.with_page(words(), target)

        return Found(
            rule,
            self.wording.severity(rule, target),
            position,
            key,
            entry,
            entry if covered else "",
            self.wording.policy.home(target).contact,
            worded,
        )

    def plain(self, rule: str, position: int, message: str, hint: str) -> Found:
        """Makes a violation on no key."""
        severity, contact = self.wording.severity(rule), self.wording.policy.common.contact
        return Found(rule, severity, position, None, "", "", contact, lambda: ("", message, hint))


class Known(NamedTuple):
    """What is known of a command before its evaluation begins."""

    touches: Touches | None = None
    keys: KeyTargets | None = None  # of the policy that has classified them


NOTHING_KNOWN = Known()


class Use(NamedTuple):
    """One access to one key by a command that is evaluated."""

    evaluation: Evaluation
    access: Access
    command: Command | None  # None: the command itself is not checked
    is_script: bool = False  # whether a script that the command runs makes the access
    registration: Registration | None = None  # of that script
    runs: frozenset[str] | None = None  # the commands that the registration names for the key

    @property
    def by(self) -> str:
        """The registered script or function that makes the access; "" for a plain command."""
        return self.registration.name if self.registration is not None else ""
