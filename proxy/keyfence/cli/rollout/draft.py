"""`keyfence draft`: proposes a policy from what services were seen to do.

Rule: the draft goes to standard output or to a new file, and everything that people must know about it to
standard error. It changes no policy that exists.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from keyfence.admin.client import AskError, ask
from keyfence.authoring.learn.applications import in_one_folder
from keyfence.authoring.learn.draft import Draft, DraftError, draft
from keyfence.authoring.learn.seen import Evidence
from keyfence.authoring.learn.typos import Typo
from keyfence.cli.terminal.asking import checked_answer, is_url, source_url
from keyfence.cli.terminal.options import admin_option, value_option
from keyfence.cli.terminal.output import fail, say
from keyfence.cli.terminal.policies import POLICY, shipped_policies
from keyfence.config.fields import is_store
from keyfence.findings.finding import AT_REST
from keyfence.policy.show import one_line
from keyfence.policy.units import counted as count
from keyfence.telemetry.reports.by_command import rows_from_snapshot, tally_of_log
from keyfence.upstream.address import without_password

from .extend import extend
from .gate import findings_of, store_evidence
from .hash_tags import hash_tags
from .keys_there import add_keys

_SQLITE = b"SQLite format 3\0"
_RDB = b"REDIS"
_REDIS = ("redis://", "rediss://", "unix://")
_APPLICATIONS = "applications/"  # where the shipped policies of applications are
_SHOWN_FAULTS = 5
NAME = re.compile("[A-Za-z][A-Za-z0-9_-]{0,62}")


def name_of(text: str) -> str:
    """A policy's name. Raises ValueError."""
    if not NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not a name; write letters, digits, - and _")
    return text


@click.command(name="draft")
@click.argument("sources", metavar="[SOURCE...]", nargs=-1)
@value_option("--name", "NAME", "The policy's name.", name_of, default="draft", show_default=True)
@value_option(
    "-o --output",
    "FILE",
    "Write the draft to this new file; FOLDER/: with the policies of applications, into a new folder.",
)
@value_option(
    "--extend policy", "POLICY", "Print a patch with what this policy lacks, instead of a draft.", type=POLICY
)
@value_option(
    "--hash-tags tagged",
    "POLICY",
    "Print a patch with hash tags in this policy's keys, for a cluster.",
    type=POLICY,
)
@click.option(
    "--interactive",
    "asks",
    is_flag=True,
    help="Ask about words that look mistyped; with --extend, about each proposal.",
)
@admin_option
def draft_(
    sources: tuple[str, ...], name: str, output: str, policy: str, tagged: str, asks: bool, admin: str
) -> None:
    """Propose a policy from what services were seen to do.

    A SOURCE is a command log (keyfence run --record), a decision log, a findings store
    (sqlite:////PATH/FILE or postgresql://USER@HOST/DATABASE), the address of a running keyfence, or a Redis
    (redis://, rediss://, unix://) or RDB file, whose keys are read. Several are taken together; "-" is
    standard input. Without any, the running keyfence at --admin is asked. A command log is by far the best
    source: it has every command, with types, times to live and fields. Keys do not show who uses them.

    Every line of the draft has its evidence in a comment. "guess:" marks what the evidence suggests and does
    not prove. Standard error lists what the draft admits that was not seen, and what it refuses although it
    was seen. Words that look mistyped are left out, unless you say with --interactive that they are right.
    Keys of applications that keyfence has a policy for (BullMQ, Celery and others) are left to that policy.

    --extend proposes only what a policy lacks: entries, rights, fields, channels and scripts. It prints a
    patch that keeps every comment; `patch` applies it. With --interactive you accept, edit, waive or skip
    each proposal, or take it for a deprecated form of an entry. Answers are kept in POLICY.answers.json, so
    that you can go on later.

    --hash-tags proposes which placeholder of a key goes into braces, so that keys which are used together
    share a hash slot of a cluster. It reads command logs, or the rehearsal of a running keyfence (keyfence
    candidate load --for cluster).

    Exit code 0: a draft; 2: wrong usage, or nothing can come of the sources.
    """
    if tagged:
        if policy or output or asks:
            fail("--hash-tags prints a patch; omit --extend, --output and --interactive")
        hash_tags(tagged, sources or (admin,))
        return
    if policy and output:
        fail("--extend prints a patch; omit --output")
    if output and os.path.lexists(output):
        fail(f"{output} exists; name a new file")
    evidence = evidence_of(sources or (admin,))
    shipped = {
        one.removeprefix(_APPLICATIONS): path.read_text(encoding="utf-8")
        for one, path in shipped_policies().items()
        if one.startswith(_APPLICATIONS) and one != f"{_APPLICATIONS}{name}"
    }
    if policy:
        extend(policy, evidence, shipped, asks=asks)
        return
    try:
        found = draft(evidence, name, shipped, _is_right if asks else lambda _: False)
    except DraftError as exc:
        fail(str(exc))
    if output:
        try:
            _write(found, output, name)
        except OSError as exc:
            fail(f"{output}: {exc.strerror}")
    else:
        say(found.text.removesuffix("\n"))
    _report(found, output)


