"""The counters behind the metrics, as plain integers.

Rule: every label set is closed and every table is bounded. No label comes from a key, a value or any other
text that a client chooses. Beyond a table's limit the finest labels become `other`, so that sums stay exact.

Each process owns one `Counters` and uses it from its event loop only. A parent adds up its workers with
`absorb`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Hashable, Mapping
from typing import Any, TypeVar

from .sink import Group, Occurrence, Sink
from .traffic import Traffic

Key = TypeVar("Key", bound=Hashable)
Outcome = str  # forwarded, refused, or local: answered by keyfence itself

OTHER = "other"
MAX_SERIES = 10_000
MAX_COARSE = 1_000  # further series, of the labels that configuration closes, once MAX_SERIES is reached
MAX_REASONS = 200  # reasons and upstream names come from code and configuration; this guards against mistakes

# Upper bounds in seconds. A compiled decision takes a fraction of a microsecond, an interpreted one tens of
# microseconds.
DECISION_BOUNDS = (1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)

# How the fields of a snapshot are added up: tables of counts, plain counts, and gauges, which hold only for a
# live worker.
COUNTED = (
    "violations",
    "commands",
    "connections_accepted",
    "connections_rejected",
    "upstream_reconnects",
    "upstream_connect_failures",
    "upstream_faults",
    "sessions_opaque",
    "internal_errors",
    "closures",
    "login_failures",
    "policy_load_failures",
    "judged_at_length",
    "admin_refused",
    "candidate_commands",
    "candidate_violations",
)
TRAFFIC = ("client_in", "client_out", "upstream_in", "upstream_out")
SCALARS = (
    *TRAFFIC,
    "decision_seconds",
    "break_glass_started",
    "pending_ttl_dropped",
    "pending_ttl_unanswered",
    "pending_size_dropped",
    "pending_size_unanswered",
    "accept_pauses",
    "worker_restarts",
    "log_lines",
    "log_merged",
    "log_dropped",
    "log_groups_evicted",
    "log_write_failures",
    "findings_write_failures",
    "notification_failures",
    "notifications_dropped",
)
_GAUGE_TABLES = ("connections_open", "opaque_open", "upstream_up", "exceptions_lapsed")
GAUGES = (*_GAUGE_TABLES, "policies", "break_glass", "workers")


class Counters(Traffic, Sink):
    """The counters of one process, or the sum of several.

    Tables are public for reading only: the methods count, because they keep the limits. Plain integers, the
    four byte counts among them, may be raised directly (`counters.client_in += n`).
    """

    __slots__ = (
        *COUNTED,
        *(name for name in SCALARS if name not in TRAFFIC),
        "break_glass",
        "connections_open",
        "decision_buckets",
        "exceptions_lapsed",
        "opaque_open",
        "policies",
        "upstream_up",
        "workers",
    )

    def __init__(self) -> None:
        super().__init__()
        # (service, rule, command, entry, action)
        self.violations: dict[tuple[str, str, str, str, str], int] = {}
        self.commands: dict[tuple[str, str, str], int] = {}  # (service, command, outcome)
        self.connections_open: dict[tuple[str, str], int] = {}  # (service, listener)
        self.connections_accepted: dict[tuple[str, str], int] = {}  # (service, listener)
        self.connections_rejected: dict[tuple[str, str], int] = {}  # (listener, reason)
        self.upstream_up: dict[str, int] = {}  # upstream: 1 or 0
        self.upstream_reconnects: dict[str, int] = {}
        self.upstream_connect_failures: dict[str, int] = {}
        self.upstream_faults: dict[str, int] = {}  # unexpected replies of Redis, by kind
        self.sessions_opaque: dict[tuple[str, str], int] = {}  # (service, reason)
        self.opaque_open: dict[str, int] = {}  # sessions that are passed on unread now, by service
        self.internal_errors: dict[str, int] = {}  # by place in keyfence
        # wrong passwords of users that keyfence checks, by service so far
        self.login_failures: dict[str, int] = {}
        self.closures: dict[str, int] = {}  # connections that keyfence closed, by reason
        self.policy_load_failures: dict[str, int] = {}  # by policy
        self.judged_at_length: dict[str, int] = {}  # commands evaluated on the slow path, by reason
        self.admin_refused: dict[tuple[str, str], int] = {}  # (admin or metrics, reason)
        self.candidate_commands: dict[str, int] = {}  # evaluated by the candidate policy too, by service
        self.candidate_violations: dict[tuple[str, str, str], int] = {}  # (service, rule, change)
        self.policies: dict[str, tuple[str, float]] = {}  # name: (revision, Unix time of load)
        self.exceptions_lapsed: dict[str, int] = {}  # legacy, grants, waivers: how many are past their date
        self.decision_buckets = [0] * (len(DECISION_BOUNDS) + 1)  # not cumulative; the last one is +Inf
        self.decision_seconds = 0.0
        self.break_glass = 0  # 1 while enforcement is switched off by hand
        self.break_glass_started = 0
        self.pending_ttl_dropped = 0  # keys dropped before their time to live was asked, for lack of room
        self.pending_ttl_unanswered = 0  # keys that Redis could not be asked about
        self.pending_size_dropped = 0  # the same for keys whose size was to be asked
        self.pending_size_unanswered = 0
        self.accept_pauses = 0  # for lack of file descriptors or memory
        self.workers = 0  # worker processes that serve now; 0 without workers
        self.worker_restarts = 0  # of workers that ended without an order
        self.log_lines = 0
        self.log_merged = 0
        self.log_dropped = 0  # decisions that no line of the log reports
        self.log_groups_evicted = 0
        self.log_write_failures = 0
        self.findings_write_failures = 0
        self.notification_failures = 0
        self.notifications_dropped = 0

    # -- as a sink

    def record(self, group: Group, found: Occurrence) -> str:
        service, rule, _, entry, _, action, label = group
        series, key = self.violations, (service, rule, label, entry, action)
        if key in series:
            series[key] += found.times
        else:
            self.violation(service, rule, label, entry, action, found.times)
        return ""

    def repeat(self, group: Group, times: int, _now: float, _at: float) -> None:
        service, rule, _, entry, _, action, label = group
        self.violation(service, rule, label, entry, action, times)

    def holds(self, group: Group) -> bool:
        service, rule, _, entry, _, action, label = group
        return (service, rule, label, entry, action) in self.violations

    # -- what is counted

    def violation(
        self, service: str, rule: str, command: str, entry: str, action: str, times: int = 1
    ) -> None:
        """Count a violation. `command` is a name of the command table or `other`, `entry` a name of the
        policy or "", `action` one of observed, refused, waived and late."""
        key = (service, rule, command, entry, action)
        series = self.violations
        if key in series:
            series[key] += times
            return
        if len(series) >= MAX_SERIES:
            key = (service, rule, OTHER, OTHER, action)
            if key not in series and len(series) >= MAX_SERIES + MAX_COARSE:
                key = (OTHER, OTHER, OTHER, OTHER, OTHER)
        series[key] = series.get(key, 0) + times

    def command(self, service: str, command: str, outcome: Outcome, times: int = 1) -> None:
        """Count a command. `command` is a name of the command table or `other`, never the client's own
        text."""
        key: tuple[str, str, str] = (service, command, outcome)
        series = self.commands
        if key in series:
            series[key] += times
            return
        if len(series) >= MAX_SERIES:
            key = (service, OTHER, outcome)
            if key not in series and len(series) >= MAX_SERIES + MAX_COARSE:
                key = (OTHER, OTHER, OTHER)
        series[key] = series.get(key, 0) + times

    def at_length(self, reason: str) -> None:
        """A command was evaluated on the slow path. `reason` is one of a closed set."""
        _add(self.judged_at_length, reason, OTHER, MAX_REASONS)

    def connection_opened(self, service: str, listener: str) -> None:
        key, spare = (service, listener), (OTHER, OTHER)
        _add(self.connections_accepted, key, spare, MAX_SERIES)
        _add(self.connections_open, key, spare, MAX_SERIES)

    def connection_identified(self, before: str, service: str, listener: str) -> None:
        """An open connection is another service's from now on (AUTH, HELLO)."""
        self.connection_closed(before, listener)
        _add(self.connections_open, (service, listener), (OTHER, OTHER), MAX_SERIES)

    def connection_closed(self, service: str, listener: str) -> None:
        # Rows are never removed, so a connection leaves the row that it entered.
        _add(self.connections_open, (service, listener), (OTHER, OTHER), MAX_SERIES, -1)

    def connection_rejected(self, listener: str, reason: str) -> None:
        _add(self.connections_rejected, (listener, reason), (OTHER, OTHER), MAX_REASONS)

    def observe_decision(self, seconds: float, times: int = 1) -> None:
        """Time one decision, or `times` decisions that took `seconds` each. A bound belongs to its bucket."""
        self.decision_buckets[bisect_left(DECISION_BOUNDS, seconds)] += times
        self.decision_seconds += seconds * times

    def upstream_state(self, name: str, up: bool) -> None:
        if name in self.upstream_up or len(self.upstream_up) < MAX_REASONS:
            self.upstream_up[name] = int(up)

    def upstream_reconnected(self, name: str) -> None:
        _add(self.upstream_reconnects, name, OTHER, MAX_REASONS)

    def upstream_connect_failed(self, name: str) -> None:
        _add(self.upstream_connect_failures, name, OTHER, MAX_REASONS)

    def upstream_fault(self, kind: str) -> None:
        """Redis sent an unexpected reply on a shared connection. `kind` is one of a closed set."""
        _add(self.upstream_faults, kind, OTHER, MAX_REASONS)

    def session_opaque(self, service: str, reason: str) -> None:
        """A session is passed on unread from now on. `reason` is one of a closed set."""
        _add(self.sessions_opaque, (service, reason), (OTHER, OTHER), MAX_SERIES)
        _add(self.opaque_open, service, OTHER, MAX_SERIES)

    def session_opaque_ended(self, service: str) -> None:
        """A session that was passed on unread has ended."""
        if self.opaque_open.get(service):
            self.opaque_open[service] -= 1

    def internal_error(self, place: str) -> None:
        _add(self.internal_errors, place, OTHER, MAX_REASONS)

    def login_failed(self, service: str) -> None:
        """A client sent a wrong password for a user that keyfence checks."""
        _add(self.login_failures, service, OTHER, MAX_SERIES)

    def closed_for(self, reason: str) -> None:
        """keyfence closed a connection; `reason` is a label of `downstream.closures`."""
        _add(self.closures, reason, OTHER, MAX_REASONS)

    def admin_refused_one(self, listener: str, reason: str) -> None:
        """The admin or metrics listener refused a connection or a request."""
        _add(self.admin_refused, (listener, reason), (OTHER, OTHER), MAX_REASONS)

    def begin_comparison(self, services: Collection[str], rules: Collection[str]) -> None:
        """Begin the series of new findings with zeros. A series that begins with its first finding hides that
        one from `increase()`. If there are too many, they leave room for others."""
        if len(services) * len(rules) <= MAX_SERIES // 4:
            for service in services:
                for rule in rules:
                    self.changed(service, rule, "new", 0)

    def compared(self, service: str, times: int = 1) -> None:
        """A candidate policy has evaluated commands beside the one in force."""
        _add(self.candidate_commands, service, OTHER, MAX_REASONS, times)

    def changed(self, service: str, rule: str, change: str, times: int = 1) -> None:
        """A candidate policy would change a finding: `change` is new, gone or same."""
        _add(self.candidate_violations, (service, rule, change), (OTHER, OTHER, OTHER), MAX_SERIES, times)

    def policy_loaded(self, name: str, revision: str, at: float) -> None:
        """`at` is in Unix seconds. The revision replaces an earlier one of this policy."""
        if name in self.policies or len(self.policies) < MAX_REASONS:
            self.policies[name] = (revision, at)

    def policy_replaced(self, before: str) -> None:
        """This policy is no longer in force."""
        self.policies.pop(before, None)

    def policy_load_failed(self, name: str) -> None:
        _add(self.policy_load_failures, name, OTHER, MAX_REASONS)

    def set_break_glass(self, active: bool) -> None:
        self.break_glass_started += active and not self.break_glass
        self.break_glass = int(active)

    def set_exceptions_lapsed(self, kind: str, number: int) -> None:
        """The number of exceptions of a kind (legacy, grants, waivers) that are past their date."""
        if kind in self.exceptions_lapsed or len(self.exceptions_lapsed) < MAX_REASONS:
            self.exceptions_lapsed[kind] = number

    def snapshot(self) -> dict[str, Any]:
        """All counters as plain values for JSON and pickle: tables as lists of [label, …, number]."""
        shot: dict[str, Any] = {name: getattr(self, name) for name in SCALARS}
        for name in COUNTED:
            shot[name] = _rows(getattr(self, name))
        shot["decision_buckets"] = list(self.decision_buckets)
        return shot | self.gauges()

    def gauges(self) -> dict[str, Any]:
        """The part of a snapshot that holds only while the process lives."""
        shot: dict[str, Any] = {name: _rows(getattr(self, name)) for name in _GAUGE_TABLES}
        shot["policies"] = [[name, revision, at] for name, (revision, at) in self.policies.items()]
        shot["break_glass"] = self.break_glass
        shot["workers"] = self.workers
        return shot

    def absorb(self, shot: Mapping[str, Any], *, live: bool = True) -> None:
        """Add the snapshot of a worker. `live=False`: the worker has ended, so only its totals are added.

        An upstream is up if all live workers say so. Policies, break-glass and lapsed exceptions should be
        the same in all workers: the newest, any and the largest are taken.
        """
        for name in SCALARS:
            setattr(self, name, getattr(self, name) + shot[name])
        for index, number in enumerate(shot["decision_buckets"]):
            self.decision_buckets[index] += number
        for service, rule, command, entry, action, number in shot["violations"]:
            self.violation(service, rule, command, entry, action, times=number)
        for service, command, outcome, number in shot["commands"]:
            self.command(service, command, outcome, times=number)
        for name in COUNTED[2:]:
            _add_rows(getattr(self, name), shot[name])
        if live:
            self.absorb_gauges(shot)

    def absorb_gauges(self, shot: Mapping[str, Any]) -> None:
        """Add the gauges of a live worker, from a snapshot or from `Increments`."""
        _add_rows(self.connections_open, shot["connections_open"])
        _add_rows(self.opaque_open, shot["opaque_open"])
        for name, up in shot["upstream_up"]:
            self.upstream_state(name, bool(up and self.upstream_up.get(name, 1)))
        for kind, number in shot["exceptions_lapsed"]:
            self.set_exceptions_lapsed(kind, max(number, self.exceptions_lapsed.get(kind, 0)))
        for name, revision, at in shot["policies"]:
            if at >= self.policies.get(name, ("", 0.0))[1]:
                self.policy_loaded(name, revision, at)
        self.break_glass = max(self.break_glass, shot["break_glass"])
        self.workers = max(self.workers, shot["workers"])


def _add(series: dict[Key, int], key: Key, spare: Key, limit: int, times: int = 1) -> None:
    if key not in series and len(series) >= limit:
        key = spare
    series[key] = series.get(key, 0) + times


def _rows(series: Mapping[Any, int]) -> list[list[Any]]:
    return [[*(key if isinstance(key, tuple) else (key,)), number] for key, number in series.items()]


def _add_rows(series: dict[Any, int], rows: list[list[Any]]) -> None:
    for *labels, number in rows:
        if len(labels) > 1:
            _add(series, tuple(labels), (OTHER,) * len(labels), MAX_SERIES, number)
        else:
            _add(series, labels[0], OTHER, MAX_REASONS, number)
