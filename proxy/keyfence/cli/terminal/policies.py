"""Policies on the command line: files, folders, and the policies that come with keyfence, by name.

Rule: a file or folder of the given name goes before a shipped policy. The shipped policies are found from
this file's place alone: inside an installed package, or at a checkout's root.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

_PACKAGE = Path(__file__).resolve().parent.parent.parent
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


class PolicyPath(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """A policy's file or folder, or the name of a shipped policy: `cubesandbox`, `applications/celery`."""

    name = "policy"

    def __init__(self, *, elsewhere: bool = False) -> None:
        """`elsewhere`: the file may be one of another machine."""
        self._elsewhere = elsewhere

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> str:
        text = str(value)
        if not text or os.path.exists(text):
            return text
        known = shipped_policies()
        if text in known:
            return str(known[text])
        if self._elsewhere or Path(text).suffix or text.startswith((".", "/")):
            return text  # the code that reads it reports the fault
        names = ", ".join(known) or "none"
        fault = f"there is no file, folder or shipped policy {text!r}; shipped policies: {names}"
        raise click.BadParameter(fault, context, param)


POLICY = PolicyPath()
POLICY_HELP = "Policy: a file, a folder, or the name of a shipped policy."
