"""One command that is evaluated: who asks, what the command touches, and what is found on the way.

Rule: everything about one command stands here, and nothing of it on the evaluator that all clients share. So
an evaluation may pause while others run, whoever asks.
"""

from __future__ import annotations

from collections.abc import Sequence

from keyfence.commands.model import Access, Touches
from keyfence.policy.budget import Budget
from keyfence.policy.compiled.policy import Target
from keyfence.policy.compiled.tenants import Values
from keyfence.policy.compiled.ttl import QUESTIONS, UNSIZED, TtlRule
from keyfence.policy.show import shown_name
from keyfence.policy.verdict import COVERED, Found
from keyfence.policy.wording.messages import Wording, Words

from .asker import Transaction
from .writes import MAX_KEYS, LeftOpen


class Evaluation:
    """One command of one caller under one policy. Its methods make the violations that it finds."""

    __slots__ = (
        "argv",
        "budget",
        "left_open",
        "name",
        "not_kept",
        "service",
        "touches",
        "transaction",
        "values",
        "wording",
    )

    def __init__(
        self,
        wording: Wording,
        service: int,
        argv: Sequence[bytes],
        touches: Touches,
        values: Values = (),
        transaction: Transaction | None = None,
    ) -> None:
        """`service` is the caller's number, and `values` are its own (`CompiledPolicy.values`). `transaction`
        is the one in which the command is queued."""
        self.wording = wording
        self.service = service
        self.argv = argv
        self.touches = touches
        self.values = values
        self.transaction = transaction
        # The command's name in upper case, with its subcommand; for an unknown one, what the client sent.
        self.name = touches.command.name if touches.command is not None else shown_name(argv[0])
        self.budget = Budget()
        # The outcomes for times to live and sizes, if there are any.
        self.left_open: list[LeftOpen] = []
        self.not_kept = 0  # the number of keys that Redis is not asked about, because there are too many

    def begin(self) -> None:
        """Forget what an earlier look has left open."""
        self.left_open.clear()
        self.not_kept = 0

    def leave_open(self, found: int, access: Access, target: Target, rule: TtlRule | None) -> None:
        """Record the questions to ask Redis, or to ask no longer, for a bounded number of keys."""
        if len(self.left_open) < MAX_KEYS:
            self.left_open.append(LeftOpen(found, access, target, rule))
        else:
            self.not_kept += found in QUESTIONS or found in UNSIZED

    # -- its violations

    def who(self) -> str:
        """Returns the name of the caller's service for messages."""
        return self.wording.who(self.service)

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
