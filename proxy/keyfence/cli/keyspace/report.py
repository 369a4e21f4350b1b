"""The report of an audit for people: text of 80 columns, and Markdown.

Rule: both show the summary's own numbers, and every line of the text fits into 80 columns unless one name
alone is longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keyfence.authoring.export.render import code_templates
from keyfence.findings.spans import span_text
from keyfence.policy.show import in_lines, one_line
from keyfence.policy.units import counted

WIDTH = 80
_NAME = 33  # columns for names, and of each number after them
_COLUMNS = (("keys", 11), ("size", 9), ("no ttl", 9), ("idle 30d", 9), ("broken", 9))
_UNITS = ("B", "kB", "MB", "GB", "TB")
MAX_SHAPES = 50  # in the text; JSON has all
_DAY = 86_400

Row = Mapping[str, Any]


def size_text(count: int) -> str:
    """A number of bytes for people: `1.4 GB`."""
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{count} {_UNITS[0]}" if not unit else f"{size:.1f} {_UNITS[unit]}"


def as_text(found: Row) -> str:
    """The report as text."""
    return "\n".join(
        [*_heading(found), "", *_table(found), *_shapes(found), *_violations(found), *_remarks(found)]
    )


def _heading(found: Row) -> Iterator[str]:
    yield from _wrapped(
        f"{one_line(found['source'])} by policy {found['policy']}, revision {found['revision'][:12]}"
    )
    yield from _wrapped(f"{_totals(found)}; {_pace(found)}")


def _totals(found: Row) -> str:
    broken = counted(found["must"], "violation")
    advised = f" and {found['should']:,} more of a should" if found["should"] else ""
    about = "about " if found["sample"] < 1 else ""
    return f"{counted(found['keys'], 'key')}, {about}{size_text(found['bytes'])}: {about}{broken}{advised}"


def _pace(found: Row) -> str:
    seconds = found["seconds"]
    rate = f", {found['keys'] / seconds:,.0f}/s" if seconds >= 1 else ""
    part = f", Redis was asked about {found['sample'] * 100:g} % of them" if found["sample"] < 1 else ""
    return f"looked at in {span_text(seconds)}{rate}{part}"


# -- keys by scope and entry


def _table(found: Row) -> Iterator[str]:
    yield _line("", [name for name, _ in _COLUMNS])
    for scope in found["scopes"]:
        entries = [one for one in found["entries"] if one["scope"] == scope["scope"]]
        strays = [one for one in found["unregistered"] if one["scope"] == scope["scope"]]
        numbers = [f"{scope['keys']:,}", size_text(scope["bytes"]), "", "", _count(scope["violations"])]
        yield _line(scope["scope"] or "(no scope)", numbers)
        for one in entries:
            yield _row(_entry_name(one), one)
        if strays:
            yield _row("(no entry)", _sum(strays))


def _entry_name(one: Row) -> str:
    name = one["name"] or "(open)"
    return name if one["kind"] in ("entry", "scope") else f"{name} ({one['kind']})"


def _sum(rows: Sequence[Row]) -> dict[str, Any]:
    names = ("keys", "bytes", "without_ttl")
    total: dict[str, Any] = {name: sum(one[name] for one in rows) for name in names}
    total["idle"] = {"30d": sum(one["idle"]["30d"] for one in rows)}
    total["broken"] = {"": sum(sum(one["broken"].values()) for one in rows)}
    return total


def _row(name: str, one: Row) -> str:
    return _line(f"  {one_line(name)}", _numbers(one))


def _numbers(one: Row) -> list[str]:
    """The numbers of `_COLUMNS`."""
    return [
        f"{one['keys']:,}",
        size_text(one["bytes"]),
        _count(one["without_ttl"]),
        _count(one["idle"]["30d"]),
        _count(sum(one["broken"].values())),
    ]


def _count(number: int) -> str:
    return f"{number:,}" if number else "–"


def _line(name: str, cells: Sequence[str]) -> str:
    widths = (width for _, width in _COLUMNS)
    text = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    return f"{name:{_NAME}}{text}" if len(name) <= _NAME else f"{name}\n{'':{_NAME}}{text}"


# -- keys of no entry


def _shapes(found: Row) -> Iterator[str]:
    rows = found["unregistered"]
    if not rows:
        return
    yield from ("", "keys of no entry, by shape")
    for one in rows[:MAX_SHAPES]:
        kinds = ", ".join(one["types"]) or "not asked"
        yield from _wrapped(f"{one['shape']}: {counted(one['keys'], 'key')}, {kinds}", "  ")
        if one["biggest"]:
            yield _example("biggest", size_text(one["biggest"]["bytes"]), one["biggest"]["key"])
        if one["oldest"] and one["oldest"]["idle"] >= _DAY:
            yield _example("oldest", f"idle {span_text(one['oldest']['idle'])}", one["oldest"]["key"])
    if len(rows) > MAX_SHAPES:
        yield f"  and {counted(len(rows) - MAX_SHAPES, 'more shape')}; --format json has all"


def _example(what: str, number: str, key: str) -> str:
    return _cut(f"    {what:8}{number:12}{one_line(key)}")


# -- what is broken


def _violations(found: Row) -> Iterator[str]:
    if found["violations"]:
        yield from ("", "broken rules")
    for one in found["violations"]:
        should = " (should)" if one["severity"] == "should" else ""
        place = one["entry"] or "no entry"
        place += f", {one['shape']}" if one["shape"] else ""
        owner = f"; owner {one_line(one['owner'])}" if one["owner"] else ""
        yield from _wrapped(f"{one['rule']}{should}: {counted(one['keys'], 'key')} of {place}{owner}", "  ")
        for key in one["examples"][:2]:
            yield _cut(f"    {one_line(key)}")
        yield from _wrapped(f"→ {one['hint']}", "    ")
    for one in found["databases"]:
        if not one["allowed"]:
            yield f"  database.forbidden: {counted(one['keys'], 'key')} in database {one['database']}"


def _remarks(found: Row) -> Iterator[str]:
    for one in _notes(found):
        yield ""
        yield from _wrapped(one)


def _notes(found: Row) -> Iterator[str]:
    if found["orphans"]:
        yield f"entries without keys: {', '.join(found['orphans'])}"
    for one in found["databases"]:
        if not one["audited"]:
            yield f"database {one['database']} was not looked at: {counted(one['keys'], 'key')}"
    if found["gone"]:
        yield f"{counted(found['gone'], 'key')} went before Redis was asked"
    yield from left_open(found)
    yield from map(one_line, found["notes"])


def left_open(found: Row) -> Iterator[str]:
    """What an audit of a cluster whose hash slots move cannot say."""
    if found["moving"]:
        moving = counted(found["moving"], "key")
        yield f"{moving} left out, because their hash slots move; audit again when they have moved"
    if found["moved_slots"]:
        moved = counted(found["moved_slots"], "hash slot")
        yield f"{moved} moved meanwhile: keys may be missing or counted twice; audit again when none moves"


def _wrapped(text: str, before: str = "") -> list[str]:
    return in_lines(text, WIDTH, before, before + "  ")


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"


# -- Markdown


def as_markdown(found: Row) -> str:
    """The report as Markdown."""
    templates = code_templates("keyfence.cli.keyspace", cell=_cell, entry=_entry_name, numbers=_numbers)
    text = templates.get_template("audit.md.jinja").render(
        found=found, summary=f"{_totals(found)}; {_pace(found)}", notes=list(_notes(found))
    )
    return text.removesuffix("\n")


def _cell(text: str) -> str:
    shown = one_line(text)
    return "".join(f"\\{char}" if char in "\\|<>`*_[]" else char for char in shown)
