"""What all commands have in common: the form of their output, and which running keyfence they ask.

Rule: one option has one name, one spelling of its value and one default, whatever the command.
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
from keyfence.telemetry.report import rows_from_log, rows_from_snapshot
from keyfence.telemetry.tally import Row
from keyfence.upstream.url import without_password

from .output import fail, say

ADMIN_VARIABLE = "KEYFENCE_ADMIN"
_ALIASES = ("json", "markdown")  # --json is an older spelling of --format json
_Command = TypeVar("_Command", bound=Callable[..., Any])


class Commands(click.Group):
    """A group whose list of commands wraps long descriptions; click would cut them."""

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
    """The option --format, of which the first form is the default."""

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
            help="What is printed.",
        )(command)

    return add


def _note(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        context.meta["keyfence.form"] = parameter.opts[0].removeprefix("--")


def _form(context: click.Context, _parameter: click.Parameter, value: str) -> str:
    by_alias = context.meta.get("keyfence.form")
    return by_alias if by_alias and not is_given(context, "form") else value


def is_given(context: click.Context, name: str) -> bool:
    """Whether an option stands on the command line."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def admin_url(text: str) -> str:
    """The URL of an admin listener that is given as HOST:PORT or as a URL. Raises ValueError."""
    if "://" in text:
        return text
    return url_of(parse_address(text))


def _admin(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    try:
        return admin_url(value) if value else ""
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from None


def admin_option(command: _Command) -> _Command:
    """Which running keyfence is asked."""
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
    """The same where a running keyfence is asked only if one is named."""
    return click.option(
        "--admin",
        "--connect",
        "connect",
        metavar="HOST:PORT|URL",
        default="",
        callback=_admin,
        help="Play through this running keyfence.",
    )(command)


def change_options(command: _Command) -> _Command:
    """Which running keyfence is changed, and by which token."""
    token_file = click.option(
        "--token-file",
        metavar="FILE",
        default="",
        envvar=TOKEN_VARIABLE,
        show_envvar=True,
        help="The admin token's file.",
    )
    return admin_option(token_file(command))


def is_url(source: str) -> bool:
    """Whether a source of findings is a running keyfence, and no log."""
    return source.startswith(("http://", "https://"))


def source_of(context: click.Context, source: str, admin: str) -> str:
    """Where findings are read: the URL of a running keyfence, or a decision log's path."""
    if source and is_given(context, "admin"):
        fail("give either --admin or an argument")
    return (source_url(source) or source) if source else admin


def source_url(text: str) -> str:
    """The admin URL that an argument stands for which may also be a file; "" for a file."""
    if is_url(text):
        return text
    host, _, port = text.rpartition(":")
    if not host or "/" in host or not port.isascii() or not port.isdigit():
        return ""
    with contextlib.suppress(ValueError):
        return admin_url(text)
    return ""


def asked(
    base: str,
    path: str,
    body: dict[str, Any] | None = None,
    timeout: float = TIMEOUT,
    token_file: str = "",
    method: str = "",
    *,
    form: str = "text",
) -> Any:
    """The answer of a running keyfence. Where there is none, the command ends with exit code 1; faults of
    files are printed, as JSON where that is the `form`."""
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
def answer_of(base: str) -> Iterator[None]:
    """Whoever answers may be something else: what can't be shown then is one line, and exit code 1."""
    try:
        yield
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as exc:
        why = f"{exc} is missing" if isinstance(exc, KeyError) else " ".join(str(exc).split())
        fail(f"{without_password(base)}: this is no keyfence's answer: {why}", 1)


@dataclasses.dataclass
class Findings:
    """The rows of a report, and what is missing from them."""

    source: str
    rows: list[Row]
    dropped: int = 0  # violations that a log left out
    faults: int = 0  # lines of a log that can't be read

    def say_what_is_missing(self) -> None:
        if self.dropped:
            say(f"keyfence: {self.source}: {self.dropped} more violations passed the log's limits", err=True)


def read_rows(source: str) -> Findings:
    """What a running keyfence or a decision log has found. A line that can't be read is told and skipped."""
    if is_url(source):
        with answer_of(source):
            return Findings(source, rows_from_snapshot(asked(source, "/report")))
    found = Findings(source, [])

    def complain(text: str) -> None:
        found.faults += 1
        say(f"keyfence: {source}: {text}", err=True)

    try:
        with click.open_file(source, "rb") as lines:
            found.rows, found.dropped = rows_from_log(lines, complain)
    except OSError as exc:
        fail(f"{source}: {exc.strerror}")
    return found


def rows_of(source: str) -> list[Row]:
    """The rows alone; what is missing from them is told at once."""
    found = read_rows(source)
    found.say_what_is_missing()
    return found.rows


def print_json(value: Any) -> None:
    """An answer as it is. Bytes that no encoding takes are escaped."""
    say(json.dumps(value, indent=1))
