"""The commands of a service, sorted by the part of an ACL user that may hold them.

Rule: a command is named, never a category: a category gains commands with each version of Redis.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from keyfence.commands.effects import GROUP_COMMANDS, effect_of
from keyfence.commands.model import Command
from keyfence.commands.table import COMMANDS, Row
from keyfence.policy.compiled.permissions import selects
from keyfence.policy.compiled.policy import CompiledPolicy, Grant

from .acl_keys import DATA_TYPES

PUBLISHING = frozenset({"PUBLISH", "SPUBLISH"})
SUBSCRIBING = frozenset({"SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"})
LISTENING = frozenset({"PUBSUB CHANNELS", "PUBSUB NUMPAT", "PUBSUB NUMSUB", "PUBSUB SHARDCHANNELS"})
LISTENING |= {"PUBSUB SHARDNUMSUB"}
SCRIPTS = frozenset({"EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO"})
FUNCTIONS = frozenset({"FCALL", "FCALL_RO"})
LOADING = frozenset({"SCRIPT LOAD", "SCRIPT EXISTS"})
REMOVING = frozenset({"DEL", "UNLINK"})
SCANNING = frozenset({"SCAN", "KEYS", "RANDOMKEY"})
# They take content from another key, or from a dump.
CARRYING = frozenset(
    [
        "COPY",
        "RENAME",
        "RENAMENX",
        "RESTORE",
        "SORT",
        "LMOVE",
        "RPOPLPUSH",
        "BLMOVE",
        "BRPOPLPUSH",
        "SMOVE",
        "SUNIONSTORE",
        "SINTERSTORE",
        "SDIFFSTORE",
        "ZUNIONSTORE",
        "ZINTERSTORE",
        "ZDIFFSTORE",
        "ZRANGESTORE",
        "BITOP",
        "PFMERGE",
        "GEORADIUS",
        "GEORADIUSBYMEMBER",
        "GEOSEARCHSTORE",
    ]
)
SERVERS = ("redis-7.0", "redis-8.0", "redis-8.6", "redis-8.10", "valkey-8.1", "valkey-9.1")


class Commands(NamedTuple):
    """The commands that a service may use, upper-case names."""

    keyless: frozenset[str]
    generic: frozenset[str]  # on keys of any type
    of_type: dict[str, frozenset[str]]
    groups: frozenset[str]  # on consumer groups
    publishing: frozenset[str]
    subscribing: frozenset[str]

    @property
    def on_keys(self) -> frozenset[str]:
        return self.generic.union(self.groups, *self.of_type.values())

    def joined(self, *lent: Collection[str]) -> Commands:
        """Returns these and the commands that grants lend the service."""
        names = frozenset[str]().union(*lent)
        on_keys = frozenset(filter(names_keys, names))
        return self._replace(keyless=self.keyless | names - on_keys, generic=self.generic | on_keys)


def commands_of(
    policy: CompiledPolicy, service: int, is_forbidden: Callable[[Command], object], server: str
) -> Commands:
    """Returns the commands of a service on a server. `is_forbidden` says which ones the policy forbids it."""
    keyless: set[str] = set()
    generic: set[str] = set()
    groups: set[str] = set()
    of_type: dict[str, set[str]] = {one: set() for one in DATA_TYPES}
    runs = _scripts_of(policy, service)
    for row in _rows(is_forbidden, server):
        name, command = row.command.name, row.command
        if name in SCRIPTS | FUNCTIONS | LOADING:
            if name in runs:
                (keyless if name in LOADING else generic).add(name)
        elif not command.names_keys:
            keyless.add(name)
        elif name in GROUP_COMMANDS:
            groups.add(name)
        elif types := types_of(row):
            for one in types & of_type.keys():
                of_type[one].add(name)
        else:
            generic.add(name)
    channels = PUBLISHING | SUBSCRIBING | LISTENING
    return Commands(
        frozenset(keyless - channels - {"SELECT"}),
        frozenset(generic),
        {one: frozenset(names) for one, names in of_type.items()},
        frozenset(groups),
        frozenset(keyless & PUBLISHING),
        frozenset(keyless & (SUBSCRIBING | LISTENING)),
    )


def lent_by(grant: Grant, is_forbidden: Callable[[Command], object], server: str) -> list[str]:
    """Returns the commands that a grant lends a service on a server."""
    commands = (row.command for row in _rows(is_forbidden, server))
    return [one.name for one in commands if selects(grant.selectors, one)]


def _rows(is_forbidden: Callable[[Command], object], server: str) -> Iterator[Row]:
    """Yields the commands of a server that the policy does not forbid the service."""
    for row in COMMANDS.values():
        if server in row.command.servers and not row.subcommands and not is_forbidden(row.command):
            yield row


def names_keys(name: str) -> bool:
    """Whether a command names keys."""
    return COMMANDS[name.encode()].command.names_keys


def types_of(row: Row) -> set[str]:
    """Returns the types of keys that a command is for; empty: any."""
    return {one for role in range(len(row.specs)) for one in effect_of(row, role).types}


def _scripts_of(policy: CompiledPolicy, service: int) -> frozenset[str]:
    """Returns the commands for scripts that the policy has a use for."""
    declared = policy.may_run_unregistered(service)
    found: frozenset[str] = frozenset()
    if declared or policy.scripts:
        found |= SCRIPTS | LOADING
    elif policy.unregistered_scripts(service) != "forbid":
        found |= LOADING
    return found | FUNCTIONS if declared or policy.functions else found


def words(names: Iterable[str]) -> list[str]:
    """Returns the names as words of ACL SETUSER: `+xgroup|create`."""
    return [f"+{name.lower().replace(' ', '|')}" for name in sorted(names)]
