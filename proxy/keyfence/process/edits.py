"""Adds lines to the waivers file and to the configuration, for the admin page.

Rule: only the new line changes; every other byte stays. A file is replaced as a whole or not at all. What
cannot be done safely is left to a person, with the line to add.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml


class CannotEdit(Exception):
    """A file cannot be changed here: why, as the end of a sentence."""


def with_first_item(text: str, section: str, line: str) -> str:
    """A YAML file's text with one more item, which comes first in a list of the top level. Raises
    CannotEdit."""
    before = _section(text, section)
    node = _node(text, section)
    if node is None:
        newline = "" if not text or text.endswith("\n") else "\n"
        edited = f"{text}{newline}{section}:\n  - {line}\n"
    elif not isinstance(node, yaml.SequenceNode):
        raise CannotEdit(f"{section} is not a list")
    elif node.flow_style:
        at = node.start_mark.index + 1
        edited = f"{text[:at]}{line}{', ' if node.value else ''}{text[at:]}"
    else:
        at = text.rindex("\n", 0, node.start_mark.index) + 1
        edited = f"{text[:at]}{' ' * node.start_mark.column}- {line}\n{text[at:]}"
    try:
        if _section(edited, section) == [yaml.safe_load(line), *before]:
            return edited
    except yaml.YAMLError:
        pass
    raise CannotEdit(f"its {section} are written in a way that is only changed by hand")


def _node(text: str, section: str) -> yaml.Node | None:
    """The value of a section of the top level; None if the file lacks it."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is None:
        return None
    if not isinstance(root, yaml.MappingNode):
        raise CannotEdit("its top level is not a mapping")
    return next((value for key, value in root.value if key.value == section), None)


def _section(text: str, section: str) -> list[object]:
    found = (yaml.safe_load(text) or {}).get(section) or []
    return found if isinstance(found, list) else []


@contextlib.contextmanager
def edited(file: str, section: str, line: str) -> Iterator[None]:
    """Add an item to a list in a file, for the body of a `with`. If the body raises, the file is as before.
    Raises CannotEdit."""
    path = Path(os.path.realpath(file))
    try:
        before = path.read_text("utf-8")
        after = with_first_item(before, section, line)
        _replace(path, after)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, AttributeError) as exc:
        raise CannotEdit(_why(exc)) from None
    try:
        yield
    except BaseException:
        _replace(path, before)
        raise


def _replace(path: Path, text: str) -> None:
    """Write a file as a whole, with the mode and, where permitted, the owner of the old one."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(path, name)
        stat = path.stat()
        with contextlib.suppress(PermissionError):
            os.chown(name, stat.st_uid, stat.st_gid)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _why(exc: Exception) -> str:
    if isinstance(exc, OSError):
        return (exc.strerror or str(exc)).lower()
    return "it is not a YAML file that can be read"
