"""The commands that every policy forbids by default, and the commands that a policy's selectors name.

Rule: the servers' own ACL categories decide. Commands that the categories do not cover are listed here by
name, each with a reason.
"""

from __future__ import annotations

from collections.abc import Collection

from keyfence.commands.model import Command
from keyfence.commands.table import COMMANDS

# By category, the default forbids commands that administer the server, commands that Redis calls dangerous
# and that name no key, and commands that work on the whole key space at once.
_FORBIDDEN_CATEGORIES = frozenset({"admin"})
# Dangerous by category, but client libraries send it at connect to see whether Redis is loading.
_HARMLESS = frozenset({"INFO"})
# A container without a subcommand, or with one that no server has, runs nothing; `command.unknown` covers it.
_CONTAINERS = frozenset(row.command.name for row in COMMANDS.values() if row.subcommands)
# Redis 6.2 has SELECT, WAIT and READONLY in @keyspace too. SCAN is authorized by its pattern.
_ABOUT_THE_CONNECTION = frozenset({"connection"})
_AUTHORIZED_OTHERWISE = frozenset({"SCAN", "OBJECT HELP", "ASKING"})
# The categories of these commands do not show that they change what other clients run, move or show keys.
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
    """Returns why the default forbids the command; "" if it does not."""
    if command.name in _HARMLESS or command.name in _CONTAINERS or command.name in _AUTHORIZED_OTHERWISE:
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


# Selects every command, under `allow` and in grants. It never allows a forbidden command.
EVERY = "*"


def selects(selectors: frozenset[str], command: Command) -> bool:
    """Whether the selectors select a command."""
    return EVERY in selectors or names(selectors, command)


def names(selectors: frozenset[str], command: Command) -> bool:
    """Whether the selectors have a command's name, its container's name, or one of its categories."""
    if not selectors:
        return False
    container = command.name.split(" ")[0]
    return (
        command.name in selectors
        or container in selectors
        or any("@" + category in selectors for category in command.categories)
    )


def selects_name(selectors: frozenset[str], name: str) -> bool:
    """Like `selects`, for a command's name. If the table does not have it, only the name itself selects
    it."""
    row = COMMANDS.get(name.encode())
    return selects(selectors, row.command) if row is not None else name in selectors or EVERY in selectors


def lets_unknown(allow: frozenset[str], forbid: frozenset[str], spelled: Collection[str]) -> bool:
    """Whether an unknown command is allowed: by one of its names, or by `*`. Its category is unknown, so if
    `forbid` has a category, only a name allows it."""
    if not forbid.isdisjoint(spelled):
        return False
    if not allow.isdisjoint(spelled):
        return True
    return EVERY in allow and not any(selector.startswith("@") for selector in forbid)
