"""`keyfence commands`: lists every command, with its keys, its access and its default.

Rule: the listing repeats the code. Keys and access come from the table's key specs, the default from
`forbidden_by_default`. Where options decide, a function of the command's row finds the keys, and the row has
them in words too (`commands.facts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import click
from rich import box
from rich.table import Table

from keyfence.authoring.export.render import code_templates
from keyfence.commands.effects import effect_of
from keyfence.commands.model import DELETE, GROUP, READ, WRITE
from keyfence.commands.table import ASKED_SERVERS, COMMANDS, KeySpec, Row
from keyfence.policy.compiled.permissions import forbidden_by_default

from .terminal.options import format_option, print_json
from .terminal.output import console


class Listed(NamedTuple):
    """One command or subcommand. Arguments are numbered as in the decision log: the command's name is 0."""

    command: str
    since: str  # the servers that have it, as text
    keys: str  # which arguments are keys, and what else the command names
    access: str  # to each of these keys, in the same order
    kind: str  # one of KINDS
    default: str  # the verdict of a policy that does not mention the command
    servers: tuple[str, ...]


# The kinds of commands and their meaning, in the order of docs/commands.md.
KINDS = {
    "keys": "It names keys.",
    "script": "It runs or stores code. The policy registers the code, or the command breaks "
    "`script.unregistered`. keyfence checks the keys that the script declares or is registered for.",
    "pub/sub": "It names channels.",
    "whole key space": "It works on keys, or shows names of keys, that its arguments do not name.",
    "transaction": "It groups other commands; keyfence checks each of them on its own.",
    "connection": "It concerns the client's own connection.",
    "no keys": "It touches no key.",
    "administrative": "It administers the server (Redis' category @admin).",
    "container": "It does nothing without a subcommand (except COMMAND, which lists all commands). "
    "Each subcommand has its own row.",
}


def listing() -> list[Listed]:
    """Returns all commands and subcommands, sorted by name."""
    return [_listed(row) for _, row in sorted(COMMANDS.items())]


def _listed(row: Row) -> Listed:
    command = row.command
    if row.subcommands:
        keys, access = "", ""
    elif row.facts.found is not None:
        keys, access = row.facts.found.where, row.facts.found.access
    elif row.problem:
        keys, access = "keys that it does not name", ""
    else:
        keys, access = _by_specs(row)
    named = row.facts.named.where if row.facts.named is not None else ""
    return Listed(
        command=command.name,
        since=since(command.servers),
        keys="; ".join(filter(None, [keys, named])),
        access=access,
        kind=_kind(row),
        default=_default(row),
        servers=command.servers,
    )


def _by_specs(row: Row) -> tuple[str, str]:
    specs = [(spec, effect_of(row, role).needs) for role, spec in enumerate(row.specs) if spec.is_key]
    places = [place(spec) for spec, _ in specs]
    accesses = [access_text(needs) for _, needs in specs]
    if row.facts.rights is not None:
        accesses = [row.facts.rights.access]
    elif len(set(accesses)) == 1:
        accesses = accesses[:1]
    return "; ".join(places), "; ".join(accesses)


def place(spec: KeySpec) -> str:
    """Describes in a few words which arguments a key spec selects."""
    if spec.begin == "index" and spec.find == "range":
        return _range(spec)
    if spec.begin == "index" and spec.find == "keynum":
        return f"as many as argument {spec.start + spec.count_at} says, from {spec.start + spec.first} on"
    if spec.begin == "keyword" and spec.find == "range":
        parts = {2: "the first half of what is"}
        what = "the one" if spec.last == 0 else parts.get(spec.limit, "all")
        return f"{what} after {spec.keyword.decode()}"
    return "cannot be known"


def _range(spec: KeySpec) -> str:
    start = spec.start
    if spec.last == 0:
        return f"{start}"
    if spec.last < 0:
        end = "the last" if spec.last == -1 else f"the last but {-spec.last - 1}"
    else:
        end = f"{start + spec.last}"
    if spec.step > 1:
        return f"{start}, {start + spec.step} … to {end}"
    return f"{start} and {end}" if spec.last == 1 else f"{start} to {end}"


