"""Options that several commands share.

Rule: an option has the same name, the same values and the same default in every command.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from keyfence.admin.token import TOKEN_VARIABLE
from keyfence.config.defaults import DEFAULT_ADMIN
from keyfence.net.addresses import parse_address, url_of
from keyfence.policy.diagnostics import FileError

from .output import fail_with, say

ADMIN_VARIABLE = "KEYFENCE_ADMIN"
ADDRESS = "HOST:PORT|URL"  # of an admin listener
_ALIASES = ("json", "markdown")  # --json is an older spelling of --format json
_Command = TypeVar("_Command", bound=Callable[..., Any])
_T = TypeVar("_T")


class Commands(click.Group):
    """A group that wraps long descriptions in its list of commands, where click would cut them off. A faulty
    file ends each of its commands with the faults and exit code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FileError as exc:
            fail_with(exc)

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


def parsed(parse: Callable[[str], _T]) -> Callable[[click.Context, click.Parameter, str | None], _T | None]:
    """Returns a click callback that makes a value of an option's text; None if there is no text."""

    def callback(_context: click.Context, _parameter: click.Parameter, text: str | None) -> _T | None:
        try:
            return None if text is None else parse(text)
        except ValueError as exc:
            raise click.BadParameter(str(exc)) from None

    return callback


def checked(parse: Callable[[str], object]) -> Callable[[str], str]:
    """Returns a function that lets a text through, unless the text is one that `parse` refuses."""

    def check(text: str) -> str:
        if text:
            parse(text)
        return text

    return check


def value_option(
    names: str, metavar: str, about: str, parse: Callable[[str], object] | None = None, **others: Any
) -> Callable[[_Command], _Command]:
    """Adds an option with a value, which is "" by default. `names` are separated by spaces. `parse` makes the
    command's value of the text, and raises ValueError if the text is wrong."""
    callback = None if parse is None else parsed(parse)
    return click.option(
        *names.split(), metavar=metavar, callback=callback, help=about, **{"default": "", **others}
    )


def is_given(context: click.Context, name: str) -> bool:
    """Returns whether the user gave an option on the command line."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def admin_url(text: str) -> str:
    """Returns the URL of an admin listener given as HOST:PORT or as a URL. Raises ValueError."""
    if "://" in text:
        return text
    return url_of(parse_address(text))


def admin_of(text: str) -> str:
    """Returns the same; "" for no text. Raises ValueError."""
    return admin_url(text) if text else ""


def admin_option(command: _Command) -> _Command:
    """Adds --admin: the running keyfence that the command reads."""
    about = "The admin listener of a running keyfence."
    shown = {"show_default": True, "envvar": ADMIN_VARIABLE, "show_envvar": True}
    return value_option("--admin", ADDRESS, about, admin_of, default=DEFAULT_ADMIN, **shown)(command)


def change_options(command: _Command) -> _Command:
    """Adds --admin and --token-file: the running keyfence to change, and the token that allows it."""
    about = "File that holds the admin token."
    token_file = value_option("--token-file", "FILE", about, envvar=TOKEN_VARIABLE, show_envvar=True)
    return admin_option(token_file(command))


def print_json(value: Any) -> None:
    """Prints a value as indented JSON."""
    say(json.dumps(value, indent=1))
