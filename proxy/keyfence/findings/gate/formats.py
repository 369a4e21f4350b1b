"""The gate's answer for people and for pipelines: text, Markdown, JSON, JUnit XML, GitHub workflow commands.

Rule: every format carries the same facts. Keys, names and hints come from outside: they are escaped by the
format's rules, and no line of any format but `github` can act as a workflow command.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree

from keyfence.findings.finding import HOUR, Finding
from keyfence.policy.show import one_line
from keyfence.policy.units import clock_text, counted
from keyfence.telemetry.clients import text_of
from keyfence.telemetry.tally import Example

from .baseline import Known
from .judgement import Judgement, Outcome

# Findings in Markdown and as workflow commands: GitHub drops a summary of more than 1 MiB.
MAX_LISTED = 200
MAX_SHOWN = 400  # characters of one value
_COLUMNS = ("finding", "rule", "service", "command", "times")
_MARKDOWN = ("rule", "service", "command", "keys", "owner", "example", "hint", "decision", "finding")
# GitHub's runner reads `::command::` at the start of a line, and `##[command]` anywhere in it.
_COMMAND_AT_START = re.compile(r"^(\s*):(?=:)", re.MULTILINE)
# Characters that XML 1.0 cannot hold, even escaped.
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# Text that Markdown shows as it is. Everything else goes into a code span.
_PLAIN_WORDS = re.compile(r"[A-Za-z0-9 ,.;:()'-]*")
_PIPE = re.compile(r"(\\*)\|")
_LINKS = re.compile(r"://|www\.", re.IGNORECASE)


class Shown(NamedTuple):
    """A finding as people read it, each value on one line."""

    finding: str
    rule: str
    service: str
    command: str
    times: str
    keys: str
    owner: str
    example: str
    decision: str
    hint: str
    clients: str


def shown(one: Finding) -> Shown:
    """A finding for people."""
    example = _example(one)
    values = (
        one.id,
        one.rule,
        one.service,
        one.command,
        str(one.total),
        one.place,
        one.owner,
        example["key"] if example else "",
        example["decision"] if example else "",
        one.hint,
        text_of(one.clients),
    )
    return Shown(*(_short(one_line(value)) for value in values))


def _example(one: Finding) -> Example | None:
    """The example to show: one that the decision log has, if there is any."""
    examples: Sequence[Example] = one.examples
    return next((each for each in examples if each["decision"]), examples[0] if examples else None)


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def headline(judgement: Judgement) -> str:
    """The answer in one sentence."""
    new = len(judgement.new)
    if judgement.outcome is Outcome.SILENT:
        return f"no traffic was judged{_since(judgement)}: this run proves nothing"
    found = counted(new, "new finding") if new else "no new findings"
    found += _since(judgement)
    if judgement.outcome is Outcome.UNKNOWN:
        why = "the policy has changed since some commands were seen"
        if judgement.evidence.dropped:
            why = f"the decision log leaves out {counted(judgement.evidence.dropped, 'violation')}"
        found = f"not known: {found}, but {why}"
    number = judgement.evidence.commands
    if number is None:
        return found if judgement.outcome is Outcome.UNKNOWN else f"{found} in the decision log"
    since = ""
    if judgement.since is not None:  # the store counts commands by the hour
        since = f" since {clock_text(judgement.since // HOUR * HOUR)}"
    return f"{found}; {counted(number, 'command')} evaluated{since}"


def _since(judgement: Judgement) -> str:
    return f" since {clock_text(judgement.since)}" if judgement.since is not None else ""


def _rest(judgement: Judgement) -> str:
    """The numbers of findings that do not fail the gate, by reason; "" if there are none."""
    counts = {"known": judgement.known, "should only": len(judgement.advice), **judgement.closed}
    parts = [f"{number} {name}" for name, number in counts.items() if number]
    return f"not counted: {', '.join(parts)}" if parts else ""


def _unknown(judgement: Judgement) -> list[str]:
    """What nobody can tell, in lines."""
    return [one_line(one.sentence) for one in judgement.evidence.unjudged]


def _unseen(judgement: Judgement) -> str:
    number = len(judgement.unseen)
    if not number or judgement.outcome is Outcome.SILENT:
        return ""
    what = "finding was" if number == 1 else "findings were"
    return f"{number} known {what} not seen; if fixed, remove from {one_line(judgement.baseline)}:"


# -- text


def as_text(judgement: Judgement) -> str:
    """The answer for a terminal or a job's log."""
    lines = [f"keyfence gate: {headline(judgement)}"]
    for title, found in (("", judgement.new), ("should (reported, never refused):", judgement.advice)):
        if found:
            lines += ["", *([title] if title else []), *_table([shown(one) for one in found])]
    if unknown := _unknown(judgement):
        lines += ["", *unknown]
    if unseen := _unseen(judgement):
        lines += ["", unseen]
        lines += [f"  {one.id}  {one_line(_names(one))}" for one in judgement.unseen]
    if rest := _rest(judgement):
        lines += ["", rest]
    return inert("\n".join(lines) + "\n")


