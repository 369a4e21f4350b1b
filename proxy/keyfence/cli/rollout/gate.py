"""`keyfence gate`: fails a pipeline on new findings.

Rule: exit code 0 means that commands were evaluated and nothing new was found. Whatever keeps keyfence from
knowing that has another code: 3 for no traffic or an older policy, 2 for a source that cannot be read.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

import click

from keyfence.admin.client import AskError, ask
from keyfence.cli.terminal.asking import checked_answer, is_url, read_log, source_of
from keyfence.cli.terminal.options import admin_option, format_option, is_given, value_option
from keyfence.cli.terminal.output import fail, fail_with, say
from keyfence.config.fields import is_store
from keyfence.findings.finding import ACTIVE, AT_REST
from keyfence.findings.gate.baseline import Known, read_baseline, write_baseline
from keyfence.findings.gate.formats import FORMATS
from keyfence.findings.gate.judgement import Judgement, Outcome, blocking, judge
from keyfence.findings.gate.sources import Evidence, of_answers, of_rows, of_store
from keyfence.policy.diagnostics import FileError
from keyfence.policy.units import counted
from keyfence.upstream.address import without_password

from .stores import store_at
from .times import since_time

PAGE = 2_000  # findings of one answer


baseline_option = value_option(
    "--baseline", "FILE", "Findings in this file are known and do not fail; --write-baseline makes it."
)
write_option = value_option(
    "--write-baseline write",
    "FILE",
    "Write what would fail to this file, and fail on nothing. With --baseline, keep what that file knows.",
)


@click.command()
@click.argument("source", metavar="[ADMIN|STORE|LOG]", default="")
@value_option(
    "--since",
    "TIME",
    "New is what was first seen, or seen again, since: 24h, 2027-06-30, RFC 3339.",
    since_time,
)
@baseline_option
@write_option
@admin_option
@format_option(*FORMATS)
@click.pass_context
def gate(
    context: click.Context, source: str, since: float, baseline: str, write: str, admin: str, form: str
) -> None:
    """Fail a pipeline on new findings.

    The source is a running keyfence (ADMIN is its address, as for --admin), a findings store
    (sqlite:////PATH/FILE or postgresql://USER@HOST/DATABASE), or a decision log. Without --since and
    --baseline, every finding that somebody must fix is new. Findings that are waived, quiet, resolved, or
    only a should never fail.

    Exit code 0: nothing new; 1: new findings; 2: wrong usage, or a source that cannot be read; 3: not known,
    because no command was evaluated, or the policy has changed since.
    """
    if since and (baseline or write):
        fail("--since and a baseline are two ways to say what is new; give one of them")
    if since > time.time():
        fail("--since is in the future; name a time that has passed")
    if is_store(source) and is_given(context, "admin"):
        fail("give either --admin or an argument, not both")
    known = known_findings(baseline, write)
    evidence = _evidence(source if is_store(source) else source_of(context, source, admin), since)
    judgement = judge(evidence, since=since or None, baseline=known, baseline_name=baseline)
    if write:
        sys.exit(keep(judgement, known, write))
    say(FORMATS[form](judgement).removesuffix("\n"))
    sys.exit(judgement.outcome.exit_code)


def known_findings(baseline: str, write: str) -> tuple[Known, ...]:
    """The findings of a baseline. A faulty one ends the command."""
    try:
        return read_baseline(baseline) if baseline else ()
    except FileError as exc:
        if not write:
            say(f"keyfence: --write-baseline {baseline} writes a new one", err=True)
        fail_with(exc)


def keep(judgement: Judgement, known: Sequence[Known], path: str) -> int:
    """Write a baseline. Returns the exit code."""
    if judgement.outcome is Outcome.SILENT:
        say(f"keyfence: no traffic was judged, so {path} is not written", err=True)
        return Outcome.SILENT.exit_code
    listed = [*known, *blocking(judgement.evidence.findings)]
    try:
        write_baseline(path, listed)
    except OSError as exc:
        fail(f"{path} cannot be written: {exc.strerror}")
    number = len({one.id for one in listed})
    say(f"keyfence: {path} knows {counted(number, 'finding')}", err=True)
    return 0


def _evidence(source: str, since: float) -> Evidence:
    if is_store(source):
        return store_evidence(source, since)
    return _running_evidence(source, since) if is_url(source) else _log_evidence(source, since)


def store_evidence(url: str, since: float = 0.0) -> Evidence:
    """What a findings store has. A store that cannot be read ends the command."""
    with store_at(url) as reader:
        return of_store(reader, since)


def _running_evidence(url: str, since: float) -> Evidence:
    try:
        answer = ask(url, f"/evidence?{urlencode({'since': since})}")
        return of_answers(findings_of(url), answer, since)
    except AskError as exc:
        fail(str(exc))
    except (TypeError, ValueError, KeyError, AttributeError) as exc:
        why = f"{exc} is missing" if isinstance(exc, KeyError) else " ".join(str(exc).split())
        fail(f"{without_password(url)}: this answer is not from keyfence: {why}")


def findings_of(url: str) -> Iterator[Mapping[str, Any]]:
    """All findings of a running keyfence, page by page."""
    offset, total = 0, 1
    while offset < total:
        # In an order that does not change while findings are counted.
        answer = ask(url, f"/findings?{urlencode({'limit': PAGE, 'offset': offset, 'sort': 'service'})}")
        yield from answer["findings"]
        offset, total = offset + PAGE, int(answer["total"])


class ChosenFindings(NamedTuple):
    """Findings of services, and how many others there are in each state."""

    chosen: list[Mapping[str, Any]]
    left: Mapping[str, int]


def chosen_findings(url: str, *, every: bool) -> ChosenFindings | None:
    """The active findings of a running keyfence, or every one. None if it has no findings store; it says
    so."""
    try:
        with checked_answer(url):
            found = [one for one in findings_of(url) if one["service"] != AT_REST]
            chosen = [one for one in found if every or one["state"] in ACTIVE]
            states = Counter(str(one["state"]) for one in found)
            return ChosenFindings(chosen, states - Counter(str(one["state"]) for one in chosen))
    except AskError as exc:
        say(f"keyfence: {exc}", err=True)
        say(
            "keyfence: so every violation since its start counts, also what the policy in force allows",
            err=True,
        )
        return None


def _log_evidence(path: str, since: float) -> Evidence:
    found, tally = read_log(path)
    found.report_missing()
    if found.faults:
        fail(f"{path}: lines that cannot be read may hide findings; mend the file, or name another")
    return of_rows((row for _, row in tally.rows()), since, found.dropped)
