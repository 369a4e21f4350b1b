"""The counters behind the metrics, as plain integers.

Rule: every label set is closed and every table is bounded. No label comes from a key, a value or any other
text that a client chooses. Beyond a table's limit the finest labels become `other`, so that sums stay exact.

Each process owns one `Counters` and uses it from its event loop only. A parent adds up its workers with
`absorb`.
"""

from __future__ import annotations

import dataclasses
import itertools
from bisect import bisect_left
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

from .sink import Group, Occurrence, Sink
from .traffic import Traffic

Outcome = str  # forwarded, refused, or local: answered by keyfence itself

OTHER = "other"
MAX_SERIES = 10_000
MAX_COARSE = 1_000  # further series, of the labels that configuration closes, once MAX_SERIES is reached
MAX_REASONS = 200  # reasons and upstream names come from code and configuration; this guards against mistakes
MAX_SERVICES = 500  # with bytes and times of their own

# Upper bounds in seconds. A compiled decision takes a fraction of a microsecond, an interpreted one tens of
# microseconds.
DECISION_BOUNDS = (1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)
_ON_THE_WAY = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 0.1, 0.5, 2.0)
# What is timed: the evaluation of a command; from reading a request to writing it to Redis; from there to the
# first bytes of its reply.
BOUNDS = {"decision": DECISION_BOUNDS, "request": _ON_THE_WAY, "upstream": _ON_THE_WAY}

TRAFFIC = ("client_in", "client_out", "upstream_in", "upstream_out")

NODE_ROLES = ("master", "replica")
_BY_NODE = ("upstream_node_up", "upstream_node_role", "upstream_node_slots")
_OF_CLUSTER = (*_BY_NODE, "upstream_slots_covered", "upstream_topology_age", "upstream_cluster_troubles")

# The counters that hold only while the process lives.
GAUGES = (
    *("connections_open", "opaque_open", "upstream_up", "upstream_standing", "exceptions_lapsed"),
    *("upstream_role", "upstream_failover_seconds", "upstream_credentials_expire"),
    *("upstream_node_up", "upstream_node_role", "upstream_node_slots", "upstream_slots_covered"),
    *("upstream_topology_age", "upstream_cluster_troubles", "upstream_replica_up", "upstream_replica_behind"),
    *("policy_files", "policies", "policy_refused", "policy_stale", "policy_confirmed"),
    *("break_glass", "workers"),
)


class NodeStands(Protocol):
    """How one node of a cluster stands."""

    @property
    def node(self) -> str:
        """Its address."""

    @property
    def up(self) -> bool:
        """Whether keyfence reaches it."""

    @property
    def role(self) -> str:
        """One of NODE_ROLES."""

    @property
    def slots(self) -> int:
        """The number of its hash slots."""