def access_text(needs: int) -> str:
    """Describes an access (READ, WRITE and their refinements) in words."""
    words = ["read"] if needs & READ else []
    if needs & WRITE:
        words.append("delete" if needs & DELETE else "group" if needs & GROUP else "write")
    return " and ".join(words) or "existence"


def since(servers: Sequence[str]) -> str:
    """Returns the first server versions that have a command, of those that keyfence knows:

    `Redis 7.0, Valkey 8.1`.
    """
    if not ASKED_SERVERS.intersection(servers):
        return ", ".join(server.replace("-", " ").title() for server in servers)
    known = [server for server in COMMANDS[b"GET"].command.servers if server in ASKED_SERVERS]
    parts = []
    for product in dict.fromkeys(server.partition("-")[0] for server in known):
        versions = [server.partition("-")[2] for server in known if server.startswith(f"{product}-")]
        had = [version for version in versions if f"{product}-{version}" in servers]
        if had:
            end = "" if had[-1] == versions[-1] else " only" if len(had) == 1 else f" to {had[-1]}"
            parts.append(f"{product.title()} {had[0]}{end}")
    return ", ".join(parts)


def _kind(row: Row) -> str:
    command = row.command
    if row.subcommands:
        return "container"
    for category, kind in (("admin", "administrative"), ("pubsub", "pub/sub"), ("scripting", "script")):
        if category in command.categories:
            return kind
    if row.problem:
        return "whole key space"
    if command.names_keys:
        return "keys"
    if "transaction" in command.categories:
        return "transaction"
    about_the_connection = "connection" in command.categories
    if _decided_by(row) == ["key pattern"] or ("keyspace" in command.categories and not about_the_connection):
        return "whole key space"
    return "connection" if about_the_connection else "no keys"


def _default(row: Row) -> str:
    command = row.command
    if row.subcommands:
        return "by subcommand"
    reason = forbidden_by_default(command, command.names_keys)
    if reason:
        return f"forbidden: {reason}"
    if row.problem:
        return "breaks `command.unknown`"
    decided_by = _decided_by(row)
    return f"decided by {' and '.join(decided_by)}" if decided_by else "allowed"


def _decided_by(row: Row) -> list[str]:
    mentioned = [row.facts.named.kind] if row.facts.named is not None else []
    return ["keys", *mentioned] if row.command.names_keys else mentioned


def as_table(rows: Sequence[Listed]) -> Table:
    """Returns the listing as a table for terminals."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("command", no_wrap=True)
    for title in ("since", "keys", "access", "class", "default"):
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(row.command, row.since, row.keys or "-", row.access or "-", row.kind, row.default)
    return table


def as_objects(rows: Sequence[Listed]) -> list[dict[str, object]]:
    """Returns the listing as plain values for JSON."""
    names = ("command", "since", "servers", "keys", "access", "class", "default")
    return [dict(zip(names, (r.command, r.since, list(r.servers), *r[2:6]), strict=True)) for r in rows]


def as_markdown(rows: Sequence[Listed]) -> str:
    """Returns the listing as Markdown: the page docs/commands.md."""
    servers = [server.replace("-", " ").title() for server in COMMANDS[b"GET"].command.servers]
    kinds = [(kind, text, [row for row in rows if row.kind == kind]) for kind, text in KINDS.items()]
    template = code_templates("keyfence.cli").get_template("commands.md.jinja")
    return template.render(servers=servers, kinds=kinds).removesuffix("\n")


@click.command()
@format_option("text", "json", "markdown")
def commands(form: str) -> None:
    """List every command that keyfence knows: its keys, its access, and its default."""
    rows = listing()
    if form == "json":
        print_json(as_objects(rows))
    elif form == "markdown":
        click.echo(as_markdown(rows), nl=False)
    else:
        console().print(as_table(rows))
