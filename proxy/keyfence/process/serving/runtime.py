"""The runtime of one process: authorizer, upstream, the server context of its clients, and background jobs.

Rule: policy and configuration change together, between two commands and never within one. A transaction, and
a client's identity, keep the ones that they began with.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import math
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from typing import Any, TypeVar

from keyfence.commands.extract import adopt
from keyfence.commands.learned import learn
from keyfence.commands.model import Touches
from keyfence.config.limits import ClientLimits
from keyfence.config.settings import Settings
from keyfence.downstream.announced import primaries_of
from keyfence.downstream.client import Client
from keyfence.downstream.context import ServerContext
from keyfence.downstream.listeners import Listeners
from keyfence.downstream.tls import listener_context, upstream_context
from keyfence.identity.resolver import Resolver
from keyfence.net.addresses import Bound
from keyfence.net.closures import UPSTREAM_LOST
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.enforcement.modes import BreakGlass, Modes
from keyfence.policy.engine.authorizer import Authorizer, Candidate, InForce
from keyfence.policy.engine.pending import PendingTtls
from keyfence.policy.rules import RULES
from keyfence.policy.units import counted
from keyfence.policy.wording.command_log import as_line
from keyfence.resp.notices import failed_over, failing_over, new_number
from keyfence.resp.replies import DOUBTS
from keyfence.session.conversation.owner_questions import Question
from keyfence.session.conversation.shown_ids import ShownIds
from keyfence.telemetry.candidate.changes import Changes
from keyfence.telemetry.operator_log import notice, report_fault, tell, warn
from keyfence.telemetry.telemetry import Telemetry
from keyfence.telemetry.usage import Usage
from keyfence.upstream.credentials.keeper import Keeper
from keyfence.upstream.discovery import CannotLearn, Learner, NotAllowed
from keyfence.upstream.failovers import Failover
from keyfence.upstream.health import Upstream, UpstreamAddress
from keyfence.upstream.outages import Outages
from keyfence.upstream.own_commands import COMMAND, OwnCommand
from keyfence.upstream.own_user import missing_permissions, what_is_missing
from keyfence.upstream.sentinel.follower import Follower
from keyfence.upstream.standing import CREDENTIALS, KINDS, ROLES, Concern

from .explainer import Explainer
from .garbage import FullCollections, release_slowly
from .rlimits import room_for
from .ttl_check import TtlWatch
from .zeros import declare_zeros

_T = TypeVar("_T")
# After this time a thread that works (loading a policy, reading findings) lets the event loop go on. Python's
# own 5 ms would be a delay for all clients, again and again.
SWITCH_SECONDS = 0.0005
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
        self.upstream: Upstream | None = None
        self.learner: Learner | None = None
        self.follower: Follower | None = None  # of Sentinels
        self.keeper: Keeper | None = None  # of credentials that change
        self._context: ServerContext | None = None
        self._outages: Outages | None = None
        self._concerns: list[Concern] = []  # about the upstream, as last reported
        self._missing: list[OwnCommand] = []  # permissions that keyfence's own user lacks, as last reported
        self._user_changed = asyncio.Event()
        self._outage_changed = asyncio.Event()  # Redis has gone, or is back
        self._quiet = quiet
        self._held_back: list[str] | None = []  # lines that wait for the ready line; None: it is printed
        self.take(settings, policy, time.time() if loaded_at is None else loaded_at)

    def take(self, settings: Settings, policy: CompiledPolicy | None, loaded_at: float) -> None:
        """Put a policy and its configuration in force. `loaded_at` is in Unix seconds.

        Upstream and listeners keep their addresses. Connected clients keep their service until they
        authenticate again. Raises FileError, and changes nothing then.
        """
        if self.upstream is not None and settings.upstream is not None:
            self.upstream.take(settings.upstream, upstream_context(settings))
            if self.keeper is not None:
                self.keeper.take(settings.upstream.credentials)
            self._user_changed.set()
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
        if self._context is not None:
            self._context.admit(self._resolver(), settings.limits.of_requests())
            self._context.quotas.limits = self._client_limits()
        self._count_lapsed()

    def _let_go(self, policy: CompiledPolicy) -> None:
        """Free a policy that is used no more."""
        self.explainer.forget()
        if self._context is not None:
            for client in self.clients:
                client.policy_replaced()
            release_slowly([*policy.targets])

    def _authorizer_of(self, policy: CompiledPolicy) -> Authorizer:
        """The authorizer of a policy under the settings in force, with the candidate beside it."""
        beside, candidate = None, self._candidate
        if candidate is not None and self.changes is not None:
            self.changes.guard(policy.secrecy, candidate.secrecy)
            modes = self._modes(candidate)
            authorizer = Authorizer(candidate, modes, self.glass, time.time, self._decision_failed)
            beside = Candidate(authorizer, self.changes, policy.secrecy == candidate.secrecy)
        return Authorizer(
            policy,
            self._modes(policy),
            self.glass,
            time.time,
            self._decision_failed,
            self.pending,
            beside,
        )

    def _modes(self, policy: CompiledPolicy) -> Modes:
        return Modes(self.settings.modes, policy.services, self.settings.waived())

    def take_candidate(self, policy: CompiledPolicy | None, number: int) -> None:
        """Compare a policy with the one in force from now on, or (None) end the comparison. `number` tells
        this comparison from earlier ones."""
        if self.in_force is None:
            return
        counters = self.telemetry.counters  # with what the comparison has counted so far
        before, self._candidate, self.changes = self._candidate, policy, None
        if policy is not None:
            self.changes = Changes(number, counters, mask_keys=self.settings.mask_keys)
            counters.begin_comparison(policy.services, RULES)
        self.telemetry.beside = self.changes
        self.in_force.authorizer = self._authorizer_of(self.in_force.authorizer.policy)
        if before is not None:
            self._let_go(before)

    def _decision_failed(self, exc: Exception) -> None:
        self.telemetry.counters.internal_error("decision")
        report_fault(exc)

    # -- upstream

    def open_upstream(self, address: UpstreamAddress) -> Upstream:
        self._outages = None if self._quiet else Outages(address.shown)
        self.upstream = Upstream(
            address,
            upstream_context(self.settings),
            self.settings.connect_timeout,
            on_change=self._upstream_changed,
            on_failure=self._connect_failed,
            on_fault=self._upstream_fault,
            on_state=self._outages.seen if self._outages is not None else lambda _up, _reason: None,
        )
        self.upstream.on_failover = self._failed_over
        self.upstream.on_served = self._served
        self.upstream.on_renewal = self._renew
        self.upstream.on_remade = self._reconnected
        self.telemetry.on_upstream_shown = self._upstream_shown
        if address.sentinels is not None:
            self.follower = Follower(self.upstream, address.sentinels)
        self.keeper = Keeper(self.upstream, self.upstream.connect_timeout, self._credentials_fetched)
        self.keeper.take(address.credentials)
        if self.keeper.is_used and not self._quiet:
            self.telemetry.counters.declare("upstream_credentials_failures", [address.shown])
        self.upstream.on_refused = self.keeper.refused
        self._report_concerns(self.upstream)
        if self.authorizer is not None:
            self.learner = Learner(self.upstream, self._adopt_commands, self._cannot_learn)
        return self.upstream

    async def reach_upstream(self, address: UpstreamAddress) -> Upstream:
        """Open the upstream, probe it once, and learn its commands if it answers."""
        upstream = self.open_upstream(address)
        if self.keeper is not None:
            await self.keeper.fetch()
        if self.follower is not None:
            await self.follower.find()
        is_up = await upstream.probe()
        self._report_concerns(upstream)
        if is_up and self.learner is not None:
            await self._check_user(upstream)
            self._user_changed.clear()
            await self.learner.learn()
        return upstream

    def _credentials_fetched(self) -> None:
        """Credentials of the upstream were fetched, or could not be."""
        assert self.upstream is not None
        assert self.keeper is not None
        shown, current = self.upstream.address.shown, self.keeper.rotation.current
        counters = self.telemetry.counters
        counters.upstream_credentials(shown, current.expires_at if current is not None else None)
        if self.keeper.trouble:
            counters.upstream_credentials_failed(shown)
            if self.keeper.detail and not self._quiet:
                notice("credentials detail", f"the command for the credentials wrote: {self.keeper.detail}")

    async def _check_user(self, upstream: Upstream) -> None:
        """Report the permissions that keyfence's own user lacks, and each change. Without a login of
        keyfence's own (clients bring all credentials) this is not a warning."""
        if self._quiet:
            return
        missing = await missing_permissions(upstream)
        if missing is None or missing == self._missing:
            return
        self._missing = missing
        if missing:
            (warn if upstream.address.has_login else self.tell)(what_is_missing(upstream.address, missing))

    async def _check_user_forever(self, upstream: Upstream) -> None:
        """Check again each time the upstream comes back or keyfence's login changes."""
        while True:
            await self._user_changed.wait()
            self._user_changed.clear()
            await self._check_user(upstream)

    def _connect_failed(self) -> None:
        assert self.upstream is not None
        self.telemetry.counters.upstream_connect_failed(self.upstream.address.shown)

    def _upstream_shown(self, word: str, at: float) -> None:
        """A session has seen something of the upstream (`Standing.shown`)."""
        assert self.upstream is not None
        self.upstream.standing.shown(word, at)
        if word in DOUBTS:
            self.upstream.answered(word)

    def _failed_over(self, now: Failover, held: Collection[str] | None) -> None:
        """Another node is the primary now. Connections to the `held` addresses stay; None: all do."""
        assert self.upstream is not None
        shown = self.upstream.address.shown
        if self._context is not None and held is not None:
            self._context.upstream_moved(f"upstream {shown} is {now.node} now", held)
        if not self._quiet:  # a worker's parent has followed it too
            self.telemetry.counters.upstream_failed_over(shown)
            what = "a primary again" if held is None else f"{now.node} now"
            notice(f"failover {now.node}", f"upstream {shown} is {what}, as {now.why} says")
        if self.learner is not None:
            self.learner.upstream_changed(True)
        self._user_changed.set()

    def _reconnected(self) -> None:
        assert self.upstream is not None
        self.telemetry.counters.upstream_reconnected(self.upstream.address.shown)

    def _served(self, seconds: float) -> None:
        """A failover is over that took this long."""
        assert self.upstream is not None
        if not self._quiet:
            self.telemetry.counters.upstream_failover_took(self.upstream.address.shown, seconds)

    def _renew(self) -> None:
        """Connections may lead to a replica, and new ones to a primary."""
        if self._context is not None:
            self._context.renew()

    def _upstream_changed(self, up: bool) -> None:
        assert self.upstream is not None
        self.telemetry.counters.upstream_state(self.upstream.address.shown, up)
        self._outage_changed.set()
        if self.learner is not None:
            self.learner.upstream_changed(up)
        if up:
            self._user_changed.set()

    @property
    def concerns(self) -> list[Concern]:
        """What operators should know about the upstream now."""
        if self.upstream is None:
            return []
        found = self.upstream.standing.concerns()
        if self.keeper is not None and self.keeper.trouble:
            found.append(Concern(CREDENTIALS, f"has no new credentials: {self.keeper.trouble}"))
        return found

    def _report_concerns(self, upstream: Upstream) -> None:
        """Report where the upstream stands, and each change."""
        before, self._concerns = self._concerns, self.concerns
        kinds = {one.kind for one in self._concerns}
        for kind in KINDS:
            self.telemetry.counters.upstream_stands(upstream.address.shown, kind, kind in kinds)
        if self._quiet:
            return
        for role in ROLES:
            self.telemetry.counters.upstream_has_role(upstream.address.shown, role, role == upstream.role)
        for one in self._concerns:
            if one not in before:
                notice(f"upstream {one.kind}", f"upstream {upstream.address.shown} {one.text}")

    def _upstream_fault(self, kind: str) -> None:
        self.telemetry.counters.upstream_fault(kind)
        if kind == "out_of_step":
            text = "a shared connection was closed: its replies were out of step with its requests"
            notice(kind, f"{text}. Somebody's text may pass for a reply; please report how")

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

    def _cannot_learn(self, reason: CannotLearn) -> None:
        """If clients bring all credentials, keyfence may lack the permission: this is not a warning then."""
        text = f"the upstream does not list its commands ({reason}): commands of its modules stay unknown"
        if isinstance(reason, NotAllowed):
            if COMMAND not in self._missing:  # else it was reported already
                self.tell(f"{text}; give its URL a user that may run COMMAND")
        elif not self._quiet:
            warn(text)

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
        if self._outages is not None:
            self._outages.begin()
        waiting, self._held_back = self._held_back or [], None
        for text in waiting:
            self.tell(text)

    # -- clients

    def server_context(self, upstream: Upstream) -> ServerContext:
        settings = self.settings
        self._context = ServerContext(
            self.in_force,
            self._resolver(),
            upstream,
            self.telemetry,
            settings.limits.of_requests(),
            self._client_limits(),
            settings.shared_connections,
        )
        return self._context

    @property
    def ids(self) -> ShownIds:
        """The connection ids that clients of this process were shown."""
        assert self._context is not None
        return self._context.ids

    @property
    def clients(self) -> Collection[Client]:
        """The clients of this process."""
        assert self._context is not None
        return self._context.clients

    def answer_by(self, ask: Callable[[Question], None], *, is_all: bool) -> None:
        """Have the questions of sessions answered in this way. `is_all`: no other process has clients."""
        assert self._context is not None
        self._context.ids.is_all = is_all
        self._context.ask = ask

    def _client_limits(self) -> ClientLimits:
        """The configured limits, with no more connections than file descriptors allow."""
        limits = self.settings.limits.of_clients()
        # With workers, their parent has the admin listeners.
        room = room_for(limits.connections, 0 if self.settings.workers else self.settings.admin_listeners)
        if room < 0.9 * limits.connections:
            self.tell(f"file descriptors suffice for {room} connections of {limits.connections} (ulimit -n)")
        return dataclasses.replace(limits, connections=room)

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

    def listeners(self, upstream: Upstream, bound: list[Bound]) -> Listeners:
        """The configured listeners on their bound sockets, in the same order."""
        listeners = Listeners(self.server_context(upstream))
        contexts = contexts_of(self.settings)
        for model, sockets, context in zip(self.settings.listeners, bound, contexts, strict=True):
            primaries = primaries_of(self.settings, model, bound)
            listeners.open(model, sockets, context, primaries)
        return listeners

    # -- time

    async def tick_forever(self) -> None:
        """Each second: flush telemetry, count lapsed exceptions, report outages."""
        collections = FullCollections()
        while True:
            await asyncio.sleep(1)
            collections.tick()
            self.telemetry.flush()
            self._count_lapsed()
            if self._outages is not None:
                self._outages.tick()
            if self.upstream is not None:
                self._report_concerns(self.upstream)

    async def tell_of_outages_forever(self, upstream: Upstream, context: ServerContext) -> None:
        """Tell clients that take maintenance notifications when Redis goes away, so that they wait as long
        for replies as keyfence does, and when it is back."""
        seconds = math.ceil(upstream.connect_timeout)
        number = 0
        while True:
            await self._outage_changed.wait()
            self._outage_changed.clear()
            if upstream.up is False:
                number = new_number()
                await context.notify(failing_over(number, seconds))
            elif number:
                await context.notify(failed_over(number))
                number = 0

    async def close_idle_clients_forever(self, upstream: Upstream, context: ServerContext) -> None:
        """In an outage, close earlier clients that wait for nothing, as the end of Redis would: then they
        know of it, and keep their next commands until they can connect again."""
        while True:
            await asyncio.sleep(1)
            if not upstream.given_up_at:
                continue
            async for client in context.each_client():
                is_concerned = client.speaks_to_redis and client.connected_at < upstream.given_up_at
                if is_concerned and client.is_idle:
                    client.give_up(UPSTREAM_LOST)

    def chores(self) -> list[Coroutine[Any, Any, None]]:
        """The background jobs of the process."""
        assert self.upstream is not None
        assert self.keeper is not None
        jobs = [self.upstream.probe_forever(), self.tick_forever(), self.keeper.keep_forever()]
        if self.follower is not None:
            jobs.append(self.follower.follow_forever())
        if self._context is not None:
            jobs.append(self.close_idle_clients_forever(self.upstream, self._context))
            jobs.append(self.tell_of_outages_forever(self.upstream, self._context))
        if self.learner is None:
            return jobs
        watch = TtlWatch(self.pending, self.upstream, self.telemetry, self._cannot_ask, report_fault)
        checks = [] if self._quiet else [self._check_user_forever(self.upstream)]
        return [*jobs, *checks, self.learner.learn_forever(), watch.watch_forever()]

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


def contexts_of(settings: Settings) -> list[ssl.SSLContext | None]:
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


def _report_end(task: asyncio.Future[None]) -> None:
    """Report a job that ends by a fault: nothing else notices."""
    if not task.cancelled() and isinstance(fault := task.exception(), Exception):
        report_fault(fault)


async def until_it_works(work: Callable[[], _T]) -> _T:
    """Run this in a thread, and again after a second if the system refuses it, as when file descriptors run
    out."""
    while True:
        try:
            return await asyncio.to_thread(work)
        except OSError as exc:
            notice("late start", f"not everything is open yet: {exc.strerror or exc}; trying again")
            await asyncio.sleep(1)


@contextlib.asynccontextmanager
async def background(*jobs: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run these jobs during the body, and end them with it."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    for task in tasks:
        task.add_done_callback(_report_end)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run_loop(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine on uvloop, or on asyncio's own loop if uvloop is not installed."""
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        import uvloop
    except ImportError:
        asyncio.run(main())
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
