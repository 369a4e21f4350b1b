"""The words of a digest: one document for text, Markdown, HTML, Slack and Teams; and the JSON for programs.

Rule: every form says the same. What is left out of a list is counted there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keyfence.policy.show import one_line
from keyfence.policy.units import clock_text, counted, plural

from .digest import ENDS, LISTS, MODES_OF, Digest
from .document import Document, Line, Part, Section, line, name
from .share import causes_of

MAX_CAUSES = 10  # of a list; a finding without a common cause counts as one
MAX_OF_CAUSE = 3  # findings
MAX_LINES = 10  # of other lists
MAX_IN_JSON = 50  # findings of a list
VERSION = 1  # of the JSON; it changes only if a field changes its meaning or goes
_Row = Mapping[str, Any]


def headline(share: _Row) -> str:
    """What there is, in one line: `keyfence prod: 3 new findings, 1 better`."""
    numbers = {key: len(share[key]) + share["more"].get(key, 0) for key in (*LISTS, *ENDS)}
    rules = {key: len({one["rule"] for one in share[key]}) for key in MODES_OF}
    ready = len({one["rule"] for one in share["ready"] if one["new"]})
    parts = {
        counted(numbers["new"], "new finding"): numbers["new"],
        f"{numbers['reopened']:,} seen again": numbers["reopened"],
        f"{numbers['better']:,} better": numbers["better"],
        f"{counted(numbers['lapsed'], 'waiver')} lapsed": numbers["lapsed"],
        f"{numbers['ending']:,} {plural(numbers['ending'], 'ends', 'end')} soon": numbers["ending"],
        f"{counted(ready, 'rule')} ready": ready,
        f"{counted(rules['enforced'], 'rule')} enforced": rules["enforced"],
        f"{counted(rules['relaxed'], 'rule')} no longer enforced": rules["relaxed"],
    }
    said = ", ".join(text for text, number in parts.items() if number)
    where = f" {share['environment']}" if share["environment"] else ""
    return f"keyfence{where}: {said or 'nothing new'}"


def document_of(share: Digest, page: str = "") -> Document:
    """What a share of a digest says. `page` is where people reach keyfence's page; "" if nobody said."""
    page = page.rstrip("/")
    about = [line(f"From {clock_text(share['since'])} to {clock_text(share['until'])}.")]
    if share["owners"]:
        about.append(line("What belongs to ", *_listed(share["owners"]), "."))
    sections = [
        Section("", tuple(about)),
        _findings("New findings", share, "new", page),
        _findings("Seen again", share, "reopened", page),
        _findings("What got better", share, "better", page),
        _section("Lapsed: what these waivers cover still passes", share["lapsed"], _end),
        _section("Ends before the next news", share["ending"], _end),
        _ready(share["ready"]),
        _section("Enforced since then", share["enforced"], _mode),
        _section("No longer enforced", share["relaxed"], _mode),
        _others(share["others"]),
    ]
    return Document(headline(share), tuple(one for one in sections if one.lines), page)


def as_object(share: Digest, page: str = "") -> dict[str, Any]:
    """The JSON of a share, for programs."""
    lists = {key: share[key][:MAX_IN_JSON] for key in LISTS}
    left = {
        key: number
        for key in LISTS
        if (number := len(share[key]) - len(lists[key]) + share["more"].get(key, 0))
    }
    about = {"keyfence": "news", "version": VERSION, "text": headline(share), "page": page}
    return {**about, **share, **lists, "more": left}


# -- findings


def _findings(title: str, share: _Row, key: str, page: str) -> Section:
    causes = causes_of(share[key])
    lines: list[Line] = []
    shown = 0
    for cause, rows in causes[:MAX_CAUSES]:
        shown += len(rows)
        if len(rows) == 1:
            lines.append(_finding(rows[0], page))
            continue
        times = sum(row["count"] for row in rows)
        lines.append(line(name(cause), f": {counted(len(rows), 'finding')}, {counted(times, 'time')}"))
        lines += [_finding(row, page, is_under=True) for row in rows[:MAX_OF_CAUSE]]
        if (left := len(rows) - MAX_OF_CAUSE) > 0:
            lines.append(line(f"and {left:,} more", is_under=True))
    if left := len(share[key]) - shown + share["more"].get(key, 0):
        lines.append(line(f"and {left:,} more: keyfence findings"))
    return Section(title, tuple(lines))


