"""The tables of the findings store.

Rule: they are those of the newest schema (`database.VERSION`). A change of them needs an upgrade for older
databases there; a test compares an upgraded database with a new one.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    case,
    func,
    literal,
    text,
)

from .finding import ACTIONS

metadata = MetaData()


def _texts(*names: str) -> list[Column[Any]]:
    return [Column(name, Text, nullable=False) for name in names]


def _numbers(*names: str) -> list[Column[Any]]:
    return [Column(name, BigInteger, nullable=False) for name in names]


def _times(*names: str) -> list[Column[Any]]:
    """Columns of Unix seconds."""
    return [Column(name, Float, nullable=False) for name in names]


def _keys(*names: str) -> list[Column[Any]]:
    """Columns that are the primary key together."""
    return [Column(name, Integer, primary_key=True, autoincrement=False) for name in names]


# One row: the version of the schema, and when the store began.
meta = Table(
    "keyfence_meta",
    metadata,
    Column("version", Integer, nullable=False),
    *_times("began"),
)

findings = Table(
    "keyfence_findings",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    *_texts("service", "rule", "command", "entry", "shape", "severity", "state"),
    *_times("since", "first", "last"),
    *_numbers(*ACTIONS),
    # `clients` and `examples` are JSON.
    *_texts("owner", "hint", "revision", "clients", "examples", "resolved_by"),
    Column("at_rest", BigInteger, nullable=False, server_default=text("0")),  # keys that break the rule now
    # The last violation that enforcing the rule refuses: observed or refused.
    Column("refusable", Float, nullable=False, server_default=text("0")),
    Index("keyfence_findings_last", "last"),
    Index("keyfence_findings_since", "state", "since"),
)

# What is read of a finding. Older versions stored examples of any length. Those are left out.
MAX_EXAMPLES_TEXT = 256 * 1024  # characters; more than five bounded examples take
findings_columns = [
    case(
        (func.length(column) > MAX_EXAMPLES_TEXT, literal("[]")),
        else_=column,
    ).label(column.name)
    if column.name == "examples"
    else column
    for column in findings.c
]

# The violations of a finding in one hour. `hour` is Unix seconds divided by 3600.
hours = Table(
    "keyfence_hours",
    metadata,
    *_keys("finding", "hour"),
    *_numbers(*ACTIONS),
    sqlite_with_rowid=False,
)

# The violations of one rule by one service in one hour: the sum of `hours` over its findings.
rule_hours = Table(
    "keyfence_rule_hours",
    metadata,
    *_keys("hour"),  # first: charts ask for the last hours
    Column("service", Text, primary_key=True),
    Column("rule", Text, primary_key=True),
    *_numbers(*ACTIONS),
    sqlite_with_rowid=False,
)

# Changes of state.
events = Table(
    "keyfence_events",
    metadata,
    Column("number", Integer, primary_key=True),
    *_texts("finding"),  # its id
    *_times("at"),
    *_texts("state", "why"),
    Index("keyfence_events_finding", "finding"),
)

# Positive evidence by hour: how often commands were checked against a rule (kind `rule`) or used a right, and
# which parts of the policy decided (`part`, without hours). Rules and parts are kept for each basis.
uses = Table(
    "keyfence_uses",
    metadata,
    Column("number", Integer, primary_key=True),
    *_texts("service", "kind", "name"),
    *_times("last"),
    Column("basis", Text, nullable=False, server_default=text("''")),
    Index("keyfence_uses_key", "service", "kind", "name", "basis", unique=True),
)

# What evidence was drawn under: a policy with modes and waivers, as `proof.basis` describes it.
bases = Table(
    "keyfence_bases",
    metadata,
    Column("basis", Text, primary_key=True),
    *_times("since"),  # first put in force
    *_texts("parts"),  # JSON
    Column("taken", Float, nullable=False, server_default=text("0")),  # last put in force, in Unix seconds
)
use_hours = Table(
    "keyfence_use_hours",
    metadata,
    *_keys("use", "hour"),
    *_numbers("times"),
    sqlite_with_rowid=False,
)

# When which instance was looking (kind `looking`), and when it was not although it ran: `passthrough`, and
# `opaque` for one service.
spans = Table(
    "keyfence_spans",
    metadata,
    Column("number", Integer, primary_key=True),
    *_texts("instance", "kind", "service"),  # service "" is all
    *_times("begin", "end"),
    Index("keyfence_spans_end", "end"),
)

# Policies that were put in force.
policies = Table(
    "keyfence_policies",
    metadata,
    Column("number", Integer, primary_key=True),
    *_times("at"),
    *_texts("instance", "policy", "revision"),
)

# Changes of policy, modes, waivers, break-glass and candidate, and who made them: rows that never change,
# chained by hash (`history.chain`). `detail` is JSON.
history = Table(
    "keyfence_history",
    metadata,
    Column("instance", Text, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    *_numbers("at"),  # Unix time in ms: a float has several texts, and a hash needs one
    *_texts("kind", "who", "detail", "previous", "hash"),
)

# The last row of each chain, so that a deleted one is missed; and when its instance has looked at commands
# since the last row that says so (`tail`, JSON).
heads = Table(
    "keyfence_history_heads",
    metadata,
    Column("instance", Text, primary_key=True),
    *_numbers("rows"),
    *_texts("hash"),
    *_numbers("at"),
    *_texts("tail"),
)

# What each instance said of itself last.
instances = Table(
    "keyfence_instances",
    metadata,
    Column("id", Text, primary_key=True),
    *_texts("name", "admin", "environment", "policy", "revision"),
    *_numbers("sequence"),  # of the signed policy; 0: it is not signed
    *_texts("source", "reason"),
    *_times("loaded", "confirmed"),  # the policy; `confirmed` 0: it comes from files
    *_texts("version"),
    *_times("started", "last"),
    *_texts("modes"),  # JSON
    *_numbers("clients"),
)

# What each instance says of the fleet's candidate, and what that would change there.
comparisons = Table(
    "keyfence_comparisons",
    metadata,
    Column("id", Text, primary_key=True),  # of the instance, which may have ended
    *_texts("name", "environment", "policy", "revision"),  # the policy in force
    *_numbers("sequence"),
    *_texts("state", "reason", "digest", "candidate"),  # `candidate` is JSON
    *_times("since"),
    *_texts("commands"),  # JSON
    *_times("last"),
)
compared = Table(
    "keyfence_compared",
    metadata,
    *_texts("id", "change", "service", "rule", "command", "entry", "shape"),
    *_numbers("count", "observed", "refused", "waived"),
    *_times("first", "last"),
    *_texts("example", "hint"),
    Index("keyfence_compared_id", "id"),
)

# Digests of news: what each covers, and its content as it was made, so that every try and every instance
# sends the same. `event` is the last change of state that was there when it was made.
news = Table(
    "keyfence_news",
    metadata,
    Column("period", Text, primary_key=True),
    *_times("since", "until"),
    *_numbers("event"),
    *_texts("content"),  # JSON; "" for the one that begins the news of this store
)

# Who sends a digest to which target, and how far that is.
news_targets = Table(
    "keyfence_news_targets",
    metadata,
    Column("period", Text, primary_key=True),
    Column("target", Text, primary_key=True),
    *_texts("instance", "state"),  # `waiting`, `sent` or `given up`
    *_numbers("tries"),
    *_times("next"),  # nobody tries before
)
