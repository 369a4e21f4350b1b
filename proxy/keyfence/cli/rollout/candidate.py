"""`keyfence candidate`: compares a candidate policy with the one in force, on a running keyfence's traffic.

Rule: only `promote` changes what happens to commands, and it does what a reload does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click

from keyfence.admin.client import RELOAD_TIMEOUT
from keyfence.cli.terminal.asking import ask_admin, checked_answer, print_answer, print_reload
from keyfence.cli.terminal.options import Commands, admin_option, change_options, format_option, print_json
from keyfence.cli.terminal.output import fail, say, wrapped
from keyfence.cli.terminal.policies import PolicyPath
from keyfence.policy.show import one_line
from keyfence.policy.units import clock_text, counted
from keyfence.telemetry.reports.by_command import render, rows_from_snapshot

_MEANINGS = {
    "new": "only the candidate finds these",
    "stricter": "both policies find these, and only the candidate refuses for them",
    "milder": "both policies find these, and only the policy in force refuses for them",
    "gone": "only the policy in force finds these",
}


@click.group(cls=Commands)
def candidate() -> None:
    """Compare a candidate policy with the one in force, on live traffic."""


@candidate.command()
@click.argument("file", metavar="[FILE]", required=False, type=PolicyPath(elsewhere=True))
@click.option(
    "--for",
    "purpose",
    type=click.Choice(["cluster"]),
    help="Rehearse a cluster with the policy in force; see keyfence ready --for cluster.",
)
@change_options
@format_option("text", "json")
def load(file: str | None, purpose: str | None, admin: str, token_file: str, form: str) -> None:
    """Have a running keyfence evaluate each command by the policy in FILE too.

    FILE may be a folder. keyfence reads it, on the machine where it runs. The candidate changes nothing for
    clients. With --for cluster, the candidate is the policy in force with `cluster: true`. Exit code 1: it
    has faults, and nothing changes.
    """
    if (file is None) == (purpose is None):
        fail("name the FILE of a candidate, or --for cluster" + (", not both" if purpose else ""))
    body = {"for": purpose} if file is None else {"file": os.path.abspath(file)}
    answer = ask_admin(admin, "/-/candidate", body, RELOAD_TIMEOUT, token_file, form=form)
    loaded = "loaded: {file}: policy {policy}, revision {revision}; it is compared with the policy in force"
    if purpose:
        loaded = "a cluster is rehearsed with the policy {policy}; see keyfence ready --for cluster"
    print_answer(admin, answer, form, lambda one: loaded.format(**one))


@candidate.command()
@admin_option
@format_option("text", "json")
def show(admin: str, form: str) -> None:
    """Show what the candidate would change: violations that would be new, refused, or gone.

    Counts begin when the candidate is loaded, and again when another policy is put in force.
    """
    answer = ask_admin(admin, "/candidate")
    with checked_answer(admin):
        lines = _lines(answer)
        tables = {
            change: rows_from_snapshot(row for row in answer["rows"] if row["change"] == change)
            for change in (*_MEANINGS, "same")
        }
    if form == "json":
        print_json(answer)
        return
    for line in lines:
        say(line)
    if answer["candidate"] is None:
        return
    for change, meaning in _MEANINGS.items():
        if tables[change]:
            say(f"\n{change}: {meaning}")
            render(tables[change])
    same = sum(row["count"] for row in tables["same"])
    changed = any(tables[change] for change in _MEANINGS)
    say(f"\nsame: {_violations(same)}" if changed else f"\nnothing would change; same: {_violations(same)}")


def _violations(number: int) -> str:
    return counted(number, "violation")


def _lines(answer: Mapping[str, Any]) -> list[str]:
    """Returns what is compared, and how many commands were."""
    one = answer["candidate"]
    if one is None:
        return ["no candidate is loaded; load one with keyfence candidate load FILE"]
    commands: Mapping[str, int] = answer["commands"]
    seen = ", ".join(f"{service} {number}" for service, number in sorted(commands.items()) if number)
    silent = ", ".join(sorted(service for service, number in commands.items() if not number))
    policy = f"{one['policy']}, revision {one['revision']}, since {clock_text(one['since'])}"
    lines = [
        ("candidate", one["file"]),
        ("", policy),
        ("in force", f"revision {answer['in_force']}"),
        ("commands", f"{sum(commands.values())} evaluated by both{f' ({seen})' if seen else ''}"),
        *([("no traffic", silent)] if silent else []),
    ]
    return [wrapped(one_line(text), f"{name:12}") for name, text in lines]


@candidate.command()
@change_options
@format_option("text", "json")
def drop(admin: str, token_file: str, form: str) -> None:
    """End the comparison and forget its counts."""
    answer = ask_admin(admin, "/-/candidate", token_file=token_file, method="DELETE")
    print_answer(admin, answer, form, lambda one: _dropped(one["dropped"]))


def _dropped(one: Mapping[str, Any] | None) -> str:
    return "no candidate was loaded" if one is None else f"dropped: {one['file']}"


@candidate.command()
@change_options
@format_option("text", "json")
def promote(admin: str, token_file: str, form: str) -> None:
    """Put the candidate in force by a reload, and end the comparison.

    Write the candidate to the policy's own file first: keyfence promotes it only if that file has the
    candidate's revision, so that a restart keeps it. Exit code 1: nothing has changed.
    """
    answer = ask_admin(admin, "/-/candidate/promote", {}, RELOAD_TIMEOUT, token_file, form=form)
    print_reload(admin, answer, "promoted", form)
