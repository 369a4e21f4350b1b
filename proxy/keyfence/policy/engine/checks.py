"""The checks of one access to one key, and those that must be made anew for each call.

Rule: `Standing` is an answer about a kind of access: one command form, one service, the keys of one target.
It never depends on the key's name, on the written content, or on other keys. A check that needs more than
that is a *doubt*; a check without a doubt finds no violation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from keyfence.commands.model import DELETE, GROUP, READ, WRITE, Access, Command
from keyfence.policy.compiled.policy import CompiledPolicy, Target
from keyfence.policy.compiled.sizes import asks
from keyfence.policy.compiled.ttl import FAULTS, FINE, SIZED, outcome

from .content import fits

# The checks, in the order in which their violations are listed (policy.rules). `keys._CHECKS` says which
# method looks for the violations of each.
COMMANDS: Final = 1  # the entry or scope admits the command
RIGHTS: Final = 2
FORM: Final = 4  # the key is one that may exist
NAME: Final = 8  # its name keeps the naming rules
TYPE: Final = 16
TYPE_IN_KEY: Final = 32  # the same, if words in the key give its type
CONTENT: Final = 64  # the written content
LIFETIME: Final = 128  # its time to live
OPEN: Final = 256  # nothing is wrong yet, but only Redis knows the time to live or the size afterwards
CARRIED: Final = 512  # content from other keys
# Not a check of its own: the answer holds now, and may change later.
TIME: Final = 1024

# The checks of a key that belongs to no entry and no scope, by its kind.
BY_KIND: Final = {
    "stray": COMMANDS | FORM,
    "legacy": COMMANDS | FORM,
    "malformed": COMMANDS | RIGHTS | FORM,
    "claim": COMMANDS | FORM,
}

# The kinds of keys whose names are checked.
NAMED: Final = frozenset({"entry", "scope", "malformed", "claim"})


class Standing(NamedTuple):
    """The answer for all accesses of one kind."""

    doubts: int  # the checks that may fail, as a sum
    outcome: int  # the command's outcome for the key's time to live and size (`ttl.outcome`, `ttl.SIZED`)


def lacking(service: int, needs: int, target: Target, held: int, all_held: bool = False) -> int:
    """The rights (READ, WRITE) that an access needs and the service lacks on a target, as a sum. `held` are
    its rights before denials.

    `all_held`: the rights that the entry lost to its replacement count as held.
    """
    if not all_held:
        held &= ~target.denied[service]
    elif target.denied_before:
        held &= ~target.denied_before[service]
    if needs & GROUP and held & GROUP:
        # Only the group's own state is written; entries that are read with it (XREADGROUP) count as a read.
        needs &= ~WRITE
    if not needs:
        return 0 if held else READ
    missing = needs & ~held & (READ | WRITE)
    return missing & ~WRITE if needs & held & DELETE else missing


def carries(access: Access) -> bool:
    """Whether an access brings content from other keys, or a dump."""
    return access.content is not None and access.content.carried is not None


class Standings:
    """One policy's requirements on accesses to the keys of its entries and scopes.

    These requirements are stated only here. `KeyChecks` resolves the doubts of a single call, and lists
    the violations; the decision cache keeps the certain answers.
    """

    def __init__(self, policy: CompiledPolicy, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._clock = clock
        self._reads_words = any(home.type_words for home in policy.homes)

    def of(self, name: str, command: Command | None, access: Access, target: Target, held: int) -> Standing:
        """The standing of a service with these rights, denials subtracted.

        `command` is None if only a closer look shows which commands run.
        """
        entry, needs = target.entry, access.needs
        doubts = CARRIED if carries(access) else 0
        if not held or needs & ~held & (READ | WRITE) or (needs & WRITE and target.written_by):
            doubts |= RIGHTS
        if target.kind == "scope" and not target.is_open:
            doubts |= FORM
        if not target.names_sure:
            doubts |= NAME
        if self._reads_words and not (entry is not None and entry.types):
            doubts |= TYPE_IN_KEY if self._policy.home(target).type_words else 0
        if entry is None or entry.is_plain:
            return Standing(doubts, FINE)
        if entry.commands is not None:
            is_known = command is not None and not entry.commands.fault(command, access, self._clock)
            doubts |= 0 if is_known else COMMANDS
        if not fits(entry.types, access.types):
            doubts |= TYPE
        if entry.on_content:
            doubts |= CONTENT
        if access.ttl is not None and access.ttl.absolute and (entry.ttl or entry.commands):
            doubts |= TIME
        found = FINE if entry.ttl is None else outcome(entry.ttl, access, self._clock)
        if found in FAULTS:
            doubts |= LIFETIME
        if entry.is_sized and asks(name, access, entry):
            found = SIZED[found]
        return Standing(doubts | OPEN if found else doubts, found)
