"""The commands that keyfence answers itself: KEYFENCE and its subcommands.

Rule: none of them touches a key or changes anything. No server has them, so they are not in the table: for a
service to which the policy does not grant them, KEYFENCE is an unknown command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .arguments import fold, word

KEYFENCE = "KEYFENCE"


class OwnCommand(NamedTuple):
    """A subcommand of KEYFENCE."""

    name: str  # `KEYFENCE WHOAMI`
    least: int  # arguments after the subcommand
    most: int | None  # None: any number
    arguments: str  # as the help shows them
    meaning: str


def _own(
    subcommand: str, meaning: str, arguments: str = "", least: int = 0, most: int | None = 0
) -> OwnCommand:
    return OwnCommand(f"{KEYFENCE} {subcommand}", least, most, arguments, meaning)


_SUBCOMMANDS = (
    _own("WHOAMI", "Which service you are, how keyfence knows, and which policy applies."),
    _own("EXPLAIN", "What the policy says about a command, which does not run.", "<command> ...", 1, None),
    _own("FINDINGS", "The violations of your service, the most frequent first."),
    _own("READINESS", "Which rules can be enforced for your service, and what is left to do."),
    _own("MODES", "The mode of each rule for your service."),
    _own("STATS", "How many commands and violations your service had."),
    _own("SHOW", "The clients of this keyfence, those of your service first.", "CLIENTS", 1, 1),
    _own("UPSTREAMS", "The Redis behind keyfence, and whether it is up."),
    _own("HELP", "Print this help."),
)
OWN_COMMANDS: Mapping[str, OwnCommand] = {one.name: one for one in _SUBCOMMANDS}
OWN_NAMES = frozenset({KEYFENCE, *OWN_COMMANDS})


def own_name(argv: Sequence[bytes]) -> str:
    """The full name of a command that keyfence answers itself: `KEYFENCE` if its subcommand is missing or
    unknown; "" for all other commands."""
    if not argv or fold(argv[0]) != b"KEYFENCE":
        return ""
    name = f"{KEYFENCE} {word(argv[1]).decode('latin-1')}" if len(argv) > 1 else KEYFENCE
    return name if name in OWN_COMMANDS else KEYFENCE
