"""What findings have in common: a slip in keys' names, a client library, or a service and a rule.

Rule: causes are found when findings are shown, from the policy in force, and never in the loop.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from keyfence.findings.filter import Filter
from keyfence.findings.finding import AT_REST, State
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.remedies.nearest import nearest_entry, slip

if TYPE_CHECKING:
    from keyfence.findings.views import Views

BLOCK = 500  # findings of a list among which those of one cause stand together
MAX_KNOWN = 5_000  # shapes whose nearest entry is remembered
_OF_KEYS = frozenset({"key.unregistered", "key.format"})
OF_ONE_SERVICE = 3  # findings of one rule that a service must have, to be their cause
_OF_CLIENTS = ("command.", "script.", "session.")  # rules that libraries break, whatever the service

Row = dict[str, Any]  # a finding as plain values
Slip = tuple[str, str]  # the beginning of keys that is at fault, and what may be meant, in words


class Cause(NamedTuple):
    """What several findings have in common. A finding without a common cause has an empty one."""

    words: str = ""
    fields: tuple[tuple[str, str], ...] = ()  # of a filter that finds them


NONE = Cause()


class Causes:
    """The causes of findings under one policy."""

    def __init__(self, policy: CompiledPolicy | None) -> None:
        self.policy = policy
        self._meant: dict[tuple[str, str], Slip] = {}

    def with_meant(self, finding: Mapping[str, Any]) -> Row:
        """A finding with `meant`: the entry or beginning that its keys are near to, in words; "" for none."""
        return {**finding, "meant": self._nearest(finding)[1]}

    def grouped(self, findings: Iterable[Mapping[str, Any]]) -> list[Row]:
        """The findings with `meant` and `cause`. Those of one cause stand together, in the order of the first
        of them. A finding without a common cause has the cause "", and stands alone."""
        rows = list(map(self.with_meant, findings))
        causes = self.of(rows)
        first: dict[Cause, int] = {}
        order = [first.setdefault(one, at) if one is not NONE else at for at, one in enumerate(causes)]
        both = sorted(zip(order, rows, causes, strict=True), key=lambda each: each[0])
        return [{**row, "cause": cause.words} for _, row, cause in both]

    def of(self, findings: Sequence[Mapping[str, Any]]) -> list[Cause]:
        """The cause of each finding: a slip, a library, or a service that breaks one rule in several ways."""
        slips = [self._slip(one) for one in findings]
        libraries = [_library(one) for one in findings]
        known = Counter(libraries)
        found = [
            slip or (_of_library(library) if library and known[library] > 1 else NONE)
            for slip, library in zip(slips, libraries, strict=True)
        ]
        pairs = zip(findings, found, strict=True)
        left = Counter(_broken(one) for one, cause in pairs if cause is NONE)
        return [
            _of_service(*_broken(one)) if cause is NONE and left[_broken(one)] >= OF_ONE_SERVICE else cause
            for one, cause in zip(findings, found, strict=True)
        ]

    def _slip(self, finding: Mapping[str, Any]) -> Cause | None:
        beginning, words = self._nearest(finding)
        if not beginning:
            return None
        return Cause(f"keys that begin with {beginning} ({words})", (("text", beginning),))

    def _nearest(self, finding: Mapping[str, Any]) -> Slip:
        """The beginning that is at fault ("": none is), and what may be meant, in words. A resolved
        finding has no fault."""
        is_asked = finding["rule"] in _OF_KEYS and finding["shape"] and finding.get("state") != State.RESOLVED
        if self.policy is None or not is_asked:
            return "", ""
        key = finding["service"], finding["shape"]
        if key not in self._meant:
            if len(self._meant) >= MAX_KNOWN:
                self._meant.clear()
            self._meant[key] = self._found(self.policy, *key)
        return self._meant[key]

    def _found(self, policy: CompiledPolicy, service: str, shape: str) -> Slip:
        number = policy.number(service) if service in policy.services else None
        name = shape.encode("utf-8", "surrogateescape")
        target = nearest_entry(policy, number, name)
        if target is None:
            return "", ""
        slipped = slip(target, name)
        if slipped is not None:
            return slipped.given, f"did you mean {slipped.meant}?"
        return "", f"the nearest entry is {target.name}: {target.text}"


def summary_of(views: Views, causes: Causes) -> dict[str, Any]:
    """The summary of all findings, with what those that it lists may have meant."""
    found = views.summary()
    return {**found, **{name: list(map(causes.with_meant, found[name])) for name in ("new", "latest")}}


def by_cause(views: Views, causes: Causes, which: Filter) -> dict[str, Any]:
    """The findings that a filter matches, with what they may have meant. By cause, they are grouped in
    blocks: so each page of a list shows the findings that follow those of the page before."""
    if which.sort != "cause":
        found = views.listing(which, time.time())
        return {**found, "findings": list(map(causes.with_meant, found["findings"]))}
    begin, end = which.offset // BLOCK, -(-(which.offset + which.limit) // BLOCK)
    wide = dataclasses.replace(which, offset=begin * BLOCK, limit=(end - begin) * BLOCK)
    found = views.listing(wide, time.time())
    listed = found["findings"]
    blocks = (listed[at : at + BLOCK] for at in range(0, len(listed), BLOCK))
    rows = [row for block in blocks for row in causes.grouped(block)]
    first = which.offset - wide.offset
    return {**found, "findings": rows[first : first + which.limit]}


def common_cause(views: Views, causes: Causes) -> dict[str, Any]:
    """How many findings are active, and the cause of most of those that are looked at: `number` is 0 if none
    has one. `first` is the finding with most violations."""
    looked_at, total = views.active(BLOCK)
    most = Counter(one for one in causes.of(looked_at) if one is not NONE).most_common(1)
    cause, number = most[0] if most else (NONE, 0)
    return {
        "findings": total,
        "looked_at": len(looked_at),
        "first": {name: looked_at[0][name] for name in ("id", "service", "rule")} if looked_at else None,
        "cause": cause.words,
        "number": number,
        "filter": dict(cause.fields),
    }


def _broken(finding: Mapping[str, Any]) -> tuple[str, str]:
    return finding["service"], finding["rule"]


def _of_library(library: str) -> Cause:
    return Cause(f"the client library {library}", (("text", library.partition(" ")[0]),))


def _of_service(service: str, rule: str) -> Cause:
    if service == AT_REST:
        return NONE
    return Cause(f"the service {service} breaks {rule}", (("service", service), ("rule", rule)))


def _library(finding: Mapping[str, Any]) -> str:
    """The library of all clients of a finding that a library may have caused; "" if there are several."""
    if not finding["rule"].startswith(_OF_CLIENTS):
        return ""
    found = {" ".join(filter(None, (one.get("library"), one.get("version")))) for one in finding["clients"]}
    return found.pop() if len(found) == 1 else ""
