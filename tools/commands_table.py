#!/usr/bin/env python3
"""Rule: what a server says about itself is never typed by hand; `proxy/commands/table.json` comes from here.

The input is the `COMMAND` reply of each server that keyfence knows, as JSON, in `tools/command_replies/`.
The replies are merged into one table, a row per command and per subcommand, so that the table fits all of
these servers at once. Where they differ, the union is taken that never loosens a check:

- *arity*: the widest, so that a call that any server runs is never taken for one that none runs;
- *flags*: those that forbid or warn (`write`, `admin`, `blocking` …) if any server sets them; those that
  permit (`readonly`, `fast` …, see `PERMISSIVE`) only if every server sets them that has the command and
  uses that flag at all;
- *categories*: all;
- *key specs*: all; two that find the same arguments become one with the flags of both. Redis 6.2 has no key
  specs: its key range becomes one where no newer server has any, with access and update for a command that
  writes, since 6.2 doesn't say which of them it does.

Usage: `commands_table.py` writes the table, `commands_table.py --check` compares it and fails if it is stale.
To take in one more server, save its reply beside the others (`redis-cli --json COMMAND`, or any client that
keeps the reply's shape) under the name `<server>-<version>.json`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
REPLIES = ROOT / "tools" / "command_replies"
TABLE = ROOT / "proxy" / "commands" / "table.json"

# Flags that let a command do more, or let a proxy treat it with less care.
PERMISSIVE = frozenset({"readonly", "fast", "stale", "loading", "no_auth", "allow_busy", "no_mandatory_keys"})

Row = dict[str, Any]


def server_name(path: Path) -> str:
    """`redis-7.0.15.json` → `redis-7.0`; `valkey-8.1-dev-2024-10.json` → `valkey-8.1-dev`."""
    matched = re.match(r"([a-z]+-\d+\.\d+)(?:\.\d+)?(-dev)?", path.name)
    if matched is None:
        raise SystemExit(f"{path.name}: the name should begin with <server>-<major>.<minor>")
    return matched[1] + (matched[2] or "")


def rows_of(reply: Iterable[list[Any]], server: str) -> Iterator[Row]:
    """One reply as flat rows. An entry of `COMMAND` is documented at
    https://redis.io/docs/latest/commands/command/."""
    for entry in reply:
        name, arity, flags, first, last, step, categories = entry[:7]
        specs = entry[8] if len(entry) > 8 else None
        yield {
            "name": name.upper().replace("|", " "),
            "arity": arity,
            "flags": set(flags),
            "categories": {category.removeprefix("@") for category in categories},
            "range": (first, last, step),
            "keys": None if specs is None else [spec_of(spec) for spec in specs],
            "server": server,
        }
        if len(entry) > 9:
            yield from rows_of(entry[9], server)


def spec_of(spec: dict[str, Any]) -> Row:
    """A key spec without its notes, which are for people."""
    begin, find = spec["begin_search"], spec["find_keys"]
    return {
        "flags": set(spec["flags"]),
        "begin_search": {"type": begin["type"], **begin["spec"]},
        "find_keys": {"type": find["type"], **find["spec"]},
    }


def merge(rows: list[Row], speakers: dict[str, set[str]]) -> Row:
    """The rows of one command on several servers as one. `speakers`: which servers use a flag at all."""
    specs = [row["keys"] for row in rows if row["keys"] is not None]
    return {
        "name": rows[0]["name"],
        "arity": widest([row["arity"] for row in rows]),
        "flags": sorted(merge_flags(rows, speakers)),
        "categories": sorted(set().union(*(row["categories"] for row in rows))),
        "keys": merge_specs(specs) if specs and any(specs) else legacy_specs(rows),
        "servers": [row["server"] for row in rows],
    }


def widest(arities: list[int]) -> int:
    """Positive arity is exact, negative is at least; the widest admits what any of them admits."""
    if len(set(arities)) == 1:
        return arities[0]
    return -min(abs(arity) for arity in arities)


def merge_flags(rows: list[Row], speakers: dict[str, set[str]]) -> set[str]:
    every: set[str] = set().union(*(row["flags"] for row in rows))
    return {
        flag
        for flag in every
        if flag not in PERMISSIVE
        or all(flag in row["flags"] for row in rows if row["server"] in speakers[flag])
    }


def merge_specs(specs: list[list[Row]]) -> list[Row]:
    """All specs in the order in which they first appear; the same place twice gets the flags of both.

    One server may list the same place several times (SORT's two unknown ones); its n-th then meets the n-th.
    """
    merged: dict[tuple[str, int], Row] = {}
    for server in specs:
        seen: list[str] = []
        for spec in server:
            place = json.dumps([spec["begin_search"], spec["find_keys"]], sort_keys=True)
            known = merged.setdefault((place, seen.count(place)), {**spec, "flags": set()})
            known["flags"] |= spec["flags"]
            seen.append(place)
    return [{**spec, "flags": sorted(spec["flags"])} for spec in merged.values()]


def legacy_specs(rows: list[Row]) -> list[Row]:
    """The key range of `COMMAND` before Redis 7.0 as a key spec."""
    specs = []
    for row in rows:
        first, last, step = row["range"]
        if first:
            specs.append(
                {
                    "flags": {"RW", "access", "update"} if "write" in row["flags"] else {"RO", "access"},
                    "begin_search": {"type": "index", "index": first},
                    "find_keys": {
                        "type": "range",
                        "lastkey": last if last < 0 else last - first,
                        "keystep": step,
                        "limit": 0,
                    },
                }
            )
    return merge_specs([[spec] for spec in specs])


# What redis-py 8 and go-redis 9 send at each connect. Redis Enterprise takes it; other servers answer an
# error, and the clients go on.
SENT_AT_CONNECT: list[Row] = [
    {
        "name": "CLIENT MAINT_NOTIFICATIONS",
        "arity": -3,
        "flags": {"loading", "noscript", "stale"},
        "categories": {"connection", "slow"},
        "range": (0, 0, 0),
        "keys": None,
        "server": "redis-enterprise",
    }
]


def build(replies: Path = REPLIES, also: Iterable[Row] = ()) -> str:
    """The text of the table: one row a line, sorted by name, the same for the same replies."""
    commands: dict[str, list[Row]] = {}
    speakers: dict[str, set[str]] = {}
    servers = []
    for path in sorted(replies.glob("*.json")):
        server = server_name(path)
        servers.append(server)
        for row in rows_of(json.loads(path.read_text()), server):
            commands.setdefault(row["name"], []).append(row)
            for flag in row["flags"]:
                speakers.setdefault(flag, set()).add(server)
    for row in also:
        commands.setdefault(row["name"], []).append(row)
    lines = [json.dumps(merge(commands[name], speakers), sort_keys=True) for name in sorted(commands)]
    body = ",\n".join(lines)
    return f'{{"servers": {json.dumps(servers)},\n"commands": [\n{body}\n]}}\n'


def main(arguments: list[str] | None = None) -> int:
    """0 if the table was written or is up to date, 1 if `--check` finds it stale."""
    parser = argparse.ArgumentParser(description="Build the command table from servers' COMMAND replies.")
    parser.add_argument("--check", action="store_true", help="compare only; exit status 1 if it is stale")
    text = build(also=SENT_AT_CONNECT)
    if parser.parse_args(arguments).check:
        if TABLE.exists() and TABLE.read_text() == text:
            return 0
        print(f"{TABLE.relative_to(ROOT)} is stale: run tools/commands_table.py", file=sys.stderr)
        return 1
    TABLE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
