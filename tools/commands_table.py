#!/usr/bin/env python3
"""Builds the command table, `proxy/keyfence/commands/table.json`, from the replies of servers.

Rule: no fact about a command is written by hand. The input is each known server's reply to `COMMAND` and
`COMMAND DOCS`, as JSON in `tools/command_replies/`; for servers that are not available it is their published
reference. All replies are merged into one table with a row per command and subcommand, which fits all
servers. Where servers differ, the merge never loosens a check:

- *arity*: the widest, so that a call that any server runs is never taken for one that none runs;
- *flags*: those that forbid or warn (`write`, `admin`, `blocking` …) if any server sets them; those that
  permit (`readonly`, `fast` …, see `PERMISSIVE`) only if every server sets them that has the command and
  uses that flag at all;
- *categories*: all;
- *key specs*: all; two that find the same arguments become one with the flags of both. Redis 6.2 has no key
  specs: its key range becomes one where no newer server has any, with access and update for a command that
  writes, since 6.2 doesn't say which of them it does.

Redis gives a module command's keys the flags of a write by default. If the command is `readonly`, its keys
are only read.

Usage:

    python -m tools.commands_table                     writes the table
    python -m tools.commands_table --check             compares it, and fails if it is stale
    python -m tools.commands_table --from HOST:PORT    asks a server first, also unix:PATH
    python -m tools.commands_table --reference FILE    takes in what is published first

A file is called `<server>-<version>.json`, with `-reference` behind it where no server has said it.

A published reference has the form of `data/commands_core.json` in https://github.com/redis/docs: for each
command's name `arity`, `command_flags`, `acl_categories`, `key_specs` and `arguments`. Only the commands that
no other reply has are taken from it, and no options.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import redis

ROOT = Path(__file__).resolve().parent.parent
REPLIES = ROOT / "tools" / "command_replies"
TABLE = ROOT / "proxy" / "keyfence" / "commands" / "table.json"

# Flags that let a command do more, or let a proxy treat it with less care.
PERMISSIVE = frozenset({"readonly", "fast", "stale", "loading", "no_auth", "allow_busy", "no_mandatory_keys"})

# What Redis gives the keys of a module's command that has only said where they are (`src/module.c`).
MODULE_DEFAULT = frozenset({"RW", "access", "update"})

Row = dict[str, Any]


def server_name(path: Path) -> str:
    """`redis-7.0.15.json` → `redis-7.0`; `redis-8.10-reference.json` → `redis-8.10`."""
    matched = re.match(r"[a-z]+-\d+\.\d+", path.name)
    if matched is None:
        raise SystemExit(f"{path.name}: the name should begin with <server>-<major>.<minor>")
    return matched[0]


def age(path: Path) -> tuple[str, list[int]]:
    """What puts the servers of one kind in the order of their versions."""
    return path.name.partition("-")[0], [int(number) for number in re.findall(r"\d+", path.name)]


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
            "keys": None if specs is None else [spec_of(spec, set(flags)) for spec in specs],
            "server": server,
        }
        if len(entry) > 9:
            yield from rows_of(entry[9], server)


def spec_of(spec: dict[str, Any], command: set[str]) -> Row:
    """A key spec without its notes, which are for people. `command`: the flags of its command."""
    begin, find = spec["begin_search"], spec["find_keys"]
    only_reads = {"module", "readonly"} <= command and set(spec["flags"]) == MODULE_DEFAULT
    flags = {"RO", "access"} if only_reads else set(spec["flags"])
    return {
        "flags": flags,
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
        **({"problem": rows[-1]["problem"]} if "problem" in rows[-1] else {}),
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


# -- a published reference


# Commands of modules that write nothing, where the reference doesn't say so. From the modules' documentation.
MODULES_READ = frozenset(
    f"{family}.{command}"
    for family, commands in {
        "BF": "CARD EXISTS INFO MEXISTS SCANDUMP",
        "CF": "COUNT EXISTS INFO MEXISTS SCANDUMP",
        "CMS": "INFO QUERY",
        "FT": "AGGREGATE DICTDUMP EXPLAIN EXPLAINCLI HYBRID INFO PROFILE SEARCH SPELLCHECK SUGGET SUGLEN "
        "SYNDUMP TAGVALS _LIST",
        "JSON": "ARRINDEX ARRLEN GET MGET OBJKEYS OBJLEN RESP STRLEN TYPE",
        "TDIGEST": "BYRANK BYREVRANK CDF INFO MAX MIN QUANTILE RANK REVRANK TRIMMED_MEAN",
        "TOPK": "COUNT INFO LIST QUERY",
        "TS": "GET INFO MGET MRANGE MREVRANGE QUERYINDEX RANGE REVRANGE",
    }.items()
    for command in commands.split()
)


# What modules send each other.
INTERNAL = ("_", "FT._ALIAS", "FT._ALTER", "FT._CREATE", "FT._DROP", "SEARCH.CLUSTER", "TIMESERIES.")


def from_reference(published: dict[str, Row], known: Collection[str]) -> dict[str, Row]:
    """The commands of a published reference that no server here has.

    Where a module's command has no key specs, its arguments say where its keys are. What works on an
    index, or on whatever a filter finds, reaches keys that it doesn't name: that is a problem.
    """
    rows: dict[str, Row] = {}
    for name, fields in published.items():
        if name in known or name.startswith(INTERNAL) or ("." in name and " " in name):
            continue
        row = {key: fields[key] for key in ("arity", "command_flags", "acl_categories") if key in fields}
        specs = [{"flags": flags_of(spec, "." in name), **spec} for spec in fields.get("key_specs", [])]
        if "." in name:
            arguments = fields.get("arguments", [])
            specs = specs or module_specs(name, arguments)
            row.setdefault("command_flags", ["module", "readonly" if name in MODULES_READ else "write"])
            row.setdefault("arity", -1 - sum("optional" not in argument for argument in arguments))
            access = "read" if name in MODULES_READ else "write"
            row.setdefault("acl_categories", [access, CATEGORIES.get(fields["group"], fields["group"])])
            if not specs or (name.startswith("FT.") and not name.startswith("FT.SUG")):
                row["problem"] = "it reaches keys that it doesn't name"
        row["key_specs"] = [{key: spec[key] for key in SPEC_FIELDS} for spec in specs]
        rows[name] = row
    return rows


def flags_of(spec: Row, is_module: bool) -> list[str]:
    """The flags of a published key spec; a module's that says only `RW` may do all."""
    flags = {flag for flag, value in spec.items() if value is True}
    return sorted(flags | MODULE_DEFAULT if is_module and flags == {"RW"} else flags)