def _names(one: Known) -> str:
    return " ".join(filter(None, (one.rule, one.service, one.command, one.shape or one.entry)))


def _table(rows: Sequence[Shown]) -> Iterator[str]:
    """A row for each finding, and below it what does not fit into columns of 80 characters."""
    cells = [[getattr(row, name) for name in _COLUMNS] for row in rows]
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *cells, strict=True)]
    yield _row(_COLUMNS, widths)
    for row, texts in zip(rows, cells, strict=True):
        yield _row(texts, widths)
        decision = f"  ({row.decision})" if row.decision else ""
        details = {
            "keys": row.keys,
            "example": f"{row.example}{decision}" if row.example else decision.strip(" ()"),
            "hint": row.hint,
            "owner": row.owner,
            "client": row.clients,
        }
        for name, text in details.items():
            if text:
                yield f"  {name:9}{text}"


def _row(texts: Sequence[str], widths: Sequence[int]) -> str:
    *names, times = texts
    cells = [f"{text:{width}}" for text, width in zip(names, widths, strict=False)]
    return "  ".join([*cells, f"{times:>{widths[-1]}}"])


def inert(text: str) -> str:
    """A text without workflow commands: a pipeline's log is read by the pipeline's runner."""
    return _COMMAND_AT_START.sub(r"\1\\x3a", text.replace("##[", "#\\x23["))


# -- Markdown


def as_markdown(judgement: Judgement) -> str:
    """The answer for a job's summary, such as $GITHUB_STEP_SUMMARY."""
    lines = [f"### keyfence: {headline(judgement)}"]
    for title, found in (("", judgement.new), ("should (reported, never refused)", judgement.advice)):
        if found:
            lines += ["", *([f"**{title}**", ""] if title else []), *_markdown_table(found)]
    if unknown := _unknown(judgement):
        lines += ["", *_markdown_list(unknown)]
    if unseen := _unseen(judgement):
        names = [f"{one.id} {_names(one)}" for one in judgement.unseen]
        lines += ["", f"{_span(unseen.removesuffix(':'))}", "", *_markdown_list(names)]
    if rest := _rest(judgement):
        lines += ["", f"{rest[0].upper()}{rest[1:]}."]
    return inert("\n".join(lines) + "\n\n")


def _markdown_list(texts: Sequence[str]) -> Iterator[str]:
    for text in texts[:MAX_LISTED]:
        yield f"- {_code(text)}"
    if len(texts) > MAX_LISTED:
        yield f"- and {len(texts) - MAX_LISTED} more"


def _markdown_table(found: Sequence[Finding]) -> Iterator[str]:
    rows = [shown(one) for one in found[:MAX_LISTED]]
    names = [name for name in _MARKDOWN if any(getattr(row, name) for row in rows)]
    yield f"| {' | '.join(names)} |"
    yield f"|{'---|' * len(names)}"
    for row in rows:
        yield f"| {' | '.join(_span(getattr(row, name)) for name in names)} |"
    if len(found) > MAX_LISTED:
        yield f"\nand {len(found) - MAX_LISTED} more"


def _span(text: str) -> str:
    """A text in a table's cell: plain words as they are, all else as code."""
    if _PLAIN_WORDS.fullmatch(text) and not _LINKS.search(text):
        return text
    return _code(text)


