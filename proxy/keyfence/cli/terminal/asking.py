"""How commands ask a running keyfence, or read a decision log in its place.

Rule: no answer, or an answer that is not keyfence's, ends the command with one line and exit code 1.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from keyfence.admin.client import TIMEOUT, AskError, ask
from keyfence.policy.units import counted
from keyfence.telemetry.reports.by_command import rows_from_snapshot, tally_of_log
from keyfence.telemetry.tally import Row, Tally
from keyfence.upstream.address import without_password

from .options import admin_url, is_given, print_json
from .output import fail, say


def is_url(source: str) -> bool:
    """Returns whether a source of findings is a running keyfence rather than a log."""
    return source.startswith(("http://", "https://"))


def source_of(context: click.Context, source: str, admin: str) -> str:
    """Returns the source of findings: the URL of a running keyfence, or a decision log's path."""
    if source and is_given(context, "admin"):
        fail("give either --admin or an argument, not both")
    return (source_url(source) or source) if source else admin


def source_url(text: str) -> str:
    """Returns the admin URL that an argument means, or "" if the argument means a file."""
    if is_url(text):
        return text
    host, _, port = text.rpartition(":")
    if not host or "/" in host or not port.isascii() or not port.isdigit():
        return ""
    with contextlib.suppress(ValueError):
        return admin_url(text)
    return ""


def ask_admin(
    base: str,
    path: str,
    body: dict[str, Any] | None = None,
    timeout: float = TIMEOUT,
    token_file: str = "",
    method: str = "",
    *,
    form: str = "text",
) -> Any:
    """Returns the answer of a running keyfence.

    Without an answer the command ends with exit code 1. Faults of files in an error answer are printed, as
    JSON if `form` is "json".
    """
    try:
        return ask(base, path, body, timeout, token_file, method)
    except AskError as exc:
        if form == "json" and exc.details:
            print_json({"error": str(exc), "diagnostics": list(exc.details)})
            sys.exit(1)
        for line in exc.details:
            say(line, err=True)
        fail(str(exc), 1)


@contextlib.contextmanager
def checked_answer(base: str) -> Iterator[None]:
    """Ends the command with one line and exit code 1 if the answer does not come from keyfence.

    Another server may listen on the admin address. Reading its answer then fails with one of these
    exceptions.
    """
    try:
        yield
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as exc:
        why = f"{exc} is missing" if isinstance(exc, KeyError) else " ".join(str(exc).split())
        fail(f"{without_password(base)}: this answer is not from keyfence: {why}", 1)


def print_answer(base: str, answer: Any, form: str, text: Callable[[Any], str]) -> None:
    """Prints an answer of a running keyfence: as JSON, or as the text that is made of it."""
    with checked_answer(base):
        line = text(answer)
    if form == "json":
        print_json(answer)
    else:
        say(line)


@dataclasses.dataclass
class Findings:
    """The rows of a report, with counts of what is missing from them."""

    source: str
    rows: list[Row]
    dropped: int = 0  # violations that the log's limits left out
    faults: int = 0  # unreadable lines of the log

    def report_missing(self) -> None:
        if self.dropped:
            missing = counted(self.dropped, "more violation")
            say(f"keyfence: {self.source}: the log's limits left out {missing}", err=True)


def read_rows(source: str) -> Findings:
    """Returns the findings of a running keyfence or a decision log.

    Reports unreadable lines and skips them.
    """
    if is_url(source):
        with checked_answer(source):
            return Findings(source, rows_from_snapshot(ask_admin(source, "/report")))
    found, tally = read_log(source)
    found.rows = tally.snapshot()
    return found


def read_log(source: str) -> tuple[Findings, Tally]:
    """Returns what is missing from a decision log, and the tally of its lines.

    Reports unreadable lines and skips them.
    """
    found = Findings(source, [])

    def complain(text: str) -> None:
        found.faults += 1
        say(f"keyfence: {source}: {text}", err=True)

    try:
        with click.open_file(source, "rb") as lines:
            tally, found.dropped = tally_of_log(lines, complain)
    except OSError as exc:
        fail(f"{source}: {exc.strerror}")
    return found, tally


def rows_of(source: str) -> list[Row]:
    """Returns the rows, and prints at once how many violations are missing from them."""
    found = read_rows(source)
    found.report_missing()
    return found.rows


def print_reload(base: str, answer: Any, verb: str, form: str) -> None:
    """Prints the answer to a reload, which `verb` names, and on standard error what needs a restart."""

    def text(answer: Any) -> str:
        name, changed = answer["policy"], ", ".join(answer["changed"]) or "nothing"
        return f"{verb}: policy {name}, revision {answer['revision']}; changed: {changed}" if name else verb

    with checked_answer(base):
        waiting, refused = list(answer["needs_restart"]), list(answer.get("refused", ()))
    print_answer(base, answer, form, text)
    for setting in waiting:
        say(f"keyfence: {setting} has changed in the configuration; restart keyfence to apply it", err=True)
    if refused:
        for fault in refused:
            say(fault, err=True)
        fail("what the policy's server has was refused; the policy stays as it was", 1)
