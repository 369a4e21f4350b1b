"""What findings have in common: a slip in keys' names, or a client library.

Rule: causes are found when findings are shown, from the policy in force, and never in the loop.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from keyfence.findings.filter import Filter
from keyfence.findings.finding import State
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.remedies.nearest import nearest_entry, slip

if TYPE_CHECKING:
    from keyfence.findings.views import Views

BLOCK = 500  # findings of a list among which those of one cause stand together
MAX_KNOWN = 5_000  # shapes whose nearest entry is remembered
_OF_KEYS = frozenset({"key.unregistered", "key.format"})
_OF_CLIENTS = ("command.", "script.", "session.")  # rules that libraries break, whatever the service

Row = dict[str, Any]  # a finding as plain values
_Cause = tuple[str, str]  # its kind, and in words


class Causes:
    """The causes of findings under one policy."""

    def __init__(self, policy: CompiledPolicy | None) -> None:
        self.policy = policy
        self._meant: dict[tuple[str, str], _Cause] = {}

    def with_meant(self, finding: Mapping[str, Any]) -> Row:
        """A finding with `meant`: the entry or beginning that its keys are near to, in words; "" for none."""
        return {**finding, "meant": self._nearest(finding)[1]}

    def grouped(self, findings: Iterable[Mapping[str, Any]]) -> list[Row]:
        """The findings with `meant` and `cause`. Those of one cause stand together, in the order of the first
        of them. A finding without a common cause has the cause "", and stands alone."""
        rows = list(map(self.with_meant, findings))
        libraries = Counter(map(_library, rows))
        causes = [self._cause(row, libraries) for row in rows]
        first: dict[_Cause, int] = {}
        order = [first.setdefault(one, number) if one[1] else number for number, one in enumerate(causes)]
        both = sorted(zip(order, rows, causes, strict=True), key=lambda each: each[0])
        return [{**row, "cause": words} for _, row, (_, words) in both]

    def _cause(self, row: Row, libraries: Mapping[str, int]) -> _Cause:
        beginning, words = self._nearest(row)
        if beginning:
            return beginning, f"keys that begin with {beginning} ({words})"
        library = _library(row)
        if library and libraries[library] > 1:
            return "library", f"the client library {library}"
        return "", ""

    def _nearest(self, finding: Mapping[str, Any]) -> _Cause:
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

    def _found(self, policy: CompiledPolicy, service: str, shape: str) -> _Cause:
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


def _library(finding: Mapping[str, Any]) -> str:
    """The library of all clients of a finding that a library may have caused; "" if there are several."""
    if not finding["rule"].startswith(_OF_CLIENTS):
        return ""
    found = {" ".join(filter(None, (one.get("library"), one.get("version")))) for one in finding["clients"]}
    return found.pop() if len(found) == 1 else ""
