"""The naming rules of a policy, which apply to keys of every kind.

Rule: one automaton checks a name against all naming rules, at one table step a byte. Only if the name breaks
one does an automaton for each rule say which.

Lengths are compared as numbers. `build_names` builds the automata.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from keyfence.policy.patterns.automaton import Automaton
from keyfence.policy.patterns.patterns import ClassExpression
from keyfence.policy.patterns.regular import SEPARATOR
from keyfence.policy.rules import RULES
from keyfence.policy.show import printable
from keyfence.policy.source.model import HashTag, Length
from keyfence.policy.units import counted
from keyfence.policy.verdict import Severity

Kind = Literal["charset", "lowercase", "levels", "level", "avoid", "after"]


class NameFault(NamedTuple):
    """A naming rule that a name breaks. `{key}` in the message stands for the key as it may be shown."""

    rule: str
    severity: Severity
    message: str
    hint: str = ""


class Check(NamedTuple):
    """One naming rule. Its automaton accepts the names that keep it (or, `forbids`, those that break it)."""

    kind: Kind
    severity: Severity
    automaton: Automaton
    forbids: bool = False
    text: str = ""  # the rule as in the policy
    least: int = 0  # of `levels`
    most: int | None = None
    level: ClassExpression | None = None
    after: tuple[tuple[str, ClassExpression], ...] = ()
    avoid: tuple[tuple[str, str], ...] = ()

    def admits(self, key: bytes) -> bool:
        return (self.automaton.match(key) >= 0) != self.forbids


class LengthLimit(NamedTuple):
    severity: Severity
    limit: Length


class Names:
    """The naming rules of a policy."""

    def __init__(
        self,
        checks: Sequence[Check] = (),
        automaton: Automaton | None = None,
        limits: Sequence[LengthLimit] = (),
        of_forms: Names | None = None,
    ) -> None:
        """`automaton` accepts the names that keep all of `checks`; None if there are no checks. `of_forms`
        are the rules for keys of entries whose own text is in lower case, if these have fewer rules."""
        self.checks = tuple(checks)
        self.automaton = automaton
        self.limits = tuple(limits)
        self._of_forms = of_forms
        self.shortest_limit = min(
            (one.limit.most for one in limits), default=None
        )  # no shorter name is too long

    def __reduce__(self) -> tuple[type[Names], tuple[object, ...]]:
        return Names, (self.checks, self.automaton, self.limits, self._of_forms)

    @property
    def of_forms(self) -> Names:
        """Returns the rules for keys of entries whose own text is in lower case."""
        return self if self._of_forms is None else self._of_forms

    @property
    def rules(self) -> frozenset[str]:
        """Returns the rules whose violations the naming rules can find."""
        limited = {"key.length"} if self.limits else set()
        return frozenset(limited | {rule_of(check) for check in self.checks})

    @property
    def advised(self) -> list[tuple[str, str]]:
        """Returns (rule, kind) for each naming rule that never refuses, only reports."""
        found = [(rule_of(check), check.kind) for check in self.checks if check.severity == "should"]
        return found + [("key.length", "max_length") for one in self.limits if one.severity == "should"]

    def faults(self, key: bytes, limit: Length | None = None) -> Iterator[NameFault]:
        """Yields the faults of a name, one for each rule, in the order of `policy.rules`. `limit` is an
        additional limit for this kind of key."""
        found = [*self._length_faults(key, limit), *self._byte_faults(key)]
        yield from sorted(found, key=lambda fault: _ORDER.index(fault.rule))

    def _byte_faults(self, key: bytes) -> Iterator[NameFault]:
        if self.automaton is None or self.automaton.match(key) >= 0:
            return
        broken = [check for check in self.checks if not check.admits(key)]
        for rule in {rule_of(check) for check in broken}:
            yield _one_fault(rule, [check for check in broken if rule_of(check) == rule], key)

    def _length_faults(self, key: bytes, limit: Length | None) -> Iterator[NameFault]:
        limits = [*self.limits, *([LengthLimit("must", limit)] if limit is not None else [])]
        reported: set[Severity] = set()
        for severity, one in sorted(limits, key=lambda one: (one.severity, one.limit.most)):
            length = one.of(key)
            # A broken `must` makes the `should` needless.
            if length > one.most and not reported:
                reported.add(severity)
                message = f"{{key}} is {length} {one.unit} long"
                yield NameFault("key.length", severity, message, f"at most {one.most} {one.unit}")


_TAG = {
    "required": re.compile(rb"[^{}]*\{[^{}]+\}[^{}]*", re.DOTALL),
    "optional": re.compile(rb"[^{}]*(\{[^{}]+\}[^{}]*)?", re.DOTALL),
}


def hash_tag_fault(key: bytes, wanted: HashTag) -> NameFault | None:
    """Returns the fault of a name's hash tag: there must (or may) be one pair of braces that is not empty.

    By the cluster specification, "Hash tags", the first `{` and the first `}` after it count, unless nothing
    is between them. Names that are easily misread are faults.
    """
    if wanted == "any" or _TAG[wanted].fullmatch(key):
        return None
    if b"{" not in key and b"}" not in key:
        message = "{key} has no hash tag"
    elif b"{}" in key:
        message = "the hash tag of {key} is empty"
    elif key.count(b"{") > 1 or key.count(b"}") > 1:
        message = "{key} has braces beyond one hash tag"
    else:
        message = "the braces of {key} do not make a hash tag"
    return NameFault(
        "key.hash_tag", "must", message, "use one pair of braces, around the part that keys share"
    )


_RULES: Final[Mapping[Kind, str]] = {"charset": "key.charset"}  # all other kinds: key.format
_ORDER: Final = tuple(RULES)


def rule_of(check: Check) -> str:
    """Returns the rule that a name breaks if it fails a check."""
    return _RULES.get(check.kind, "key.format")


def _one_fault(rule: str, broken: Sequence[Check], key: bytes) -> NameFault:
    """Returns the fault of one rule, with all its broken checks; `must` comes first."""
    first, *more = sorted(broken, key=lambda check: check.severity)  # must before should
    message, hint = _wording(first, key)
    for check in more:
        further, other_hint = _wording(check, key)
        message += "; " + further.replace("{key}", "it")
        hint = hint or other_hint
    return NameFault(rule, first.severity, message, hint)


def _wording(check: Check, key: bytes) -> tuple[str, str]:
    """Returns message and hint for a broken rule. The message has no part of the key, which may hold
    secrets."""
    levels = key.split(SEPARATOR)
    if check.kind == "charset":
        return f"{{key}} holds bytes outside {check.text}", ""
    if check.kind == "lowercase":
        return "{key} holds capital letters: {lower}", "write it in lower case, with _ between words"
    if check.kind == "levels":
        return _wording_of_levels(check, levels)
    if check.kind == "level" and check.level is not None:
        number = next((n for n, one in enumerate(levels, 1) if not check.level.matches(one)), 0)
        return f"level {number} of {{key}} is not of the form {check.text}", ""
    if check.kind == "avoid":
        word, better = _avoided(check, key)
        return f"{{key}} holds the abbreviation {word}", f"write {better}" if better else "write it out"
    mark, form = _unfollowed(check, levels)
    return (
        f"in {{key}}, the level after {mark} is not of the form {form.text}" if form else "{key}",
        f"for example {mark}:{printable(form.example())}" if form else "",
    )


def _wording_of_levels(check: Check, levels: Sequence[bytes]) -> tuple[str, str]:
    count = len(levels)
    if check.least and not all(levels):
        return f"level {levels.index(b'') + 1} of {{key}} is empty", "write something between the colons"
    hint = f"at least {check.least}" if count < check.least else f"at most {check.most}"
    return f"{{key}} has {counted(count, 'level')}", f"{hint}, separated by :"


def _avoided(check: Check, key: bytes) -> tuple[str, str]:
    words = set(re.split(rb"[^A-Za-z0-9]+", key))
    return next((one for one in check.avoid if one[0].encode() in words), ("", ""))


def _unfollowed(check: Check, levels: Sequence[bytes]) -> tuple[str, ClassExpression | None]:
    at = 0
    after = dict(check.after)
    while at < len(levels):
        mark = levels[at].decode("utf-8", "replace")
        form = after.get(mark)
        if form is not None:
            if at + 1 == len(levels) or not form.matches(levels[at + 1]):
                return mark, form
            at += 1
        at += 1
    return "", None


_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def lowered(shown: str) -> str:
    """Returns a shown key in lower case, `camelCase` as `camel_case`; text in <…> stays."""
    parts = re.split(r"(<[^<>]*>)", shown)
    return "".join(one if one.startswith("<") else _HUMP.sub("_", one).lower() for one in parts)