# The ACL category of a module's commands, where it isn't called as the reference's group is.
CATEGORIES = {"bf": "bloom", "cf": "cuckoo", "suggestion": "search"}
SPEC_FIELDS = ("flags", "begin_search", "find_keys")


def module_specs(name: str, arguments: list[Row]) -> list[Row]:
    """The key specs that documented arguments amount to; none where they don't begin with a key."""
    flags = ["RO", "access"] if name in MODULES_READ else sorted(MODULE_DEFAULT)

    def spec(index: int, kind: str, **find: int) -> Row:
        begin = {"type": "index", "spec": {"index": index}}
        return {"flags": flags, "begin_search": begin, "find_keys": {"type": kind, "spec": find}}

    specs: list[Row] = []
    for index, argument in enumerate(arguments, 1):
        inner = argument.get("arguments", [])
        if "multiple" in argument and inner and inner[0]["type"] == "key":  # JSON.MSET, TS.MADD
            return [spec(index, "range", lastkey=-1, keystep=len(inner), limit=0)]
        if argument["type"] == "integer" and argument["name"].lower() == "numkeys":  # CMS.MERGE
            return [*specs, spec(index, "keynum", keynumidx=0, firstkey=1, keystep=1)]
        if argument["type"] != "key" and not (name.startswith("FT.SUG") and argument["name"] == "key"):
            break
        behind = len(arguments) - index  # JSON.MGET has a path behind its keys
        last = -1 - behind if "multiple" in argument else 0
        specs.append(spec(index, "range", lastkey=last, keystep=1, limit=0))
    return specs


def rows_of_reference(published: dict[str, Row], server: str) -> Iterator[Row]:
    """The rows of a file that `--reference` has made."""
    for name, fields in published.items():
        flags = set(fields.get("command_flags", []))
        yield {
            "name": name,
            "arity": fields["arity"],
            "flags": flags,
            "categories": {category.removeprefix("@") for category in fields.get("acl_categories", [])},
            "range": (0, 0, 0),
            "keys": [spec_of(spec, flags) for spec in fields["key_specs"]],
            "server": server,
            **{key: fields[key] for key in ("problem",) if key in fields},
        }


# -- what a server says of itself


def ask(address: str) -> tuple[str, Row]:
    """The file name and the content for the server at `HOST:PORT` or `unix:PATH`."""
    place = address.removeprefix("unix:")
    host, _, port = address.rpartition(":")
    connection: redis.connection.AbstractConnection = (
        redis.connection.UnixDomainSocketConnection(path=place, protocol=2)
        if place != address
        else redis.Connection(host=host or "localhost", port=int(port), protocol=2)
    )
    commands = reply_to(connection, "COMMAND")
    documented = reply_to(connection, "COMMAND", "DOCS") if len(commands[0]) > 8 else []
    about = dict(re.findall(r"(\w+):(\S+)", reply_to(connection, "INFO", "server")))
    connection.disconnect()
    server = about.get("server_name", "redis")
    version = about.get(f"{server}_version", about["redis_version"])
    options = {name: sorted(set(tokens(arguments))) for name, arguments in arguments_of(documented)}
    entries = sorted((entry_of(entry) for entry in commands), key=lambda entry: str(entry[0]))
    return f"{server}-{version}.json", {
        "commands": entries,
        "options": {name: found for name, found in sorted(options.items()) if found},
    }


