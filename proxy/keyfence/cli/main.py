"""The entry point of the command line.

Rule: a user's mistake gives one clear line, or one line per fault, and exit code 2. It never gives a
traceback. A command's module is imported when the command is used, because `keyfence run` should not wait for
what only others need.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from keyfence import __version__, _compiled
from keyfence.process.serving.garbage import importing

from .terminal.options import Commands
from .terminal.output import fail

# pydantic would look through every installed distribution for plugins: five percent of a start.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

# The place of each command: its module, and its name there.
PLACES: Mapping[str, str] = {
    "acl": "keyfence.cli.acl:acl",
    "audit": "keyfence.cli.keyspace.commands:audit",
    "candidate": "keyfence.cli.rollout.candidate:candidate",
    "check": "keyfence.cli.policy_tools:check",
    "commands": "keyfence.cli.commands_listing:commands",
    "demo": "keyfence.cli.shipped:demo",
    "diff": "keyfence.cli.policy_tools:diff",
    "draft": "keyfence.cli.rollout.draft:draft_",
    "exec": "keyfence.cli.rollout.exec:exec_",
    "explain": "keyfence.cli.policy_tools:explain",
    "export": "keyfence.cli.export:export",
    "findings": "keyfence.cli.rollout.findings:findings",
    "fleet": "keyfence.cli.rollout.fleet:fleet",
    "gate": "keyfence.cli.rollout.gate:gate",
    "healthcheck": "keyfence.cli.healthcheck:healthcheck",
    "history": "keyfence.cli.publish.history:history",
    "init": "keyfence.cli.rollout.init:init",
    "key": "keyfence.cli.publish.keys:key",
    "look": "keyfence.cli.look.look:look",
    "migrate": "keyfence.cli.keyspace.commands:migrate",
    "modes": "keyfence.cli.status:modes",
    "news": "keyfence.cli.rollout.news:news",
    "observe": "keyfence.cli.running:observe",
    "policies": "keyfence.cli.shipped:policies",
    "promote": "keyfence.cli.publish.candidates:promote",
    "push": "keyfence.cli.publish.push:push",
    "ready": "keyfence.cli.rollout.ready:ready",
    "reload": "keyfence.cli.running:reload",
    "report": "keyfence.cli.running:report",
    "restart": "keyfence.cli.running:restart",
    "rollback": "keyfence.cli.publish.push:rollback",
    "run": "keyfence.cli.run:run",
    "schema": "keyfence.cli.policy_tools:schema",
    "scripts": "keyfence.cli.scripts:scripts",
    "status": "keyfence.cli.status:status",
    "test": "keyfence.cli.policy_tools:run_tests",
    "verify": "keyfence.cli.publish.keys:verify",
    "waivers": "keyfence.cli.waivers:waivers",
    "what-if": "keyfence.cli.rollout.ready:what_if",
    "withdraw": "keyfence.cli.publish.candidates:withdraw",
}


class _Places(Commands):
    """The group of all commands in `PLACES`."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return sorted(PLACES)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        module, _, name = PLACES.get(cmd_name, "").partition(":")
        if not module:
            return None
        with importing():
            command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command


def _version() -> str:
    """Returns the version and, if keyfence was built into a package, the commit from which it was."""
    built_from = Path(__file__).parent.parent / "COMMIT"
    commit = built_from.read_text() if built_from.exists() else ""
    return f"{__version__} ({commit})" if commit else __version__


@click.group(cls=_Places, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(
    _version(), message=f"%(prog)s %(version)s, {_compiled.describe()}", prog_name="keyfence"
)
def cli() -> None:
    """A Redis proxy that holds every key of every command against a written namespace policy."""


# A disk takes nothing more: it is full, the user's share of it is, or the file is as large as it may be.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _drop_output() -> None:
    """Lets the end of the program write the rest of the output to nowhere, without another error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Runs the command line; the entry point of the console script."""
    try:
        cli(prog_name="keyfence")
    except BrokenPipeError:  # the reader of the output has closed it, as in `keyfence modes | head`
        _drop_output()
        sys.exit(1)
    except Exception as exc:
        if isinstance(exc, OSError) and exc.errno in _FULL:
            _drop_output()
            fail(f"the output cannot be written: {os.strerror(exc.errno).lower()}")
        if os.environ.get("KEYFENCE_DEBUG"):
            raise
        fail(
            f"internal error: {type(exc).__name__}: {exc}; please report it with the traceback that "
            "KEYFENCE_DEBUG=1 shows",
            70,
        )


if __name__ == "__main__":
    main()
