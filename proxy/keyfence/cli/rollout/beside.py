"""`keyfence ready --beside`: the standings of several environments side by side.

Rule: each environment is judged by what its own keyfence has seen. Evidence of one never counts for another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from rich.table import Table
from rich.text import Text

from keyfence.cli.terminal.asking import ask_admin, checked_answer
from keyfence.cli.terminal.output import table_of

_NO_SERVICE = "–"  # its policy lacks the service


class Environment(NamedTuple):
    """What one keyfence says. `waivers` is the number in its configuration."""

    environment: str  # its name, or the address of keyfence
    admin: str
    waivers: int
    standings: Sequence[Mapping[str, Any]]


def was_checked(readiness: str) -> bool:
    """Whether commands were checked against the rule."""
    return readiness not in ("no traffic", "disabled")


def environments(
    admins: Sequence[str], query: str, wanted: Callable[[Sequence[Any]], list[Any]]
) -> list[Environment]:
    """Asks each keyfence. Two of one environment have their addresses beside its name."""
    found = []
    for admin in admins:
        status = ask_admin(admin, "/status")
        answer = ask_admin(admin, f"/readiness?{query}")
        with checked_answer(admin):
            name, waivers = str(status["environment"]), int(status["waivers"])
            found.append(Environment(name, admin, waivers, wanted(answer["standings"])))
    number = Counter(one.environment for one in found)
    return [one if one.environment and number[one.environment] == 1 else _with_address(one) for one in found]


def _with_address(one: Environment) -> Environment:
    address = urlsplit(one.admin).netloc
    return one._replace(environment=f"{one.environment} ({address})" if one.environment else address)


def side_by_side(found: Sequence[Environment], styles: Mapping[str, str], *, everything: bool) -> Table:
    """A row for each service and rule that commands were checked against somewhere, or for all."""
    known = [{(one["service"], one["rule"]): one["readiness"] for one in each.standings} for each in found]
    rows = []
    for of in sorted(set().union(*known)):
        standings = [each.get(of) for each in known]
        if everything or any(one is not None and was_checked(one) for one in standings):
            rows.append([*of, *(Text(one or _NO_SERVICE, styles.get(one or "", "")) for one in standings)])
    return table_of(("service", "rule", *(one.environment for one in found)), rows)
