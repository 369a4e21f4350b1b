"""A page for each command of the command line: its help, its section of docs/tools.md, and where to read on.

Rule: the help is the program's own, 80 columns wide.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from keyfence.cli.main import cli
from tools.site.links import section_of

# Where a command is described, if not in docs/tools.md.
READ_ON = {
    "acl": "operations.md#keyfences-own-user",
    "audit": "audit.md",
    "candidate": "operations.md#a-candidate-policy",
    "commands": "commands.md",
    "demo": "page.md",
    "draft": "draft.md",
    "exec": "ci.md#keyfence-exec",
    "export": "export.md",
    "findings": "operations.md#the-findings-store",
    "gate": "ci.md#keyfence-gate",
    "init": "draft.md#what-to-record",
    "look": "draft.md#look-first",
    "migrate": "audit.md#moving-deprecated-keys",
    "modes": "policy.md#modes-and-waivers",
    "observe": "operations.md#asking-a-running-keyfence",
    "ready": "operations.md#the-findings-store",
    "reload": "operations.md#reload",
    "report": "operations.md#the-decision-log",
    "restart": "operations.md#rolling-restart",
    "run": "configuration.md",
    "scripts": "policy.md#scripts",
    "status": "operations.md#asking-a-running-keyfence",
    "waivers": "policy.md#modes-and-waivers",
    "what-if": "operations.md#the-findings-store",
}
INTRODUCTION = """\
# The command line

`keyfence COMMAND --help` prints what these pages show. [tools.md](../tools.md#the-command-line) says what all
commands have in common.
"""


def command_pages() -> dict[str, str]:
    """Returns the pages by their path: one for each command, and their list."""
    settings = {**cli.context_settings, "terminal_width": 80, "max_content_width": 80}
    with click.Context(cli, info_name="keyfence", **settings) as context:
        names = [
            name for name in cli.list_commands(context) if not (cli.get_command(context, name) or cli).hidden
        ]
        commands = {name: cli.get_command(context, name) for name in names}
        pages = {f"cli/{name}.md": "\n".join(_page(one, context)) for name, one in commands.items() if one}
        rows = (
            f"| [{name}]({name}.md) | {one.get_short_help_str(200)} |"
            for name, one in commands.items()
            if one
        )
        listed = "\n".join(["| command | what it does |", "|---|---|", *rows])
    pages["cli/index.md"] = f"{INTRODUCTION}\n{listed}\n{_tree(names)}"
    return pages


def _page(command: click.Command, context: click.Context) -> Iterator[str]:
    name = str(command.name)
    yield f"# keyfence {name}\n"
    yield from _help(command, context)
    if section := section_of("tools.md", name):
        yield re.sub(r"\]\((?=\w[\w.-]*(?:#|\)))", "](../", section)
    if name in READ_ON:
        yield f"\n[Read on](../{READ_ON[name]})."


def _help(command: click.Command, parent: click.Context) -> Iterator[str]:
    with click.Context(command, info_name=command.name, parent=parent) as context:
        yield f"```text\n{command.get_help(context)}\n```\n"
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                if one := command.get_command(context, name):
                    yield f"## {command.name} {name}\n"
                    yield from _help(one, context)


def _tree(names: list[str]) -> str:
    lines = "\n".join(names)
    return f"\n```{{toctree}}\n:hidden:\n\n{lines}\n```\n"
