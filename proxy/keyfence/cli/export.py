"""`keyfence export`: what others need of a policy, printed on standard output.

Rule: an export needs only the policy. It contacts no Redis, and the same policy gives the same text.
"""

from __future__ import annotations

import click

from keyfence.authoring.export.acl import acl_of
from keyfence.authoring.export.acl_commands import SERVERS
from keyfence.authoring.export.builders import builders_of
from keyfence.authoring.export.docs import document
from keyfence.authoring.export.languages import LANGUAGES
from keyfence.authoring.export.render import render
from keyfence.cli.terminal.policies import POLICY
from keyfence.policy.loading.load import load_policy

from .terminal.options import Commands, value_option
from .terminal.output import fail, say

_service_option = value_option("--service", "NAME", "Only for this service.  [default: all]")


@click.group(cls=Commands)
def export() -> None:
    """Print what others need of a policy: ACL rules, tables, code.

    Each command reads a policy file, or a folder of them, and prints on
    standard output. docs/export.md has examples.
    """


@export.command("acl")
@click.argument("policy", metavar="POLICY", type=POLICY)
@_service_option
@click.option(
    "--server",
    type=click.Choice(SERVERS),
    default=SERVERS[0],
    show_default=True,
    help="The server that will have the users; later ones take them too.",
)
def export_acl(policy: str, service: str, server: str) -> None:
    """Print Redis ACL rules: one ACL SETUSER line for each service.

    They are as close to the policy as ACL comes (Redis 7.0 and later).
    Comments above each line list what the rules admit although the policy
    refuses it, and what they refuse although the policy admits it.

    \b
        keyfence export acl policy.yaml | grep -v '^#' | redis-cli
    """
    compiled = load_policy(policy)
    try:
        say(acl_of(compiled, service, server).rstrip("\n"))
    except ValueError as exc:
        fail(f"--service: {exc}")


@export.command("docs")
@click.argument("policy", metavar="POLICY", type=POLICY)
def export_docs(policy: str) -> None:
    """Print the convention as Markdown tables, with an anchor per entry.

    Put the page where people find it, and its address into the policy:

    \b
        owner: {contact: "#redis", docs: https://wiki.example/redis-keys}

    Then refusals, findings and the page link to the entry's row.
    """
    say(document(load_policy(policy)).rstrip("\n"))


@export.command("builders")
@click.argument("policy", metavar="POLICY", type=POLICY)
@click.option(
    "--lang",
    "language",
    type=click.Choice(list(LANGUAGES)),
    required=True,
    help="The language of the module.",
)
@_service_option
@value_option("--name", "NAME", "Name of the Go package or Java class, as com.acme.RedisKeys.")
def export_builders(policy: str, language: str, service: str, name: str) -> None:
    """Print a module with a function for each kind of key.

    The functions check each value and return the key. Times to live and
    names of fields are constants. A key that a builder makes is always
    its entry's, and an invalid value is an error.

    \b
        keyfence export builders policy.yaml --lang go --service web
    """
    compiled = load_policy(policy)
    try:
        builders = builders_of(compiled, service)
    except ValueError as exc:
        fail(f"--service: {exc}")
    for entry, why in builders.left_out:
        say(f"keyfence: {entry} has no builder: {why}", err=True)
    try:
        say(render(builders, language, name).rstrip("\n"))
    except ValueError as exc:
        fail(f"--name: {exc}")
