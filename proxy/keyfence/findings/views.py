"""The answers about findings: what the admin listener, the command line and the page show.

Rule: each answer is made of plain values for JSON, from one reader, in one place. A wrong question is a
ValueError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.enforcement.modes import ModeRule
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.telemetry.usage import PART, RULE

from .filter import Filter
from .finding import ACTIVE, EVERY_COMMAND, Finding, State, Unjudged
from .fleet_diff import whole_picture
from .proof.basis import InForce
from .queries import Reader
from .readiness import NOTHING_IN_FORCE, is_ready, is_resolved, mode_lines, standings
from .reevaluation import as_of_now, if_enforced
from .spans import seconds as seconds_of
from .unused import rights_of, unused_rights
from .what_if import unjudged, what_if

SUMMARY_ROWS = 10  # of each list


class Views:
    """The answers, from one reader, under a policy and modes."""

    def __init__(self, reader: Reader, in_force: InForce = NOTHING_IN_FORCE) -> None:
        self.reader = reader
        self.in_force = in_force

    @cached_property
    def _evaluator(self) -> Evaluator | None:
        policy = self.in_force.policy
        return None if policy is None else Evaluator(policy)

    def _shown(self, finding: Finding) -> dict[str, Any]:
        """A finding as plain values, with what the policy in force says of it."""
        if self._evaluator is not None:
            finding = as_of_now(self._evaluator, finding)
        return {**finding.as_object(), "if_enforced": str(if_enforced(finding, self.in_force))}

    def summary(self) -> dict[str, Any]:
        """What has happened: the number of findings by state, those that are new since yesterday, and the
        latest ones."""
        counts = self.reader.state_counts()
        fresh = Filter(state=(State.NEW, State.REOPENED), sort="since", limit=SUMMARY_ROWS)
        latest = Filter(sort="last", limit=SUMMARY_ROWS)
        return {
            "states": {str(state): counts.get(state, 0) for state in State},
            "new": [self._shown(one) for one in self.reader.findings(fresh)],
            "latest": [self._shown(one) for one in self.reader.findings(latest)],
        }

    def trend(self, since: float, service: str, commands_since: float) -> dict[str, Any]:
        """Violations and commands by hour, and when the store was made. `service` "" is all services."""
        violations = [{"hour": hour, **counts} for hour, counts in self.reader.trend(since, service).items()]
        commands = self.reader.commands_by_hour(commands_since)
        if service:
            commands = {service: commands.get(service, {})}
        return {"violations": violations, "commands": commands, "made": self.reader.began()}

    def uses(self, since: float) -> dict[str, Any]:
        """How often each right was used since the hour of a time, when last, and how many active findings
        each entry has."""
        rows = [
            {"service": service, "kind": kind, "name": name, "times": one.times, "last": one.last}
            for (service, kind, name), one in self.reader.asked(since).items()
            if kind not in (RULE, PART)
        ]
        return {"uses": rows, "findings": self.reader.entry_counts()}

    def rights(self, policy: CompiledPolicy, service: str, since: float) -> dict[str, Any]:
        """The rights of a service, with their uses since the hour of a time."""
        return {"rights": [one._asdict() for one in rights_of(policy, self.reader, service, since)]}

    def fleet(self, now: float) -> dict[str, Any]:
        """What the instances with this store run, and what differs between them."""
        return whole_picture([self.reader.fleet()], now)

    def owners(self) -> list[str]:
        """Everyone who owns a finding."""
        return self.reader.owners()

    def listing(self, which: Filter, now: float) -> dict[str, Any]:
        """The findings that a filter matches, and how many there are without its limit."""
        return {
            "findings": [self._shown(one) for one in self.reader.findings(which)],
            "total": self.reader.count(which),
            "now": now,
        }

    def active(self, limit: int) -> tuple[list[dict[str, Any]], int]:
        """The active findings with most violations as the store has them, and how many there are."""
        which = Filter(state=tuple(ACTIVE), limit=limit)
        return [one.as_object() for one in self.reader.findings(which)], self.reader.count(which)

    def evidence(self, since: float) -> dict[str, Any]:
        """Which rules were asked of which services since the hour of a time, when a command was last
        evaluated at all, which findings were reopened, and what nobody can tell under the policy in force."""
        uses = self.reader.asked(since).items()
        asked = {(service, name): one for (service, kind, name), one in uses if kind == RULE}
        every = [one for (_, rule), one in asked.items() if rule == EVERY_COMMAND]
        reopened = [one for one in self.reader.changes(since) if one.state is State.REOPENED]
        return {
            "commands": sum(one.times for one in every),
            "last": max((one.last for one in every), default=None),
            "asked": [
                {"service": service, "rule": rule, "commands": one.times}
                for (service, rule), one in sorted(asked.items())
            ],
            "reopened": {one.finding: one.at for one in reopened},
            "unjudged": [one._asdict() for one in self._unjudged(since)],
        }

    def _unjudged(self, since: float) -> list[Unjudged]:
        """What nobody can tell of what was seen since a time, about the rules that are not disabled. Without
        a policy, the one counts that the store knows as the last one in force."""
        basis = self.in_force.basis or self.reader.last_basis()
        parts = self.reader.bases({basis}).get(basis, {"of": {}})
        disabled = {(service, rule) for service, of in parts["of"].items() for rule in of["disabled"]}
        why = "a finding of them that an older policy resolved has not been judged again"
        found = [
            *unjudged(self.reader, [ModeRule("enforce")], "", since, basis),
            *(
                Unjudged(one.service, one.rule, one.last, why)
                for one in self.reader.blocking({State.RESOLVED}, since)
                if not is_resolved(one, self.in_force)
            ),
        ]
        return [one for one in found if (one.service, one.rule) not in disabled]

    def single(self, one: str) -> dict[str, Any]:
        """A finding with its history and its violations by hour. `one` is its id, or the beginning of it."""
        found = self.reader.finding(one)
        if found is None:
            raise ValueError(
                f"there is no finding {one!r}, or several begin so; keyfence findings lists them"
            )
        history = [event.as_object() for event in self.reader.history(found.id)]
        hours = [{"hour": hour, **counts} for hour, counts in self.reader.hours(found.id).items()]
        return {**self._shown(found), "history": history, "hours": hours}

    def readiness(self, modes: Mapping[str, Mapping[str, str]], quiet: float, now: float) -> dict[str, Any]:
        """The standing of every rule for every service."""
        found = standings(self.reader, modes, quiet, now, self.in_force)
        return {
            "quiet": quiet,
            "ready": is_ready(found),
            "standings": [one.as_object() for one in found],
            "modes": mode_lines(found),
        }

    def unused(self, policy: CompiledPolicy, seconds: float, now: float) -> dict[str, Any]:
        """The rights that nobody has used for some seconds, and for how much of that time keyfence was
        looking."""
        looked = min(
            (seconds_of(self.reader.coverage(service), now - seconds, now) for service in policy.services),
            default=0.0,
        )
        found = unused_rights(policy, self.reader, now - seconds)
        return {"seconds": seconds, "looked": looked, "unused": [one._asdict() for one in found]}

    def breaks(self, modes: Sequence[ModeRule], service: str, since: float) -> dict[str, Any]:
        """What these modes would refuse of what was seen since a time, and what nobody can tell."""
        asked = (self.reader, modes, service, since)
        return {
            "since": since,
            "breaks": [one.as_object() for one in what_if(*asked, self.in_force)],
            "unjudged": [one._asdict() for one in unjudged(*asked, self.in_force.basis)],
        }
