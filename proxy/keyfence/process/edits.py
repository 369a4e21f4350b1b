"""Adds lines to the waivers file and to the configuration, for the admin page.

Rule: only the new line changes; every other byte stays. A file is replaced as a whole or not at all. What
cannot be done safely is left to a person, with the line to add.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

import yaml

from keyfence.policy.source.files import replacing
from keyfence.policy.source.yaml_edits import EditError, with_first_item


class CannotEdit(Exception):
    """A file cannot be changed here: why, as the end of a sentence."""


class Edit:
    """One more item in a list of a YAML file: read and checked, and then written or not."""

    def __init__(self, file: str, section: str, item: str) -> None:
        """`item` is YAML on one line; it becomes the first one of the list. Raises CannotEdit."""
        self._path = Path(os.path.realpath(file))
        try:
            self._before = _read(self._path)
            self._after = with_first_item(self._before, section, item)
            if not os.access(self._path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except (OSError, UnicodeDecodeError, yaml.YAMLError, EditError) as exc:
            raise CannotEdit(_why(exc)) from None

    def write(self) -> None:
        """Replace the file. Raises CannotEdit if that is not possible, or if it has changed since."""
        try:
            self._replace(self._before, self._after)
        except (OSError, UnicodeDecodeError) as exc:
            raise CannotEdit(_why(exc)) from None

    def undo(self) -> None:
        """Put the old file back, unless someone else has changed it since. Raises CannotEdit."""
        try:
            self._replace(self._after, self._before)
        except (OSError, UnicodeDecodeError) as exc:
            raise CannotEdit(_why(exc)) from None

    def _replace(self, old: str, new: str) -> None:
        """Write the file as a whole, with the mode and, where permitted, the owner of the old one."""
        path = self._path
        with replacing(path, new) as name:
            shutil.copymode(path, name)
            stat = path.stat()
            with contextlib.suppress(PermissionError):
                os.chown(name, stat.st_uid, stat.st_gid)
            if _read(path) != old:
                raise CannotEdit("someone else has changed it")


def _read(path: Path) -> str:
    with path.open(encoding="utf-8", newline="") as file:  # line ends stay as they are
        return file.read()


def _why(exc: Exception) -> str:
    if isinstance(exc, OSError):
        return (exc.strerror or str(exc)).lower()
    return str(exc) if isinstance(exc, EditError) else "it is not a YAML file that can be read"
