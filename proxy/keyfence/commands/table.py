"""The command table: `table.json`, loaded and indexed by name.

Rule: the facts in `table.json` come from the servers' own `COMMAND` replies. This module only loads them, and
joins the facts that those replies do not tell (`facts`).

`tools/commands_table.py` builds the table from the replies of all servers that keyfence knows, and describes
how it merges them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import resources
from typing import Any, Literal, NamedTuple

from .arguments import fold, word
from .facts import NOTHING_SPECIAL, Facts
from .families import FACTS
from .model import READ, WRITE, Command


class KeySpec(NamedTuple):
    """One rule that says where a command has keys (https://redis.io/docs/latest/develop/reference/key-specs/).

    It is applied as in `src/db.c`, getKeysUsingKeySpecs. Indexes count from the command's name.
    """

    flags: frozenset[str]
    begin: Literal["index", "keyword", "unknown"]
    start: int  # `index`: the first key; `keyword`: where the search starts, from the end if negative
    keyword: bytes  # in upper case; empty except for `keyword`
    find: Literal["range", "keynum", "unknown"]
    last: int  # `range`: the last key, relative to the first, or from the end if negative
    step: int
    limit: int  # `range`: n takes only the first 1/n of the remaining arguments; 0 and 1 take all
    count_at: int  # `keynum`: position of the number of keys, relative to the start
    first: int  # `keynum`: position of the first key, relative to the start

    @property
    def needs(self) -> int:
        """READ and WRITE as Redis' ACL check derives them from the logical flags (`src/acl.c`)."""
        read = READ if "access" in self.flags else 0
        return read | WRITE if self.flags & {"insert", "update", "delete"} else read

    @property
    def is_key(self) -> bool:
        """False if the arguments are only routed like keys, such as the channels of SPUBLISH."""
        return "not_key" not in self.flags

    @property
    def is_complete(self) -> bool:
        """False if the spec does not find all keys that it stands for."""
        return "incomplete" not in self.flags and "unknown" not in (self.begin, self.find)


class Tips(NamedTuple):
    """What the servers tell a client of a cluster, in Redis' own words
    (https://redis.io/docs/latest/develop/reference/command-tips/). Empty: nothing."""

    request: str = ""  # which nodes get the command: `all_shards` …
    response: str = ""  # how their replies become one: `agg_sum` …


class Row(NamedTuple):
    """One command, or one subcommand of a container such as XGROUP."""

    command: Command
    specs: tuple[KeySpec, ...]
    subcommands: Mapping[bytes, Row]  # by upper-case name; empty except for containers
    problem: str = ""  # why its key specs may miss keys; empty for the servers' built-in commands
    facts: Facts = NOTHING_SPECIAL
    tips: Tips = Tips()


def lookup(argv: Sequence[bytes]) -> Row | None:
    """The row of a command, found as by Redis' `src/server.c` lookupCommand, or None if it is unknown.

    Case is ignored. For a container this is the subcommand's row, or the container's own row if the
    subcommand is missing or unknown.
    """
    if not argv:
        return None
    row = COMMANDS.get(fold(argv[0]))
    if row is None or not row.subcommands or len(argv) < 2:
        return row
    return row.subcommands.get(word(argv[1]), row)


def may_name_keys(flags: Collection[str], specs: Iterable[KeySpec]) -> bool:
    """Whether a command has arguments that are keys, even if only with certain options."""
    return any(spec.is_key for spec in specs) or "movablekeys" in flags


def spec_from(fields: Mapping[str, Any]) -> KeySpec:
    """A key spec from its fields in a `COMMAND` reply."""
    begin, find = fields["begin_search"], fields["find_keys"]
    return KeySpec(
        flags=frozenset(fields["flags"]),
        begin=begin["type"],
        start=begin.get("index", begin.get("startfrom", 0)),
        keyword=begin.get("keyword", "").upper().encode(),
        find=find["type"],
        last=find.get("lastkey", 0),
        step=find.get("keystep", 1),
        limit=find.get("limit", 0),
        count_at=find.get("keynumidx", 0),
        first=find.get("firstkey", 0),
    )


def _load(table: Mapping[str, Any]) -> dict[bytes, Row]:
    rows: dict[bytes, Row] = {}
    subcommands: dict[bytes, dict[bytes, Row]] = {}
    for fields in table["commands"]:
        specs = tuple(spec_from(spec) for spec in fields["keys"])
        facts = FACTS.get(fields["name"], NOTHING_SPECIAL)
        command = Command(
            name=fields["name"],
            arity=fields["arity"],
            flags=frozenset(fields["flags"]),
            categories=frozenset(fields["categories"]),
            servers=tuple(fields["servers"]),
            names_keys=may_name_keys(fields["flags"], specs) or facts.found is not None,
        )
        name = command.name.encode()
        container, _, subcommand = name.partition(b" ")
        own = subcommands.setdefault(name, {})
        row = Row(command, specs, own, fields.get("problem", ""), facts, Tips(**fields.get("tips", {})))
        rows[name] = row
        if subcommand:
            subcommands.setdefault(container, {})[subcommand] = row
    return rows


# By upper-case name. Subcommands are included under their full name, `XGROUP CREATE`.
_TABLE: Mapping[str, Any] = json.loads(resources.files(__package__).joinpath("table.json").read_text())
COMMANDS: Mapping[bytes, Row] = _load(_TABLE)
# Servers whose own COMMAND replies are in the table. The other servers' commands come from published
# references.
ASKED_SERVERS = frozenset(_TABLE["servers"]) - frozenset(_TABLE["documented"])

# All names of commands and subcommands (`XGROUP CREATE`), and all categories (`@stream`).
KNOWN_COMMANDS = frozenset(row.command.name for row in COMMANDS.values())
KNOWN_CATEGORIES = frozenset(f"@{one}" for row in COMMANDS.values() for one in row.command.categories)
