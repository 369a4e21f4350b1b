"""The simulator: plays one connection without a server, with its commands, the time between them, and late
findings.

Rule: the authorizer is the session's own. The caller sets the service, the keys that exist, and the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from keyfence.commands.arguments import word
from keyfence.commands.model import Touches
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.compiled.tenants import NOBODY, Caller
from keyfence.policy.compiled.ttl import GONE, NO_TTL
from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine.asker import Asker, Transaction
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.pending import PendingTtls
from keyfence.policy.units import duration_text
from keyfence.policy.verdict import Peer, Verdict, Violation

from .keyspace_model import Keyspace

_PEER = Peer("simulator")


class Answer(NamedTuple):
    """The outcome of a command."""

    verdict: Verdict
    touches: Touches
    refused: bool
    aborts: bool  # whether it is an EXEC that answers EXECABORT


class Late(NamedTuple):
    """A violation found after its command, with the number of the service that sent the command."""

    service: int
    violation: Violation


class Simulator:
    """One simulated connection. Times are in milliseconds; `now` counts from the Unix epoch."""

    def __init__(
        self,
        policy: CompiledPolicy,
        now: int,
        *,
        enforces: bool,
        given: Mapping[bytes, int | None] | None = None,
    ) -> None:
        """`enforces`: a command that breaks a must is not run.

        `given`: keys of database 0 with their expiry times.
        """
        self.now = now
        modes = Modes([ModeRule("enforce" if enforces else "observe")], policy.services)
        self._pending = PendingTtls(clock=self._clock)
        self._authorizer = Authorizer(
            policy, modes, clock=self._clock, pending=self._pending, on_error=_raise
        )
        self._keyspaces = {0: Keyspace(given)}
        self._database = 0
        self._transaction: Transaction | None = None
        self._queued: list[Touches] = []
        self._aborted = False

    def _clock(self) -> float:
        return self.now / 1000

    def _keyspace(self, database: int) -> Keyspace:
        return self._keyspaces.setdefault(database, Keyspace())

    def send(self, service: str, argv: Sequence[bytes], caller: Caller = NOBODY) -> Answer:
        """Sends a command as a service. Raises what the authorizer raises."""
        asker = Asker(
            self._authorizer.number(service),
            self._authorizer.policy.values(caller),
            database=self._database,
            peer=_PEER,
            transaction=self._transaction,
        )
        ruling, evaluation = self._authorizer.authorize(asker, argv)
        touches = evaluation.touches
        verdict = Verdict(tuple(one.violation for one in ruling.findings))
        refused = ruling.refused_by is not None
        is_complete = touches.command is None or touches.command.takes(len(argv))
        return Answer(verdict, touches, refused, self._follow(touches, refused, is_complete))

    def _follow(self, touches: Touches, refused: bool, is_complete: bool) -> bool:
        """Runs or queues a command. Returns whether it is an EXEC that answers EXECABORT.

        `is_complete`: it has as many arguments as Redis asks for. Redis answers to others with an error.
        """
        name = touches.command.name if touches.command is not None else ""
        runs = is_complete and not refused
        if name == "EXEC" and self._transaction is not None:
            queued, aborts = self._queued, self._aborted or not runs
            self._begin(None)
            for one in () if aborts else queued:
                self._run(one)
            return aborts
        if not runs:
            self._aborted = self._transaction is not None
        elif name == "RESET":  # it is not queued
            self._begin(None)
            self._database = 0
        elif name == "DISCARD":
            self._begin(None)
        elif name == "MULTI":
            if self._transaction is None:  # an error within a transaction, which goes on
                self._begin(Transaction())
        elif self._transaction is not None:
            self._queued.append(touches)
        else:
            self._run(touches)
        return False

    def _run(self, touches: Touches) -> None:
        name = touches.command.name if touches.command is not None else ""
        if name == "SELECT" and touches.databases:
            self._database = touches.databases[0][1]
        elif name == "FLUSHALL":
            self._keyspaces.clear()
        elif name == "FLUSHDB":
            self._keyspaces.pop(self._database, None)
        elif name == "SWAPDB":
            self._swap([number for _, number in touches.databases])
        into = touches.databases[0][1] if touches.databases else self._database  # of COPY and MOVE
        self._keyspace(self._database).run(touches, self.now, self._keyspace(into))

    def _swap(self, databases: Sequence[int]) -> None:
        for database, keyspace in zip(databases, [*map(self._keyspace, reversed(databases))], strict=True):
            self._keyspaces[database] = keyspace

    def _begin(self, transaction: Transaction | None) -> None:
        self._transaction, self._queued, self._aborted = transaction, [], False

    def wait(self, milliseconds: int) -> list[Late]:
        """Lets time pass. Returns the violations that come to light meanwhile."""
        until = self.now + milliseconds
        found = self._settle(until)
        self.now = until
        return found

    def wait_for_all(self) -> list[Late]:
        """Lets time pass until no finding is open. Returns the violations that came to light."""
        return self._settle(None)

    def _settle(self, until: int | None) -> list[Late]:
        found: list[Late] = []
        while open_keys := list(self._pending):
            due = round(min(one.due for one in open_keys) * 1000)
            if until is not None and due > until:
                break
            self.now = max(self.now, due)
            for one in self._pending.due():
                left = self._keyspace(one.database).pttl(one.key, self.now)
                if self._pending.answer(one, left):
                    service = one.write.asker.service
                    found += [Late(service, finding.violation) for finding in one.findings(left)]
        return found

    def lives(self, key: bytes) -> str:
        """Returns the time to live of a key: a duration, "none", or "gone" if the key does not exist."""
        left = self._keyspace(self._database).pttl(key, self.now)
        return {GONE: "gone", NO_TTL: "none"}.get(left) or duration_text(left)


def caller_after(argv: Sequence[bytes], caller: Caller) -> Caller:
    """Returns the caller of the commands after this one: RESET ends a login."""
    resets = len(argv) == 1 and word(argv[0]) == b"RESET"
    return caller._replace(user=None) if resets else caller


def _raise(error: Exception) -> None:
    raise error
