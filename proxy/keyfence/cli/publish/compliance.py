"""`keyfence report --compliance`: a quarter for an auditor, as Markdown, HTML, CSV or JSON.

Rule: every format has the same facts. A history that was tampered with says so, and nothing else.
"""

from __future__ import annotations

import csv
import html
import sys
import time
from collections.abc import Sequence
from typing import Any

from keyfence.cli.terminal.options import print_json
from keyfence.cli.terminal.output import fail, say
from keyfence.findings.history.book import POLICY
from keyfence.findings.history.chain import chains_of, faults
from keyfence.findings.spans import span_text
from keyfence.policy.show import cell, one_line
from keyfence.policy.units import clock_text, counted

from .history import BROKEN, fault_text, read

_TIMES = ("observed", "off", "gap")
_COLUMNS = ("service", "rule", "enforced", *_TIMES, "gaps", "findings", "refused", "seen", "waived")
_STYLE = "td,th{border:1px solid #999;padding:2px 6px}table{border-collapse:collapse}"


def print_compliance(text: str, url: str, form: str) -> None:
    """Prints the quarter. Ends the command with 2 if the history is not as it was written."""
    from keyfence.findings.compliance import Violations, lines, quarter
    from keyfence.findings.enforced import Enforcement

    try:
        begin, end = quarter(text)
    except ValueError as exc:
        fail(f"--compliance: {exc}")
    now = time.time()
    if begin >= now:
        fail(f"--compliance: {text} has not begun")

    def asked(reader: Any) -> tuple[Any, Violations]:
        return reader.chained(), Violations(reader.sums_of_rules(begin, end), reader.counted_since())

    chained, violations = read(url, asked)
    wrong = [fault_text(one) for one in faults(chains_of(chained.rows), chained.heads)]
    found = [] if wrong else lines(Enforcement(chained, begin * 1000, int(min(end, now) * 1000)), violations)
    said = [] if wrong else _about(chained, violations.since, begin, end, now)
    title = f"Compliance {text}"
    if form == "json":
        print_json(_data(text, begin, end, wrong, found, violations.since))
    elif form == "csv":
        _print_csv(wrong, found)
    elif form == "html":
        _print_html(title, wrong, said, list(map(_cells, found)))
    else:
        _print_markdown(title, wrong, said, list(map(_cells, found)))
    sys.exit(BROKEN if wrong else 0)


def _about(chained: Any, since: float, begin: int, end: int, now: float) -> list[str]:
    """What a reader must know about the table."""
    chains = counted(len(chained.heads), "chain")
    found = [
        f"From {clock_text(begin)} to {clock_text(min(end, now))}.",
        f"The history has {counted(len(chained.rows), 'row')} in {chains}, and all are as they were written.",
        "Enforced means that each instance that looked at commands enforced the rule. A gap is a time of "
        "which nobody knows, or in which break-glass was open.",
    ]
    environments = {row.data().get("environment", "") for row in chained.rows if row.kind == POLICY} - {""}
    if environments:
        found.insert(1, f"What ran with this store was in: {', '.join(sorted(environments))}.")
    if not chained.rows:
        found.append("The store has no history, so nobody knows what was enforced.")
    if end > now:
        found.append("The quarter is not over.")
    if since > begin:
        found.append(f"Findings and violations are known from {clock_text(since)} on.")
    return found


def _cells(one: Any) -> list[str]:
    total = sum(one.times.values()) or 1
    share = "all" if one.is_always_enforced else f"{one.times['enforced'] * 1000 // total / 10} %"
    spans = [span_text(one.times[status] / 1000) if one.times[status] else "–" for status in _TIMES]
    counts = [str(one.counts[name]) for name in ("findings", "refused", "observed", "waived")]
    return [one_line(one.service), one.rule, share, *spans, str(one.gaps), *counts]


def _print_markdown(title: str, wrong: Sequence[str], said: Sequence[str], rows: Sequence[list[str]]) -> None:
    say(f"# {title}\n")
    if wrong:
        say("The history is not as it was written, so it answers nothing:\n")
    for text in (*wrong, *said):
        say(f"- {text}")
    if rows:
        say("\n| " + " | ".join(_COLUMNS) + " |\n|" + "---|" * len(_COLUMNS))
    for row in rows:
        say("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")


def _print_html(title: str, wrong: Sequence[str], said: Sequence[str], rows: Sequence[list[str]]) -> None:
    def cells(tag: str, texts: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts) + "</tr>"

    say('<!doctype html>\n<html lang="en"><head><meta charset="utf-8">')
    say(
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>\n<h1>{html.escape(title)}</h1>"
    )
    if wrong:
        say("<p><strong>The history is not as it was written, so it answers nothing:</strong></p>")
    say("<ul>" + "".join(f"<li>{html.escape(text)}</li>" for text in (*wrong, *said)) + "</ul>")
    if rows:
        say(f"<table><thead>{cells('th', _COLUMNS)}</thead><tbody>")
        for row in rows:
            say(cells("td", row))
        say("</tbody></table>")
    say("</body></html>")


def _print_csv(wrong: Sequence[str], found: Sequence[Any]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if wrong:
        writer.writerow(["not as it was written"])
        writer.writerows([text] for text in wrong)
        return
    if found:
        times, counts = list(found[0].times), list(found[0].counts)
        seconds_of = [f"{one}_seconds" for one in times]
        writer.writerow(["service", "rule", "always_enforced", *seconds_of, "gaps", *counts])
    for one in found:
        seconds = [ms / 1000 for ms in one.times.values()]
        writer.writerow(
            [cell(one.service), one.rule, one.is_always_enforced, *seconds, one.gaps, *one.counts.values()]
        )


def _data(
    text: str, begin: int, end: int, wrong: Sequence[str], found: Sequence[Any], since: float
) -> dict[str, Any]:
    rows = [
        {
            "service": one.service,
            "rule": one.rule,
            "always_enforced": one.is_always_enforced,
            "seconds": {status: ms / 1000 for status, ms in one.times.items()},
            "gaps": one.gaps,
            "counts": one.counts,
        }
        for one in found
    ]
    heading = {"quarter": text, "since": begin, "until": end, "right": not wrong, "faults": list(wrong)}
    return {**heading, "counted_since": since, "rows": rows}
