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

from .output import say

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


def print_json(value: Any) -> None:
    """Prints a value as indented JSON."""
    say(json.dumps(value, indent=1))
