"""The runtime of one process: authorizer, upstreams, what their clients share, and background jobs.

Rule: policy and configuration change together, between two commands and never within one. A transaction, and
a client's identity, keep the ones that they began with.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import ssl
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from keyfence.commands.extract import adopt
from keyfence.commands.learned import learn
from keyfence.commands.model import Touches
from keyfence.config.limits import ClientSettings
from keyfence.config.settings import Settings
from keyfence.downstream.announced import primaries_of
from keyfence.downstream.client import Client
from keyfence.downstream.context import Common, ServerContext
from keyfence.downstream.listeners import Listeners
from keyfence.downstream.tls import listener_context, upstream_context
from keyfence.identity.resolver import Resolver
from keyfence.net.addresses import Bound, why_not
from keyfence.net.closures import STALE
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.diagnostics import FileError
from keyfence.policy.enforcement.modes import BreakGlass, ModeRule, Modes
from keyfence.policy.engine.authorizer import Authorizer, Candidate, InForce
from keyfence.policy.engine.pending import PendingTtls
from keyfence.policy.rules import RULES
from keyfence.policy.units import counted
from keyfence.policy.wording.command_log import as_line
from keyfence.session.conversation.context import Cluster
from keyfence.session.conversation.owner_questions import Question
from keyfence.telemetry.candidate.changes import Changes
from keyfence.telemetry.operator_log import notice, print_waiting, report_fault, tell
from keyfence.telemetry.telemetry import Telemetry
from keyfence.telemetry.usage import Usage
from keyfence.upstream.address import UpstreamAddress
from keyfence.upstream.health import Upstream
from keyfence.upstream.single.masters import Masters

from .explainer import Explainer
from .garbage import FullCollections, release_slowly
from .jobs import going_on
from .rlimits import room_for
from .ttl_check import TtlWatch
from .upstreams import ServedUpstream
from .zeros import declare_zeros

_SLOTS = "slot.cross"  # a rehearsal must find it, whatever the mode of this rule is
ASK_SECONDS = 15.0  # for all questions to Redis that are open at the end


class StartError(Exception):
    """keyfence cannot start; the message is one line for the user."""


class Runtime:
    """The state of one process: the only one, a worker, or the parent, whose authorizer serves `explain`
    only."""

    def __init__(
        self,
        settings: Settings,
        policy: CompiledPolicy | None,
        telemetry: Telemetry,
        *,
        loaded_at: float | None = None,
        quiet: bool = False,
    ) -> None:
        """`policy` None: passthrough, nothing is read. A worker is `quiet`, because its parent prints the
        same messages."""
        self.telemetry = telemetry
        self.glass: list[BreakGlass] = []
        self.pending = PendingTtls()  # outlives a reload
        self.explainer = Explainer()
        self.in_force: InForce | None = None
        self.changes: Changes | None = None  # what the candidate policy would change; None: there is none
        self._candidate: CompiledPolicy | None = None
        self.upstreams: list[ServedUpstream] = []
        self.cluster: Cluster | None = None  # that all upstreams are nodes of …
        self.masters: Masters | None = None  # the same, if the cluster is behind one address
        # … and which of them has a key; None: it is not known.
        self.upstream_of: Callable[[bytes], Upstream | None] = lambda _key: None
        self._common: Common | None = None  # None: this process has no clients
        self._is_all = True  # no other process has clients
        self.is_closing = False
        self._quiet = quiet
        self._held_back: list[str] | None = []  # lines that wait for the ready line; None: it is printed
        self.take(settings, policy, time.time() if loaded_at is None else loaded_at)

    def take(self, settings: Settings, policy: CompiledPolicy | None, loaded_at: float) -> None:
        """Put a policy and its configuration in force. `loaded_at` is in Unix seconds.

        Upstreams and listeners keep their addresses. Connected clients keep their service until they
        authenticate again. Raises FileError, and changes nothing then.
        """
        if self.upstreams and settings.upstream is not None:
            tls = upstream_context(settings)
            for one in self.upstreams:
                one.take(settings.upstream, tls)
        counters = self.telemetry.counters
        self.settings = settings
        self.telemetry.mask(settings.mask_keys)
        if policy is not None:
            authorizer = self._authorizer_of(policy)
            if self.in_force is None:
                self.in_force = InForce(authorizer)
            else:
                before = self.in_force.authorizer.policy
                counters.policy_replaced(before.name)
                self.in_force.authorizer = authorizer
                self._let_go(before)
            self.telemetry.guard(policy.secrecy)
            counters.policy_loaded(policy.name, policy.revision, loaded_at)
            if not self._quiet:  # a worker's parent has these rows for all
                files = ((home.policy, home.owner, home.contact) for home in policy.homes)
                counters.policy_made_of(files, policy.revision)
                declare_zeros(counters, authorizer.modes)
        if self._common is not None:
            self._common.take(self._resolver(), self._client_settings())
            for context in self.contexts:
                context.admit()
        self._count_lapsed()

    def _let_go(self, policy: CompiledPolicy) -> None:
        """Free a policy that is used no more."""
        self.explainer.forget()
        if self._common is not None:
            for client in self.clients:
                client.policy_replaced()
            release_slowly([*policy.targets])

    def _authorizer_of(self, policy: CompiledPolicy) -> Authorizer:
        """The authorizer of a policy under the settings in force, with the candidate beside it."""
        beside, candidate = None, self._candidate
        if candidate is not None and self.changes is not None:
            self.changes.guard(policy.secrecy, candidate.secrecy)
            rehearses = self.changes.rehearsal is not None
            first = (ModeRule("observe", _SLOTS),) if rehearses else ()
            modes = self._modes(candidate, first)
            authorizer = Authorizer(candidate, modes, self.glass, time.time, self._decision_failed)
            masks_alike = policy.secrecy == candidate.secrecy
            beside = Candidate(authorizer, self.changes, masks_alike, rehearses)
        return Authorizer(
            policy,
            self._modes(policy),
            self.glass,
            time.time,
            self._decision_failed,
            self.pending,
            beside,
        )

    def _modes(self, policy: CompiledPolicy, first: Sequence[ModeRule] = ()) -> Modes:
        """The modes of a policy. `first` come before those of the configuration."""
        return Modes((*first, *self.settings.modes), policy.services, self.settings.waived())

    def take_candidate(self, policy: CompiledPolicy | None, number: int, *, rehearses: bool = False) -> None:
        """Compare a policy with the one in force from now on, or (None) end the comparison. `number` tells
        this comparison from earlier ones. `rehearses`: it is the policy in force, for a cluster."""
        if self.in_force is None:
            return
        counters = self.telemetry.counters  # with what the comparison has counted so far
        before, self._candidate, self.changes = self._candidate, policy, None
        if policy is not None:
            masks = self.settings.mask_keys
            self.changes = Changes(number, counters, mask_keys=masks, rehearses=rehearses)
            counters.begin_comparison(policy.services, RULES)
        self.telemetry.beside = self.changes
        self.in_force.authorizer = self._authorizer_of(self.in_force.authorizer.policy)
        if before is not None:
            self._let_go(before)

    def _decision_failed(self, exc: Exception) -> None:
        self.telemetry.counters.internal_error("decision")
        report_fault(exc)

    # -- upstreams

    def open_upstream(self, address: UpstreamAddress) -> ServedUpstream:
        adopt = self._adopt_commands if self.in_force is not None else None
        one = ServedUpstream(address, self.settings, self.telemetry, self.tell, adopt, quiet=self._quiet)
        self.upstreams.append(one)
        if self._held_back is None:
            one.announced()
        return one

    async def close_upstream(self, one: ServedUpstream) -> None:
        """Close an upstream and its listeners. Its clients have as much time as when the process ends."""
        self.upstreams.remove(one)
        self.telemetry.counters.upstream_gone(one.upstream.address.shown)
        if one.listeners is not None:
            await one.listeners.close(self.settings.drain)

    async def reach_upstream(self, address: UpstreamAddress) -> ServedUpstream:
        """Open the upstream, probe it once, and learn its commands if it answers."""
        one = self.open_upstream(address)
        await one.reach()
        return one

    def _adopt_commands(self, reply: object) -> None:
        learned = learn(reply)
        adopt(learned)
        if self.authorizer is not None:
            self.authorizer.forget_permissions()
        if learned.rows:
            self.tell(
                f"the upstream has {counted(len(learned.rows), 'command')} that keyfence knows from it alone"
            )
        if learned.unreadable or learned.dropped:
            self.tell(f"{learned.unreadable + learned.dropped} of the upstream's commands stay unknown")

    def tell(self, text: str) -> None:
        """Print information for operators. The ready line comes first."""
        if self._quiet:
            return
        if self._held_back is None:
            tell(text)
        else:
            self._held_back.append(text)

    def announced(self) -> None:
        """The ready line is printed: print the lines that waited for it."""
        for one in self.upstreams:
            one.announced()
        waiting, self._held_back = self._held_back or [], None
        for text in waiting:
            self.tell(text)

    # -- clients

    def _open_common(self) -> Common:
        of_clients = self._client_settings()
        return Common(self.in_force, self._resolver(), self.telemetry, of_clients, self.cluster)

    @property
    def contexts(self) -> list[ServerContext]:
        """The contexts of this process' clients: one for each upstream."""
        return [one.context for one in self.upstreams if one.context is not None]

    @property
    def clients(self) -> Iterator[Client]:
        """The clients of this process."""
        for context in self.contexts:
            yield from context.clients

    def was_shown(self, service: str, node: str, number: int) -> bool:
        """Whether a client of this process and service was shown this connection id of this node."""
        return any(context.ids.was_shown(service, node, number) for context in self.contexts)

    def answer_by(self, ask: Callable[[Question], None], *, is_all: bool) -> None:
        """Have the questions of sessions answered in this way. `is_all`: no other process has clients."""
        assert self._common is not None
        self._common.ask = ask
        self._is_all = is_all
        for context in self.contexts:
            context.ids.is_all = is_all

    def _client_settings(self) -> ClientSettings:
        """As configured, but with no more connections than file descriptors allow."""
        settings = self.settings
        limits = settings.limits.of_clients()
        # With workers, their parent has the admin listeners.
        room = room_for(limits.connections, 0 if settings.workers else settings.admin_listeners)
        if room < 0.9 * limits.connections:
            self.tell(f"file descriptors suffice for {room} connections of {limits.connections} (ulimit -n)")
        return ClientSettings(
            settings.limits.of_requests(),
            dataclasses.replace(limits, connections=room),
            settings.shared_connections,
            settings.after_write,
            settings.splits,
        )

    def _resolver(self) -> Resolver:
        return self.settings.identify.resolver(self.policy.services if self.policy else ())

    @property
    def authorizer(self) -> Authorizer | None:
        """None in passthrough: nothing is read."""
        return None if self.in_force is None else self.in_force.authorizer

    @property
    def policy(self) -> CompiledPolicy | None:
        """None in passthrough."""
        return None if self.in_force is None else self.in_force.authorizer.policy

    def serve(self, served: ServedUpstream, bound: Sequence[Bound]) -> Listeners:
        """Have clients of this upstream come by the configured listeners, which are bound in the same
        order."""
        if self._common is None:
            self._common = self._open_common()
            self._common.masters = self.masters
        listeners = served.serve(self._common)
        assert served.context is not None
        served.context.ids.is_all = self._is_all
        contexts = _contexts_of(self.settings)
        for model, sockets, context in zip(self.settings.listeners, bound, contexts, strict=True):
            primaries = primaries_of(self.settings, model, bound)
            listeners.open(model, sockets, context, primaries)
        return listeners

    @property
    def _listeners(self) -> list[Listeners]:
        return [one.listeners for one in self.upstreams if one.listeners is not None]

    @property
    def bound(self) -> list[tuple[str, str]]:
        """The addresses of the configured listeners as written, and their services."""
        return self._listeners[0].bound if self._listeners else []

    async def start(self) -> None:
        """Accept clients by the configured listeners from now on. Raises StartError."""
        try:
            for listeners in self._listeners[:1]:
                await listeners.start()
        except OSError as exc:  # what is bound may still be taken, as by the admin listener
            raise StartError(f"cannot listen on {exc.filename}: {why_not(exc)}") from None

    def renew_certificates(self) -> None:
        """Use the listeners' certificates as their files are now, for new clients. Files that cannot be used
        are being replaced at this moment, because a reload has just checked them."""
        try:
            contexts = _contexts_of(self.settings)
        except FileError as exc:
            notice("renewal", f"{exc.sentence}; the certificates in use stay until the next reload")
            return
        for listeners in self._listeners:
            listeners.replace_tls(contexts)

    def shut(self, why: str) -> None:
        """Refuse all clients for this reason, and close those there are; "": serve them again."""
        if self._common is None:
            return
        self._common.quotas.shut = why
        if why:
            for client in list(self.clients):
                client.give_up(STALE)

    async def close(self, seconds: float, at_once: asyncio.Event | None = None) -> None:
        """Stop accepting, and close all clients in at most `seconds`. Setting `at_once` skips the wait."""
        self.is_closing = True
        await asyncio.gather(*(one.close(seconds, at_once) for one in self._listeners))

    # -- time

    async def tick_forever(self) -> None:
        """Each second: flush telemetry, count lapsed exceptions, report outages."""
        collections = FullCollections()
        while True:
            await asyncio.sleep(1)
            for tick in (
                collections.tick,
                self.telemetry.flush,
                self._count_lapsed,
                self._shut_again,
                *(one.tick for one in self.upstreams),
                print_waiting,
            ):
                with going_on():
                    tick()

    def _shut_again(self) -> None:
        """Shut what came meanwhile: a handshake may have been under way."""
        if self._common is not None and self._common.quotas.shut:
            self.shut(self._common.quotas.shut)

    def chores(self) -> list[Coroutine[Any, Any, None]]:
        """The background jobs of the process."""
        jobs = [self.tick_forever()]
        for one in self.upstreams:
            jobs += one.chores()
        if self.in_force is not None:
            jobs.append(self._ttl_watch(self.upstreams[0].upstream).watch_forever())
        return jobs

    def _ttl_watch(self, upstream: Upstream) -> TtlWatch:
        of = self.upstream_of
        return TtlWatch(self.pending, upstream, self.telemetry, self._cannot_ask, report_fault, of)

    async def ask_now(self) -> None:
        """Ask Redis at once about every time to live and size that is open, and wait for the answers. Call it
        when no client is left that could still set one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ASK_SECONDS):
                while len(self.pending) or len(self.pending.sizes):
                    for one in (*self.pending, *self.pending.sizes):
                        one.due = 0.0
                    await asyncio.sleep(0.05)

    def _cannot_ask(self, reason: str) -> None:
        """If clients bring all credentials, keyfence may lack the permission: this is not a warning then."""
        self.tell(
            f"the upstream cannot be asked for times to live and sizes ({reason}): nothing is found late"
        )

    def _count_lapsed(self) -> None:
        today = datetime.datetime.now(datetime.UTC).date()
        dates: dict[str, list[datetime.date]] = {
            "legacy": [],
            "grants": [],
            "waivers": [one.until for one in self.settings.waivers],
        }
        for kind, until in self.policy.exceptions if self.policy is not None else ():
            dates[kind].append(until)
        for kind, untils in dates.items():
            self.telemetry.counters.set_exceptions_lapsed(kind, sum(until < today for until in untils))


def _contexts_of(settings: Settings) -> list[ssl.SSLContext | None]:
    """The TLS context of each listener; None for one without TLS."""
    return [listener_context(settings, index) for index in range(len(settings.listeners))]


def telemetry_of(settings: Settings, log: str | int | None) -> Telemetry:
    """The telemetry of one process: the only one, a worker, or the parent. `log` is where its decision log
    goes, see `Telemetry.log_to`. Raises OSError.

    A sink that a setting switches on is made here, and passed as one of `sinks`.
    """
    schedule = asyncio.get_running_loop().call_soon
    sinks = [Usage()] if settings.findings else []
    telemetry = Telemetry.to(log, sinks=sinks, mask_keys=settings.mask_keys, schedule=schedule)
    telemetry.describe = _described
    return telemetry


def _described(policy: CompiledPolicy, service: str, argv: Sequence[bytes], touches: Touches) -> Any:
    return as_line(policy, service, argv, touches, 1)
