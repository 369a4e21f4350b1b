"""Commands of a running server that the table lacks, read from its `COMMAND` reply.

Rule: a server may add commands to the table, but never change or loosen a command that the table has.

The reply (https://redis.io/docs/latest/commands/command/) covers commands of modules, forks and later
versions. It says less than the table: nothing about the effect of options or a key's time to live. So a
command that may touch keys that its entry does not show has a problem.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from .arguments import LONGEST_WORD
from .model import Command
from .table import COMMANDS, KeySpec, Row, may_name_keys, spec_from

MAX_LEARNED = 5_000  # commands and subcommands; a server with every known module has some 700 in all
SERVER = "upstream"  # the value of `Command.servers`

_NUMBER_LIMIT = 2**31
_ENTRY_WITH_SPECS = 9  # fields; Redis 6.2 gives seven, and no key specs


class Learned(NamedTuple):
    """A server's commands that the table lacks. Names are as in `table.COMMANDS`: upper case, `FT.CONFIG
    GET`."""

    rows: Mapping[bytes, Row]
    unreadable: int = 0  # malformed entries; their commands stay unknown
    dropped: int = 0  # entries beyond MAX_LEARNED; their commands stay unknown


NOTHING = Learned({})


class _Unreadable(ValueError):
    """An entry, or a part of one, does not have the form that servers use."""


def learn(reply: object, known: Mapping[bytes, Row] = COMMANDS) -> Learned:
    """The commands in a raw `COMMAND` reply that `known` lacks. Never raises: malformed entries are counted.

    `reply` consists of lists, bytes and integers; maps may be dictionaries or flat lists.
    """
    rows: dict[bytes, Row] = {}
    subcommands: dict[bytes, dict[bytes, Row]] = {}
    unreadable = dropped = 0
    for container, entry in _entries(reply):
        try:
            name = _name(entry, container)
            if name in known or name in rows or not _belongs(container, known, subcommands):
                continue
            if len(rows) >= MAX_LEARNED:
                dropped += 1
                continue
            own: dict[bytes, Row] = {}
            row = _row(name.decode(), entry, own)
        except _Unreadable:
            unreadable += 1
            continue
        rows[name] = row
        subcommands[name] = own
        if container in subcommands:
            subcommands[container][name.partition(b" ")[2]] = row
    return Learned(rows, unreadable, dropped)


def _entries(reply: object) -> Iterator[tuple[bytes, list[Any]]]:
    """Every entry with the name of its container, which is empty for a top-level command."""
    for entry in reply if isinstance(reply, list) else ():
        if not isinstance(entry, list):
            yield b"", []
            continue
        yield b"", entry
        within = entry[9] if len(entry) > 9 else ()
        for subcommand in within if isinstance(within, list) and isinstance(entry[0], bytes) else ():
            yield entry[0].upper(), subcommand if isinstance(subcommand, list) else []


def _belongs(container: bytes, known: Mapping[bytes, Row], learned: Mapping[bytes, Any]) -> bool:
    """Whether a subcommand may be added: its container is none, learned too, or a container in the table.

    A plain command of the table stays one, with the keys in the table.
    """
    return (
        not container or container in learned or (container in known and bool(known[container].subcommands))
    )


# -- one entry


def _row(name: str, entry: list[Any], subcommands: Mapping[bytes, Row]) -> Row:
    if len(entry) < 6:
        raise _Unreadable
    flags = _words(entry[2])
    categories = {category.removeprefix("@") for category in _words(entry[6] if len(entry) > 6 else [])}
    if "admin" in flags:
        categories |= {"admin", "dangerous"}
    specs = _specs(entry, flags)
    command = Command(
        name=name,
        arity=_number(entry[1]),
        flags=flags,
        categories=frozenset(categories),
        servers=(SERVER,),
        names_keys=may_name_keys(flags, specs),
    )
    problem = _problem(command, specs, len(entry) >= _ENTRY_WITH_SPECS)
    if len(entry) > 9 and entry[9]:  # used only if none of the subcommands can be read
        problem = problem or "its subcommands are unknown"
    return Row(command, specs, subcommands, problem)


def _problem(command: Command, specs: tuple[KeySpec, ...], has_specs: bool) -> str:
    """Why the command may touch more than its entry shows; empty if it cannot.

    Specs that are incomplete by their own account are `KeySpec.is_complete`'s concern.
    """
    if "pubsub" in command.categories | command.flags or not all(spec.is_key for spec in specs):
        return "it names channels, and its server does not say where"
    if "scripting" in command.categories:
        return "it handles code, and its server does not say what the code touches"
    is_module = "module" in command.flags or "." in command.name
    if "search" in command.categories or command.name.startswith(("FT.", "_FT.")):
        return "it works on an index, and its server does not say which keys the index has"
    if "movablekeys" in command.flags and (not has_specs or (is_module and _is_plain_range(specs))):
        # A module with its own function to find keys may give the range of only some of them.
        return "its server does not say where all of its keys are"
    if not specs and (is_module or not has_specs):
        return "it names no key, and its server does not say that it touches none"
    return ""


def _is_plain_range(specs: tuple[KeySpec, ...]) -> bool:
    return all(spec.begin == "index" and spec.find == "range" for spec in specs)


def _specs(entry: list[Any], flags: frozenset[str]) -> tuple[KeySpec, ...]:
    given = entry[8] if len(entry) >= _ENTRY_WITH_SPECS else []
    if not isinstance(given, list):
        raise _Unreadable
    arity = _number(entry[1])
    specs = [_spec(spec) for spec in given] or _range(entry)
    if {"module", "readonly"} <= flags and "write" not in flags:
        specs = [spec._replace(flags=_READS) if spec.flags == _MODULE_DEFAULT else spec for spec in specs]
    writes = "write" in flags and not any(_WRITES & spec.flags for spec in specs)
    return tuple(spec._replace(flags=spec.flags | _cautious(spec, arity, flags, writes)) for spec in specs)


# The flags that Redis gives a module command's keys if the module only says where they are, even if the
# command only reads (`src/module.c`). Redis lets a `readonly` command write nothing.
_MODULE_DEFAULT = frozenset({"RW", "access", "update"})
_READS = frozenset({"RO", "access"})
_WRITES = frozenset({"RW", "OW", "RM", "insert", "update", "delete"})


def _cautious(spec: KeySpec, arity: int, command: frozenset[str], writes: bool) -> frozenset[str]:
    """The logical flags to add to a spec, so that it needs at least the rights that its other flags imply.

    A command that removes keys and has further arguments may compare the keys' values with them, and reply
    whether they are equal. DELIFEQ does so, and has the flags of DEL.
    """
    if not spec.flags & {"RO", "RW", "OW", "RM"}:
        return frozenset({"access"} if "readonly" in command else {"access", "update"})
    reads = spec.flags & {"RO", "RW"} or ("RM" in spec.flags and _may_have_more(spec, arity))
    added = {"access"} if reads else set()
    return frozenset(added | ({"update"} if writes or spec.flags & {"RW", "OW", "RM"} else set()))


def _may_have_more(spec: KeySpec, arity: int) -> bool:
    """Whether a command of this arity may have arguments beside its name and the keys of this spec."""
    if spec.begin != "index" or spec.find != "range":
        return True
    if spec.last >= 0:
        return arity != spec.start + spec.last + 1
    return spec.last != -1 or spec.start != 1 or spec.step != 1 or spec.limit > 1


def _range(entry: list[Any]) -> list[KeySpec]:
    """The key range that every server gives: first, last (from the end if negative), step."""
    first, last, step = (_number(field) for field in entry[3:6])
    if first == 0:
        return []
    if first < 0 or step < 1 or 0 <= last < first:
        raise _Unreadable
    relative = last if last < 0 else last - first
    return [KeySpec(frozenset(), "index", first, b"", "range", relative, step, 0, 0, 0)]


# The integers of a key spec, with their smallest valid values.
_LEAST = {"index": 1, "keystep": 1, "limit": 0, "keynumidx": 0, "firstkey": 0}


def _spec(value: object) -> KeySpec:
    """A key spec. A spec of an unknown kind becomes one that finds no keys."""
    fields = _map(value)
    parts: dict[str, Any] = {"flags": _words(fields.get("flags"))}
    for part, kinds in (("begin_search", ("index", "keyword")), ("find_keys", ("range", "keynum"))):
        described = _map(fields.get(part))
        kind = _text(described.get("type"))
        parts[part] = {"type": "unknown"}
        if kind in kinds:
            numbers = _map(described.get("spec"))
            keyword = _text(numbers.pop("keyword")) if "keyword" in numbers else ""
            parts[part] = {name: _number(number) for name, number in numbers.items()}
            parts[part] |= {"type": kind, "keyword": keyword}
            if any(parts[part].get(name, least) < least for name, least in _LEAST.items()):
                raise _Unreadable
            if kind == "keyword" and not (_is_word(keyword) and parts[part].get("startfrom")):
                raise _Unreadable
            if kind == "index" and "index" not in numbers:
                raise _Unreadable
    return spec_from(parts)


# -- values of a reply


def _name(entry: list[Any], container: bytes) -> bytes:
    """`FT.CONFIG`, or for a subcommand `FT.CONFIG GET`, which newer servers call `ft.config|get`."""
    name = entry[0] if entry else None
    if not isinstance(name, bytes):
        raise _Unreadable
    name = name.upper()
    if container:
        name = name.removeprefix(container + b"|")
    if not 0 < len(name) <= LONGEST_WORD or not set(name) <= _NAME or len(container) > LONGEST_WORD:
        raise _Unreadable
    return container + b" " + name if container else name


_NAME = frozenset(range(0x21, 0x7F)) - frozenset(b"|")


def _is_word(keyword: str) -> bool:
    """Whether a request can contain the keyword as `arguments.word` reads it."""
    return 0 < len(keyword) <= LONGEST_WORD and "\0" not in keyword


def _text(value: object) -> str:
    if not isinstance(value, bytes) or not value.isascii():
        raise _Unreadable
    return value.decode()


def _words(value: object) -> frozenset[str]:
    if not isinstance(value, list | set | frozenset):
        raise _Unreadable
    return frozenset(map(_text, value))


def _number(value: object) -> int:
    if not isinstance(value, int) or abs(value) >= _NUMBER_LIMIT:
        raise _Unreadable
    return value


def _map(value: object) -> dict[str, Any]:
    if isinstance(value, list) and len(value) % 2 == 0:
        return {_text(name): field for name, field in zip(value[::2], value[1::2], strict=True)}
    if isinstance(value, dict):
        return {_text(name): field for name, field in value.items()}
    raise _Unreadable
