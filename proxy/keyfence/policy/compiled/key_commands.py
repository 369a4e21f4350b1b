"""Which commands may be used on the keys of an entry or scope, whoever uses them.

Rule: a restriction names commands, or what must never become of a key; the latter is decided by what the
command table says that a command does. A script's commands are known only from its registration, so one that
doesn't name them may run any.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import NamedTuple

from keyfence.commands.effects import effect_of
from keyfence.commands.model import DELETE, DELETES, OVERWRITES, REMOVES, REPLACES, WRITE, Access, Command
from keyfence.commands.table import COMMANDS

from .permissions import selects

# What must never become of a key, and how a message says it.
NEVER = {"delete": "is never deleted", "replace": "is never replaced", "remove": "never loses an element"}
# Where it isn't known which commands a script runs.
UNNAMED = "restricts commands, and nothing says which ones the script runs"
_LOSSES = {"delete": DELETES | OVERWRITES, "replace": REPLACES | OVERWRITES, "remove": REMOVES}
_WRITES = "write"  # a category, and a flag


class KeyCommands(NamedTuple):
    """What an entry or scope says of commands. Not to be mistaken for a right: it holds for all services."""

    forbid: frozenset[str] = frozenset()
    allow: frozenset[str] = frozenset()  # only these, where there are any
    never: frozenset[str] = frozenset()  # of NEVER

    def within(self, outer: KeyCommands | None) -> KeyCommands:
        """What holds for keys that are in an outer scope, too: its `forbid` and `never` are added, and its
        `allow` holds where this one has none."""
        if outer is None:
            return self
        return KeyCommands(self.forbid | outer.forbid, self.allow or outer.allow, self.never | outer.never)

    def without_allow(self) -> KeyCommands:
        """What a scope says of the scopes within it."""
        return self._replace(allow=frozenset())

    def fault(self, command: Command, access: Access, clock: Callable[[], float]) -> str:
        """Why the command may not be used on this key; "" where it may."""
        return self._named(command) or (self._lost(_losses(access, clock)) if self.never else "")

    def fault_of_script(self, command: Command, access: Access, runs: Collection[str] | None) -> str:
        """The same for a script that `command` runs: `runs` are the commands that its registration names for
        the key, None where it names none."""
        if selects(self.forbid, command):
            return f"forbids {command.name}"
        is_listed = bool(self.allow) and selects(self.allow, command)
        if runs is not None:
            return (self.without_allow() if is_listed else self)._of_these(access, runs)
        writes = bool(access.needs & WRITE)
        if (self.allow and not is_listed) or (writes and self.never) or self._may_forbid(writes):
            return UNNAMED
        return ""

    def _may_forbid(self, writes: bool) -> bool:
        """Whether a script that only reads (or also `writes`) a key may run a command that is forbidden."""
        return bool(self.forbid) and (writes or _names_a_read(self.forbid))

    def _of_these(self, access: Access, runs: Collection[str]) -> str:
        """What is wrong with the first of a script's commands that may not be used on the key."""
        for name in sorted(runs):
            row = COMMANDS.get(name.encode())
            if row is None or (not access.needs & WRITE and _WRITES in row.command.flags):
                continue  # it is run on another key: this one is only read
            fault = self._named(row.command) or self._lost(_LOSSES_OF.get(name, 0))
            if fault:
                return f"{fault}, and the script runs {name}"
        return ""

    def _named(self, command: Command) -> str:
        if selects(self.forbid, command):
            return f"forbids {command.name}"
        if self.allow and not selects(self.allow, command):
            return f"admits {_joined(self.allow)} only"
        return ""

    def _lost(self, losses: int) -> str:
        for word, text in NEVER.items():
            if word in self.never and losses & _LOSSES[word]:
                return text
        return ""


def instead_of(fault: str, place: str) -> str:
    """What the caller of a restricted command can do. A grant is no part of it: a restriction is a
    prohibition, and a grant would bypass it."""
    if fault.startswith("admits "):
        remedy = "use one of these commands, or another key"
    elif fault.startswith(NEVER["replace"]):
        remedy = "write only where nothing is yet (NX), or use another key"
    else:
        remedy = "use another key"
    return f"{remedy}; or ask the owner of {place} to change its commands"


def _losses(access: Access, clock: Callable[[], float]) -> int:
    """What may become of what the key holds: of DELETES, REMOVES, REPLACES and OVERWRITES."""
    losses = access.losses
    if access.needs & DELETE:
        losses |= DELETES
    ttl = access.ttl
    if ttl is None:
        return losses
    if ttl.kind in ("sets", "expires") and ttl.milliseconds is not None:
        left = ttl.milliseconds - (int(clock() * 1000) if ttl.absolute else 0)
        if left <= 0:
            losses |= DELETES
    if ttl.kind != "expires" and "NX" in ttl.condition:
        losses &= ~(REPLACES | OVERWRITES)  # it writes only where nothing is
    return losses


def _losses_of_command(name: str) -> int:
    """The same for a command of which no argument is known, whichever of its keys it is."""
    row = COMMANDS[name.encode()]
    losses = 0
    for role in range(len(row.specs)):
        effect = effect_of(row, role)
        losses |= effect.losses | (DELETES if effect.needs & DELETE else 0)
    return losses


_LOSSES_OF = {row.command.name: _losses_of_command(row.command.name) for row in COMMANDS.values()}


@lru_cache(maxsize=1024)
def _names_a_read(selectors: frozenset[str]) -> bool:
    """Whether one of the commands that are named writes nothing."""
    return any(
        _WRITES not in row.command.flags and selects(selectors, row.command) for row in COMMANDS.values()
    )


def _joined(names: Collection[str]) -> str:
    *first, last = sorted(names)
    return f"{', '.join(first)} and {last}" if first else last