def reply_to(connection: redis.connection.AbstractConnection, *words: str) -> Any:
    """The reply as text and lists of text."""
    connection.send_command(*words)
    return text_of(connection.read_response())


def text_of(reply: Any) -> Any:
    if isinstance(reply, bytes):
        return reply.decode()
    return [text_of(part) for part in reply] if isinstance(reply, list) else reply


def pairs(flat: list[Any]) -> dict[str, Any]:
    """A RESP2 map."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def entry_of(entry: list[Any]) -> list[Any]:
    """An entry of COMMAND with its key specs as maps, and in an order that is the same each time."""
    ordered = [*entry[:2], sorted(entry[2]), *entry[3:6], sorted(entry[6])]
    if len(entry) > 8:
        specs = [pairs(spec) for spec in entry[8]]
        for spec in specs:
            for part in ("begin_search", "find_keys"):
                spec[part] = pairs(spec[part])
                spec[part]["spec"] = pairs(spec[part]["spec"])
        kept = [{key: spec[key] for key in SPEC_FIELDS} for spec in specs]
        ordered += [[], kept, sorted((entry_of(one) for one in entry[9]), key=lambda one: str(one[0]))]
    return ordered


def arguments_of(documented: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Each command and subcommand of COMMAND DOCS with its arguments."""
    for name, flat in pairs(documented).items():
        fields = pairs(flat)
        yield name.upper().replace("|", " "), fields.get("arguments", [])
        yield from arguments_of(fields.get("subcommands", []))


def tokens(arguments: list[Any]) -> Iterator[str]:
    """The words of all options, as COMMAND DOCS has them."""
    for argument in map(pairs, arguments):
        if argument.get("token"):
            yield argument["token"]
        yield from tokens(argument.get("arguments", []))


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
    servers, documented = [], []
    for path in sorted(replies.glob("*.json"), key=age):
        server = server_name(path)
        servers.append(server)
        said = json.loads(path.read_text())
        if path.stem.endswith("-reference"):
            documented.append(server)
            rows = rows_of_reference(said, server)
        else:
            rows = rows_of(said["commands"] if isinstance(said, dict) else said, server)
        for row in rows:
            commands.setdefault(row["name"], []).append(row)
            for flag in row["flags"]:
                speakers.setdefault(flag, set()).add(server)
    for row in also:
        commands.setdefault(row["name"], []).append(row)
    lines = [json.dumps(merge(commands[name], speakers), sort_keys=True) for name in sorted(commands)]
    body = ",\n".join(lines)
    head = f'"servers": {json.dumps(servers)}, "documented": {json.dumps(documented)}'
    return f'{{{head},\n"commands": [\n{body}\n]}}\n'


def take_in(name: str, said: Row) -> None:
    """Keeps what a server or a reference says, one command a line, for the next build."""
    lines = ",\n".join(
        f'"{part}": [\n' + ",\n".join(map(json.dumps, entries)) + "\n]"
        if isinstance(entries, list)
        else f'"{part}": {json.dumps(entries, sort_keys=True)}'
        for part, entries in said.items()
    )
    (REPLIES / name).write_text(f"{{{lines}}}\n")
    print(f"wrote {(REPLIES / name).relative_to(ROOT)}")


def main(arguments: list[str] | None = None) -> int:
    """0 if the table was written or is up to date, 1 if `--check` finds it stale."""
    parser = argparse.ArgumentParser(description="Build the command table from servers' COMMAND replies.")
    parser.add_argument("--check", action="store_true", help="compare only; exit status 1 if it is stale")
    parser.add_argument("--from", dest="address", metavar="HOST:PORT", help="ask this server first")
    parser.add_argument("--reference", type=Path, metavar="FILE", help="take in a published reference first")
    options = parser.parse_args(arguments)
    if options.address:
        take_in(*ask(options.address))
    if options.reference:
        name = f"{options.reference.stem.removesuffix('-reference')}-reference.json"
        (REPLIES / name).unlink(missing_ok=True)
        known = {row["name"] for row in json.loads(build(also=SENT_AT_CONNECT))["commands"]}
        take_in(name, from_reference(json.loads(options.reference.read_text()), known))
    text = build(also=SENT_AT_CONNECT)
    if options.check:
        if TABLE.exists() and TABLE.read_text() == text:
            return 0
        print(f"{TABLE.relative_to(ROOT)} is stale: run `make commands`", file=sys.stderr)
        return 1
    TABLE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
