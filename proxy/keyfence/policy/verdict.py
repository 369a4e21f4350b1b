"""Verdicts and rulings: the values in which the policy answers.

Rule: a verdict has every violation of a command, the first few of each kind in full and the others as a
number. `enforcement.modes` says which are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, Literal, NamedTuple, TypeVar

Mark = TypeVar("Mark", bound=Hashable)

Severity = Literal["must", "should"]
Mode = Literal["observe", "enforce", "disabled"]
# late: found when it could no longer be refused, in any mode.
Action = Literal["observed", "refused", "waived", "late"]


class Peer(NamedTuple):
    """Who sent a command. Only address and user are verified; a client can give any name and library."""

    address: str  # with the port, where there is one
    user: str = ""  # that Redis accepted
    name: str = ""  # CLIENT SETNAME
    library: str = ""  # CLIENT SETINFO LIB-NAME
    version: str = ""  # CLIENT SETINFO LIB-VER


class Violation(NamedTuple):
    """One broken rule. Its texts contain only what the caller sent and what the policy file says."""

    rule: str  # a name in `policy.rules`
    severity: Severity
    position: int  # the argument at fault; 0: the command itself
    key: bytes | None  # the key, channel or pattern as sent; None: the rule is not about a key
    shown: str  # the key for logs and reports: printable, cut, secrets masked; "" for none
    entry: str  # the catalogue entry, legacy key or scope that decided; "" for none
    # "" for keys that no entry covers (telemetry learns their shape); the SHA-1 of an unregistered script, or
    # the function's name; otherwise equal to `entry`.
    shape: str
    message: str  # "CubeProxy may not HSET cube:…; its writers: CubeMaster."
    hint: str  # the remedy; may be ""
    contact: str = ""  # the owner of the key's file; "" if there is none
    # Unlisted violations of the same rule and severity in the same command. They are of the same entry, or of
    # entries that are not listed at all (`Gathering`).
    more: int = 0


class Found(NamedTuple):
    """A violation without its words. Only violations that are listed are put in words."""

    rule: str
    severity: Severity
    position: int
    key: bytes | None
    entry: str
    shape: str
    contact: str
    words: Callable[[], tuple[str, str, str]]  # the key as it is shown, the message, the hint

    def worded(self) -> Violation:
        """Puts the violation in words."""
        shown, message, hint = self.words()
        rule, severity, position, key, entry, shape, contact, _ = self
        return Violation(rule, severity, position, key, shown, entry, shape, message, hint, contact)


def script_in(rule: str, shape: str) -> str:
    """Returns the SHA-1 of an unregistered script, or its function's name; "" for other rules."""
    return shape if rule == "script.unregistered" else ""


# The values of `entry` for keys in a policy's claims but in no scope, and for the keyspace's own channels.
NAMELESS = frozenset({"claim", "keyspace", "keyevent"})


def entry_and_scope(name: str, *, is_covered: bool) -> tuple[str, str]:
    """Returns `name`, the `entry` of a violation or of a report's row, as (name, "") or as ("", name): it is
    an entry or channel if that covers the key, otherwise a scope. The two may have the same names."""
    return (name, "") if is_covered or name in NAMELESS else ("", name)


# How many violations are listed for one command: of one rule, besides the first of each entry; and of all
# rules together, besides the first of each rule.
LISTED = 8
MOST_LISTED = 64


class Gathering(Generic[Mark]):
    """Collects the violations of one command, and words those that are listed.

    Each violation has a mark, such as the action on it. A violation that is only counted is counted with a
    listed one of the same rule, severity and mark: of its own entry, if that has one.
    """

    def __init__(self) -> None:
        self._listed: list[tuple[Violation, Mark]] = []
        self._more: list[int] = []
        self._last: dict[tuple[str, str, str, Mark], int] = {}
        self._last_of_rule: dict[tuple[str, str, Mark], int] = {}
        self._number: dict[tuple[str, Mark], int] = {}

    def take(self, found: Found, mark: Mark) -> None:
        """Adds a violation."""
        kind = found.rule, found.entry, found.severity, mark
        listed = self._number.get((found.rule, mark), 0)
        last = self._last.get(kind)
        of_rule = found.rule, found.severity, mark
        if last is None and len(self._listed) >= MOST_LISTED:
            last = self._last_of_rule.get(of_rule)
        if last is not None and (listed >= LISTED or len(self._listed) >= MOST_LISTED):
            self._more[last] += 1
            return
        self._number[found.rule, mark] = listed + 1
        self._last[kind] = self._last_of_rule[of_rule] = len(self._listed)
        self._listed.append((found.worded(), mark))
        self._more.append(0)

    def listed(self) -> Iterator[tuple[Violation, Mark]]:
        """Yields the listed violations in the order in which they were found."""
        for (violation, mark), more in zip(self._listed, self._more, strict=True):
            yield (violation._replace(more=more) if more else violation), mark


# Kinds of target with keys of one form. The shape of their violations is the entry.
COVERED = frozenset({"entry", "legacy", "malformed", "channel"})


class Verdict(NamedTuple):
    """The evaluator's answer to one command by one service."""

    violations: tuple[Violation, ...]

    @property
    def allowed(self) -> bool:
        return not self.violations


ALLOWED = Verdict(())


class Finding(NamedTuple):
    """A violation, and the action on it in this environment."""

    violation: Violation
    action: Action


class Ruling(NamedTuple):
    """A verdict under the modes and waivers of this environment."""

    findings: tuple[Finding, ...]
    refused_by: Violation | None  # the first violation that is enforced; None: the command passes


PASS = Ruling((), None)


# new: only the candidate policy finds it; gone: only the policy in force does. Both find the others:
# stricter: only the candidate refuses for it; milder: only the policy in force does; same: neither or both.
Change = Literal["new", "stricter", "same", "milder", "gone"]
CHANGES: tuple[Change, ...] = ("new", "stricter", "same", "milder", "gone")


class Changed(NamedTuple):
    """A finding of one command, and what it means that a candidate policy finds it or does not."""

    change: Change
    finding: Finding  # the candidate's; if it is gone, that of the policy in force
