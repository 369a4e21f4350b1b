"""What one keyfence says of itself: in its status, and to the findings store that it shares with others.

Rule: it costs next to nothing. The process that controls keyfence reports for all workers, and asks none.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from keyfence import __version__
from keyfence.findings.instances import EVERY_OTHER, MAX_REASON, Compared, Comparison, Instance, Source
from keyfence.policy.verdict import Mode

from .fleet_candidate import FleetCandidate
from .freshness import Freshness
from .glass import Glass
from .provision import Provision
from .refusals import Refusals
from .serving.backend import Backend
from .serving.runtime import Runtime

MAX_MODES = 64 * 1024  # characters


class Concerns:
    """Whether the policy in force is what it should be."""

    def __init__(
        self, provision: Provision, refusals: Refusals, freshness: Freshness, candidate: FleetCandidate
    ) -> None:
        self.candidate = candidate
        self.provision = provision
        self.refusals = refusals
        self.freshness = freshness

    def degraded(self) -> list[str]:
        """Why it is not, the gravest reason first."""
        refusal, stale = self.refusals.current, self.freshness.text
        found = [*([refusal.text] if refusal is not None else []), *([stale] if stale else [])]
        return [*found, *self.provision.degraded()]

    @property
    def source(self) -> Source:
        """The gravest reason, in a word."""
        if self.refusals.current is not None:
            return "refused"
        if self.freshness.acts:
            return "stale"
        return "copy" if self.provision.degraded() else "fresh"

    @property
    def confirmed(self) -> float:
        """When the policy's server has confirmed it last; 0.0: there is no server."""
        source = self.provision.source
        return 0.0 if source is None or source.held is None else source.held.confirmed


class Reporter:
    """Says what one keyfence runs."""

    def __init__(
        self,
        runtime: Runtime,
        backend: Backend,
        concerns: Concerns,
        glass: Glass,
        admin: Callable[[], str],
    ) -> None:
        """`admin` gives the URL of the admin listener; "": there is none, or not yet."""
        self.started = time.time()
        self.concerns = concerns
        self._runtime = runtime
        self._backend = backend
        self._glass = glass
        self._admin = admin
        self._host = socket.gethostname()
        # In containers all processes may have one id, and several hosts one name.
        self._id = f"{self._host}:{os.getpid()}:{secrets.token_hex(4)}"
        self._described: tuple[object, Sequence[Mapping[str, Any]], str] = (None, (), "{}")

    def notes(self) -> Iterator[str]:
        """Why clients cannot connect somewhere, although keyfence listens."""
        for one in self._runtime.settings.listeners:
            path = one.address.unix_path
            if path and _is_gone(path):
                yield f"the socket {path} was removed, so no client can connect there; restart keyfence"

    def policy(self) -> dict[str, Any] | None:
        """The policy in force, for the status; None: commands pass unread."""
        policy = self._runtime.policy
        if policy is None:
            return None
        settings = self._runtime.settings
        return {
            "name": policy.name,
            "revision": policy.revision,
            "file": settings.policy_shown,
            "loaded": self._loaded(policy.name, policy.revision),
            "describes_keys": bool(policy.targets),
            "reload": settings.reload,
            "server": self.concerns.provision.status(time.time()),
            "signed": settings.policy_signed and settings.policy_signed.status(),
            "refused": self.concerns.refusals.status(),
        }

    def _loaded(self, name: str, revision: str) -> float:
        """When the policy was put in force."""
        policies = self._runtime.telemetry.counters.policies
        return policies.get(name, (revision, self.started))[1]

    def report(self) -> Instance:
        """What the other keyfences with the same store are to know."""
        policy, settings, admin = self._runtime.policy, self._runtime.settings, self._admin()
        port = urlsplit(admin).port
        signed = settings.policy_signed
        return Instance(
            id=self._id,
            name=self._host if port is None else f"{self._host}:{port}",
            admin=admin,
            environment=settings.environment,
            policy="" if policy is None else policy.name,
            revision="" if policy is None else policy.revision,
            sequence=0 if signed is None else signed.manifest.sequence,
            source=self.concerns.source,
            reason="; ".join(self.concerns.degraded())[:MAX_REASON],
            loaded=0.0 if policy is None else self._loaded(policy.name, policy.revision),
            confirmed=self.concerns.confirmed,
            version=__version__,
            started=self.started,
            modes=self._modes(),
            clients=sum(one["connections"] for one in self._backend.listing()),
        )

    def compared(self, one: Instance) -> Compared | None:
        """What this instance says of the fleet's candidate; None: the store has none, or it was not asked."""
        fleet = self.concerns.candidate
        if fleet.state == "none":
            return None
        own, sofar = fleet.own, self._backend.compared()
        published = {} if own is None or own.published is None else own.published
        comparison = Comparison(
            id=one.id,
            name=one.name,
            environment=one.environment,
            policy=one.policy,
            revision=one.revision,
            sequence=one.sequence,
            state=fleet.state,
            reason=fleet.fault[:MAX_REASON],
            digest=published.get("digest", ""),
            candidate=json.dumps({} if own is None else {**published, "revision": own.packed.revision}),
            since=0.0 if own is None else own.since,
            commands=json.dumps({} if own is None else sofar.commands),
            last=one.last,
        )
        return Compared(comparison, sofar.rows if own is not None else list)

    def _modes(self) -> str:
        """The modes in force, as JSON. They are written again only if they have changed."""
        authorizer, glass = self._runtime.authorizer, self._glass.listing()
        if self._described[0] is not authorizer or self._described[1] != glass:
            matrix = {} if authorizer is None else authorizer.modes.matrix()
            waivers = len(self._runtime.settings.waivers)
            self._described = authorizer, glass, described(matrix, glass, waivers)
        return self._described[2]


def _is_gone(path: str) -> bool:
    """Whether there is no such file. A folder that keyfence may not enter is no proof: a supervisor may have
    made the socket."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def described(
    matrix: Mapping[str, Mapping[str, Mode]], glass: Sequence[Mapping[str, Any]], waivers: int
) -> str:
    """Modes by rule and service, break-glasses, and the number of waivers, as JSON. Of each rule: the mode of
    most services, under EVERY_OTHER, and the services with another one. Where that is too long, only the mode
    of most services; `is_part` says so."""
    rules: dict[str, dict[str, str]] = {}
    for rule, by_service in matrix.items():
        ((most, _),) = Counter(by_service.values()).most_common(1)
        others = {service: mode for service, mode in by_service.items() if mode != most}
        rules[rule] = {EVERY_OTHER: most, **others}
    others_too: dict[str, Any] = {"glass": list(glass), "waivers": waivers}
    text = json.dumps({"rules": rules, **others_too, "is_part": False})
    if len(text) <= MAX_MODES:
        return text
    short = {rule: {EVERY_OTHER: modes[EVERY_OTHER]} for rule, modes in rules.items()}
    return json.dumps({"rules": short, **others_too, "is_part": True})
