"""The decision log: one JSON line for a violation, or for several alike.

Rule: each decision is reported exactly once: by a line of its own, in `merged` of a later line of its group,
or, if a limit or the disk forbids both, in `dropped` of the next line. So the sum of 1 + merged + dropped is
exact.

A group is (service, rule, entry or shape, command, action). It may write 20 lines at once and one a second
after that. The decisions in between are merged into its next line, which comes within 10 seconds. No value is
ever written, and no message that could quote one; with `mask_keys` no key is written either. With several
workers each has its own groups and limits, and the parent writes all lines (`log_relay`).

The caller gives the times: `now` in seconds of a monotonic clock, `at` in Unix seconds.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime

from keyfence.policy.verdict import Peer, Violation, script_in

from .clients import fields_of
from .counters import Counters
from .log_file import LogFile
from .masking import mask, masked_hint
from .sink import Group, Occurrence, Sink

GROUP_BURST = 20  # lines
GROUP_RATE = 1.0  # lines per second
MERGE_WAIT = 10.0  # seconds
MAX_GROUPS = 10_000
LINES_PER_SECOND = 1_000
MAX_HELD_KEY = 1_024  # bytes

# The rules whose message is about names and rights. Messages of other rules may quote a value.
_MESSAGE_RULES = ("scope.", "key.", "type.", "slot.", "scan.", "channel.", "database.", "command.forbidden")

_NOBODY = Peer("")
LogGroup = tuple[str, str, str, str, str]  # service, rule, entry or shape, command, action


def new_decision_id() -> str:
    return f"d-{os.urandom(4).hex()}"


def rfc3339(at: float) -> str:
    """Unix seconds as RFC 3339 in UTC with microseconds."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclasses.dataclass(slots=True)
class _Merging:
    """A group: its allowance, and the decisions that no line reports yet."""

    violation: Violation  # of the last decision, as are `client`, `revision`, `shape` and `at`
    updated: float  # when `tokens` was last computed
    tokens: float = float(GROUP_BURST)
    merged: int = 0  # decisions that wait for a line
    since: float = 0.0  # when the first of them came
    last_id: str = ""  # of the last line
    promised: str = ""  # the id of the next line, which a reply carries already
    client: Peer = _NOBODY
    revision: str = ""
    shape: str = ""
    at: float = 0.0


