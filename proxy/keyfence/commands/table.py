"""Rule: what a command is, the servers' own tables say; this only loads `table.json` and looks things up.

`tools/commands_table.py` makes the table of what the servers that keyfence knows say of themselves, and says
there how it merges that.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import resources
from typing import Any, Literal, NamedTuple

from .arguments import fold, word
from .exceptions import FINDERS
from .model import READ, WRITE, Command


class KeySpec(NamedTuple):
    """One rule of where a command has keys (https://redis.io/docs/latest/develop/reference/key-specs/).

    Semantics as in Redis `src/db.c`, getKeysUsingKeySpecs. Indexes count from the command's name.
    """

    flags: frozenset[str]
    begin: Literal["index", "keyword", "unknown"]
    start: int  # for `index` the first key; for `keyword` where the search starts, from the end if negative
    keyword: bytes  # upper case; empty but for `keyword`
    find: Literal["range", "keynum", "unknown"]
    last: int  # `range`: of the last key, relative to the first, or from the end if negative
    step: int
    limit: int  # `range`: 2 takes only the first half of what is left, and so on; 0 and 1 take all
    count_at: int  # `keynum`: where the number of keys is, relative to the start
    first: int  # `keynum`: where the keys are, relative to the start

    @property
    def needs(self) -> int:
        """READ and WRITE as Redis' ACL check derives them from the logical flags (`src/acl.c`)."""
        read = READ if "access" in self.flags else 0
        return read | WRITE if self.flags & {"insert", "update", "delete"} else read

    @property
    def is_key(self) -> bool:
        """False where the arguments are only routed like keys (the channels of SPUBLISH)."""
        return "not_key" not in self.flags

    @property
    def is_complete(self) -> bool:
        """False where the spec doesn't find all that it stands for."""
        return "incomplete" not in self.flags and "unknown" not in (self.begin, self.find)


class Row(NamedTuple):
    """One command, or one subcommand of a container such as XGROUP."""

    command: Command
    specs: tuple[KeySpec, ...]
    subcommands: Mapping[bytes, Row]  # by upper-case name; empty for all but containers
    problem: str = ""  # why its key specs may not tell all that it touches; empty for servers' own commands


def lookup(argv: Sequence[bytes]) -> Row | None:
    """The row of a command as Redis' `src/server.c` lookupCommand finds it, or None for an unknown one.

    Letters' case doesn't count. For a container the row of the subcommand, or the container's own row if
    there is no such subcommand.
    """
    if not argv:
        return None
    row = COMMANDS.get(fold(argv[0]))
    if row is None or not row.subcommands or len(argv) < 2:
        return row
    return row.subcommands.get(word(argv[1]), row)


def _known_names() -> tuple[frozenset[str], frozenset[str]]:
    """All names of commands and subcommands (`XGROUP CREATE`), and all categories (`@stream`)."""
    commands = [row.command for row in COMMANDS.values()]
    categories = frozenset(f"@{category}" for command in commands for category in command.categories)
    return frozenset(command.name for command in commands), categories


def may_name_keys(name: str, flags: Collection[str], specs: Iterable[KeySpec]) -> bool:
    """Whether a command has arguments that are keys, be it only with some of its options."""
    return any(spec.is_key for spec in specs) or "movablekeys" in flags or name in FINDERS


def spec_from(fields: Mapping[str, Any]) -> KeySpec:
    """A key spec from the fields that `COMMAND` gives it."""
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
        command = Command(
            name=fields["name"],
            arity=fields["arity"],
            flags=frozenset(fields["flags"]),
            categories=frozenset(fields["categories"]),
            servers=tuple(fields["servers"]),
            names_keys=may_name_keys(fields["name"], fields["flags"], specs),
        )
        name = command.name.encode()
        container, _, subcommand = name.partition(b" ")
        own = subcommands.setdefault(name, {})
        row = Row(command, specs, own, fields.get("problem", ""))
        rows[name] = row
        if subcommand:
            subcommands.setdefault(container, {})[subcommand] = row
    return rows


# By upper-case name; a subcommand also stands here by its full name, `XGROUP CREATE`.
_TABLE: Mapping[str, Any] = json.loads(resources.files(__package__).joinpath("table.json").read_text())
COMMANDS: Mapping[bytes, Row] = _load(_TABLE)
# Servers that have said themselves what their commands are. What only others have is as it is published.
ASKED_SERVERS = frozenset(_TABLE["servers"]) - frozenset(_TABLE["documented"])


KNOWN_COMMANDS, KNOWN_CATEGORIES = _known_names()
