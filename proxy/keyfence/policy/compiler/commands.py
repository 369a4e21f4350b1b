"""Compiles the commands that a policy names: for all services, for one, or on the keys of an entry or scope.

Rule: a name or category must be one of Redis or Valkey. A name with a dot is a module's and is not checked.
"""

from __future__ import annotations

from collections.abc import Iterable

from keyfence.commands.own import OWN_NAMES
from keyfence.commands.table import COMMANDS, KNOWN_CATEGORIES, KNOWN_COMMANDS
from keyfence.policy.compiled.key_commands import KeyCommands
from keyfence.policy.compiled.permissions import EVERY, selects, selects_name
from keyfence.policy.diagnostics import did_you_mean
from keyfence.policy.source.model import KeyCommandsModel

from .context import CompilerContext


def build_selectors(
    context: CompilerContext,
    names: Iterable[str],
    path: tuple[str | int, ...],
    *,
    may_be_every: bool = True,
    may_be_own: bool = False,
) -> frozenset[str]:
    """Returns command names in upper case and @categories in lower case; unknown ones are faults. `*` means
    every command, if `may_be_every`. keyfence's own commands are known if `may_be_own`."""
    selectors = set()
    commands = KNOWN_COMMANDS | OWN_NAMES if may_be_own else KNOWN_COMMANDS
    for index, name in enumerate(names):
        selector = _selector(name)
        if selector == EVERY:
            if not may_be_every:
                message = "* is only for allow and grants; forbid commands by name or @category"
                context.error((*path, index), message)
            selectors.add(selector)
            continue
        if "." in selector:  # a module's command, which only a server with the module knows
            selectors.add(selector)
            continue
        known = KNOWN_CATEGORIES if selector.startswith("@") else commands
        if selector not in known:
            kind = "category" if selector.startswith("@") else "command"
            near = did_you_mean(selector, known)
            context.error((*path, index), f"{name!r} is not a {kind} of Redis or Valkey{near}")
        selectors.add(selector)
    return frozenset(selectors)


def build_key_commands(
    context: CompilerContext, model: KeyCommandsModel | None, path: tuple[str | int, ...]
) -> KeyCommands | None:
    """Returns the command restrictions of an entry or scope; None if it has none."""
    if model is None:
        return None
    forbid = build_selectors(context, model.forbid, (*path, "forbid"), may_be_every=False)
    allow = build_selectors(context, model.allow or (), (*path, "allow"))
    if model.allow is not None and not model.allow:
        context.error((*path, "allow"), "an empty list allows no command; name some, or leave allow out")
    for word, names in (("forbid", model.forbid), ("allow", model.allow or ())):
        for index, name in enumerate(names):
            selector = _selector(name)
            if _names_no_key(selector):
                message = f"{selector} takes no key, so no entry can restrict it; write it under the "
                context.error((*path, word, index), f"{message}policy's own commands")
            elif word == "allow" and selects_name(forbid, selector):
                context.error((*path, word, index), f"{selector} is also under forbid, which wins")
    return KeyCommands(forbid, allow, frozenset(model.never))


def _selector(name: str) -> str:
    return name.lower() if name.startswith("@") else " ".join(name.upper().split())


def _names_no_key(selector: str) -> bool:
    """Whether no command that a selector names takes a key."""
    rows = [row for row in COMMANDS.values() if selects(frozenset({selector}), row.command)]
    return (
        bool(rows)
        and selector not in _NOTIFIES_ABOUT_KEYS
        and not any(row.command.names_keys or row.problem for row in rows)
    )


_NOTIFIES_ABOUT_KEYS = frozenset({"SUBSCRIBE"})


def build_run_commands(
    context: CompilerContext, names: Iterable[str], path: tuple[str | int, ...]
) -> frozenset[str] | None:
    """Returns the names of the commands that a script runs; None if none is named."""
    names = list(names)
    for index, name in enumerate(names):
        if name.startswith("@"):
            message = f"{name!r} is a category; name the commands that the script runs"
            context.error((*path, index), message)
    found = build_selectors(context, [name for name in names if not name.startswith("@")], path)
    return found if names else None
