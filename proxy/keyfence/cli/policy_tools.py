"""The commands that need only policy files: `check`, `explain`, `test`, `diff`, `schema`.

Rule: these commands contact no Redis and no running keyfence. They report a fault of a file with its line.
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
from rich.text import Text

from keyfence.authoring.coverage import Coverage
from keyfence.authoring.diff import Difference
from keyfence.authoring.replay import Replay
from keyfence.authoring.sequences import explain_sequence, read_sequence
from keyfence.authoring.testing import FileResult, Runner, test_files
from keyfence.cli.terminal.policies import POLICY, POLICY_HELP
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.compiled.tenants import Caller
from keyfence.policy.diagnostics import FileError
from keyfence.policy.loading.load import load_policy
from keyfence.policy.patterns.set_operations import TooLarge
from keyfence.policy.remedies.explain import check_service
from keyfence.policy.remedies.explain import explain as explain_command
from keyfence.policy.remedies.policy_diffs import with_diffs
from keyfence.policy.show import one_line, printable
from keyfence.policy.source.files import MAX_BYTES, Unreadable, read_file
from keyfence.policy.units import counted

from . import formats
from . import schema as schemas
from .checking import check_file
from .terminal.options import format_option, print_json, value_option
from .terminal.output import USAGE, console, fail, print_table, say, table_of


@click.command()
@click.argument("policies", metavar="POLICY...", type=POLICY, nargs=-1, required=True)
@format_option("text", "json", "github")
@click.option("--strict", is_flag=True, help="Fail on warnings too.")
def check(policies: Sequence[str], form: str, strict: bool) -> None:
    """Check policies and configurations; report every error and warning with its line and an example key.

    A policy is a file or a folder. A configuration is checked together with the policy that it names.

    Exit code 0: no errors (warnings do not count without --strict); 1: errors; 2: wrong usage.
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


# Options of explain end where the Redis command begins. Later arguments belong to that command, dashes or
# not.
@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--policy",
    metavar="POLICY",
    type=POLICY,
    required=True,
    help=POLICY_HELP,
)
@click.option("--service", metavar="NAME", required=True, help="The service that sends the command.")
@value_option("--user", "USER", "The Redis user of the client.")
@click.option("--certificate", metavar="NAME", multiple=True, help="A name in the client's certificate.")
@format_option("text", "json")
@value_option("--file", "FILE", "Explain the commands in a file; - is standard input.")
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
    """Explain the verdict on a command, and which change would let it pass.

    --file explains a sequence of commands, one per line, on one connection. The line "@NAME" continues as
    another service, "@NAME user=USER" as a client that has logged in as USER, and "+6s" lets time pass.

    Exit code 0: everything is allowed; 1: there are violations; 2: wrong usage.
    """
    if bool(file) == bool(command):
        fail("give either a command or --file")
    try:
        compiled = load_policy(policy)
        caller = Caller(os.fsencode(user) or None, tuple(certificate))
        check_service(compiled, service)
        if file:
            _explain_file(compiled, service, caller, file, form)
        argv = [os.fsencode(part) for part in command]
        explanation = with_diffs(compiled, explain_command(compiled, service, argv, caller))
    except ValueError as exc:
        fail(f"--service: {exc}")
    if form == "json":
        say(json.dumps(explanation))
    else:
        _print_explanation(explanation)
    sys.exit(0 if explanation["verdict"] == "allow" else 1)


def _explain_file(policy: CompiledPolicy, service: str, caller: Caller, file: str, form: str) -> NoReturn:
    try:
        data = _read_input() if file == "-" else read_file(file)
        text = data.decode("utf-8-sig", "surrogateescape")
        explained = explain_sequence(
            policy, read_sequence(text, service, caller), now=int(time.time() * 1000)
        )
        explained = [with_diffs(policy, one) if "remedies" in one else one for one in explained]
    except (Unreadable, ValueError) as exc:
        fail(f"{file}: {exc}")
    if form == "json":
        print_json(explained)
    else:
        _print_sequence(explained)
    sys.exit(1 if any(one.get("violations") or one["late"] for one in _with_late(explained)) else 0)


def _read_input() -> bytes:
    """Returns the standard input. Raises Unreadable if it is closed, or too large, as for a file."""
    if sys.stdin is None:
        raise Unreadable("cannot be read: standard input is closed; name a file")
    data = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise Unreadable(f"cannot be read: it has more than {MAX_BYTES} bytes; give a shorter sequence")
    return data


