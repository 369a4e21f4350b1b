"""Baselines of the gate: files with the findings that a pipeline knows, for people to read and to commit.

Rule: one finding is one line, in the order of its names, so that a change of the file shows what changed. An
id must be that of the names beside it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from keyfence.findings.finding import finding_id
from keyfence.policy.diagnostics import FileError
from keyfence.policy.source.files import replacing
from keyfence.policy.source.validate import file_kind, validate
from keyfence.policy.source.yaml import read_source

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_HEAD = """\
# Findings that `keyfence gate --baseline` knows: they do not fail it. Remove a line once its cause is fixed.
"""


class Known(BaseModel):
    """A finding that a baseline knows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    service: str
    rule: str
    command: str
    entry: str = ""
    shape: str = ""


@file_kind("a baseline of the gate, which --baseline names")
class BaselineModel(BaseModel):
    """A baseline of the gate."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    findings: list[Known]


def read_baseline(path: str) -> tuple[Known, ...]:
    """Read a baseline. Raises FileError."""
    source = read_source(path)
    known = tuple(validate(BaselineModel, source).findings)
    faults = []
    first: dict[str, int] = {}
    for index, one in enumerate(known):
        right = finding_id((one.service, one.rule, one.command, one.entry, one.shape))
        if one.id != right:
            text = f"{one.id!r} is not the id of this finding; write {right}, or remove the line"
            faults.append(source.error(("findings", index, "id"), text))
        elif (at := first.setdefault(one.id, index)) != index:
            line = source.place(("findings", at)).line
            text = f"line {line} has the same finding already; remove one"
            faults.append(source.error(("findings", index), text))
    if faults:
        raise FileError(faults)
    return known


def baseline_text(known: Iterable[Known]) -> str:
    """The text of a baseline."""
    by_id = {one.id: one for one in known}
    lines = sorted(_line(one) for one in by_id.values())
    return _HEAD + "\n".join(["findings:", *lines] if lines else ["findings: []"]) + "\n"


def _line(one: Known) -> str:
    fields = {"service": one.service, "rule": one.rule, "command": one.command}
    fields |= {name: text for name, text in (("entry", one.entry), ("shape", one.shape)) if text}
    return f"- {{{', '.join(f'{name}: {_yaml(text)}' for name, text in fields.items())}, id: {one.id}}}"


def _yaml(text: str) -> str:
    if _PLAIN.fullmatch(text):
        return text
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    if char.isprintable():
        return char
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def write_baseline(path: str, known: Iterable[Known]) -> None:
    """Write a baseline as a whole, or leave the file as it is. Raises OSError."""
    target = Path(os.path.realpath(path))
    with replacing(target, baseline_text(known)) as name:
        os.chmod(name, target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask())


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
