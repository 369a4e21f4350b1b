#!/usr/bin/env python3
"""Builds the command table, `proxy/keyfence/commands/table.json`, from the replies of servers.

Rule: no fact about a command is written by hand. The input is each known server's reply to `COMMAND` and
`COMMAND DOCS`, as JSON in `tools/command_replies/`. For servers that are not available, the input is their
published reference. All replies are merged into one table with a row per command and subcommand, which fits
all servers. Where servers differ, the merge never loosens a check:

- *arity*: the widest, so that a call that some server accepts never counts as malformed;
- *flags*: a flag that forbids or warns (`write`, `admin`, `blocking` …) is kept if any server sets it. A flag
  that permits (`readonly`, `fast` …, see `PERMISSIVE`) is kept only if all servers set it that have the
  command and use the flag for any command;
- *categories*: all;
- *tips* on a cluster (which nodes, how their replies are joined): those of the newest server that has any;
- *key specs*: all; two that find the same arguments become one with the flags of both. Redis 6.2 has no key
  specs. Its key range becomes a key spec if no newer server has one. For a command that writes, that spec
  gets both access and update, since 6.2 does not tell them apart.

Redis gives a module command's keys the flags of a write by default. If the command is `readonly`, its keys
are only read.

Usage:

    python -m tools.commands_table                     writes the table
    python -m tools.commands_table --check             fails if the table is stale
    python -m tools.commands_table --from HOST:PORT    first stores a server's replies (or unix:PATH)
    python -m tools.commands_table --reference FILE    first stores a published reference

A file is called `<server>-<version>.json`; a published reference, `<server>-<version>-reference.json`. One
server may have several files, since distributions change replies within a version.

A published reference has the form of `data/commands_core.json` in https://github.com/redis/docs: it maps each
command's name to `arity`, `command_flags`, `acl_categories`, `key_specs` and `arguments`. It adds only
commands that are in no server's reply, and no options.
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

# Flags that permit a command to do more, or permit a proxy to check it less strictly.
PERMISSIVE = frozenset({"readonly", "fast", "stale", "loading", "no_auth", "allow_busy", "no_mandatory_keys"})

# Redis gives these flags to a module command's keys if the module states only their positions
# (`src/module.c`).
MODULE_DEFAULT = frozenset({"RW", "access", "update"})

Row = dict[str, Any]


def server_name(path: Path) -> str:
    """`redis-7.0.15.json` → `redis-7.0`; `redis-8.10-reference.json` → `redis-8.10`."""
    matched = re.match(r"[a-z]+-\d+\.\d+", path.name)
    if matched is None:
        raise SystemExit(f"{path.name}: the name should begin with <server>-<major>.<minor>")
    return matched[0]


def age(path: Path) -> tuple[str, list[int]]:
    """Returns a sort key: the kind of server, then its version."""
    return path.name.partition("-")[0], [int(number) for number in re.findall(r"\d+", path.name)]


def rows_of(reply: Iterable[list[Any]], server: str) -> Iterator[Row]:
    """Yields one reply as flat rows. The format of an entry of `COMMAND` is documented at
    https://redis.io/docs/latest/commands/command/."""
    for entry in reply:
        name, arity, flags, first, last, step, categories = entry[:7]
        specs = entry[8] if len(entry) > 8 else None
        yield {
            "tips": tips_of(entry[7]) if len(entry) > 7 else {},
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


def tips_of(written: Iterable[str]) -> dict[str, str]:
    """Returns the tips on a cluster, without those that only people use (`nondeterministic_output` …)."""
    found = (re.fullmatch(r"(request|response)_policy:(\w+)", tip.lower()) for tip in written)
    return {matched[1]: matched[2] for matched in found if matched}


def spec_of(spec: dict[str, Any], command: set[str]) -> Row:
    """Returns a key spec without its notes, which are for people. `command`: the command's flags."""
    begin, find = spec["begin_search"], spec["find_keys"]
    only_reads = {"module", "readonly"} <= command and set(spec["flags"]) == MODULE_DEFAULT
    flags = {"RO", "access"} if only_reads else set(spec["flags"])
    return {
        "flags": flags,
        "begin_search": {"type": begin["type"], **begin["spec"]},
        "find_keys": {"type": find["type"], **find["spec"]},
    }


def merge(rows: list[Row], flag_users: dict[str, set[str]]) -> Row:
    """Merges the rows of one command on several servers. `flag_users`: by flag, the servers that use it."""
    specs = [row["keys"] for row in rows if row["keys"] is not None]
    tips = [row["tips"] for row in rows if row.get("tips")]
    return {
        "name": rows[0]["name"],
        "arity": widest([row["arity"] for row in rows]),
        "flags": sorted(merge_flags(rows, flag_users)),
        "categories": sorted(set().union(*(row["categories"] for row in rows))),
        "keys": merge_specs(specs) if specs and any(specs) else legacy_specs(rows),
        "servers": list(dict.fromkeys(row["server"] for row in rows)),
        **({"problem": rows[-1]["problem"]} if "problem" in rows[-1] else {}),
        **({"tips": tips[-1]} if tips else {}),
    }


def widest(arities: list[int]) -> int:
    """Returns an arity that admits all calls that one of these admits. Positive: exact; negative: minimum."""
    if len(set(arities)) == 1:
        return arities[0]
    return -min(abs(arity) for arity in arities)


def merge_flags(rows: list[Row], flag_users: dict[str, set[str]]) -> set[str]:
    every: set[str] = set().union(*(row["flags"] for row in rows))
    return {
        flag
        for flag in every
        if flag not in PERMISSIVE
        or all(flag in row["flags"] for row in rows if row["server"] in flag_users[flag])
    }


def merge_specs(specs: list[list[Row]]) -> list[Row]:
    """Returns all specs in order of first appearance. Specs for one place are merged, with all their flags.

    A server may list the same place several times (SORT has two unknown ones). Then the n-th of one server
    merges with the n-th of another.
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
    """Converts the key range of `COMMAND` before Redis 7.0 to a key spec."""
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


# Module commands that only read, although the reference does not say so. Source: the modules' documentation.
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


# Prefixes of commands that modules send each other.
INTERNAL = ("_", "FT._ALIAS", "FT._ALTER", "FT._CREATE", "FT._DROP", "SEARCH.CLUSTER", "TIMESERIES.")


def from_reference(published: dict[str, Row], known: Collection[str]) -> dict[str, Row]:
    """Returns the commands of a published reference that are in no server's reply.

    If a module's command has no key specs, they are derived from its arguments. A command that works on an
    index, or on the keys that a filter finds, touches keys that it does not name: its row gets a `problem`.
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
                row["problem"] = "it reaches keys that it does not name"
        row["key_specs"] = [{key: spec[key] for key in SPEC_FIELDS} for spec in specs]
        rows[name] = row
    return rows


def flags_of(spec: Row, is_module: bool) -> list[str]:
    """Returns the flags of a published key spec. A module's with only `RW` gets MODULE_DEFAULT."""
    flags = {flag for flag, value in spec.items() if value is True}
    return sorted(flags | MODULE_DEFAULT if is_module and flags == {"RW"} else flags)


# The ACL category of a module's commands, if its name differs from the reference's group.
CATEGORIES = {"bf": "bloom", "cf": "cuckoo", "suggestion": "search"}
SPEC_FIELDS = ("flags", "begin_search", "find_keys")


def module_specs(name: str, arguments: list[Row]) -> list[Row]:
    """Derives key specs from documented arguments; none if the first argument is not a key."""
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
        after = len(arguments) - index  # JSON.MGET has a path after its keys
        last = -1 - after if "multiple" in argument else 0
        specs.append(spec(index, "range", lastkey=last, keystep=1, limit=0))
    return specs


def rows_of_reference(published: dict[str, Row], server: str) -> Iterator[Row]:
    """Yields the rows of a file that `--reference` wrote."""
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


# -- the replies of a running server


def ask(address: str) -> tuple[str, Row]:
    """Returns the file name and the content for the server at `HOST:PORT` or `unix:PATH`."""
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
    """Returns the reply as text and lists of text."""
    connection.send_command(*words)
    return text_of(connection.read_response())


def text_of(reply: Any) -> Any:
    if isinstance(reply, bytes):
        return reply.decode()
    return [text_of(part) for part in reply] if isinstance(reply, list) else reply


def pairs(flat: list[Any]) -> dict[str, Any]:
    """Converts a RESP2 map, a flat list, to a dict."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def entry_of(entry: list[Any]) -> list[Any]:
    """Returns an entry of COMMAND with key specs as maps and sorted lists, so that files are stable."""
    ordered = [*entry[:2], sorted(entry[2]), *entry[3:6], sorted(entry[6])]
    if len(entry) > 8:
        specs = [pairs(spec) for spec in entry[8]]
        for spec in specs:
            for part in ("begin_search", "find_keys"):
                spec[part] = pairs(spec[part])
                spec[part]["spec"] = pairs(spec[part]["spec"])
        kept = [{key: spec[key] for key in SPEC_FIELDS} for spec in specs]
        tips = sorted(tip for tip in entry[7] if tips_of([tip]))
        ordered += [tips, kept, sorted((entry_of(one) for one in entry[9]), key=lambda one: str(one[0]))]
    return ordered


def arguments_of(documented: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yields each command and subcommand of COMMAND DOCS with its arguments."""
    for name, flat in pairs(documented).items():
        fields = pairs(flat)
        yield name.upper().replace("|", " "), fields.get("arguments", [])
        yield from arguments_of(fields.get("subcommands", []))


def tokens(arguments: list[Any]) -> Iterator[str]:
    """Yields the option names in COMMAND DOCS."""
    for argument in map(pairs, arguments):
        if argument.get("token"):
            yield argument["token"]
        yield from tokens(argument.get("arguments", []))


# redis-py 8 and go-redis 9 send this at each connect. Redis Enterprise accepts it. Other servers reply with
# an error, which the clients ignore.
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
    """Returns the text of the table: one row per line, by name. The same replies give the same text."""
    commands: dict[str, list[Row]] = {}
    flag_users: dict[str, set[str]] = {}
    servers, documented = [], []
    for path in sorted(replies.glob("*.json"), key=age):
        server = server_name(path)
        servers.append(server)
        content = json.loads(path.read_text())
        if path.stem.endswith("-reference"):
            documented.append(server)
            rows = rows_of_reference(content, server)
        else:
            rows = rows_of(content["commands"] if isinstance(content, dict) else content, server)
        for row in rows:
            commands.setdefault(row["name"], []).append(row)
            for flag in row["flags"]:
                flag_users.setdefault(flag, set()).add(server)
    for row in also:
        commands.setdefault(row["name"], []).append(row)
    lines = [json.dumps(merge(commands[name], flag_users), sort_keys=True) for name in sorted(commands)]
    body = ",\n".join(lines)
    head = f'"servers": {json.dumps(list(dict.fromkeys(servers)))}, "documented": {json.dumps(documented)}'
    return f'{{{head},\n"commands": [\n{body}\n]}}\n'


def store(name: str, content: Row) -> None:
    """Stores the content of a server's replies or of a reference, one command per line, for later builds."""
    lines = ",\n".join(
        f'"{part}": [\n' + ",\n".join(map(json.dumps, entries)) + "\n]"
        if isinstance(entries, list)
        else f'"{part}": {json.dumps(entries, sort_keys=True)}'
        for part, entries in content.items()
    )
    (REPLIES / name).write_text(f"{{{lines}}}\n")
    print(f"wrote {(REPLIES / name).relative_to(ROOT)}")


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 if the table was written or is up to date, 1 if `--check` finds it stale."""
    parser = argparse.ArgumentParser(description="Build the command table from servers' COMMAND replies.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if the table is stale"
    )
    parser.add_argument(
        "--from", dest="address", metavar="HOST:PORT", help="first store this server's replies"
    )
    parser.add_argument("--reference", type=Path, metavar="FILE", help="first store this published reference")
    options = parser.parse_args(arguments)
    if options.address:
        store(*ask(options.address))
    if options.reference:
        name = f"{options.reference.stem.removesuffix('-reference')}-reference.json"
        (REPLIES / name).unlink(missing_ok=True)
        known = {row["name"] for row in json.loads(build(also=SENT_AT_CONNECT))["commands"]}
        store(name, from_reference(json.loads(options.reference.read_text()), known))
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
