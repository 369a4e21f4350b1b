"""`keyfence policies`: lists and prints the policies that come with keyfence.

Rule: the policies are found from this file's place alone: inside an installed package, or at a checkout's
root. The working directory does not matter.
"""

from __future__ import annotations

from pathlib import Path

import click

from .terminal.output import fail

_PACKAGE = Path(__file__).resolve().parent.parent
_PLACES = (_PACKAGE / "policies", _PACKAGE.parent.parent / "policies")


def shipped_folder() -> Path | None:
    """Returns the folder with the shipped policies; None if this installation has none."""
    return next((place for place in _PLACES if (place / "general.yaml").is_file()), None)


def shipped_policies() -> dict[str, Path]:
    """Returns the shipped policies by name, those of single applications as `applications/NAME`."""
    folder = shipped_folder()
    if folder is None:
        return {}
    files = sorted(path for path in folder.rglob("*.yaml") if not path.name.endswith(".test.yaml"))
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in files}


@click.command()
@click.argument("name", required=False)
def policies(name: str | None) -> None:
    """List the shipped policies with their files, or print the policy NAME.

    `keyfence policies general > policy.yaml` makes a copy to start from.
    """
    known = shipped_policies()
    if name is None:
        for one, path in known.items():
            click.echo(f"{one:<30} {path}")
    elif name in known:
        click.echo(known[name].read_text(encoding="utf-8"), nl=False)
    else:
        fail(f"there is no shipped policy {name}; `keyfence policies` lists them")
