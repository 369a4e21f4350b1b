"""One policy with its modes: the answer that the relay acts on.

Rule: asking never raises. A fault inside a decision is a violation of `internal.error`, so it refuses where
that rule is enforced and passes, counted and told, where it is observed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ..commands.extract import extract
from ..commands.model import Touches
from .compiled import CompiledPolicy
from .decide import Decider, Transaction
from .modes import BreakGlass, Modes
from .show import printable
from .verdict import PASS, Ruling, Verdict, Violation


class Judge:
    """A compiled policy, the modes of this environment, and whatever break-glass is open.

    A reload makes a new Judge; transactions keep the one they began with.
    """

    def __init__(
        self,
        policy: CompiledPolicy,
        modes: Modes,
        glass: list[BreakGlass] | None = None,
        clock: Callable[[], float] = time.time,
        on_error: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        self.policy = policy
        self.modes = modes
        self.glass = glass if glass is not None else []
        self.decider = Decider(policy, clock)
        self._clock = clock
        self._on_error = on_error

    def number(self, service: str) -> int:
        """The number under which `rule` knows a service; an unlisted one is `unknown`."""
        return self.policy.number(service)

    def rule(self, service: int, argv: Sequence[bytes]) -> Ruling:
        """What is done about a command."""
        return self.weigh(service, argv)[0]

    def weigh(
        self, service: int, argv: Sequence[bytes], transaction: Transaction | None = None
    ) -> tuple[Ruling, Touches]:
        """What is done about a command (queued in `transaction`, if any), and what it touches."""
        touches = _NOTHING
        try:
            touches = extract(argv)
            if self.decider.admits(service, touches):
                return PASS, touches
            verdict = self.decider.judge(service, argv, touches, transaction)
        except Exception as exc:
            verdict = self._internal_error(argv, exc)
        if not verdict.violations:
            return PASS, touches
        return self._rule_on(verdict, service, command_name(argv, touches)), touches

    def opaque(self, service: int, command: str, reason: str) -> Ruling:
        """What is done about a command after which the session can't be read any more."""
        violation = Violation(
            "session.opaque",
            "must",
            0,
            None,
            "",
            "",
            "",
            f"{self.decider.who(service)} may not use {command} through keyfence: {reason}",
            "observe mode passes such a session unread",
        )
        return self._rule_on(Verdict((violation,)), service, command)

    def enforces(self, service: int) -> bool:
        """Whether any rule is enforced for the service."""
        return self.modes.enforces(service)

    def _rule_on(self, verdict: Verdict, service: int, command: str) -> Ruling:
        return self.modes.rule_on(verdict, service, command, self._clock(), self.glass)

    def _internal_error(self, argv: Sequence[bytes], exc: Exception) -> Verdict:
        self._on_error(exc)
        name = printable(argv[0], 32).upper() if argv else ""
        text = f"{name} can't be judged: keyfence failed ({type(exc).__name__})"
        violation = Violation("internal.error", "must", 0, None, "", "", "", text, "tell keyfence's operator")
        return Verdict((violation,))


def command_name(argv: Sequence[bytes], touches: Touches) -> str:
    """The command's name in upper case, with its subcommand; for an unknown one what the client sent."""
    return touches.command.name if touches.command is not None else printable(argv[0], 32).upper()


_NOTHING = Touches(None)