def _code(text: str) -> str:
    """A code span. Nothing in it is markup; a pipe would still end a table's cell."""
    text = one_line(text)
    longest = max((len(ticks) for ticks in re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text.startswith(("`", " ")) or text.endswith(("`", " ")) else ""
    return _PIPE.sub(_escaped_pipe, f"{fence}{pad}{text}{pad}{fence}")


def _escaped_pipe(found: re.Match[str]) -> str:
    """A pipe behind an even number of backslashes, and one that escapes it."""
    slashes = found[1]
    return slashes + "\\" * (len(slashes) % 2) + "\\|"


# -- JSON


def as_object(judgement: Judgement) -> dict[str, Any]:
    """The answer as plain values for JSON."""
    asked = sorted(judgement.evidence.asked.items())
    return {
        "outcome": judgement.outcome,
        "exit_code": judgement.outcome.exit_code,
        "commands": judgement.evidence.commands,
        "since": judgement.since,
        "baseline": judgement.baseline or None,
        "new": [one.as_object() for one in judgement.new],
        "should": [one.as_object() for one in judgement.advice],
        "known": judgement.known,
        **judgement.closed,
        "unseen": [one.model_dump() for one in judgement.unseen],
        "asked": [{"service": service, "rule": rule, "commands": n} for (service, rule), n in asked],
        "unjudged": [one._asdict() for one in judgement.evidence.unjudged],
        "dropped": judgement.evidence.dropped,
    }


def as_json(judgement: Judgement) -> str:
    """The answer as JSON text."""
    # Escaped, the text has the same value and is no workflow command.
    return json.dumps(as_object(judgement), indent=1).replace("##[", "#\\u0023[") + "\n"


# -- JUnit XML


def as_junit(judgement: Judgement) -> str:
    """The answer as JUnit XML: a suite for each service, a case for each rule that its commands were asked
    of."""
    root = ElementTree.Element("testsuites", name="keyfence gate")
    unknown = {(one.service, one.rule): one.sentence for one in judgement.evidence.unjudged}
    suites: dict[str, dict[str, list[Finding]]] = {}
    for (service, rule), found in judgement.cases().items():
        suites.setdefault(service, {})[rule] = found
    tests = failures = 0
    for service, cases in suites.items():
        failed = [bool(found) or (service, rule) in unknown for rule, found in cases.items()]
        suite = _suite(root, service, len(cases), sum(failed))
        for rule, found in cases.items():
            case = ElementTree.SubElement(
                suite, "testcase", classname=suite.get("name", ""), name=_xml(rule), time="0"
            )
            if found:
                _failure(case, counted(len(found), "new finding"), rule, found)
            elif why := unknown.get((service, rule)):
                _failure(case, why, Outcome.UNKNOWN, ())
        tests, failures = tests + len(cases), failures + int(suite.get("failures", "0"))
    is_cut = judgement.outcome is Outcome.UNKNOWN and judgement.evidence.dropped
    if judgement.outcome is Outcome.SILENT or is_cut:
        suite = _suite(root, "keyfence", 1, 1)
        case = ElementTree.SubElement(suite, "testcase", classname="keyfence", name="traffic", time="0")
        _failure(case, headline(judgement), judgement.outcome, ())
        tests, failures = tests + 1, failures + 1
    root.set("tests", str(tests))
    root.set("failures", str(failures))
    root.set("errors", "0")
    ElementTree.indent(root)
    return inert(ElementTree.tostring(root, encoding="unicode", xml_declaration=False) + "\n")


def _suite(root: ElementTree.Element, name: str, tests: int, failures: int) -> ElementTree.Element:
    counts = {"tests": str(tests), "failures": str(failures), "errors": "0", "skipped": "0", "time": "0"}
    return ElementTree.SubElement(root, "testsuite", {"name": _xml(name), **counts})


def _failure(case: ElementTree.Element, message: str, kind: str, found: Sequence[Finding]) -> None:
    failure = ElementTree.SubElement(case, "failure", message=_xml(message), type=_xml(kind))
    failure.text = _xml("\n".join(_sentence(shown(one)) for one in found))


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text.encode("utf-8", "backslashreplace").decode())


def _sentence(row: Shown) -> str:
    """A finding in one line."""
    decision = f" ({row.decision})" if row.decision else ""
    example = f": {row.example}{decision}" if row.example else decision
    times = "once" if row.times == "1" else counted(int(row.times), "time")
    parts = [f"{row.service} {row.command} on {row.keys}, {times}{example}", row.hint]
    parts += [f"owner {row.owner}" if row.owner else "", row.finding]
    return "; ".join(filter(None, parts))


# -- GitHub


def as_github(judgement: Judgement) -> str:
    """The answer as workflow commands: GitHub shows them at the run, and beside a pull request."""
    lines = [
        _command(level, f"keyfence: {one.rule}", _sentence(shown(one)))
        for level, found in (("error", judgement.new), ("warning", judgement.advice))
        for one in found[:MAX_LISTED]
    ]
    if judgement.outcome is Outcome.SILENT:
        lines.append(_command("error", "keyfence: no traffic", headline(judgement)))
    else:
        level = "warning" if judgement.new else "error"
        unknown = _unknown(judgement)[:MAX_LISTED]
        lines += [_command(level, "keyfence: not known", one) for one in unknown]
        about = "; ".join(filter(None, (headline(judgement), _rest(judgement))))
        lines.append(_command("notice", "keyfence", about))
    return "\n".join(lines) + "\n"


def _command(level: str, title: str, message: str) -> str:
    escaped = _data(one_line(title)).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={escaped}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


FORMATS: Mapping[str, Callable[[Judgement], str]] = {
    "text": as_text,
    "json": as_json,
    "markdown": as_markdown,
    "junit": as_junit,
    "github": as_github,
}
