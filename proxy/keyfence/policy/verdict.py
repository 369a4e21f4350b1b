"""The answer of the policy to one command: values, worded once, acted on elsewhere.

Rule: a verdict tells of every violation of the command: the first few of each kind in full, the others by
their number. Whether one is refused or only counted is decided by `modes`, never here, and nothing here is
raised.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, Literal, NamedTuple, TypeVar

Mark = TypeVar("Mark", bound=Hashable)

Severity = Literal["must", "should"]
Mode = Literal["observe", "enforce", "disabled"]
# late: found out when it could no longer be refused, in whatever mode.
Action = Literal["observed", "refused", "waived", "late"]


class Peer(NamedTuple):
    """Who sent a command. A client can give any name and library; only the address and the user are known."""

    address: str  # with the port, where there is one
    user: str = ""  # that Redis accepted
    name: str = ""  # CLIENT SETNAME
    library: str = ""  # CLIENT SETINFO LIB-NAME
    version: str = ""  # CLIENT SETINFO LIB-VER


class Violation(NamedTuple):
    """One broken rule. Texts name nothing but what the caller sent and what the policy file says."""

    rule: str  # a name in `policy.rules`
    severity: Severity
    position: int  # the argument at fault; 0 is the command itself
    key: bytes | None  # the key (or channel, or pattern) as sent; None where the rule is about no key
    shown: str  # the key for logs and reports: printable, cut, secrets masked; "" for none
    entry: str  # the catalogue entry, legacy key or scope that decided; "" for none
    # For keys that no entry covers: "" (telemetry learns one). Of an unregistered script: its SHA-1, or
    # the function's name. Else equal to `entry`.
    shape: str
    message: str  # "CubeProxy may not HSET cube:…; its writers: CubeMaster."
    hint: str  # what to do about it; may be ""
    contact: str = ""  # whom to ask: the owner of the key's file; "" where the decision knows none
    more: int = 0  # others of the same rule, entry and severity in the same command, which aren't listed


class Found(NamedTuple):
    """A violation before it is put in words: of a command's many violations only the first few are."""

    rule: str
    severity: Severity
    position: int
    key: bytes | None
    entry: str
    shape: str
    contact: str
    words: Callable[[], tuple[str, str, str]]  # how the key is shown, the message, the hint

    def worded(self) -> Violation:
        """The violation in words."""
        shown, message, hint = self.words()
        rule, severity, position, key, entry, shape, contact, _ = self
        return Violation(rule, severity, position, key, shown, entry, shape, message, hint, contact)


def script_in(rule: str, shape: str) -> str:
    """The SHA-1 of an unregistered script, or its function's name, where a shape tells which it is."""
    return shape if rule == "script.unregistered" else ""


# So many violations of one rule are listed for one command, and the first of each entry besides.
LISTED = 8


class Gathering(Generic[Mark]):
    """Takes in the violations of one command as they are found, and words those that are to be listed.

    Each has a mark (what is done about it): what is counted and not listed has the mark of what it is counted
    with.
    """

    def __init__(self) -> None:
        self._listed: list[tuple[Violation, Mark]] = []
        self._more: list[int] = []
        self._last: dict[tuple[str, str, str, Mark], int] = {}
        self._told: dict[tuple[str, Mark], int] = {}

    def take(self, found: Found, mark: Mark) -> None:
        """Take in one more."""
        kind = found.rule, found.entry, found.severity, mark
        told = self._told.get((found.rule, mark), 0)
        last = self._last.get(kind)
        if last is not None and told >= LISTED:
            self._more[last] += 1
            return
        self._told[found.rule, mark] = told + 1
        self._last[kind] = len(self._listed)
        self._listed.append((found.worded(), mark))
        self._more.append(0)

    def listed(self) -> Iterator[tuple[Violation, Mark]]:
        """What is listed, in the order in which it was found."""
        for (violation, mark), more in zip(self._listed, self._more, strict=True):
            yield (violation._replace(more=more) if more else violation), mark


# The kinds of target whose violations have `shape` equal to `entry`: all their keys are of one form.
COVERED = frozenset({"entry", "legacy", "malformed", "channel"})


class Verdict(NamedTuple):
    """What the policy says of one command by one service. No violations: allowed."""

    violations: tuple[Violation, ...]

    @property
    def allowed(self) -> bool:
        return not self.violations


ALLOWED = Verdict(())


class Finding(NamedTuple):
    """A violation, and what is done about it here."""

    violation: Violation
    action: Action


class Ruling(NamedTuple):
    """A verdict under the modes and waivers of this environment."""

    findings: tuple[Finding, ...]
    refused_by: Violation | None  # the first violation that is enforced; None: the command passes


PASS = Ruling((), None)
