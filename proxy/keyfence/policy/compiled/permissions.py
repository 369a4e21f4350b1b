"""Which commands a policy forbids where it says nothing, and what its selectors name.

Rule: the servers' own categories decide; what they don't tell is listed here by name, each with its reason.
"""

from __future__ import annotations

from collections.abc import Collection

from keyfence.commands.model import Command
from keyfence.commands.table import COMMANDS

# Redis' own categories decide what is forbidden by default: whatever administers the server, whatever Redis
# calls dangerous and names no key, and whatever works on the whole key space at once.
_FORBIDDEN_CATEGORIES = frozenset({"admin"})
# Dangerous by category, but asked by client libraries at connect to see whether Redis is loading.
_HARMLESS = frozenset({"INFO"})
# A container without a subcommand, or with one that no server has, runs nothing; that it is unknown says
# enough.
_CONTAINERS = frozenset(row.command.name for row in COMMANDS.values() if row.subcommands)
# Redis 6.2 has SELECT, WAIT and READONLY in @keyspace too. SCAN is judged by its pattern.
_ABOUT_THE_CONNECTION = frozenset({"connection"})
_JUDGED_OTHERWISE = frozenset({"SCAN", "OBJECT HELP", "ASKING"})
# Commands whose category doesn't tell that they change what other clients run, move keys away, or name keys.
_FORBIDDEN_BY_NAME = {
    "CLUSTER GETKEYSINSLOT": "it shows key names",
    "MIGRATE": "it moves keys to another server",
    **dict.fromkeys(
        ("FUNCTION DELETE", "FUNCTION FLUSH", "FUNCTION KILL", "FUNCTION LOAD", "FUNCTION RESTORE"),
        "it is administrative",
    ),
    **dict.fromkeys(("SCRIPT DEBUG", "SCRIPT FLUSH", "SCRIPT KILL"), "it is administrative"),
}


def forbidden_by_default(command: Command, names_keys: bool) -> str:
    """Why a policy that says nothing forbids the command; "" where it doesn't."""
    if command.name in _HARMLESS or command.name in _CONTAINERS or command.name in _JUDGED_OTHERWISE:
        return ""
    if command.name in _FORBIDDEN_BY_NAME:
        return _FORBIDDEN_BY_NAME[command.name]
    if command.categories & _FORBIDDEN_CATEGORIES:
        return "it is administrative (@admin)"
    if names_keys:
        return ""
    if "dangerous" in command.categories:
        return "it is @dangerous and names no key"
    if "keyspace" in command.categories and not _ABOUT_THE_CONNECTION & command.categories:
        return "it works on the whole key space"
    return ""


# Stands for every command, under `allow` and in grants. It never lifts what is forbidden.
EVERY = "*"


def selects(selectors: frozenset[str], command: Command) -> bool:
    """Whether a command is among those that the selectors stand for."""
    return EVERY in selectors or names(selectors, command)


def names(selectors: frozenset[str], command: Command) -> bool:
    """Whether a command is named by its name, its container's name, or one of its categories."""
    if not selectors:
        return False
    container = command.name.split(" ")[0]
    return (
        command.name in selectors
        or container in selectors
        or any("@" + category in selectors for category in command.categories)
    )


def selects_name(selectors: frozenset[str], name: str) -> bool:
    """The same for a command's name; one that isn't in the table can only be named itself."""
    row = COMMANDS.get(name.encode())
    return selects(selectors, row.command) if row is not None else name in selectors or EVERY in selectors


def lets_unknown(allow: frozenset[str], forbid: frozenset[str], spelled: Collection[str]) -> bool:
    """Whether a command that nobody knows is allowed: by a name that it has, or with every other one. It may
    be of any category, so where one is forbidden only its name will do."""
    if not forbid.isdisjoint(spelled):
        return False
    if not allow.isdisjoint(spelled):
        return True
    return EVERY in allow and not any(selector.startswith("@") for selector in forbid)
