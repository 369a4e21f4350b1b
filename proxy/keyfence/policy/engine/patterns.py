"""The checks of patterns, which stand for many keys.

Rule: a service needs rights on every key that a pattern can match. If finding that out takes too long, the
pattern breaks the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from keyfence.commands.arguments import glob_escape, literal_of
from keyfence.commands.model import READ, WRITE, Access, Command, Streamed
from keyfence.commands.table import COMMANDS
from keyfence.policy.compiled.policy import CompiledPolicy, Target, beginning_of
from keyfence.policy.reach.reach import Nearest, Reach, holding, own_scan_pattern, scan_pattern
from keyfence.policy.show import printable
from keyfence.policy.verdict import Found

from .evaluation import Evaluation
from .permissions import Grants, Permissions

MAX_OWN_SCANS = 100  # patterns among which a hint looks for one
# The reason if a pattern has used up the budget, and the hint.
TOO_LONG = "finding out what it reaches takes too long"
LESS = "use fewer wildcards, or fewer patterns at a time"
_TRACKING = "CLIENT TRACKING"
_PATTERNED = frozenset({"SCAN", "KEYS", _TRACKING})  # a hint can offer another pattern


class Patterns:
    """Checks what patterns of keys reach under one policy."""

    def __init__(
        self, policy: CompiledPolicy, clock: Callable[[], float], grants: Grants, permissions: Permissions
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._grants = grants
        self._permissions = permissions
        self._readable: dict[int, Nearest] = {}  # by the service's number: the patterns that it may scan
        self.keys = Reach(policy.classifier, policy.targets)
        self._opened = Reach(policy.classifier, policy.targets, elsewhere=True)
        # Whether any entry or scope restricts commands.
        self.restrict = any(
            one.entry is not None and one.entry.commands is not None for one in policy.targets
        )

    def reach_only_own(
        self, evaluation: Evaluation, name: str, glob: bytes, right: int, by: str = ""
    ) -> bool | None:
        """Whether a pattern reaches only keys on which the service has the right, for the command of this
        name; None: it takes too long to find out."""
        service = evaluation.asker.service
        granted = self._grants.of(service, name)
        if self._grants.are_on_all_keys(granted):
            return True  # also what no target covers
        if isinstance(glob, Streamed):
            return False
        if self._grants.are_on_all_keys(granted, glob):
            return True
        who = (service, right, tuple(map(id, granted)), by)
        own = self.keys.own_places(glob, evaluation.asker.values)
        holds = holding(service, right, granted, own, by)
        return self.keys.covers(glob, holds, who, evaluation.budget, own=own)

    def check(self, evaluation: Evaluation, position: int, glob: bytes, right: int) -> Iterator[Found]:
        """Checks that the service has the right on every key that a glob can match."""
        only_own = self.reach_only_own(evaluation, evaluation.name, glob, right)
        if only_own:
            return
        glob = bytes(glob)
        verb = "write" if right == WRITE else "read"

        def words() -> tuple[str, str]:
            shown = evaluation.wording.shown(glob, None)
            message = f"{evaluation.who()} may not {evaluation.name} {shown}"
            if only_own is None:
                return f"{message}: {TOO_LONG}", LESS
            return f"{message}: it reaches keys that it may not {verb}", self._scan_hint(evaluation, glob)

        yield evaluation.violation("scan.scope", position, glob, None, words)

    def _scan_hint(self, evaluation: Evaluation, glob: bytes) -> str:
        """Returns a hint with a pattern near the glob that would pass."""
        near = self.near(evaluation, glob)
        if near is None:
            return ""
        how = "PREFIX" if evaluation.name == _TRACKING else "SCAN 0 MATCH"
        return f"{how} {printable(near)} would pass"

    def near(self, evaluation: Evaluation, glob: bytes) -> bytes | None:
        """Returns a pattern near the glob that the service may scan, or for CLIENT TRACKING a prefix that it
        may track. None if there is none, or the command takes neither."""
        service, name = evaluation.asker.service, evaluation.name
        if name not in _PATTERNED:
            return None
        scan = COMMANDS[b"SCAN"].command
        if name != _TRACKING and self._permissions.why_forbidden(service, scan):
            return None
        readable = self._readable.get(service)
        if readable is None:
            holds = holding(service, READ, self._grants.of(service, ""))
            readable = self._readable[service] = Nearest(
                scan_pattern(target)
                for target in self._policy.targets
                if target.kind in ("entry", "scope") and holds(target)
            )
        begins = beginning_of(glob)[:1]
        for text in [*self._own_scans(evaluation, glob), *readable.to(glob, 20)]:
            if not text.startswith(begins):
                continue  # it is unrelated to the glob
            prefix = literal_of(text[:-1]) if text.endswith(b"*") else b""
            if name == _TRACKING and (not prefix or glob_escape(prefix) + b"*" != text):
                continue
            if self.reach_only_own(evaluation, name if name == _TRACKING else "SCAN", text, READ):
                return prefix if name == _TRACKING else text
        return None

    def _own_scans(self, evaluation: Evaluation, glob: bytes) -> list[bytes]:
        """Returns the patterns of the caller's own keys that are nearest to the glob."""
        if not any(value is not None for value in evaluation.asker.values):
            return []
        found: dict[bytes, bytes] = {}
        for target in self._policy.targets:
            if target.tenancy is not None and target.kind in ("entry", "scope"):
                texts = own_scan_pattern(target, evaluation.asker.values, glob)
                if texts is not None:
                    found[texts[0]] = texts[1]
            if len(found) >= MAX_OWN_SCANS:
                break
        return [found[text] for text in Nearest(found).to(glob, 8)]

    def are_open_to(
        self,
        evaluation: Evaluation,
        command: Command,
        access: Access,
        runs: frozenset[str] | None = None,
        *,
        is_script: bool = True,
    ) -> bool | None:
        """Whether every key that a pattern can mean admits the command, or the commands that a script runs;
        None if that takes too long to find out. A command with unknown effects counts as a script."""
        service, name = evaluation.asker.service, command.name
        grants = self._grants.of(service, name)
        if self._grants.are_on_all_keys(grants, access.key):
            return True

        def holds(target: Target) -> bool:
            commands = target.entry.commands if target.entry is not None else None
            if commands is None:
                return True
            if is_script:
                fault = commands.fault_of_script(command, access, runs)
            else:
                fault = commands.fault(command, access, self._clock)
            return not fault or any(grant.includes(target) for grant in grants)

        who = (service if grants else -1, name, access.needs, runs, is_script)
        return self._opened.covers(access.key, holds, who, evaluation.budget)