class DecisionLog(Sink):
    """Merges, limits and writes the lines. The id of a refusal is always the id of a line that is or will be
    written. Only a group dropped for lack of room, or a failing disk, can break this."""

    def __init__(
        self,
        file: LogFile,
        counters: Counters,
        *,
        mask_keys: bool = False,
        new_id: Callable[[], str] = new_decision_id,
    ) -> None:
        self._file = file
        self._counters = counters
        self._mask_keys = mask_keys
        self._new_id = new_id
        # The group with the oldest last line comes first, and is dropped first.
        self._groups: OrderedDict[LogGroup, _Merging] = OrderedDict()
        # Groups with decisions that wait, by `since`.
        self._waiting: OrderedDict[LogGroup, _Merging] = OrderedDict()
        self._allowance = float(LINES_PER_SECOND)
        self._updated = 0.0
        self._dropped = 0

    def record(self, group: Group, found: Occurrence) -> str:
        """Log a finding. Returns the id of the line that reports it: of a line written now, of the group's
        last line, or of its next one."""
        key = _key(group)
        violation, client, revision, times, now, at = found[:6]
        merging = self._groups.get(key)
        if merging is None:
            merging = self._add(key, violation, now)
        merging.violation = self._slim(violation)
        merging.client = client
        merging.revision = revision
        merging.shape = group.shape
        merging.at = at
        if merging.merged and now - merging.updated < (1.0 - merging.tokens) / GROUP_RATE:
            # The usual case under load: nothing has been earned yet.
            merging.merged += times
        elif self._may_write(merging, now):
            merging.merged += times
            return self._write(key, merging)
        else:
            if not merging.merged:
                merging.since = now
                self._waiting[key] = merging
            merging.merged += times
        if not merging.last_id and not merging.promised:
            merging.promised = self._new_id()
        return merging.last_id or merging.promised

    def repeat(self, group: Group, times: int, now: float, _at: float) -> None:
        """Merge more decisions like the last one of the group. If the group was dropped, so are they."""
        key = _key(group)
        merging = self._groups.get(key)
        if merging is None:
            self._dropped += times
            self._counters.log_dropped += times
            return
        if not merging.merged:
            merging.since = now
            self._waiting[key] = merging
        merging.merged += times

    def flush(self, now: float) -> None:
        """Write the lines that have waited long enough."""
        while self._waiting:
            group, merging = next(iter(self._waiting.items()))
            if now - merging.since < MERGE_WAIT or not self._may_write(merging, now):
                break
            self._write(group, merging)
        self._file.flush()

    def mask(self, mask_keys: bool) -> None:
        # Lines that wait to be written are masked too. Of a long key only the beginning is left, so it has no
        # mask: nothing of it is shown.
        if mask_keys and not self._mask_keys:
            for one in self._groups.values():
                if one.violation.key is None and not script_in(one.violation.rule, one.violation.shape):
                    one.violation = one.violation._replace(shown="", hint="", message="")
        self._mask_keys = mask_keys

    def reopen(self) -> None:
        self._file.reopen()

    def close(self) -> None:
        """Write everything that waits, without limits, and close the file."""
        while self._waiting:
            self._write(*next(iter(self._waiting.items())))
        self._file.close()

    def _add(self, group: LogGroup, violation: Violation, now: float) -> _Merging:
        if len(self._groups) >= MAX_GROUPS:
            oldest, dropped = self._groups.popitem(last=False)
            self._counters.log_groups_evicted += 1
            if dropped.merged:
                if self._may_write(dropped, now):
                    self._write(oldest, dropped)
                else:
                    del self._waiting[oldest]
                    self._dropped += dropped.merged
                    self._counters.log_dropped += dropped.merged
        merging = self._groups[group] = _Merging(violation, now)
        return merging

    def _may_write(self, merging: _Merging, now: float) -> bool:
        """Take one line from the group's allowance and from the overall allowance, or from neither."""
        merging.tokens = min(float(GROUP_BURST), merging.tokens + (now - merging.updated) * GROUP_RATE)
        merging.updated = now
        earned = (now - self._updated) * LINES_PER_SECOND
        self._allowance = min(float(LINES_PER_SECOND), self._allowance + earned)
        self._updated = now
        if merging.tokens < 1.0 or self._allowance < 1.0:
            return False
        merging.tokens -= 1.0
        self._allowance -= 1.0
        return True

    def _write(self, group: LogGroup, merging: _Merging) -> str:
        """Write a line for the last decision that waits, with the others merged into it."""
        violation, merged = merging.violation, merging.merged - 1
        decision = merging.promised or self._new_id()
        merging.last_id, merging.promised, merging.merged = decision, "", 0
        self._waiting.pop(group, None)
        if group in self._groups:
            self._groups.move_to_end(group)
        dropped = self._dropped + self._file.take_lost()
        self._dropped = 0
        self._counters.log_merged += merged
        service, rule, _, command, action = group
        line: dict[str, object] = {
            "time": rfc3339(merging.at),
            "decision": decision,
            "revision": merging.revision,
            "service": service,
            "client": merging.client.address,
            **fields_of(merging.client),
            "command": command,
            "rule": rule,
            "severity": violation.severity,
        }
        if violation.entry:
            line["entry"] = violation.entry
        if merging.shape:
            line["script" if script_in(rule, merging.shape) else "shape"] = merging.shape
        line |= self._words(violation)
        line |= {"position": violation.position, "action": action, "merged": merged, "dropped": dropped}
        self._file.write(json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n", 1 + merged, dropped)
        return decision

    def _slim(self, violation: Violation) -> Violation:
        """The violation without a long key, because a group keeps its last violation."""
        if violation.key is None or len(violation.key) <= MAX_HELD_KEY:
            return violation
        if self._mask_keys:
            hint = masked_hint(violation)
            return violation._replace(key=None, shown=mask(violation.key), hint=hint, message="")
        return violation._replace(key=None)

    def _words(self, violation: Violation) -> dict[str, object]:
        """The fields about the key. With masked keys there is no message, because it quotes the key."""
        if script_in(violation.rule, violation.shape):
            line = "" if self._mask_keys else violation.shown
            return {"key": "", "script_line": line, "hint": violation.hint}
        if self._mask_keys:
            key = violation.shown if violation.key is None else mask(violation.key)
            return {"key": key, "hint": masked_hint(violation)}
        words: dict[str, object] = {"key": violation.shown, "hint": violation.hint}
        if violation.rule.startswith(_MESSAGE_RULES):
            words["message"] = violation.message
        return words


def _key(group: Group) -> LogGroup:
    return group.service, group.rule, group.shape or group.entry, group.command, group.action
