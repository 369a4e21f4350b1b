"""A policy as a document: its convention in Markdown tables.

Rule: the document is made of the compiled policy alone, so it says what is in force. Each entry has an anchor
of its own, which does not change unless its name does. All text of the policy is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.show import anchor, one_line
from keyfence.policy.units import duration_text
from keyfence.policy.wording.tables import tables

from .builders import how_long, place_of
from .render import code_templates

NOTHING = "–"
STREAM_LENGTH = "stream length at most"


def document(policy: CompiledPolicy) -> str:
    """Returns the convention as Markdown."""
    found = tables(policy)
    targets = {one.name: one for one in policy.targets if one.kind == "entry"}
    places = {name: place_of(one) for name, one in targets.items()}
    entries = sorted(found["entries"], key=lambda one: places[one["name"]])  # as in the policy's files
    standard = {
        (one.name, one.text): one.standard.text if one.standard is not None else ""
        for one in policy.targets
        if one.kind == "legacy"
    }
    for one in entries:
        one["groups"], one["lifetime"] = _groups(one["forms"]), _lifetime(one)
        entry = targets[one["name"]].entry
        rule = entry.ttl if entry is not None else None
        named = (rule.default, rule.min, rule.max) if rule is not None else ()
        times = [duration_text(time) if time is not None else NOTHING for time in named]
        one["times"] = [how_long(rule), *times] if rule is not None else []
    own = {"text": text, "code": code, "names": _names, "rights": _rights, "scopes": _scopes}
    own |= {"field": _field, "anchored": anchored, "linked": linked}
    template = code_templates("keyfence.authoring.export", **own).get_template("document.md.jinja")
    return template.render(
        {**found, "entries": entries},
        nothing=NOTHING,
        placeholders=_placeholders(policy),
        deprecated=[
            (one, form, standard[one["name"], form] or one["key"])
            for one in entries
            for form in one["legacy"]
        ],
    )


def _groups(forms: Sequence[Mapping[str, Any]]) -> list[Sequence[Mapping[str, Any]]]:
    """Returns the forms of an entry by line: all of them on one, if they have the same rights."""
    return [forms] if len({_rights([form]) for form in forms}) == 1 else [[form] for form in forms]


def _rights(forms: Iterable[Mapping[str, Any]]) -> str:
    """Returns the cells with the writers, readers and consumers of some forms."""
    several = list(forms)
    return " | ".join(
        _names(dict.fromkeys(name for form in several for name in form[right]))
        for right in ("writers", "readers", "consumers")
    )


def _scopes(forms: Iterable[Mapping[str, Any]]) -> str:
    return _names(dict.fromkeys(str(one["family"].get("scope") or one["under"] or NOTHING) for one in forms))


def _field(name: str) -> str:
    """Returns a field's name; a name in parentheses is the form of several fields."""
    return text(name[1:-1]) if name.startswith("(") and name.endswith(")") else code(name)


def _lifetime(entry: Mapping[str, Any]) -> str:
    length = entry["more"].get(STREAM_LENGTH)
    told = [entry["ttl"], f"{STREAM_LENGTH} {length}" if length else ""]
    return "; ".join(filter(None, told)) or NOTHING


def _placeholders(policy: CompiledPolicy) -> list[tuple[tuple[str, str], str]]:
    """Returns the placeholders of entries with their forms, and whether logs show their values."""
    seen: dict[tuple[str, str], str] = {}
    for target in policy.targets:
        for hole in target.pattern.holes if target.kind == "entry" else ():
            shown = "no" if hole.name in target.secrets else "yes"
            seen.setdefault((hole.name, hole.expression.text), shown)
    return sorted(seen.items())


# -- Markdown


def anchored(name: str) -> str:
    """Returns a name with its anchor."""
    return f'<a id="{anchor(name)}"></a>{text(name)}'


def linked(name: str) -> str:
    """Returns a name as a link to its anchor."""
    return f"[{text(name)}](#{anchor(name)})"


def text(value: str) -> str:
    """Returns text for a cell, with the signs of Markdown and HTML escaped."""
    return "".join(_ESCAPED.get(char, char) for char in one_line(value))


_ESCAPED = {"&": "&amp;", "<": "&lt;", ">": "&gt;"} | {char: f"\\{char}" for char in "\\`*[]|#"}


def code(value: str) -> str:
    """Returns text as code in a cell."""
    inner = one_line(value).replace("|", "\\|")
    return f"`` {inner} ``" if "`" in inner else f"`{inner}`"


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(text, names)) or NOTHING
