"""Scripts and functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from keyfence.commands.arguments import integer
from keyfence.commands.facts import Argv, Connection, Facts, KeyFinder, Named, each, together
from keyfence.commands.key_runs import Keys, Run, numkeys
from keyfence.commands.model import READ, WRITE, Problem, Script, Unseen, part_of
from keyfence.commands.resources import NO_RESOURCES, Resources


def _declared(needs: int) -> Callable[[Argv], Keys]:
    """The declared keys. Declaring none, or a wrong number, is a problem."""

    def find(argv: Argv) -> Keys:
        if len(argv) < 3:
            return Keys([])
        count = integer(argv[2])
        if count == 0:
            return Keys([], Problem("script.keys", 2, "it declares no keys", (Unseen(b"*", needs),)))
        problem = None
        if count is None or not 0 < count <= len(argv) - 3:
            reason = "its number of keys is not the number of keys that follow"
            problem = Problem("script.keys", 2, reason, (Unseen(b"*", needs),))
        return Keys([Run(numkeys(argv, 2, 3), needs)], problem)

    return find


def _running(kind: Literal["text", "sha1", "function"], needs: int, access: str) -> Facts:
    """EVAL script numkeys key … arg …, and the similar commands."""

    def script(argv: Argv) -> Resources:
        if len(argv) < 3:
            return NO_RESOURCES
        declared = range(3, 3) if integer(argv[2]) == 0 else numkeys(argv, 2, 3)
        return Resources(
            script=Script(kind, 1, argv[1], part_of(argv, 3, declared.stop), part_of(argv, declared.stop))
        )

    return Facts(
        found=KeyFinder(_declared(needs), "as many as argument 2 says, from 3 on", access),
        named=Named(script, "script", ""),
        decides=(1, 3),
        connection=Connection.RUNS_SCRIPT,
    )


def _loaded(argv: Argv) -> Resources:
    """SCRIPT LOAD text: the server stores the text under its SHA-1 and does not run it."""
    return Resources(script=Script("text", 2, argv[2], (), ())) if len(argv) > 2 else NO_RESOURCES


SCRIPTING = together(
    {
        "EVAL": _running("text", READ | WRITE, "read and write"),
        "EVALSHA": _running("sha1", READ | WRITE, "read and write"),
        "EVALSHA_RO": _running("sha1", READ, "read"),
        "EVAL_RO": _running("text", READ, "read"),
        "FCALL": _running("function", READ | WRITE, "read and write"),
        "FCALL_RO": _running("function", READ, "read"),
        "SCRIPT EXISTS": Facts(connection=Connection.ANY),
        "SCRIPT LOAD": Facts(named=Named(_loaded, "script", "a script in 2"), connection=Connection.OWN),
    },
    each(
        """
        FUNCTION|DELETE FUNCTION|DUMP FUNCTION|FLUSH FUNCTION|HELP FUNCTION|KILL FUNCTION|LIST FUNCTION|LOAD
        FUNCTION|RESTORE FUNCTION|STATS SCRIPT|FLUSH SCRIPT|HELP SCRIPT|KILL
        """,
        Facts(connection=Connection.OWN),
    ),
)
