"""The commands for the policies that come with keyfence: `policies` lists and prints them, `demo` plays one.

Rule: the working directory does not matter.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .terminal.options import ADDRESS, admin_of, value_option
from .terminal.output import fail
from .terminal.policies import POLICY, shipped_policies

_CONNECT = "Play through this running keyfence instead of a private one."


@click.command()
@click.argument("name", required=False)
def policies(name: str | None) -> None:
    """List the shipped policies with their files, or print the policy NAME.

    `keyfence policies general > policy.yaml` makes a copy to start from.
    """
    known = shipped_policies()
    if name is None:
        for one, path in known.items():
            click.echo(f"{one:<30} {path}")
    elif name in known:
        click.echo(known[name].read_text(encoding="utf-8"), nl=False)
    else:
        fail(f"there is no shipped policy {name}; `keyfence policies` lists them")


@click.command()
@value_option("--admin --connect connect", ADDRESS, _CONNECT, admin_of)
@value_option("--policy", "POLICY", "Policy.  [default: the shipped cubesandbox]", type=POLICY)
@click.option("--once", is_flag=True, help="End after the minute, also on a terminal.")
def demo(connect: str, policy: str, once: bool) -> None:
    """Play a minute of CubeSandbox traffic in observe, then in enforce, and show the findings.

    On a terminal the private keyfence stays up afterwards, so that you can look at its page; Ctrl-C ends
    everything.
    """
    from .demo.play import play_privately, play_through
    from .demo.player import DemoError

    shipped = shipped_policies().get("cubesandbox")
    try:
        if connect and policy:
            fail("a running keyfence uses its own policy; give either --admin or --policy, not both", 1)
        if connect:
            play_through(connect.rstrip("/"))
        elif not policy and shipped is None:
            fail("this installation has no shipped policies; name a CubeSandbox policy with --policy FILE", 1)
        else:
            stays = sys.stdout.isatty() and not once
            play_privately(Path(policy or str(shipped)), copied=not policy, stays=stays)
    except DemoError as exc:
        fail(str(exc), 1)