class ClusterStands(Protocol):
    """How a cluster stands, as metrics show it."""

    @property
    def nodes(self) -> Iterable[NodeStands]: ...

    @property
    def slots(self) -> int:
        """The number of hash slots with a node that is not down."""

    @property
    def age(self) -> float | None:
        """The age of the topology in seconds; None: there is none."""

    @property
    def refreshes(self) -> Mapping[str, int]:
        """How often it was asked for in all, by reason, of a closed set."""

    @property
    def troubles_by_kind(self) -> Mapping[str, int]:
        """How many there are of each kind, of a closed set."""


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Counters(Sink):
    """The counters of one process, or the sum of several.

    Tables are public for reading only: the methods count, because they keep the limits. Plain integers may be
    raised directly (`counters.accept_pauses += 1`), and so may the four of a service's `meter`.
    """

    # (service, rule, command, entry, action)
    violations: dict[tuple[str, str, str, str, str], int] = field(default_factory=dict)
    # (service, rule, action): every row that can occur is there from the start, at 0
    rule_violations: dict[tuple[str, str, str], int] = field(default_factory=dict)
    commands: dict[tuple[str, str, str], int] = field(default_factory=dict)  # (service, command, outcome)
    connections_open: dict[tuple[str, str], int] = field(default_factory=dict)  # (service, listener)
    connections_accepted: dict[tuple[str, str], int] = field(default_factory=dict)  # (service, listener)
    connections_rejected: dict[tuple[str, str], int] = field(default_factory=dict)  # (listener, reason)
    upstream_up: dict[str, int] = field(default_factory=dict)  # upstream: 1 or 0
    upstream_standing: dict[tuple[str, str], int] = field(default_factory=dict)  # (upstream, kind): 1 or 0
    upstream_role: dict[tuple[str, str], int] = field(default_factory=dict)  # (upstream, role): 1 or 0
    upstream_failover_seconds: dict[str, float] = field(
        default_factory=dict
    )  # the last one took, by upstream
    # upstream: Unix time at which keyfence's login there ends
    upstream_credentials_expire: dict[str, float] = field(default_factory=dict)
    upstream_credentials_failures: dict[str, int] = field(default_factory=dict)
    # (upstream, accepted or refused): connections that were sent keyfence's new login
    upstream_reauthentications: dict[tuple[str, str], int] = field(default_factory=dict)
    upstream_reconnects: dict[str, int] = field(default_factory=dict)
    upstream_connect_failures: dict[str, int] = field(default_factory=dict)
    upstream_failovers: dict[str, int] = field(default_factory=dict)
    upstream_faults: dict[str, int] = field(default_factory=dict)  # unexpected replies of Redis, by kind
    upstream_replica_up: dict[str, int] = field(default_factory=dict)  # address: 1 or 0
    upstream_replica_behind: dict[str, int] = field(default_factory=dict)  # address: bytes
    upstream_replica_commands: dict[str, int] = field(default_factory=dict)  # by address
    upstream_reads: dict[str, int] = field(default_factory=dict)  # by the role of the node
    upstream_node_up: dict[str, int] = field(default_factory=dict)  # node of a cluster: 1 or 0
    upstream_node_role: dict[tuple[str, str], int] = field(default_factory=dict)  # (node, role): 1 or 0
    upstream_node_slots: dict[str, int] = field(default_factory=dict)  # node: its hash slots
    upstream_node_redirects: dict[tuple[str, str], int] = field(default_factory=dict)  # (node, MOVED or ASK)
    upstream_slots_covered: dict[str, int] = field(default_factory=dict)  # cluster: hash slots served
    upstream_topology_age: dict[str, float] = field(default_factory=dict)  # cluster: seconds
    # (cluster, reason): how often the topology was asked for
    upstream_topology_refreshes: dict[tuple[str, str], int] = field(default_factory=dict)
    upstream_cluster_troubles: dict[tuple[str, str], int] = field(default_factory=dict)  # (cluster, kind)
    upstream_errors: dict[str, int] = field(default_factory=dict)  # by word, one of `resp.replies.NOTED`
    addresses_hidden: dict[str, int] = field(default_factory=dict)  # of Redis, by where clients would read it
    sessions_opaque: dict[tuple[str, str], int] = field(default_factory=dict)  # (service, reason)
    opaque_open: dict[str, int] = field(default_factory=dict)  # sessions passed on unread now, by service
    internal_errors: dict[str, int] = field(default_factory=dict)  # by place in keyfence
    # wrong passwords of users that keyfence checks, by service so far
    login_failures: dict[str, int] = field(default_factory=dict)
    closures: dict[str, int] = field(default_factory=dict)  # connections that keyfence closed, by reason
    policy_load_failures: dict[str, int] = field(default_factory=dict)  # by policy
    # commands evaluated on the slow path, by reason
    judged_at_length: dict[str, int] = field(default_factory=dict)
    admin_refused: dict[tuple[str, str], int] = field(default_factory=dict)  # (admin or metrics, reason)
    traffic: dict[tuple[str, str], int] = field(default_factory=dict)  # (service, direction): bytes
    # (one of BOUNDS, service, index of the bucket), not cumulative; the last bucket is +Inf
    timed: dict[tuple[str, str, int], int] = field(default_factory=dict)
    timed_seconds: dict[tuple[str, str], float] = field(default_factory=dict)  # (one of BOUNDS, service)
    # how often a count went to a row `other` of a full table, by table
    folded: dict[str, int] = field(default_factory=dict)
    candidate_commands: dict[str, int] = field(default_factory=dict)  # that it evaluated, by service
    # (service, rule, change)
    candidate_violations: dict[tuple[str, str, str], int] = field(default_factory=dict)
    policies: dict[str, tuple[str, float]] = field(default_factory=dict)  # name: (revision, load time)
    # (name, owner, contact, revision) of each file of the policy in force: 1
    policy_files: dict[tuple[str, str, str, str], int] = field(default_factory=dict)
    policy_confirmed: dict[str, int] = field(default_factory=dict)  # by server: Unix seconds
    policy_fetch_failures: dict[str, int] = field(default_factory=dict)  # by server
    policy_stale: int = 0  # 1 while the policy is older than it may be
    policy_refused: int = 0  # 1 while the last reload is one that was refused
    exceptions_lapsed: dict[str, int] = field(default_factory=dict)  # past their date, by kind
    break_glass: int = 0  # 1 while enforcement is switched off by hand
    break_glass_started: int = 0
    pending_ttl_dropped: int = 0  # keys dropped before their time to live was asked, for lack of room
    pending_ttl_unanswered: int = 0  # keys that Redis could not be asked about
    pending_size_dropped: int = 0  # the same for keys whose size was to be asked
    pending_size_unanswered: int = 0
    accept_pauses: int = 0  # for lack of file descriptors or memory
    workers: int = 0  # worker processes that serve now; 0 without workers
    worker_restarts: int = 0  # of workers that ended without an order
    log_lines: int = 0
    log_merged: int = 0
    log_dropped: int = 0  # decisions that no line of the log reports
    log_groups_evicted: int = 0
    log_write_failures: int = 0
    findings_write_failures: int = 0
    notification_failures: int = 0
    notifications_dropped: int = 0
    news_sent: int = 0
    news_failures: int = 0
    news_lost: int = 0
    _meters: dict[str, Traffic] = field(default_factory=dict)  # by service

    # -- as a sink

    def record(self, group: Group, found: Occurrence) -> str:
        service, rule, _, entry, _, action, label = group
        series, key = self.violations, (service, rule, label, entry, action)
        if key in series and (service, rule, action) in self.rule_violations:
            series[key] += found.times
            self.rule_violations[service, rule, action] += found.times
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
        self._add("rule_violations", (service, rule, action), (OTHER, rule, action), MAX_SERIES, times)
        self._violation(service, rule, command, entry, action, times)

    def _violation(self, service: str, rule: str, command: str, entry: str, action: str, times: int) -> None:
        key = (service, rule, command, entry, action)
        series = self.violations
        if key in series:
            series[key] += times
            return
        if len(series) >= MAX_SERIES:
            if (command, entry) != (OTHER, OTHER):
                self._fold("violations")
            key = (service, rule, OTHER, OTHER, action)
            if key not in series and len(series) >= MAX_SERIES + MAX_COARSE:
                key = (OTHER, OTHER, OTHER, OTHER, OTHER)
        series[key] = series.get(key, 0) + times

    def _add(self, name: str, key: Hashable, spare: Hashable, limit: int, times: float = 1) -> None:
        """Count in the table of this name; in its row `spare` if the table is full."""
        table = getattr(self, name)
        if key not in table and key != spare and len(table) >= limit:
            key = spare
            self._fold(name)
        table[key] = table.get(key, 0) + times

    def _add_rows(self, name: str, rows: Iterable[Sequence[Any]]) -> None:
        for *labels, number in rows:
            if len(labels) > 1:
                self._add(name, tuple(labels), (OTHER,) * len(labels), MAX_SERIES, number)
            else:
                self._add(name, labels[0], OTHER, MAX_REASONS, number)

    def _fold(self, name: str) -> None:
        self.folded[name] = self.folded.get(name, 0) + 1

    def declare(self, name: str, rows: Iterable[Hashable]) -> None:
        """Begin rows of a table at 0. Prometheus takes no increase from a series that is born at 1."""
        table = getattr(self, name)
        for row in rows:
            if row in table:
                continue
            if len(table) < MAX_SERIES:
                table[row] = 0
            else:
                self._fold(name)

    def command(self, service: str, command: str, outcome: Outcome, times: int = 1) -> None:
        """Count a command. `command` is a name of the command table or `other`, never the client's own
        text."""
        key: tuple[str, str, str] = (service, command, outcome)
        series = self.commands
        if key in series:
            series[key] += times
            return
        if len(series) >= MAX_SERIES:
            if command != OTHER:
                self._fold("commands")
            key = (service, OTHER, outcome)
            if key not in series and len(series) >= MAX_SERIES + MAX_COARSE:
                key = (OTHER, OTHER, OTHER)
        series[key] = series.get(key, 0) + times

    def at_length(self, reason: str) -> None:
        """A command was evaluated on the slow path. `reason` is one of a closed set."""
        self._add("judged_at_length", reason, OTHER, MAX_REASONS)

    def connection_opened(self, service: str, listener: str) -> None:
        key, spare = (service, listener), (OTHER, OTHER)
        self._add("connections_accepted", key, spare, MAX_SERIES)
        self._add("connections_open", key, spare, MAX_SERIES)

    def connection_identified(self, before: str, service: str, listener: str) -> None:
        """An open connection is another service's from now on (AUTH, HELLO)."""
        self.connection_closed(before, listener)
        self._add("connections_open", (service, listener), (OTHER, OTHER), MAX_SERIES)

    def connection_closed(self, service: str, listener: str) -> None:
        # Rows are never removed, so a connection leaves the row that it entered.
        self._add("connections_open", (service, listener), (OTHER, OTHER), MAX_SERIES, -1)

    def connection_rejected(self, listener: str, reason: str) -> None:
        self._add("connections_rejected", (listener, reason), (OTHER, OTHER), MAX_REASONS)

    def took(self, what: str, service: str, seconds: float) -> None:
        """Count a time, in a histogram of BOUNDS. A bound belongs to its bucket."""
        bucket = bisect_left(BOUNDS[what], seconds)
        key = what, service, bucket
        if key in self.timed:
            self.timed[key] += 1
            self.timed_seconds[what, service] += seconds
        else:
            self._took(what, service, seconds)
            self._took_like(what, service, bucket, 1)

    def _took(self, what: str, service: str, seconds: float) -> None:
        key = what, service
        if key not in self.timed_seconds and len(self.timed_seconds) >= len(BOUNDS) * MAX_SERVICES:
            key = what, OTHER
            self._fold(what)
        self.timed_seconds[key] = self.timed_seconds.get(key, 0.0) + seconds

    def _took_like(self, what: str, service: str, bucket: int, times: int) -> None:
        """Count times in a bucket of a histogram, behind `_took`."""
        key = (what, service if (what, service) in self.timed_seconds else OTHER, bucket)
        self.timed[key] = self.timed.get(key, 0) + times

    def meter(self, service: str) -> Traffic:
        """Where the clients of a service count their bytes."""
        if service not in self._meters and len(self._meters) >= MAX_SERVICES:
            self._fold("traffic")
            service = OTHER
        return self._meters.setdefault(service, Traffic())

    def collect(self) -> None:
        """Take over the bytes that clients have counted."""
        for service, meter in self._meters.items():
            numbers = (meter.client_in, meter.client_out, meter.upstream_in, meter.upstream_out)
            if not any(numbers):
                continue
            for direction, number in zip(TRAFFIC, numbers, strict=True):
                key = (service, direction)
                self.traffic[key] = self.traffic.get(key, 0) + number
            meter.client_in = meter.client_out = meter.upstream_in = meter.upstream_out = 0

    def upstream_state(self, name: str, up: bool) -> None:
        if name in self.upstream_up or len(self.upstream_up) < MAX_REASONS:
            self.upstream_up[name] = int(up)

    def upstream_gone(self, name: str) -> None:
        """The upstream is none any more: what it was like is over."""
        self.upstream_up.pop(name, None)
        for rows in (self.upstream_standing, self.upstream_role):
            for key in [one for one in rows if one[0] == name]:
                del rows[key]

    def upstream_stands(self, name: str, kind: str, stands: bool) -> None:
        """Whether the upstream is in a state that needs attention; `kind` is one of
        `upstream.standing.KINDS`."""
        if (name, kind) in self.upstream_standing or len(self.upstream_standing) < MAX_REASONS:
            self.upstream_standing[name, kind] = int(stands)

    def upstream_has_role(self, name: str, role: str, has: bool) -> None:
        """Whether this is the upstream's role; `role` is one of `upstream.standing.ROLES`."""
        if (name, role) in self.upstream_role or len(self.upstream_role) < MAX_REASONS:
            self.upstream_role[name, role] = int(has)

    def upstream_failover_took(self, name: str, seconds: float) -> None:
        """How long the upstream was out of service in its last failover."""
        if name in self.upstream_failover_seconds or len(self.upstream_failover_seconds) < MAX_REASONS:
            self.upstream_failover_seconds[name] = seconds

    def upstream_event(self, name: str, event: str) -> None:
        """Something happened at the upstream; `event` is one of `reconnects`, `connect_failures`, `failovers`
        and `credentials_failures` (new credentials could not be fetched)."""
        self._add(f"upstream_{event}", name, OTHER, MAX_REASONS)

    def upstream_credentials(self, name: str, expires_at: float | None) -> None:
        """When keyfence's login at the upstream ends, in Unix seconds; None: it does not."""
        if expires_at is None:
            self.upstream_credentials_expire.pop(name, None)
        elif name in self.upstream_credentials_expire or len(self.upstream_credentials_expire) < MAX_REASONS:
            self.upstream_credentials_expire[name] = expires_at

    def upstream_reauthenticated(self, name: str, *, accepted: bool) -> None:
        """A connection was sent keyfence's new login, and Redis has answered."""
        key = (name, "accepted" if accepted else "refused")
        self._add("upstream_reauthentications", key, (OTHER, OTHER), MAX_REASONS)

    def replicas_stand(self, rows: Iterable[tuple[str, bool, int | None, int]], reads: Iterable[Any]) -> None:
        """These replicas there are: (address, whether it is used, bytes that it lacks if that is known,
        commands since the last call). `reads`: (role of the node, reads there since then)."""
        self._add_rows("upstream_reads", reads)
        self.upstream_replica_up.clear()
        self.upstream_replica_behind.clear()
        for address, is_used, behind, sent in itertools.islice(rows, MAX_REASONS):
            self.upstream_replica_up[address] = int(is_used)
            if behind is not None:
                self.upstream_replica_behind[address] = behind
            self._add("upstream_replica_commands", address, OTHER, MAX_REASONS, sent)

    def cluster_stands(self, cluster: str, stands: ClusterStands) -> None:
        """How a cluster of this name stands now."""
        for name in _BY_NODE:
            getattr(self, name).clear()
        for one in itertools.islice(stands.nodes, MAX_COARSE):
            self.upstream_node_up[one.node] = int(one.up)
            self.upstream_node_slots[one.node] = one.slots
            for role in NODE_ROLES:
                self.upstream_node_role[one.node, role] = int(role == one.role)
        self.upstream_slots_covered[cluster] = stands.slots
        if stands.age is not None:
            self.upstream_topology_age[cluster] = stands.age
        for reason, number in stands.refreshes.items():
            self.upstream_topology_refreshes[cluster, reason] = number
        for kind, number in stands.troubles_by_kind.items():
            self.upstream_cluster_troubles[cluster, kind] = number

    def node_redirected(self, node: str, error: str) -> None:
        """A node has sent a client to another one; `error` is MOVED or ASK."""
        self._add("upstream_node_redirects", (node, error), (OTHER, OTHER), MAX_COARSE)

    def upstream_fault(self, kind: str) -> None:
        """Redis sent an unexpected reply on a shared connection. `kind` is one of a closed set."""
        self._add("upstream_faults", kind, OTHER, MAX_REASONS)

    def upstream_error(self, word: str) -> None:
        """Redis answered a client's command with an error that begins with this word, one of a closed set."""
        self._add("upstream_errors", word, OTHER, MAX_REASONS)

    def address_hidden(self, where: str) -> None:
        """An address of Redis was kept from a client. `where` is one of a closed set."""
        self._add("addresses_hidden", where, OTHER, MAX_REASONS)

    def session_opaque(self, service: str, reason: str) -> None:
        """A session is passed on unread from now on. `reason` is one of a closed set."""
        self._add("sessions_opaque", (service, reason), (OTHER, OTHER), MAX_SERIES)
        self._add("opaque_open", service, OTHER, MAX_SERIES)

    def session_opaque_ended(self, service: str) -> None:
        """A session that was passed on unread has ended."""
        if self.opaque_open.get(service):
            self.opaque_open[service] -= 1

    def internal_error(self, place: str) -> None:
        self._add("internal_errors", place, OTHER, MAX_REASONS)

    def login_failed(self, service: str) -> None:
        """A client sent a wrong password for a user that keyfence checks."""
        self._add("login_failures", service, OTHER, MAX_SERIES)

    def closed_for(self, reason: str) -> None:
        """keyfence closed a connection; `reason` is a label of `net.closures`."""
        self._add("closures", reason, OTHER, MAX_REASONS)

    def admin_refused_one(self, listener: str, reason: str) -> None:
        """The admin or metrics listener refused a connection or a request."""
        self._add("admin_refused", (listener, reason), (OTHER, OTHER), MAX_REASONS)

    def begin_comparison(self, services: Collection[str], rules: Collection[str]) -> None:
        """Begin the series of new findings with zeros. A series that begins with its first finding hides that
        one from `increase()`. If there are too many, they leave room for others."""
        if len(services) * len(rules) <= MAX_SERIES // 4:
            for service in services:
                for rule in rules:
                    self.changed(service, rule, "new", 0)

    def compared(self, service: str, times: int = 1) -> None:
        """A candidate policy has evaluated commands beside the one in force."""
        self._add("candidate_commands", service, OTHER, MAX_REASONS, times)

    def changed(self, service: str, rule: str, change: str, times: int = 1) -> None:
        """A candidate policy would change a finding: `change` is new, gone or same."""
        self._add("candidate_violations", (service, rule, change), (OTHER, OTHER, OTHER), MAX_SERIES, times)

    def policy_loaded(self, name: str, revision: str, at: float) -> None:
        """`at` is in Unix seconds. The revision replaces an earlier one of this policy."""
        if name in self.policies or len(self.policies) < MAX_REASONS:
            self.policies[name] = (revision, at)
            self.policy_load_failures.setdefault(name, 0)

    def policy_made_of(self, files: Iterable[tuple[str, str, str]], revision: str) -> None:
        """The files of the policy in force: (name, owner, contact)."""
        self.policy_files = {(*file, revision): 1 for file in itertools.islice(files, MAX_REASONS)}

    def policy_replaced(self, before: str) -> None:
        """This policy is no longer in force."""
        self.policies.pop(before, None)

    def policy_failed(self, to: str, name: str, times: int = 1) -> None:
        """A policy could not be had: `to` is `load`, with the policy's name, or `fetch`, with its server."""
        self._add(f"policy_{to}_failures", name, OTHER, MAX_REASONS, times)

    def set_break_glass(self, active: bool) -> None:
        self.break_glass_started += active and not self.break_glass
        self.break_glass = int(active)

    def set_exceptions_lapsed(self, kind: str, number: int) -> None:
        """The number of exceptions of a kind (legacy, grants, waivers) that are past their date."""
        if kind in self.exceptions_lapsed or len(self.exceptions_lapsed) < MAX_REASONS:
            self.exceptions_lapsed[kind] = number

    def snapshot(self) -> dict[str, Any]:
        """All counters as plain values for JSON and pickle: tables as lists of [label, …, number]."""
        self.collect()
        return self._shot((*SCALARS, *COUNTED)) | self.gauges()

    def copy(self) -> Counters:
        """The counters as they are now."""
        now = Counters()
        now.absorb(self.snapshot())
        return now

    def gauges(self) -> dict[str, Any]:
        """The part of a snapshot that holds only while the process lives."""
        return self._shot(GAUGES)

    def _shot(self, names: Iterable[str]) -> dict[str, Any]:
        return {name: _plain(getattr(self, name)) for name in names}

    def absorb(self, shot: Mapping[str, Any], *, live: bool = True) -> None:
        """Add the snapshot of a worker. `live=False`: the worker has ended, so only its totals are added.

        An upstream is up if all live workers say so, and the login that ends first counts. Policies,
        break-glass and lapsed exceptions should be the same in all workers: the newest, any and the largest
        are taken.
        """
        for name in SCALARS:
            setattr(self, name, getattr(self, name) + shot[name])
        for row in shot["violations"]:
            self._violation(*row)
        for row in shot["commands"]:
            self.command(*row)
        for row in shot["timed_seconds"]:
            self._took(*row)
        for row in shot["timed"]:
            self._took_like(*row)
        for service, rule, action, number in shot["rule_violations"]:
            self._add("rule_violations", (service, rule, action), (OTHER, rule, action), MAX_SERIES, number)
        for name in COUNTED:
            if name not in _COARSENED:
                self._add_rows(name, shot[name])
        if live:
            self.absorb_gauges(shot)

    def absorb_gauges(self, shot: Mapping[str, Any]) -> None:
        """Add the gauges of a live worker, from a snapshot or from `Increments`."""
        self._add_rows("connections_open", shot["connections_open"])
        self._add_rows("opaque_open", shot["opaque_open"])
        for name, up in shot["upstream_up"]:
            self.upstream_state(name, bool(up and self.upstream_up.get(name, 1)))
        for name, kind, stands in shot["upstream_standing"]:
            self.upstream_stands(name, kind, bool(stands or self.upstream_standing.get((name, kind))))
        for name, role, has in shot["upstream_role"]:
            self.upstream_has_role(name, role, bool(has))
        for name, seconds in shot["upstream_failover_seconds"]:
            self.upstream_failover_took(name, seconds)
        for name, up in shot["upstream_replica_up"]:
            self.upstream_replica_up[name] = min(int(up), self.upstream_replica_up.get(name, 1))
        for name, behind in shot["upstream_replica_behind"]:
            self.upstream_replica_behind[name] = max(behind, self.upstream_replica_behind.get(name, 0))
        for name in _OF_CLUSTER:  # the process that follows it alone has rows
            getattr(self, name).update(_table(shot[name]))
        for name, at in shot["upstream_credentials_expire"]:
            self.upstream_credentials(name, min(at, self.upstream_credentials_expire.get(name, at)))
        for kind, number in shot["exceptions_lapsed"]:
            self.set_exceptions_lapsed(kind, max(number, self.exceptions_lapsed.get(kind, 0)))
        for name, revision, at in shot["policies"]:
            if at >= self.policies.get(name, ("", 0.0))[1]:
                self.policy_loaded(name, revision, at)
        for name, owner, contact, revision, _ in shot["policy_files"]:
            self.policy_files[name, owner, contact, revision] = 1
        self.policy_refused = max(self.policy_refused, shot["policy_refused"])
        self.policy_stale = max(self.policy_stale, shot["policy_stale"])
        self.policy_confirmed.update(map(tuple, shot["policy_confirmed"]))
        self.break_glass = max(self.break_glass, shot["break_glass"])
        self.workers = max(self.workers, shot["workers"])


def _table(rows: Iterable[Sequence[Any]]) -> dict[Any, float]:
    """The table that these rows are of."""
    return {tuple(labels) if len(labels) > 1 else labels[0]: number for *labels, number in rows}


def _plain(value: Any) -> Any:
    """A number, or the rows of a table."""
    if isinstance(value, int):
        return value
    return [[*parts_of(key), *parts_of(number)] for key, number in value.items()]


def parts_of(value: Any) -> tuple[Any, ...]:
    """The labels, or numbers, of a row: several are a tuple."""
    return value if isinstance(value, tuple) else (value,)


# What is added up: tables of counts, and plain counts.
_COUNTS = [one for one in dataclasses.fields(Counters) if one.name not in (*GAUGES, "_meters")]
COUNTED = tuple(one.name for one in _COUNTS if one.default_factory is dict)
SCALARS = tuple(one.name for one in _COUNTS if one.default == 0)
# Tables with limits and spare rows of their own.
_COARSENED = frozenset({"violations", "commands", "timed", "timed_seconds", "rule_violations"})
