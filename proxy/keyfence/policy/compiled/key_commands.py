"""The commands that any service may use on the keys of an entry or scope.

Rule: a restriction names commands, or effects that no command may have on a key; the command table knows the
effects. The commands of a script are known only from its registration. A script that does not name its
commands may run any command.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import NamedTuple

from keyfence.commands.effects import effect_of
from keyfence.commands.model import DELETE, DELETES, OVERWRITES, REMOVES, REPLACES, WRITE, Access, Command
from keyfence.commands.table import COMMANDS

from .permissions import selects

# Effects that no command may have on a key, and the words for them in a message.
NEVER = {"delete": "is never deleted", "replace": "is never replaced", "remove": "never loses an element"}
# The commands that a script runs are not known.
UNNAMED = "restricts commands, and nothing says which ones the script runs"
_LOSSES = {"delete": DELETES | OVERWRITES, "replace": REPLACES | OVERWRITES, "remove": REMOVES}
_WRITES = "write"  # a category, and a flag


class KeyCommands(NamedTuple):
    """The command restrictions of an entry or scope. They are not rights: they apply to all services."""

    forbid: frozenset[str] = frozenset()
    allow: frozenset[str] = frozenset()  # only these; empty: any
    never: frozenset[str] = frozenset()  # of NEVER

    def within(self, outer: KeyCommands | None) -> KeyCommands:
        """Returns the restrictions on keys that are also in an outer scope: the outer `forbid` and `never`
        are added; the outer `allow` counts if there is no other."""
        if outer is None:
            return self
        return KeyCommands(self.forbid | outer.forbid, self.allow or outer.allow, self.never | outer.never)

    def without_allow(self) -> KeyCommands:
        """Returns the part of a scope's restrictions that applies to inner scopes."""
        return self._replace(allow=frozenset())

    def fault(self, command: Command, access: Access, clock: Callable[[], float]) -> str:
        """Returns why the command may not be used on this key; "" if it may."""
        return self._named(command) or (self._lost(_losses(access, clock)) if self.never else "")

    def fault_of_script(self, command: Command, access: Access, runs: Collection[str] | None) -> str:
        """Like `fault`, for a script that `command` runs. `runs` are the commands that its registration names
        for the key; None if it names none."""
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
        """Whether a script that reads a key (and `writes` it) may run a forbidden command."""
        return bool(self.forbid) and (writes or _names_a_read(self.forbid))

    def _of_these(self, access: Access, runs: Collection[str]) -> str:
        """Returns the fault of the first of a script's commands that may not be used on the key."""
        for name in sorted(runs):
            row = COMMANDS.get(name.encode())
            if row is None or (not access.needs & WRITE and _WRITES in row.command.flags):
                continue  # the script runs it on another key; it only reads this one
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
    """Returns the remedy for the caller of a restricted command. A grant is not a remedy: it would bypass the
    restriction."""
    if fault.startswith("admits "):
        remedy = "use one of these commands, or another key"
    elif fault.startswith(NEVER["replace"]):
        remedy = "write only where nothing is yet (NX), or use another key"
    else:
        remedy = "use another key"
    return f"{remedy}; or ask the owner of {place} to change its commands"


def _losses(access: Access, clock: Callable[[], float]) -> int:
    """Returns the possible effects on the key's content: DELETES, REMOVES, REPLACES and OVERWRITES."""
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
        losses &= ~(REPLACES | OVERWRITES)  # it writes only if the key does not exist
    return losses


def _losses_of_command(name: str) -> int:
    """Like `_losses`, for a command with unknown arguments, over all its keys."""
    row = COMMANDS[name.encode()]
    losses = 0
    for role in range(len(row.specs)):
        effect = effect_of(row, role)
        losses |= effect.losses | (DELETES if effect.needs & DELETE else 0)
    return losses


_LOSSES_OF = {row.command.name: _losses_of_command(row.command.name) for row in COMMANDS.values()}


@lru_cache(maxsize=1024)
def _names_a_read(selectors: frozenset[str]) -> bool:
    """Whether one of the selected commands only reads."""
    return any(
        _WRITES not in row.command.flags and selects(selectors, row.command) for row in COMMANDS.values()
    )


def _joined(names: Collection[str]) -> str:
    *first, last = sorted(names)
    return f"{', '.join(first)} and {last}" if first else last
