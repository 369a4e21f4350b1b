"""The lines of remedies as changes of the policy's files, for people.

Rule: a change is shown only if the changed file says what the file said before and the remedy's lines.
Otherwise the lines are shown as YAML.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import yaml

from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.source.files import Unreadable, read_file
from keyfence.policy.source.yaml_edits import EditError, find, with_lines

_CONTEXT = 2  # lines around a change
_IN_EACH_FILE = frozenset({"grants"})


def with_diffs(
    policy: CompiledPolicy, explanation: Mapping[str, Any], most: int | None = None
) -> dict[str, Any]:
    """Returns what `explain` does, and for each remedy `diff`, its change of the policy's files as a unified
    diff, and `lines`, its lines in YAML. Both are empty if it has none.

    `most`: files with more characters are not read, because finding the place takes time.
    """
    remedies = [
        {**one, "diff": _diff(policy, one["add"], most), "lines": lines_text(one["add"])}
        for one in explanation["remedies"]
    ]
    return {**explanation, "remedies": remedies}


def lines_text(lines: Mapping[str, Any]) -> str:
    """Returns lines for a policy in YAML; "" for none."""
    if not lines:
        return ""
    return str(yaml.safe_dump(dict(lines), default_flow_style=None, width=1_000_000, sort_keys=False))


def _diff(policy: CompiledPolicy, lines: Mapping[str, Any], most: int | None) -> str:
    if not lines:
        return ""
    try:
        texts = {one.file: read_file(one.file).decode("utf-8") for one in policy.homes}
        if most is not None and any(len(text) > most for text in texts.values()):
            return ""
        chosen = _files(texts, lines)
        return "".join(_unified(file, texts[file], with_lines(texts[file], lines)) for file in chosen)
    except (Unreadable, UnicodeDecodeError, EditError, yaml.YAMLError):
        return ""


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
