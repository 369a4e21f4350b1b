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

    name: str  # of the environment, or the address of keyfence
    admin: str
    waivers: int
    standings: Sequence[Mapping[str, Any]]

    def readiness(self, of: tuple[str, str]) -> str:
        """That of a service and rule; "" if the policy lacks the service."""
        return next((one["readiness"] for one in self.standings if (one["service"], one["rule"]) == of), "")

    def described(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {**self._asdict(), "environment": self.name, "standings": list(self.standings)}


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
    number = Counter(one.name for one in found)
    return [one if one.name and number[one.name] == 1 else _with_address(one) for one in found]


def _with_address(one: Environment) -> Environment:
    address = urlsplit(one.admin).netloc
    return one._replace(name=f"{one.name} ({address})" if one.name else address)


def side_by_side(found: Sequence[Environment], styles: Mapping[str, str], *, everything: bool) -> Table:
    """A row for each service and rule that commands were checked against somewhere, or for all."""
    pairs = sorted({(one["service"], one["rule"]) for each in found for one in each.standings})
    rows = []
    for of in pairs:
        standings = [each.readiness(of) for each in found]
        if everything or any(one not in ("", "no traffic", "disabled") for one in standings):
            rows.append([*of, *(Text(one or _NO_SERVICE, styles.get(one, "")) for one in standings)])
    return table_of(("service", "rule", *(one.name for one in found)), rows)
