"""The tables of the findings store.

Rule: they are those of the newest schema (`database.VERSION`). A change of them needs an upgrade for older
databases there; a test compares an upgraded database with a new one.
"""

from __future__ import annotations

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

metadata = MetaData()

# One row: the version of the schema, and when the store began.
meta = Table(
    "keyfence_meta",
    metadata,
    Column("version", Integer, nullable=False),
    Column("began", Float, nullable=False),
)

findings = Table(
    "keyfence_findings",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("service", Text, nullable=False),
    Column("rule", Text, nullable=False),
    Column("command", Text, nullable=False),
    Column("entry", Text, nullable=False),
    Column("shape", Text, nullable=False),
    Column("severity", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("since", Float, nullable=False),
    Column("first", Float, nullable=False),
    Column("last", Float, nullable=False),
    Column("observed", BigInteger, nullable=False),
    Column("refused", BigInteger, nullable=False),
    Column("waived", BigInteger, nullable=False),
    Column("late", BigInteger, nullable=False),
    Column("owner", Text, nullable=False),
    Column("hint", Text, nullable=False),
    Column("revision", Text, nullable=False),
    Column("clients", Text, nullable=False),  # JSON
    Column("examples", Text, nullable=False),  # JSON
    Column("resolved_by", Text, nullable=False),
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
    Column("finding", Integer, primary_key=True, autoincrement=False),
    Column("hour", Integer, primary_key=True, autoincrement=False),
    Column("observed", BigInteger, nullable=False),
    Column("refused", BigInteger, nullable=False),
    Column("waived", BigInteger, nullable=False),
    Column("late", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# The violations of one rule by one service in one hour: the sum of `hours` over its findings.
rule_hours = Table(
    "keyfence_rule_hours",
    metadata,
    Column("hour", Integer, primary_key=True, autoincrement=False),  # first: charts ask for the last hours
    Column("service", Text, primary_key=True),
    Column("rule", Text, primary_key=True),
    Column("observed", BigInteger, nullable=False),
    Column("refused", BigInteger, nullable=False),
    Column("waived", BigInteger, nullable=False),
    Column("late", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# Changes of state.
events = Table(
    "keyfence_events",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("finding", Text, nullable=False),  # its id
    Column("at", Float, nullable=False),
    Column("state", Text, nullable=False),
    Column("why", Text, nullable=False),
    Index("keyfence_events_finding", "finding"),
)

# Positive evidence by hour: how often commands were checked against a rule (kind `rule`) or used a right, and
# which parts of the policy decided (`part`, without hours). Rules and parts are kept for each basis.
uses = Table(
    "keyfence_uses",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("service", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("last", Float, nullable=False),  # when, in Unix seconds
    Column("basis", Text, nullable=False, server_default=text("''")),
    Index("keyfence_uses_key", "service", "kind", "name", "basis", unique=True),
)

# What evidence was drawn under: a policy with modes and waivers, as `proof.basis` describes it.
bases = Table(
    "keyfence_bases",
    metadata,
    Column("basis", Text, primary_key=True),
    Column("since", Float, nullable=False),  # first put in force, in Unix seconds
    Column("parts", Text, nullable=False),  # JSON
    Column("taken", Float, nullable=False, server_default=text("0")),  # last put in force, in Unix seconds
)
use_hours = Table(
    "keyfence_use_hours",
    metadata,
    Column("use", Integer, primary_key=True, autoincrement=False),
    Column("hour", Integer, primary_key=True, autoincrement=False),
    Column("times", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# When which instance was looking (kind `looking`), and when it was not although it ran: `passthrough`, and
# `opaque` for one service.
spans = Table(
    "keyfence_spans",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("instance", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("service", Text, nullable=False),  # "" is all
    Column("begin", Float, nullable=False),
    Column("end", Float, nullable=False),
    Index("keyfence_spans_end", "end"),
)

# Policies that were put in force.
policies = Table(
    "keyfence_policies",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("instance", Text, nullable=False),
    Column("policy", Text, nullable=False),
    Column("revision", Text, nullable=False),
)
