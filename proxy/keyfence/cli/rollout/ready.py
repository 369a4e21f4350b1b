"""`keyfence ready` and `keyfence what-if`: which rules can be enforced, and what enforcing would refuse.

Rule: these commands change nothing. Exit code 0 means ready, 1 not ready, 2 wrong usage.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn
from urllib.parse import urlencode

import click
from rich.table import Table
from rich.text import Text

from keyfence.cli.terminal.asking import ask_admin, checked_answer
from keyfence.cli.terminal.options import (
    ADDRESS,
    admin_option,
    admin_url,
    format_option,
    is_given,
    print_json,
    value_option,
)
from keyfence.cli.terminal.output import fail, print_table, say, table_of
from keyfence.findings.finding import Unjudged
from keyfence.findings.spans import span_text
from keyfence.policy.enforcement.modes import parse_mode
from keyfence.policy.rules import RULES
from keyfence.policy.services import UNKNOWN
from keyfence.policy.show import one_line
from keyfence.policy.units import clock_text, counted, plural

from .beside import environments, side_by_side, was_checked
from .cluster import ready_for_cluster
from .findings import place_of
from .times import seconds_of, since_time

_STANDING = ("service", "rule", "standing", "checked", "what is left")
_STYLES = {"not ready": "bold red", "ready": "bold green", "enforced": "green", "gap": "yellow"}


def _admins_of(texts: Any) -> tuple[str, ...]:
    """The URLs of admin listeners. Raises ValueError."""
    return tuple(map(admin_url, texts))


@click.command()
@value_option("--quiet", "DURATION", "Time without a violation.", seconds_of, default="7d", show_default=True)
@value_option("--service", "NAME", "Only this service.")
@value_option("--rule", "RULE", "Only this rule.")
@click.option("--all", "everything", is_flag=True, help="Show rules without traffic, too.")
@value_option(
    "--unused", "DURATION", "List the rights that nobody used for this time.", seconds_of, default=None
)
@click.option(
    "--for",
    "purpose",
    type=click.Choice(["cluster"]),
    help="Show which services would break on a cluster; rehearse it first, see keyfence candidate load.",
)
@click.option("--write-modes", is_flag=True, help="Print the modes: lines that enforce what is ready.")
@value_option(
    "--beside",
    ADDRESS,
    "Show the keyfence of another environment beside it. May be given several times.",
    _admins_of,
    default=(),
    multiple=True,
)
@admin_option
@format_option("text", "json")
def ready(admin: str, form: str, service: str, unused: float | None, **asked: Any) -> None:
    """Show which rules can be enforced for which services, and what is left for the others.

    Exit code 0: every rule against which commands were checked is ready or enforced; 1: one is not, or there
    were no commands. With --for cluster, the same of all services with traffic. With --beside, the same of
    the keyfence at --admin.
    """
    rule, everything = asked["rule"], asked["everything"]
    if asked["purpose"]:
        _only_of_services(click.get_current_context())
        ready_for_cluster(admin, service, form)
    if rule and rule not in RULES:
        fail(f"{rule!r} is not a rule; keyfence modes lists them")
    query = urlencode({"quiet": asked["quiet"]})
    if asked["beside"]:
        for option, is_asked in (("--unused", unused is not None), ("--write-modes", asked["write_modes"])):
            if is_asked:
                fail(f"{option} is about one keyfence; omit it with --beside")
        _beside([admin, *asked["beside"]], query, service, rule, form, everything=everything)
    if unused is not None:
        _unused(unused, service, admin, form)
        return
    answer = ask_admin(admin, f"/readiness?{query}")
    with checked_answer(admin):
        rows, lines = _of(answer["standings"], service, rule), _of(answer["modes"], service, rule)
        counted = _counted(rows)
        table = table_of(
            _STANDING,
            map(_cells, sorted(rows if everything else counted, key=_service_of)),
            right=("checked",),
        )
    if service and not rows:
        fail(f"{service!r} is not a service of the policy")
    if form == "json":
        print_json({**answer, "standings": rows, "modes": lines})
    elif asked["write_modes"]:
        _print_modes(lines, service)
    else:
        _print_standings(table, rows, counted, everything)
    sys.exit(0 if _all_ready(counted) else 1)


def _counted(rows: Sequence[Any]) -> list[Any]:
    """The rows that commands were checked for."""
    return [one for one in rows if was_checked(one["readiness"])]


def _all_ready(counted: Sequence[Mapping[str, Any]]) -> bool:
    return bool(counted) and all(one["readiness"] in ("ready", "enforced") for one in counted)


def _beside(
    admins: Sequence[str], query: str, service: str, rule: str, form: str, *, everything: bool
) -> NoReturn:
    """Prints what several keyfences say, and ends with the exit code of the first."""
    found = environments(admins, query, lambda rows: _of(rows, service, rule))
    if service and not any(one.standings for one in found):
        fail(f"{service!r} is not a service of these policies")
    if form == "json":
        print_json({"environments": [one._asdict() for one in found]})
    else:
        table = side_by_side(found, _STYLES, everything=everything)
        if table.row_count:
            print_table(table)
        else:
            say("No commands were evaluated, so nothing is known.")
        waivers = ", ".join(f"{one.environment} {one.waivers}" for one in found)
        say(f"waivers: {waivers}")
    sys.exit(0 if _all_ready(_counted(found[0].standings)) else 1)


def _only_of_services(context: click.Context) -> None:
    """Ends the command if an option is given that is about rules."""
    for name, option in (("quiet", "--quiet"), ("rule", "--rule"), ("everything", "--all"),
                         ("unused", "--unused"), ("write_modes", "--write-modes"),
                         ("beside", "--beside")):  # fmt: skip
        if is_given(context, name):
            fail(f"{option} is about rules; omit it with --for cluster")


def _of(rows: Sequence[Any], service: str, rule: str) -> list[Any]:
    """Returns the rows that are about this service and this rule; "" is every one."""
    return [one for one in rows if service in ("", one.get("service", service)) and rule in ("", one["rule"])]


def _service_of(row: Mapping[str, Any]) -> str:
    return str(row["service"])


def _cells(row: Mapping[str, Any]) -> list[Text | str]:
    standing = Text(row["readiness"], _STYLES.get(row["readiness"], ""))
    return [row["service"], row["rule"], standing, str(row["asked"]), row["why"]]


def _print_standings(
    table: Table, rows: Sequence[Mapping[str, Any]], counted: Sequence[Mapping[str, Any]], everything: bool
) -> None:
    if table.row_count:
        print_table(table)
    silent = len([one for one in rows if one["readiness"] == "no traffic"])
    if not counted:
        say("No commands were evaluated, so nothing is known.")
    elif silent and not everything:
        say(f"({silent} more without traffic: no command was checked against the rule; --all shows them)")


def _print_modes(lines: Sequence[Mapping[str, str]], service: str) -> None:
    named = [one for one in lines if service or one.get("service") != UNKNOWN]
    if named:
        say("# Put these lines before the others: the first line that matches decides.\nmodes:")
    else:
        say("# Nothing is ready that is not enforced already.")
    for one in named:
        line = {"service": service, **one} if service else one
        fields = ", ".join(f"{name}: {line[name]}" for name in ("rule", "service", "mode") if name in line)
        say(f"  - {{{fields}}}")
    if left_out := len(lines) - len(named):
        rules = f"{counted(left_out, 'rule')} {plural(left_out, 'is', 'are')} ready"
        say(f"# Not listed: {rules} for {UNKNOWN}, the clients that nothing identifies.")
        say(f"# Identify them first; --service {UNKNOWN} prints the lines.")


def _unused(seconds: float, service: str, admin: str, form: str) -> None:
    answer = ask_admin(admin, f"/unused?{urlencode({'for': seconds})}")
    with checked_answer(admin):
        looked = float(answer["looked"])
        rows = [one for one in answer["unused"] if service in ("", one["service"])]
        cells = ((one["service"], one["kind"], one["name"], _last_use(one["last"])) for one in rows)
        table = table_of(("service", "right", "on", "last used"), cells)
    if form == "json":
        print_json({**answer, "unused": rows})
        return
    if rows:
        print_table(table)
    say(f"{counted(len(rows), 'right')} not used in {span_text(seconds)}")
    if looked < seconds:
        say(f"keyfence was looking for only {span_text(looked)} of this time, so some may be in use")


def _last_use(at: float | None) -> str:
    return "never seen" if at is None else clock_text(at)


@click.command("what-if")
@click.option(
    "--mode",
    "modes",
    multiple=True,
    required=True,
    metavar="RULE=enforce",
    help="The mode to try; `*=enforce` is every rule. May be given several times.",
)
@value_option("--service", "NAME", "Only for this service.")
@value_option("--since", "TIME", "What was seen since.", since_time, default="7d", show_default=True)
@admin_option
@format_option("text", "json")
def what_if(modes: tuple[str, ...], service: str, since: float, admin: str, form: str) -> None:
    """Show which commands would be refused if a rule were enforced, from what was seen.

    Exit code 0: none; 1: some, or the policy has changed since some were seen, so nobody can tell.
    """
    for text in modes:
        try:
            parse_mode(text, service)
        except ValueError as exc:
            fail(str(exc))
    query = [("since", str(since)), *([("service", service)] if service else [])]
    answer = ask_admin(admin, f"/what-if?{urlencode([*query, *(('mode', text) for text in modes)])}")
    with checked_answer(admin):
        rows, unjudged = list(answer["breaks"]), list(answer["unjudged"])
        unknown = [Unjudged(**one).sentence for one in unjudged]
        names = ("times", "service", "command", "entry or key shape", "rule", "library", "owner")
        table = table_of(names, map(_broken, rows), right=("times",))
    if form == "json":
        print_json(answer)
    elif rows:
        print_table(table)
        number = sum(one["times"] for one in rows)
        say(f"{counted(number, 'command')} would have been refused")
    elif unknown:
        say("Nothing that was seen under the policy in force would have been refused.")
    else:
        say("Nothing that was seen would have been refused.")
    if form != "json":
        for line in unknown:
            say(one_line(line))
    sys.exit(1 if rows or unjudged else 0)


def _broken(one: Mapping[str, Any]) -> list[str]:
    who = (", ".join(one["libraries"]) or "–", one["owner"] or "–")
    return [str(one["times"]), one["service"], one["command"], place_of(one), one["rule"], *who]
