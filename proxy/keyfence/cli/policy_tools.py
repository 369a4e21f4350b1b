"""The commands that work on policy files alone: `check`, `explain`, `test`, `diff`, `schema`.

Rule: they touch no Redis and no running keyfence; what is wrong with a file is told with its line.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import click
import yaml
from rich.table import Table
from rich.text import Text

from keyfence.policy.analysis.coverage import Coverage
from keyfence.policy.analysis.diff import Difference
from keyfence.policy.analysis.explain import explain as explain_command
from keyfence.policy.analysis.explain import explain_sequence, read_sequence
from keyfence.policy.analysis.replay import Replay
from keyfence.policy.analysis.testing import FileResult, Runner, test_files
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.compiled.tenants import Caller
from keyfence.policy.diagnostics import FileError
from keyfence.policy.loading.load import load_policy
from keyfence.policy.patterns.set_operations import TooLarge
from keyfence.policy.show import printable
from keyfence.policy.source.files import MAX_BYTES, Unreadable, read_file

from . import formats
from . import schema as schemas
from .checking import check_file
from .options import format_option, print_json
from .output import USAGE, console, fail, fail_with, print_table, say


@click.command()
@click.argument("policies", metavar="POLICY...", nargs=-1, required=True)
@format_option("text", "json", "github")
@click.option("--strict", is_flag=True, help="Fail for warnings too.")
def check(policies: Sequence[str], form: str, strict: bool) -> None:
    """Report every error and warning of policies, each with its place, its line and a key that shows it.

    A policy is a file or a folder. A configuration is checked together with the policy that it names.

    Exit code 0: none, or only warnings; 1: errors, or with --strict warnings; 2: wrong usage.
    """
    failed = False
    objects = []
    for path in policies:
        errors, warnings, summary = check_file(path)
        failed = failed or bool(errors) or (strict and bool(warnings))
        objects += [formats.as_object(one) for one in (*errors, *warnings)]
        for one in (*errors, *warnings) if form != "json" else ():
            say(formats.as_github(one) if form == "github" else one.illustrated())
        if form == "text":
            say(summary)
    if form == "json":
        print_json(objects)
    sys.exit(1 if failed else 0)


# Options end where the command begins: what follows belongs to it, dashes or not.
@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--policy", metavar="FILE", required=True, help="Policy file.")
@click.option("--service", metavar="NAME", required=True, help="Who sends the command.")
@click.option("--user", metavar="USER", default="", help="The user with which it has logged in.")
@click.option("--certificate", metavar="NAME", multiple=True, help="A name in its certificate.")
@format_option("text", "json")
@click.option(
    "--file", metavar="FILE", default="", help="Explain the commands of a file; - is standard input."
)
@click.argument("command", metavar="-- COMMAND [ARG...]", nargs=-1, type=click.UNPROCESSED)
def explain(
    policy: str,
    service: str,
    user: str,
    certificate: Sequence[str],
    form: str,
    file: str,
    command: Sequence[str],
) -> None:
    """Say what a policy makes of a command, and what would have to change for it to pass.

    With --file, of a sequence on one connection: a command a line; "@NAME" goes on as another service, "@NAME
    user=USER" as one that has logged in so, "+6s" lets time pass. Exit code 0: all is allowed, 1: violation,
    2: wrong usage.
    """
    if bool(file) == bool(command):
        fail("give a command, or --file with several")
    try:
        compiled = load_policy(policy)
        caller = Caller(os.fsencode(user) or None, tuple(certificate))
        if file:
            _explain_file(compiled, service, caller, file, form)
        told = explain_command(compiled, service, [os.fsencode(part) for part in command], caller)
    except FileError as exc:
        fail_with(exc)
    except ValueError as exc:
        fail(f"--service: {exc}")
    if form == "json":
        say(json.dumps(told))
    else:
        _print_explanation(told)
    sys.exit(0 if told["verdict"] == "allow" else 1)


def _explain_file(policy: CompiledPolicy, service: str, caller: Caller, file: str, form: str) -> NoReturn:
    try:
        data = sys.stdin.buffer.read(MAX_BYTES) if file == "-" else read_file(file)
        text = data.decode("utf-8", "surrogateescape")
        told = explain_sequence(policy, read_sequence(text, service, caller), now=int(time.time() * 1000))
    except (Unreadable, ValueError) as exc:
        fail(f"{file}: {exc}")
    if form == "json":
        print_json(told)
    else:
        _print_sequence(told)
    sys.exit(1 if any(one.get("violations") or one["late"] for one in _with_late(told)) else 0)


def _with_late(told: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return ({"late": []} | one for one in told)


def _print_sequence(told: Sequence[dict[str, Any]]) -> None:
    """A line for each command, with what is wrong below it."""
    for one in told:
        where = f"line {one['line']}: " if one["line"] else "at the end: "
        if "late" in one:
            for violation in one["late"]:
                say(f"{where}late {violation['rule']}: {violation['message']}")
            continue
        outcome = "aborted" if one["aborted"] else one["verdict"]
        ttl = "".join(f"; {key}: {lives}" for key, lives in one["ttl"].items())
        say(f"{where}{one['service']} {one['command'] or 'unknown command'}: {outcome}{ttl}")
        for violation in one["violations"]:
            say(f"  {violation['rule']} at argument {violation['position']}: {violation['message']}")
        for remedy in one["remedies"]:
            say(f"    {_remedy_text(remedy)}")


def _remedy_text(remedy: dict[str, Any]) -> str:
    lines = yaml.safe_dump(remedy["add"], default_flow_style=True, width=1_000_000, sort_keys=False)
    parts = [remedy["text"], remedy["command"], lines.strip()[1:-1] if remedy["add"] else None]
    return ": ".join(part for part in parts if part)


def _print_explanation(told: dict[str, Any]) -> None:
    out = console()
    if told["accesses"]:
        table = Table(title="accesses", title_justify="left")
        for column in ("position", "key", "access", "entry"):
            table.add_column(column)
        for access in told["accesses"]:
            table.add_row(*(_cell(access[name]) for name in ("position", "key", "access", "entry")))
        print_table(table)
    else:
        out.print("accesses: none")
    if told["verdict"] == "allow":
        out.print("[bold green]allow[/]")
    for violation in told["violations"]:
        severity = "" if violation["severity"] == "must" else " (should: never refused)"
        hint = f"; {violation['hint']}" if violation["hint"] else ""
        out.print("[bold red]violation[/]", end=" ")
        text = (
            f"{violation['rule']}{severity} at argument {violation['position']}: {violation['message']}{hint}"
        )
        out.print(text, markup=False, highlight=False, soft_wrap=True)
        if violation["more"]:
            out.print(f"  and {violation['more']} more like it")
    hold = [remedy for remedy in told["remedies"] if remedy["command"] or remedy["add"]]
    others = [remedy for remedy in told["remedies"] if remedy not in hold]
    for title, shown in (("to let it pass", hold), ("to know", others)):
        if shown:
            out.print(f"{title}:")
        for remedy in shown:
            out.print(
                f"  {remedy['rule']}: {_remedy_text(remedy)}", markup=False, highlight=False, soft_wrap=True
            )


def _cell(value: object) -> Text:
    """One line of text that moves no cursor, whatever a key holds."""
    text = "-" if value is None else str(value)
    return Text(text if text.isprintable() else printable(text.encode("utf-8", "surrogateescape"), 1024))


@click.command(name="test")
@click.argument("paths", metavar="[PATH...]", nargs=-1)
@format_option("text", "json", "junit", "github")
@click.option(
    "--min-coverage",
    metavar="PERCENT",
    type=click.IntRange(0, 100),
    default=0,
    help="Fail where the tests exercise less of a policy.",
)
@click.option("--coverage", is_flag=True, help="List what the tests never exercise.")
def run_tests(paths: Sequence[str], form: str, min_coverage: int, coverage: bool) -> None:
    """Run policy tests: files, or all *.test.yaml of folders ("." by default).

    Exit code 0: all passed, 1: some failed (or exercise too little), 2: a file can't be used.
    """
    runner = Runner()
    results, faults = [], []
    try:
        files = test_files(paths or ["."])
    except FileError as exc:
        fail_with(exc)
    for file in files:
        try:
            results.append(runner.run(file))
        except FileError as exc:
            faults += exc.diagnostics
    failures = [one for file in results for result in file.results for one in result.failures]
    short = [path for path, one in runner.coverage.items() if one.percent < min_coverage]
    if form == "json":
        told = formats.tests_as_object(results, runner.coverage)
        print_json(told | {"errors": [formats.as_object(one) for one in faults]})
    elif form == "junit":
        say(formats.as_junit(results))
        for one in faults:
            say(str(one), err=True)
    elif form == "github":
        for one in (*faults, *failures):
            say(formats.as_github(one))
    else:
        for one in (*faults, *failures):
            say(one.illustrated())
        _print_tests(results, runner.coverage, in_full=coverage)
    if form in ("text", "github"):
        for path in short:
            percent = runner.coverage[path].percent
            say(f"{path}: the tests exercise {percent} % of it, less than {min_coverage} %", err=True)
    sys.exit(USAGE if faults else 1 if failures or short else 0)


def _print_tests(results: Sequence[FileResult], coverage: Mapping[str, Coverage], *, in_full: bool) -> None:
    for file in results:
        passed = len(file.results) - file.failed
        say(f"{file.path}: {passed} passed, {file.failed} failed")
    for path, one in coverage.items():
        more = "" if in_full or one.percent == 100 else " (--coverage lists the rest)"
        say(f"{path}: {one.percent} % exercised{more}")
        for section in one.sections() if in_full else ():
            say(f"  {section.name:16}  {section.exercised}/{section.total}")
            for item in section.missing:
                say(f"    never: {item}")


@click.command()
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@format_option("text", "json")
@click.option(
    "--replay",
    metavar="LOG",
    default="",
    help="A command log (run --record) or a decision log: who would newly break what.",
)
def diff(old: str, new: str, form: str, replay: str) -> None:
    """Say what changes from one policy to another, each change with a key that shows it.

    Exit code 0: nothing, 1: something changes (with --replay: newly breaks), 2: a file can't be used.
    """
    try:
        before, after = load_policy(old), load_policy(new)
        if replay:
            _replay(before, after, replay, form)
        changes = Difference(before, after).changes
    except FileError as exc:
        fail_with(exc)
    except TooLarge as exc:
        fail(f"{old} and {new} can't be compared: {exc}")
    if form == "json":
        print_json([formats.change_as_object(one) for one in changes])
    else:
        for one in changes:
            say(one.sentence)
    sys.exit(1 if changes else 0)


def _replay(old: CompiledPolicy, new: CompiledPolicy, log: str, form: str) -> NoReturn:
    replay = Replay(old, new)
    broken = 0

    def complain(text: str) -> None:
        nonlocal broken
        broken += 1
        say(f"keyfence: {log}: {text}", err=True)

    try:
        with click.open_file(log, "rb") as lines:
            replay.feed(lines, complain)
    except OSError as exc:
        fail(f"{log}: {exc.strerror}")
    rows = replay.rows()
    if form == "json":
        told = [dataclasses.asdict(row) for row in rows]
        print_json({"commands": replay.commands, "undecided": replay.undecided, "rows": told})
    else:
        for row in rows:
            say(f"{row.service} {row.what} {row.rule} with {row.command}, {row.count} times: {row.example}")
        say(f"{replay.commands} commands replayed, {replay.undecided} undecided")
    if broken:
        sys.exit(USAGE)
    sys.exit(1 if any(row.what == "breaks" for row in rows) else 0)


@click.command()
@click.argument("kind", type=click.Choice(list(schemas.KINDS)))
def schema(kind: str) -> None:
    """Print the JSON Schema of a kind of file, for editors.

    A file names it in its first line:

    \b
        # yaml-language-server: $schema=URL
    """
    print_json(schemas.schema(kind))


COMMANDS: tuple[click.Command, ...] = (check, explain, run_tests, diff, schema)