def _with_late(explained: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return ({"late": []} | one for one in explained)


def _print_sequence(explained: Sequence[dict[str, Any]]) -> None:
    """Prints a line for each command, with its violations below it."""
    for one in explained:
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
            _print_change(remedy, "      ")


def _remedy_text(remedy: dict[str, Any]) -> str:
    return ": ".join(filter(None, (remedy["text"], remedy["command"])))


def _print_change(remedy: dict[str, Any], margin: str) -> None:
    """Prints the change of the policy that a remedy proposes: as a diff of its file, else as its lines."""
    if remedy["lines"] and not remedy["diff"]:
        say(f"{margin}merge these lines into the policy; lists are united with those that are there:")
    for line in (remedy["diff"] or remedy["lines"]).splitlines():
        say(f"{margin}{one_line(line)}")


def _print_explanation(explanation: dict[str, Any]) -> None:
    out = console()
    if explanation["accesses"]:
        names = ("position", "key", "access", "entry")
        rows = ([_cell(access[name]) for name in names] for access in explanation["accesses"])
        print_table(table_of(names, rows, title="accesses"))
    else:
        out.print("accesses: none")
    if explanation["verdict"] == "allow":
        out.print("[bold green]allow[/]")
    for violation in explanation["violations"]:
        severity = "" if violation["severity"] == "must" else " (should: never refused)"
        hint = f"; {violation['hint']}" if violation["hint"] else ""
        out.print("[bold red]violation[/]", end=" ")
        text = (
            f"{violation['rule']}{severity} at argument {violation['position']}: {violation['message']}{hint}"
        )
        out.print(text, markup=False, highlight=False, soft_wrap=True)
        if violation["more"]:
            out.print(f"  and {violation['more']} more like it")
    changes = [remedy for remedy in explanation["remedies"] if remedy["command"] or remedy["add"]]
    notes = [remedy for remedy in explanation["remedies"] if remedy not in changes]
    for title, shown in (("to let it pass", changes), ("notes", notes)):
        if shown:
            out.print(f"{title}:")
        for remedy in shown:
            out.print(
                f"  {remedy['rule']}: {_remedy_text(remedy)}", markup=False, highlight=False, soft_wrap=True
            )
            _print_change(remedy, "    ")


def _cell(value: object) -> Text:
    """Returns one line of text without control characters, whatever bytes a key holds."""
    text = "-" if value is None else str(value)
    return Text(text if text.isprintable() else printable(text.encode("utf-8", "surrogateescape"), 1024))


@click.command(name="test")
@click.argument("paths", metavar="[PATH...]", nargs=-1)
@format_option("text", "json", "junit", "github")
@value_option(
    "--min-coverage",
    "PERCENT",
    "Fail if the tests exercise less of a policy.",
    type=click.IntRange(0, 100),
    default=0,
)
@click.option("--coverage", is_flag=True, help="List the parts of the policy that no test exercises.")
def run_tests(paths: Sequence[str], form: str, min_coverage: int, coverage: bool) -> None:
    """Run policy tests: test files, or every *.test.yaml in folders (by default ".").

    Exit code 0: all tests passed; 1: a test failed, or coverage is too low; 2: a file is unusable.
    """
    runner = Runner()
    results, faults = [], []
    for file in test_files(paths or ["."]):
        try:
            results.append(runner.run(file))
        except FileError as exc:
            faults += exc.diagnostics
    failures = [one for file in results for result in file.results for one in result.failures]
    short = [path for path, one in runner.coverage.items() if one.percent < min_coverage]
    if form == "json":
        tests = formats.tests_as_object(results, runner.coverage)
        print_json(tests | {"errors": [formats.as_object(one) for one in faults]})
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
@click.argument("old", metavar="OLD", type=POLICY)
@click.argument("new", metavar="NEW", type=POLICY)
@format_option("text", "json")
@value_option(
    "--replay", "LOG", "Replay a command log (run --record) or a decision log; show new violations."
)
def diff(old: str, new: str, form: str, replay: str) -> None:
    """Compare two policies; show each change with an example key.

    Exit code 0: no change; 1: changes (with --replay: new violations); 2: a file is unusable.
    """
    try:
        before, after = load_policy(old), load_policy(new)
        if replay:
            _replay(before, after, replay, form)
        changes = Difference(before, after).changes
    except TooLarge as exc:
        fail(f"cannot compare {old} and {new}: {exc}")
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
        objects = [dataclasses.asdict(row) for row in rows]
        print_json({"commands": replay.commands, "undecided": replay.undecided, "rows": objects})
    else:
        for row in rows:
            times = counted(row.count, "time")
            say(f"{row.service} {row.what} {row.rule} with {row.command}, {times}: {row.example}")
        say(f"{counted(replay.commands, 'command')} replayed, {replay.undecided:,} undecided")
    if broken:
        sys.exit(USAGE)
    sys.exit(1 if any(row.what == "breaks" for row in rows) else 0)


@click.command()
@click.argument("kind", type=click.Choice(list(schemas.KINDS)))
def schema(kind: str) -> None:
    """Print the JSON Schema of a kind of file, for editors.

    A file names its schema in its first line:

    \b
        # yaml-language-server: $schema=URL
    """
    print_json(schemas.schema(kind))
