"""The lines of remedies as changes of the policy's files, for people.

Rule: a change is shown only if the changed file says what the file said before and the remedy's lines, and
if the changed files are a policy. Otherwise the lines are shown as YAML.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import yaml

from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.diagnostics import FileError
from keyfence.policy.loading.load import parse_policies
from keyfence.policy.source.files import Unreadable, read_file
from keyfence.policy.source.yaml_edits import EditError, find, with_lines

_CONTEXT = 2  # lines around a change
_IN_EACH_FILE = frozenset({"grants"})


def with_diffs(
    policy: CompiledPolicy, explanation: Mapping[str, Any], most: int | None = None
) -> dict[str, Any]:
    """Returns what `explain` does, and for each remedy `diff`, its change of the policy's files as a unified
    diff, and `lines`, its lines in YAML. Both are empty if it has none. The text of a remedy whose change
    makes the policy faulty ends with the first fault.

    `most`: files with more characters are not read, because finding the place takes time.
    """
    has_lines = any(one["add"] for one in explanation["remedies"])
    before = _texts(policy, most) if has_lines else {}
    return {**explanation, "remedies": [_with_diff(before, one) for one in explanation["remedies"]]}


def _with_diff(before: Mapping[str, str], remedy: Mapping[str, Any]) -> dict[str, Any]:
    """`before`: the texts of the policy's files; without them, only the lines are shown."""
    lines = remedy["add"]
    shown = {**remedy, "diff": "", "lines": lines_text(lines)}
    if not lines or not before:
        return shown
    try:
        after = {file: with_lines(before[file], lines) for file in _files(before, lines)}
    except (EditError, yaml.YAMLError):
        return shown
    fault = _new_fault(before, {**before, **after})
    if fault:
        return {**shown, "text": f"{remedy['text']}; but then check says: {fault}"}
    return {**shown, "diff": "".join(_unified(file, before[file], text) for file, text in after.items())}


def _texts(policy: CompiledPolicy, most: int | None) -> dict[str, str]:
    """Returns the texts of the policy's files; none if one of them cannot be read or is too long."""
    try:
        texts = {one.file: read_file(one.file).decode("utf-8") for one in policy.homes}
    except (Unreadable, UnicodeDecodeError):
        return {}
    return {} if most is not None and any(len(text) > most for text in texts.values()) else texts


def _new_fault(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Returns the first fault of a changed policy; "" for none, and for one that was faulty before."""
    try:
        parse_policies(after)
    except FileError as exc:
        try:
            parse_policies(before)
        except FileError:
            return ""
        return exc.diagnostics[0].message
    return ""


def lines_text(lines: Mapping[str, Any]) -> str:
    """Returns lines for a policy in YAML; "" for none."""
    if not lines:
        return ""
    return str(yaml.safe_dump(dict(lines), default_flow_style=None, width=1_000_000, sort_keys=False))


def _files(texts: Mapping[str, str], lines: Mapping[str, Any]) -> list[str]:
    """Returns the files that the lines are for. Raises EditError if that is not clear."""
    if len(texts) == 1 or lines.keys() <= _IN_EACH_FILE:
        return list(texts)
    places = [(section, name) for section, names in lines.items() for name in names]
    holding = [file for file, text in texts.items() if all(find(text, place) for place in places)]
    if len(holding) != 1:
        raise EditError("several files could be meant")
    return holding


def _unified(file: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), file, file, n=_CONTEXT
    )
    return "".join(one if one.endswith("\n") else f"{one}\n\\ No newline at end of file\n" for one in lines)