def _is_right(typo: Typo) -> bool:
    """Asks whether a word that looks mistyped is right."""
    say(f"\n{one_line(typo.word)} looks like a typo of {one_line(typo.nearest)}: {typo.use()}", err=True)
    return click.confirm(f"  Is {one_line(typo.word)} right, so that it gets entries of its own?", err=True)


def _write(found: Draft, output: str, name: str) -> None:
    """Writes the draft to a new file; or into a new folder, with the policies of applications."""
    files = {output: found.text}
    if output.endswith(os.sep):
        os.mkdir(output)
        together = in_one_folder(name, found.text, found.plan.applications)
        files = {f"{output}{one}.yaml": text for one, text in together.items()}
    for path, text in files.items():
        Path(path).write_text(text, encoding="utf-8")


def evidence_of(sources: Iterable[str]) -> Evidence:
    """Reads the sources. One that cannot be read ends the command."""
    evidence = Evidence()
    for source in sources:
        if is_store(source):
            _add_rows(evidence, (one.as_object() for one in store_evidence(source).findings))
        elif source.startswith(_REDIS):
            add_keys(evidence, source)
        elif url := (source if is_url(source) else "" if os.path.exists(source) else source_url(source)):
            _add_running(evidence, url, source)
        else:
            _add_file(evidence, source)
        evidence.sources.append(_shown_name(source))
    return evidence


def _shown_name(source: str) -> str:
    return (
        without_password(source)
        if "://" in source
        else "standard input"
        if source == "-"
        else Path(source).name
    )


def _add_running(evidence: Evidence, url: str, source: str) -> None:
    """Adds the findings of a running keyfence; its report, if it keeps no findings."""
    with checked_answer(url):
        try:
            rows: list[Mapping[str, Any]] = list(findings_of(url))
        except AskError:
            rows = list(rows_from_snapshot(_report_of(url, source)))
        _add_rows(evidence, rows)


def _report_of(url: str, source: str) -> Any:
    """The report of a running keyfence. A source without a scheme may have meant a Redis."""
    try:
        return ask(url, "/report")
    except AskError as exc:
        fail(f"{exc}{'' if is_url(source) else f'; write redis://{source} for the keys of a Redis'}", 1)


def _add_file(evidence: Evidence, path: str) -> None:
    faults: list[str] = []
    try:
        with click.open_file(path, "rb") as lines:
            first = lines.readline()
            if first.startswith(_SQLITE):
                lines.close()
                _add_rows(evidence, (one.as_object() for one in store_evidence(f"sqlite:///{path}").findings))
                return
            if first.startswith(_RDB) and path != "-":
                lines.close()
                add_keys(evidence, path)
                return
            others = evidence.feed(itertools.chain([first], lines), faults.append)
    except OSError as exc:
        fail(f"{path}: {exc.strerror}")
    if others:
        tally, _ = tally_of_log((json.dumps(line) for line in others), faults.append)
        _add_rows(evidence, (row for _, row in tally.rows()))
    for fault in faults[:_SHOWN_FAULTS]:
        say(f"keyfence: {path}: {fault}", err=True)
    if len(faults) > _SHOWN_FAULTS:
        say(f"keyfence: {path}: and {len(faults) - _SHOWN_FAULTS} more lines are skipped", err=True)
    if os.path.exists(f"{path}.1"):
        say(f"keyfence: {path}.1 has earlier commands; name it too", err=True)


def _add_rows(evidence: Evidence, rows: Iterable[Mapping[str, Any]]) -> None:
    for row in rows:
        if row["service"] != AT_REST:  # what an audit found: the keys themselves show more
            evidence.add_row(row)


def _report(found: Draft, output: str) -> None:
    """Says what people must know before they use a draft."""
    plan = found.plan
    parts = [count(len(plan.entries), "entry", "entries"), count(len(plan.scopes), "scope"),
             count(len(plan.services), "service")]  # fmt: skip
    parts += [count(len(plan.legacy), "legacy form")] if plan.legacy else []
    parts += [count(len(plan.channels), "channel")] if plan.channels else []
    scripts = len(plan.evidence.scripts)
    parts += [count(scripts, "script")] if scripts else []
    where = f"{output}: " if output else ""
    sources = [count(plan.evidence.times, "command")] if plan.evidence.times else []
    sources += [f"{count(plan.evidence.there, 'key')} in Redis"] if plan.evidence.there else []
    say(f"keyfence: {where}{', '.join(parts)}, from {' and '.join(sources)}", err=True)
    for sentence in found.notes:
        say(f"keyfence: {one_line(sentence)}", err=True)
    for sentence in found.widenings:
        say(f"keyfence: wider than what was seen: {one_line(sentence)}", err=True)
    for one in found.refused:
        say(f"keyfence: seen, and refused by the draft: {one_line(one.sentence())}", err=True)
    if output:
        say(
            f"keyfence: read it; without a configuration, run keyfence init . --policy {shlex.quote(output)}",
            err=True,
        )