def _finding(row: _Row, page: str, *, is_under: bool = False) -> Line:
    one = Part(row["id"], to=f"{page}/findings/{row['id']}") if page else Part(row["id"])
    owner = (", owner ", name(row["owner"])) if row["owner"] else ()
    why = (", ", _why(row)) if row["state"] in ("quiet", "resolved") else ()
    should = " (should)" if row["severity"] == "should" else ""
    return line(
        one,
        " ",
        name(row["service"]),
        " breaks ",
        name(row["rule"]),
        f"{should} with ",
        name(row["command"]),
        " on ",
        name(row["shape"] or row["entry"] or "–"),
        f": {counted(row['count'], 'time')}",
        *owner,
        *why,
        is_under=is_under,
    )


def _why(row: _Row) -> str:
    """Why a finding is closed: words of keyfence, with a revision in them."""
    return one_line(f"{row['state']}: {row['why']}")


# -- others


def _section(title: str, rows: Sequence[_Row], worded: Any) -> Section:
    lines = [worded(row) for row in rows[:MAX_LINES]]
    if (left := len(rows) - MAX_LINES) > 0:
        lines.append(line(f"and {left:,} more"))
    return Section(title, tuple(lines))


def _end(row: _Row) -> Line:
    service = name(row["service"]) if row["service"] else "every service"
    what = (service, " and ", name(row["rule"]) if row["rule"] else "every rule")
    on = (" on ", name(row["on"])) if row["on"] else ()
    if row["what"] == "break-glass":
        return line("break-glass for ", *what, f" until {clock_text(row['until'])}, by ", name(row["reason"]))
    # The end is the midnight after the last day.
    last = clock_text(row["until"] - 1)[:10]
    return line("waiver for ", *what, *on, f": last day {last}, owner ", name(row["owner"]), ", ",
                name(row["reason"]))  # fmt: skip


def _ready(rows: Sequence[_Row]) -> Section:
    """A line for each rule, those first that were not ready before."""
    by_rule: dict[str, list[_Row]] = {}
    for row in sorted(rows, key=lambda one: (not one["new"], one["rule"], one["service"])):
        by_rule.setdefault(row["rule"], []).append(row)
    lines = []
    for rule, of in list(by_rule.items())[:MAX_LINES]:
        since = "" if any(one["new"] for one in of) else " (as before)"
        lines.append(line(name(rule), " for ", *_listed([one["service"] for one in of]), since))
    if (left := len(by_rule) - MAX_LINES) > 0:
        lines.append(line(f"and {counted(left, 'rule')} more"))
    if lines:
        lines.append(line("keyfence ready --write-modes prints the lines that enforce them"))
    return Section("Ready to be enforced", tuple(lines))


def _mode(row: _Row) -> Line:
    return line(name(row["rule"]), " for ", name(row["service"]), f" since {clock_text(row['at'])}")


def _others(others: Mapping[str, int]) -> Section:
    rows = list(others.items())[:MAX_LINES]
    lines = [
        line(name(owner), f": {counted(number, 'finding')} {plural(number, 'was', 'were')} told there")
        for owner, number in rows
    ]
    if (left := len(others) - MAX_LINES) > 0:
        lines.append(line(f"and {counted(left, 'owner')} more"))
    return Section("Told to their owners", tuple(lines))


def _listed(names: Iterable[str]) -> list[str | Part]:
    """Names as a part of a sentence."""
    found: list[str | Part] = []
    every = list(names)
    for number, one in enumerate(every[:MAX_LINES]):
        found += [*([", "] if number else []), name(one)]
    return [*found, *([f" and {len(every) - MAX_LINES} more"] if len(every) > MAX_LINES else [])]
