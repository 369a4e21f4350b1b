"""Options that several commands share, and how these commands read a running keyfence or a decision log.

Rule: an option has the same name, the same values and the same default in every command.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from keyfence.admin.client import TIMEOUT, TOKEN_VARIABLE, AskError, ask, url_of
from keyfence.config.models import DEFAULT_ADMIN
from keyfence.net.addresses import parse_address
from keyfence.telemetry.reports.by_command import rows_from_snapshot, tally_of_log
from keyfence.telemetry.tally import Row, Tally
from keyfence.upstream.url import without_password

from .output import fail, say

ADMIN_VARIABLE = "KEYFENCE_ADMIN"
_ALIASES = ("json", "markdown")  # --json is an older spelling of --format json
_Command = TypeVar("_Command", bound=Callable[..., Any])


class Commands(click.Group):
    """A group that wraps long descriptions in its list of commands. Click would cut them off."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(limit=1000))
            for name, command in commands
            if command is not None and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def format_option(*forms: str) -> Callable[[_Command], _Command]:
    """Adds the option --format. The first form is the default."""

    def add(command: _Command) -> _Command:
        for alias in _ALIASES:
            if alias in forms:
                command = click.option(
                    f"--{alias}", is_flag=True, hidden=True, is_eager=True, expose_value=False, callback=_note
                )(command)
        return click.option(
            "--format",
            "form",
            type=click.Choice(forms),
            default=forms[0],
            show_default=True,
            callback=_form,
            help="Output format.",
        )(command)

    return add


def _note(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        context.meta["keyfence.form"] = parameter.opts[0].removeprefix("--")


def _form(context: click.Context, _parameter: click.Parameter, value: str) -> str:
    by_alias = context.meta.get("keyfence.form")
    return by_alias if by_alias and not is_given(context, "form") else value


def checked(parse: Callable[[str], object]) -> Callable[[click.Context, click.Parameter, str], str]:
    """Returns a click callback that checks an option's text with one of the configuration's parsers."""

    def callback(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
        if value:
            try:
                parse(value)
            except ValueError as exc:
                raise click.BadParameter(str(exc)) from None
        return value

    return callback


def is_given(context: click.Context, name: str) -> bool:
    """Returns whether the user gave an option on the command line."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def admin_url(text: str) -> str:
    """Returns the URL of an admin listener given as HOST:PORT or as a URL. Raises ValueError."""
    if "://" in text:
        return text
    return url_of(parse_address(text))


def _admin(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    try:
        return admin_url(value) if value else ""
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from None


def admin_option(command: _Command) -> _Command:
    """Adds --admin: the running keyfence that the command reads."""
    return click.option(
        "--admin",
        metavar="HOST:PORT|URL",
        default=DEFAULT_ADMIN,
        show_default=True,
        envvar=ADMIN_VARIABLE,
        show_envvar=True,
        callback=_admin,
        help="The admin listener of a running keyfence.",
    )(command)


def connect_option(command: _Command) -> _Command:
    """Adds --admin without a default: the command uses a running keyfence only if the user names one."""
    return click.option(
        "--admin",
        "--connect",
        "connect",
        metavar="HOST:PORT|URL",
        default="",
        callback=_admin,
        help="Play through this running keyfence instead of a private one.",
    )(command)


def change_options(command: _Command) -> _Command:
    """Adds --admin and --token-file: the running keyfence to change, and the token that allows it."""
    token_file = click.option(
        "--token-file",
        metavar="FILE",
        default="",
        envvar=TOKEN_VARIABLE,
        show_envvar=True,
        help="File that holds the admin token.",
    )
    return admin_option(token_file(command))


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


@dataclasses.dataclass
class Findings:
    """The rows of a report, with counts of what is missing from them."""

    source: str
    rows: list[Row]
    dropped: int = 0  # violations that the log's limits left out
    faults: int = 0  # unreadable lines of the log

    def report_missing(self) -> None:
        if self.dropped:
            say(
                f"keyfence: {self.source}: the log's limits left out {self.dropped} more violations", err=True
            )


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


def print_json(value: Any) -> None:
    """Prints a value as indented JSON."""
    say(json.dumps(value, indent=1))
