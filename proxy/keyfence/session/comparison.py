"""One client's commands under the candidate policy, beside the one in force.

Rule: the candidate never changes what happens to a command. Each command that the policy in force evaluates,
or admits from its cache, is evaluated once by the candidate, and reported once. A fault here is reported, and
stops no command.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from keyfence.commands.model import Touches
from keyfence.policy.budget import driven
from keyfence.policy.compiled.obstacles import BY_EVALUATION
from keyfence.policy.compiled.tenants import Caller
from keyfence.policy.engine.asker import Asker, Transaction
from keyfence.policy.engine.authorizer import Authorizer, Candidate, Steps
from keyfence.policy.engine.counts import ViolationCounter
from keyfence.policy.engine.decision_cache import DecisionCache
from keyfence.policy.engine.evaluation import Evaluation, Known
from keyfence.policy.engine.forms import Lookup
from keyfence.policy.verdict import PASS, Changed, Ruling
from keyfence.session.conversation.known_client import label_of

from .rehearsal import Rehearsed

MAX_HELD_KEY = 256  # bytes; each client's comparison holds a few keys


class _Others(Container[str]):
    """The commands of a container for which the cache sees all that decides on a cluster."""

    def __init__(self, among: Container[str]) -> None:
        self._among = among

    def __contains__(self, name: object) -> bool:
        return name not in BY_EVALUATION and name in self._among


class Comparison:
    """The candidate as it sees one client, which is one service and one caller."""

    def __init__(self, in_force: Authorizer, candidate: Candidate, service: str, caller: Caller) -> None:
        self._compared = candidate
        self.candidate = candidate.authorizer
        self.observer = candidate.observer
        self._in_force = in_force
        self._service = service
        self._caller = caller
        # The client outside of transactions, as each of the two knows it.
        self._asker = Asker(self.candidate.number(service), self.candidate.policy.values(caller))
        self.values = self._asker.values  # kept, because each compared command asks for them
        self._asker_in_force = Asker(in_force.number(service), in_force.policy.values(caller))
        self._ruled: ViolationCounter | None = None  # a counter of the policy in force …
        self._ruling = PASS  # … and the ruling on a command that it counts
        self._seen: Transaction | None = None  # the open transaction as the policy in force knows it …
        self._transaction = Transaction()  # … and as the candidate does
        # Of the rehearsal of a cluster; None: the candidate is a policy.
        self.rehearsed = Rehearsed(self.candidate.policy, self.values) if candidate.rehearses else None

    def is_of(self, in_force: Authorizer, service: str, caller: Caller) -> bool:
        """Whether it still holds for the client, who may have authenticated meanwhile."""
        return self._in_force is in_force and self._service == service and self._caller is caller

    def cache(self, among: Container[str]) -> DecisionCache:
        """The candidate's decision cache for the service. The candidate may not know several services."""
        if self.rehearsed is not None:
            among = _Others(among)
        return self.candidate.cache(self._asker.service, among, self._service)

    # -- commands that the policy in force has evaluated

    def rule_in_steps(self, asker: Asker, argv: Sequence[bytes], known: Known) -> Steps:
        """The candidate's ruling on a command, in turns. `asker` is the client as the policy in force knows
        it."""
        own = self._asker
        if asker.transaction is not None:
            own = Asker(own.service, own.values, transaction=self.own(asker.transaction))
        return self.candidate.rule_in_steps(own, argv, known)

    def compare(
        self,
        asker: Asker,
        argv: Sequence[bytes],
        touches: Touches,
        ruling: Ruling,
        by_candidate: Ruling | None = None,
    ) -> None:
        """Report what the candidate would change about a command and its ruling. `by_candidate` is the
        candidate's ruling, if it is known."""
        try:
            if by_candidate is None:
                by_candidate, _ = driven(self.rule_in_steps(asker, argv, Known(touches)))
            self._report(asker, touches, ruling, by_candidate)
        except Exception as exc:
            self.candidate.failed(exc)

    def own(self, transaction: Transaction) -> Transaction:
        """What the candidate knows of the transaction."""
        if self._seen is not transaction:
            self._seen, self._transaction = transaction, Transaction()
        return self._transaction

    # -- commands that the policy in force admits or refuses from its cache

    def counts(self, in_force: ViolationCounter | None, candidate: ViolationCounter | None) -> bool:
        """Count the changes of a command whose violations under the two policies these count (None: there are
        none). False: they are not known."""
        if self.candidate.glass:
            return False  # break-glass changes the action on a finding
        counters = self.observer.counters(in_force, candidate)
        if counters is None:
            return False
        for one in counters:
            one.times += 1
        return True

    def compare_cached(
        self,
        asker: Asker,
        argv: list[bytes],
        in_force: ViolationCounter | None,
        cache: DecisionCache,
        lookup: Lookup,
        kind: ViolationCounter | None,
    ) -> None:
        """Evaluate a command whose changes are not known, and report them. `in_force` and `kind` count its
        violations under the two policies. `lookup` is what `cache`, the candidate's own, knows of it."""
        try:
            self._compare_cached(asker, argv, in_force, cache, lookup, kind)
        except Exception as exc:
            self.candidate.failed(exc)

    def _compare_cached(
        self,
        asker: Asker,
        argv: list[bytes],
        in_force: ViolationCounter | None,
        cache: DecisionCache,
        lookup: Lookup,
        kind: ViolationCounter | None,
    ) -> None:
        by_candidate, evaluation = driven(self.rule_in_steps(asker, argv, cache.known(lookup, argv)))
        ruling = PASS if in_force is None else self._ruling_of(in_force, argv)
        found = self._report(asker, evaluation.touches, ruling, by_candidate)
        if not found or self.candidate.glass:
            return
        if kind is None and not lookup.is_admitted:
            kind = self._kind(argv, cache, lookup, evaluation, by_candidate)
            if kind is None:
                return
        self.observer.count_alike(in_force, kind, self._service, label_of(evaluation.touches), found)

    def _ruling_of(self, counter: ViolationCounter, argv: list[bytes]) -> Ruling:
        """The ruling in force on a command whose violations a counter counts. It may be that on an earlier
        command of this counter, which differs in its key only."""
        if self._ruled is not counter:
            ruling = self._in_force.rule(self._asker_in_force, argv)
            keys = [violation.key for violation, _ in ruling.findings]
            if any(key is not None and len(key) > MAX_HELD_KEY for key in keys):
                return ruling
            self._ruled, self._ruling = counter, ruling
        return self._ruling

    def _kind(
        self, argv: list[bytes], cache: DecisionCache, lookup: Lookup, evaluation: Evaluation, ruling: Ruling
    ) -> ViolationCounter | None:
        """A value that stands for the commands which break the same rules as this one under the candidate;
        None if its violations depend on more than the cache sees."""
        candidate = self.candidate
        if not ruling.findings:
            return None
        if candidate.common_outcome(cache, lookup, argv, evaluation, ruling) is None:
            return None
        kind = ViolationCounter(None)
        cache.remember(lookup, argv, kind)
        return kind

    # -- reports

    def queued(self, transaction: Transaction, argv: Sequence[bytes]) -> None:
        """Report what a command of a transaction shows that both caches admit, if this is a rehearsal."""
        if self.rehearsed is None:
            return
        try:
            for seen in self.rehearsed.queued(transaction, argv):
                self.observer.rehearsed(self._service, seen)
        except Exception as exc:
            self.candidate.failed(exc)

    def _report(
        self, asker: Asker, touches: Touches, ruling: Ruling, by_candidate: Ruling
    ) -> Sequence[Changed]:
        self.observer.command(self._service)
        if self.rehearsed is not None and ruling.refused_by is None:
            for seen in self.rehearsed.seen(asker.transaction, touches, by_candidate):
                self.observer.rehearsed(self._service, seen)
        found = self._compared.changes(self._in_force.policy, ruling, by_candidate)
        if found:
            self.observer.changes(self._service, asker.peer, label_of(touches), found)
        return found
