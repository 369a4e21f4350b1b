"""`keyfence acl`: the Redis ACL rules that keyfence's own user needs."""

from __future__ import annotations

import click

from keyfence.upstream.own_commands import OWN_COMMANDS, acl_rules

from .terminal.options import format_option, print_json, value_option
from .terminal.output import say


@click.group()
def acl() -> None:
    """Print Redis ACL rules for keyfence's own user."""


@acl.command("self")
@value_option("--user", "NAME", "The user's name.  [default: keyfence]", default="keyfence")
@click.option("--rules", is_flag=True, help="Print only the rules, ready for ACL SETUSER NAME.")
@format_option("text", "json")
def own(user: str, rules: bool, form: str) -> None:
    """Print the ACL permissions that keyfence's own Redis user needs."""
    if form == "json":
        needed = [{"permission": one.permission, "purpose": one.purpose} for one in OWN_COMMANDS]
        print_json({"user": user, "rules": acl_rules(), "commands": needed})
        return
    if rules:
        say(acl_rules())
        return
    say(f"user {user} on >PASSWORD {acl_rules()}\n")
    for one in OWN_COMMANDS:
        say(f"  {one.permission:10}to {one.purpose}")
    say(
        "\nReplace PASSWORD with your password. If clients do not log in themselves, their commands\n"
        "run as this user too; then add the permissions that they need."
    )
