"""Every metric that keyfence serves: one table.

Rule: this table is the only list of metrics. Names, types and labels are stable, because dashboards
and alerts use them. Base units are seconds and bytes. `python -m tools.metrics_page` writes docs/metrics.md
from it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]
SERVICE = ("service",)


class Metric(NamedTuple):
    """One metric."""

    name: str  # as it is queried; a histogram without `_bucket`
    kind: Kind
    labels: tuple[str, ...]
    help: str
    table: str  # the attribute of Counters; of a histogram, its name in `counters.BOUNDS`
    unit: str = ""  # what a 1 stands for, where the name does not say it
    query: str = ""  # an example


def _counter(name: str, labels: tuple[str, ...], text: str, table: str = "", **more: str) -> Metric:
    return Metric(f"keyfence_{name}_total", "counter", labels, text, table or name, **more)


def _gauge(name: str, labels: tuple[str, ...], text: str, table: str = "", **more: str) -> Metric:
    return Metric(f"keyfence_{name}", "gauge", labels, text, table or name, **more)


def _times(name: str, text: str, table: str, query: str) -> Metric:
    return Metric(f"keyfence_{name}_seconds", "histogram", SERVICE, text, table, "seconds", query)


TOPICS: dict[str, tuple[Metric, ...]] = {
    "Violations and the policy": (
        _counter(
            "rule_violations",
            ("service", "rule", "action"),
            "Violations, by service and rule. Each row that can occur is there from the start, at 0.",
            unit="violations",
            query="sum by (service, rule) (increase(keyfence_rule_violations_total[5m]))",
        ),
        _counter(
            "violations",
            ("service", "rule", "command", "entry", "action"),
            "Violations, by command and entry too. A row begins with its first violation.",
            unit="violations",
            query="topk(10, sum by (service, rule, entry) (keyfence_violations_total))",
        ),
        _gauge(
            "policy_info",
            ("policy", "owner", "contact", "revision"),
            "The files of the policy in force; always 1. `revision` is that of all files together.",
            "policy_files",
            query="count by (revision) (keyfence_policy_info)",
        ),
        _gauge(
            "policy_loaded_timestamp_seconds",
            ("policy",),
            "When the policy was put in force.",
            "policies",
            unit="Unix seconds",
        ),
        _counter(
            "policy_load_failures",
            ("policy",),
            "Reloads that failed. The earlier policy stays in force.",
            unit="reloads",
        ),
        _gauge(
            "policy_refused",
            (),
            "Whether the last reload was refused, so that an earlier policy is in force (1), or not (0).",
            query="max(keyfence_policy_refused) == 1",
        ),
        _gauge(
            "policy_confirmed_timestamp_seconds",
            ("server",),
            "When the server of the policy has confirmed the policy in force last. No row without a server.",
            "policy_confirmed",
            unit="Unix seconds",
            query="time() - min by (instance) (keyfence_policy_confirmed_timestamp_seconds)",
        ),
        _gauge(
            "policy_stale",
            (),
            "Whether the policy is older than `stale_after` allows (1) or not (0).",
            query="max(keyfence_policy_stale) == 1",
        ),
        _counter(
            "policy_fetch_failures",
            ("server",),
            "Requests to the server of the policy without an answer that can be used.",
            unit="requests",
        ),
        _counter(
            "candidate_commands",
            SERVICE,
            "Commands that a candidate policy has evaluated beside the one in force.",
            unit="commands",
        ),
        _counter(
            "candidate_violations",
            ("service", "rule", "change"),
            "Violations that only a candidate policy finds (new), that both policies find (same), or that "
            "only the policy in force finds (gone).",
            unit="violations",
        ),
        _gauge(
            "exceptions_lapsed",
            ("kind",),
            "Exceptions of the policy past their date.",
            unit="exceptions",
            query="sum by (kind) (keyfence_exceptions_lapsed) > 0",
        ),
        _gauge(
            "break_glass_active",
            (),
            "Whether enforcement is switched off by hand (1) or not (0).",
            "break_glass",
        ),
        _counter(
            "break_glass_activations",
            (),
            "How often enforcement was switched off by hand.",
            "break_glass_started",
        ),
    ),
    "Commands and clients": (
        _counter(
            "commands",
            ("service", "command", "outcome"),
            "Commands, by outcome.",
            unit="commands",
            query="sum by (service) (rate(keyfence_commands_total[5m]))",
        ),
        _counter(
            "commands_judged_at_length",
            ("reason",),
            "Commands evaluated on the slow path, by reason.",
            "judged_at_length",
            unit="commands",
        ),
        _counter(
            "traffic_bytes",
            ("service", "direction"),
            "Bytes, by direction.",
            "traffic",
            query="sum by (service) (rate(keyfence_traffic_bytes_total[5m]))",
        ),
        _gauge("connections_open", ("service", "listener"), "Client connections that are open."),
        _counter("connections_accepted", ("service", "listener"), "Client connections.", unit="connections"),
        _counter(
            "connections_rejected",
            ("listener", "reason"),
            "Connections refused before a client existed.",
            unit="connections",
        ),
        _counter("closures", ("reason",), "Connections that keyfence closed.", unit="connections"),
        _counter(
            "sessions_opaque",
            ("service", "reason"),
            "Sessions that are passed on unread. Each row is there from the start, at 0.",
            unit="sessions",
        ),
        _gauge("sessions_opaque_open", SERVICE, "Sessions that are passed on unread now.", "opaque_open"),
        _counter("login_failures", SERVICE, "Wrong passwords for users that keyfence checks.", unit="logins"),
        _counter(
            "accept_pauses", (), "Pauses in accepting, for lack of file descriptors or memory.", unit="pauses"
        ),
    ),
    "Times": (
        _times(
            "decision",
            "Time to evaluate a command. Sampled: a client's first command, then each 64th.",
            "decision",
            "histogram_quantile(0.99, sum by (le) (rate(keyfence_decision_seconds_bucket[5m])))",
        ),
        _times(
            "request",
            "Time of a request in keyfence, from reading it to writing it to Redis. Sampled: about each 64th "
            "read of a client, when nothing else of that client is under way.",
            "request",
            "histogram_quantile(0.99, sum by (le) (rate(keyfence_request_seconds_bucket[5m])))",
        ),
        _times(
            "upstream",
            "Time from writing a request to Redis to the first bytes of its reply. Sampled: the requests of "
            "keyfence_request_seconds, without commands that may block.",
            "upstream",
            "histogram_quantile(0.99, sum by (service, le) (rate(keyfence_upstream_seconds_bucket[5m])))",
        ),
    ),
    "Redis": (
        _gauge(
            "upstream_up",
            ("upstream",),
            "Whether the upstream answers (1) or not (0).",
            query="min by (instance) (keyfence_upstream_up) == 0",
        ),
        _gauge(
            "upstream_standing",
            ("upstream", "kind"),
            "Whether Redis is in a state that needs attention (1) or not (0).",
            query="max by (kind) (keyfence_upstream_standing) > 0",
        ),
        _gauge(
            "upstream_role",
            ("upstream", "role"),
            "Whether this is the role that Redis says it has (1) or not (0).",
            query='max by (upstream) (keyfence_upstream_role{role="master"}) == 0',
        ),
        _gauge(
            "upstream_credentials_expire_timestamp_seconds",
            ("upstream",),
            "When keyfence's own login ends, if it does; of all processes, the one that ends first.",
            "upstream_credentials_expire",
            unit="Unix seconds",
            query="min by (instance) (keyfence_upstream_credentials_expire_timestamp_seconds) - time()",
        ),
        _counter(
            "upstream_credentials_failures",
            ("upstream",),
            "Fetches of new credentials for keyfence's own login that failed. The login in force stays.",
            unit="fetches",
        ),
        _counter(
            "upstream_reauthentications",
            ("upstream", "answer"),
            "Open connections that were sent keyfence's new login.",
            unit="connections",
        ),
        _counter(
            "upstream_errors",
            ("error",),
            "Errors of Redis to clients that show where it stands. Each row is there from the start, at 0.",
            unit="errors",
            query="sum by (error) (increase(keyfence_upstream_errors_total[5m]))",
        ),
        _counter(
            "addresses_hidden",
            ("where",),
            "Addresses of Redis that were kept from clients, without a violation.",
            query="sum by (where) (increase(keyfence_addresses_hidden_total[1d]))",
        ),
        _counter(
            "upstream_reconnects",
            ("upstream",),
            "Upstream connections for clients that took the place of one that its process lost or gave up.",
            unit="connections",
        ),
        _counter(
            "upstream_connect_failures",
            ("upstream",),
            "Upstream connections that could not be made.",
            unit="connections",
        ),
        _counter(
            "upstream_failovers",
            ("upstream",),
            "How often another node became the primary, which keyfence has followed.",
            query="sum by (upstream) (increase(keyfence_upstream_failovers_total[1d]))",
        ),
        _gauge(
            "upstream_failover_seconds",
            ("upstream",),
            "How long Redis was out of service in the last failover: from the first sign that the former "
            "primary was lost until a connection to the new one could be used. No row before the first one.",
            query="max by (upstream) (keyfence_upstream_failover_seconds)",
        ),
        _gauge(
            "upstream_replica_up",
            ("replica",),
            "Whether commands are read from this replica (1) or not (0), as far as services ask for it.",
            query="min by (replica) (keyfence_upstream_replica_up) == 0",
        ),
        _gauge(
            "upstream_replica_behind_bytes",
            ("replica",),
            "How much of what had run at the primary had not run at the replica when it was asked last. No "
            "row while that is not known.",
            "upstream_replica_behind",
            query="max by (replica) (keyfence_upstream_replica_behind_bytes)",
        ),
        _counter(
            "upstream_replica_commands",
            ("replica",),
            "Commands that were sent to a replica.",
            unit="commands",
            query="sum by (replica) (rate(keyfence_upstream_replica_commands_total[5m]))",
        ),
        _counter(
            "upstream_reads",
            ("role",),
            "Reads of services that read from replicas, by the role of the node that they were sent to.",
            unit="commands",
            query="sum by (role) (rate(keyfence_upstream_reads_total[5m]))",
        ),
        _gauge(
            "upstream_node_up",
            ("node",),
            "Whether keyfence reaches this node of the cluster (1) or not (0).",
            query="min by (node) (keyfence_upstream_node_up) == 0",
        ),
        _gauge(
            "upstream_node_role",
            ("node", "role"),
            "Whether this is the node's role in the topology of the cluster (1) or not (0).",
            query='sum by (node) (changes(keyfence_upstream_node_role{role="master"}[1d]))',
        ),
        _gauge(
            "upstream_node_slots",
            ("node",),
            "The number of hash slots that the node has.",
            query="max by (node) (keyfence_upstream_node_slots)",
        ),
        _counter(
            "upstream_node_redirects",
            ("node", "error"),
            "Redirects to another node that the node has answered clients with (`MOVED` and `ASK` only).",
            unit="errors",
            query="sum by (error) (rate(keyfence_upstream_node_redirects_total[5m]))",
        ),
        _gauge(
            "upstream_slots_covered",
            ("upstream",),
            "The number of the cluster's hash slots with a node that is not down: 16384 if all are served.",
            query="min by (upstream) (keyfence_upstream_slots_covered) < 16384",
        ),
        _gauge(
            "upstream_topology_age_seconds",
            ("upstream",),
            "How long ago a node last told the topology of the cluster. No row before the first time.",
            "upstream_topology_age",
            query="max by (upstream) (keyfence_upstream_topology_age_seconds) > 60",
        ),
        _counter(
            "upstream_topology_refreshes",
            ("upstream", "reason"),
            "How often keyfence has asked for the topology of the cluster, by the first sign of a change.",
            query="sum by (reason) (increase(keyfence_upstream_topology_refreshes_total[1h]))",
        ),
        _gauge(
            "upstream_cluster_troubles",
            ("upstream", "kind"),
            "How many things are wrong with the cluster or with keyfence's addresses for its nodes.",
            query="max by (upstream, kind) (keyfence_upstream_cluster_troubles) > 0",
        ),
        _counter(
            "upstream_faults",
            ("kind",),
            "Unexpected replies on shared connections: pushes dropped, connections out of step.",
            unit="replies",
        ),
        _counter(
            "pending_ttl_dropped",
            (),
            "Keys dropped before their TTL was asked, for lack of room.",
            unit="keys",
        ),
        _counter(
            "pending_ttl_unanswered", (), "Keys whose TTL the upstream could not be asked for.", unit="keys"
        ),
        _counter(
            "pending_size_dropped",
            (),
            "Keys dropped before their size was asked, for lack of room.",
            unit="keys",
        ),
        _counter(
            "pending_size_unanswered", (), "Keys whose size the upstream could not be asked for.", unit="keys"
        ),
    ),
    "The decision log, the findings store and notifications": (
        _counter("log_lines", (), "Lines written to the decision log.", unit="lines"),
        _counter(
            "log_merged_decisions",
            (),
            "Decisions merged into another's line.",
            "log_merged",
            unit="decisions",
        ),
        _counter(
            "log_dropped_decisions",
            (),
            "Decisions that no line of the log reports.",
            "log_dropped",
            unit="decisions",
            query="increase(keyfence_log_dropped_decisions_total[15m]) > 0",
        ),
        _counter("log_groups_evicted", (), "Groups of the log dropped for lack of room.", unit="groups"),
        _counter("log_write_failures", (), "Lines that could not be written.", unit="lines"),
        _counter("findings_write_failures", (), "Failed writes to the findings store.", unit="writes"),
        _counter(
            "notification_failures", (), "Notifications that the webhook did not take.", unit="notifications"
        ),
        _counter(
            "notifications_dropped", (), "Changes of findings dropped for lack of room.", unit="changes"
        ),
        _counter("news_sent", (), "Digests that a target took.", unit="digests"),
        _counter("news_failures", (), "Tries at which a target did not take a digest.", unit="tries"),
        _counter(
            "news_lost",
            (),
            "Digests that were given up for a target after the last try.",
            unit="digests",
            query="increase(keyfence_news_lost_total[1d]) > 0",
        ),
    ),
    "keyfence itself": (
        _gauge("build_info", ("version",), "The version that runs; always 1.", "build"),
        _gauge("workers", (), "Worker processes that serve clients. Only with workers."),
        _counter(
            "worker_restarts",
            (),
            "Worker processes that ended without an order and were replaced.",
            unit="processes",
        ),
        _counter("internal_errors", ("place",), "Errors in keyfence itself.", unit="errors"),
        _counter(
            "admin_refused",
            ("listener", "reason"),
            "Connections and requests that the admin and metrics listeners refused.",
            unit="requests",
        ),
        _counter(
            "series_folded",
            ("metric",),
            "How often a count went to a row `other`, because a metric had too many rows.",
            "folded",
            unit="counts",
        ),
    ),
}
METRICS: tuple[Metric, ...] = tuple(metric for metrics in TOPICS.values() for metric in metrics)
# The name of a metric by its table in Counters.
BY_TABLE: dict[str, str] = {metric.table: metric.name for metric in METRICS}

# The values of each label. All sets are closed: no value comes from a key or from any text of a client.
LABELS: dict[str, str] = {
    "action": "`observed`, `refused`, `waived`, or `late` (found when it could no longer be refused)",
    "answer": "of Redis: `accepted` or `refused`",
    "change": "`new`, `same` or `gone`",
    "command": "a command of the command table, such as `CLIENT SETINFO`; `other` for an unknown one",
    "contact": "`owner: contact` of the policy file, or else its team",
    "direction": "`client_in`, `client_out`: from and to clients; `upstream_in`, `upstream_out`: from and to "
    "Redis",
    "entry": "the entry, legacy form, scope or channel of the policy that decided; empty if none did",
    "error": "`MOVED`, `ASK`, `REDIRECT`, `TRYAGAIN`, `READONLY`, `MASTERDOWN`, `LOADING`, `CLUSTERDOWN`",
    "kind": "exceptions: `legacy`, `grants`, `waivers`; faults: `push`, `out_of_step` "
    "([operations.md](operations.md#unrequested-data-from-redis)); the standing of Redis: `cluster`, "
    "`sentinel`, `replica`, `read_only`, `notices` "
    "([operations.md](operations.md#redis-cluster-and-sentinel)), `credentials` "
    "([operations.md](operations.md#a-login-that-changes)); troubles of a cluster: "
    "[operations.md](operations.md#redis-cluster)",
    "listener": "the address that the client connected to; for admin requests: `admin` or `metrics`",
    "metric": "a metric's name",
    "node": "the address of a node of the cluster",
    "outcome": "`forwarded`, `refused`, or `local` (keyfence answers)",
    "owner": "`owner: team` of the policy file",
    "place": "the part of keyfence: `decision`, `relay`, `late`, `cluster`",
    "policy": "`policy` of the policy file; in other metrics, the policy as a whole",
    "reason": "connections and closures: [configuration.md](configuration.md#limits); the slow path: "
    "[operations.md](operations.md#what-takes-the-slow-path); admin requests: "
    "[operations.md](operations.md#limits-of-the-admin-and-metrics-listeners); of a cluster's topology: "
    "[operations.md](operations.md#redis-cluster)",
    "replica": "the address of a replica",
    "revision": "the beginning of a hash over all policy files",
    "role": "`master`, `replica`, or `unknown`: Redis is away, or does not say it before a login",
    "rule": "[a rule](policy.md#the-rules)",
    "server": "the URL of the policy, without its query",
    "service": "a service of the policy; `unknown` for other clients",
    "upstream": "the address of Redis, without a password",
    "version": "keyfence's version",
    "where": "`INFO`, or a notice: `MOVING`, `MIGRATING`, `MIGRATED`, `FAILING_OVER`, `FAILED_OVER`, "
    "`SMIGRATING`, `SMIGRATED`",
}
