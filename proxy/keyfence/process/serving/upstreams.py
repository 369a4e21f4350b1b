"""One upstream of a process, all that follows its state, and the clients that use it.

Rule: nothing here knows of another upstream. What concerns all of them, the runtime asks each.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from keyfence.config.settings import Settings
from keyfence.downstream.context import Common, ServerContext
from keyfence.downstream.listeners import Listeners
from keyfence.downstream.tls import upstream_context
from keyfence.net.closures import UPSTREAM_LOST
from keyfence.resp.notices import failed_over, failing_over, new_number
from keyfence.telemetry.operator_log import notice, warn
from keyfence.telemetry.telemetry import Telemetry
from keyfence.upstream.address import UpstreamAddress
from keyfence.upstream.credentials.keeper import Keeper
from keyfence.upstream.discovery import CannotLearn, Learner, NotAllowed
from keyfence.upstream.failovers import ROLE, Failover
from keyfence.upstream.health import Upstream
from keyfence.upstream.outages import Outages
from keyfence.upstream.own_commands import COMMAND, OwnCommand
from keyfence.upstream.own_user import missing_permissions, what_is_missing
from keyfence.upstream.sentinel.follower import Follower
from keyfence.upstream.standing import CREDENTIALS, KINDS, ROLES, Concern

from .replica_reads import replicas_of, report


class ServedUpstream:
    """One upstream, and what this process does about it."""

    def __init__(
        self,
        address: UpstreamAddress,
        settings: Settings,
        telemetry: Telemetry,
        tell: Callable[[str], None],
        adopt: Callable[[object], None] | None,
        *,
        quiet: bool,
    ) -> None:
        """`tell` prints information for operators. `adopt` takes the reply to COMMAND; None: nothing is read.
        A `quiet` one is a worker's, whose parent prints and counts the same."""
        self.context: ServerContext | None = None  # None: the clients are those of other processes
        self.listeners: Listeners | None = None  # of this upstream's clients
        self._telemetry = telemetry
        self._tell = tell
        self._quiet = quiet
        self._concerns: list[Concern] = []  # as last reported
        self._missing: list[OwnCommand] = []  # permissions that keyfence's own user lacks, as last reported
        self._user_changed = asyncio.Event()
        self._outage_changed = asyncio.Event()  # Redis has gone, or is back
        self._outages = None if quiet else Outages(address.shown)
        self.upstream = Upstream(
            address,
            upstream_context(settings),
            settings.connect_timeout,
            on_change=self._changed,
            on_failure=lambda: telemetry.counters.upstream_event(address.shown, "connect_failures"),
            on_fault=self._fault,
            on_state=self._outages.seen if self._outages is not None else lambda _up, _reason: None,
        )
        self.upstream.on_move = self._moved
        self.upstream.on_failover = self._failed_over
        self.upstream.on_served = self._served
        self.upstream.on_renewal = self._renew
        self.upstream.on_remade = lambda: telemetry.counters.upstream_event(address.shown, "reconnects")
        self.follower: Follower | None = None  # of Sentinels
        if address.sentinels is not None:
            self.follower = Follower(self.upstream, address.sentinels)
        self.replicas = replicas_of(settings, self.upstream)  # None: nothing is read from any
        self.keeper = Keeper(self.upstream, self.upstream.connect_timeout, self._credentials_fetched)
        self.keeper.take(address.credentials)
        if self.keeper.is_used and not quiet:
            telemetry.counters.declare("upstream_credentials_failures", [address.shown])
        self.upstream.on_refused = self.keeper.refused
        self._report_concerns()
        self.learner: Learner | None = None
        if adopt is not None:
            self.learner = Learner(self.upstream, adopt, self._cannot_learn)

    def take(self, address: UpstreamAddress, tls: ssl.SSLContext | None) -> None:
        """Use this login and these certificates from now on. The host and port do not change."""
        self.upstream.take(address, tls)
        self.keeper.take(address.credentials)
        self._user_changed.set()

    async def reach(self) -> None:
        """Probe the upstream once, and learn its commands if it answers."""
        await self.keeper.fetch()
        if self.follower is not None:
            await self.follower.find()
        is_up = await self.upstream.probe()
        self._report_concerns()
        if is_up and self.learner is not None:
            await self._check_user()
            self._user_changed.clear()
            await self.learner.learn()

    def serve(self, common: Common) -> Listeners:
        """This process has clients of the upstream, which come by these listeners."""
        self.context = ServerContext(common, self.upstream, self.replicas)
        self.listeners = Listeners(self.context)
        return self.listeners

    def announced(self) -> None:
        """The ready line is printed."""
        if self._outages is not None:
            self._outages.begin()

    def tick(self) -> None:
        """Call this about once a second."""
        if self._outages is not None:
            self._outages.tick()
        if self.replicas is not None:
            report(self.replicas, self._telemetry.counters)
        self._report_concerns()
        self._turn_away()

    def chores(self) -> list[Coroutine[Any, Any, None]]:
        """The background jobs."""
        jobs = [self.upstream.probe_forever(), self.keeper.keep_forever()]
        if self.follower is not None:
            jobs.append(self.follower.follow_forever())
        if self.replicas is not None:
            jobs += [self.replicas.check_forever(), self.replicas.find_forever()]
        if self.context is not None:
            jobs.append(self._close_idle_clients_forever(self.context))
            jobs.append(self._tell_of_outages_forever(self.context))
        if self.learner is not None:
            jobs.append(self.learner.learn_forever())
            if not self._quiet:
                jobs.append(self._check_user_forever())
        return jobs

    # -- what becomes known of it

    @property
    def is_node(self) -> bool:
        """Whether it is a node of a cluster, whose other nodes are upstreams too."""
        return bool(self.upstream.address.cluster)

    @property
    def concerns(self) -> list[Concern]:
        """What operators should know about it now. That a node of a cluster is one is no news."""
        found = [] if self.is_node else self.upstream.standing.concerns()
        if self.keeper.trouble:
            found.append(Concern(CREDENTIALS, f"has no new credentials: {self.keeper.trouble}"))
        return found

    def status(self) -> dict[str, Any]:
        """What `keyfence status` says of it."""
        upstream = self.upstream
        failover = upstream.last_failover
        return {
            "address": upstream.address.shown,
            "node": upstream.node,
            "role": upstream.role,
            "last_failover": failover and failover._asdict(),
            "up": bool(upstream.up),
            "since": upstream.since,
            "reason": "" if upstream.up else upstream.reason,
            "replicas": self.replicas.status() if self.replicas is not None else [],
            "credentials": self.keeper.status(),
        }

    def _report_concerns(self) -> None:
        """Report where it stands, and each change."""
        counters, upstream = self._telemetry.counters, self.upstream
        before, self._concerns = self._concerns, self.concerns
        kinds = {one.kind for one in self._concerns}
        for kind in KINDS:
            counters.upstream_stands(upstream.address.shown, kind, kind in kinds)
        if self._quiet:
            return
        for role in ROLES:
            counters.upstream_has_role(upstream.address.shown, role, role == upstream.role)
        for one in self._concerns:
            if one not in before:
                notice(f"upstream {one.kind}", f"upstream {upstream.address.shown} {one.text}")

    def _credentials_fetched(self) -> None:
        """Its credentials were fetched, or could not be."""
        shown, current = self.upstream.address.shown, self.keeper.rotation.current
        counters = self._telemetry.counters
        counters.upstream_credentials(shown, current.expires_at if current is not None else None)
        if self.keeper.trouble:
            counters.upstream_event(shown, "credentials_failures")
            if self.keeper.detail and not self._quiet:
                notice("credentials detail", f"the command for the credentials wrote: {self.keeper.detail}")

    async def _check_user(self) -> None:
        """Report the permissions that keyfence's own user lacks, and each change. Without a login of
        keyfence's own (clients bring all credentials) this is not a warning."""
        if self._quiet:
            return
        address, missing = self.upstream.address, await missing_permissions(self.upstream)
        if missing is None or missing == self._missing:
            return
        self._missing = missing
        if missing:
            (warn if address.has_login else self._tell)(what_is_missing(address, missing))

    async def _check_user_forever(self) -> None:
        """Check again each time the upstream comes back or keyfence's login changes."""
        while True:
            await self._user_changed.wait()
            self._user_changed.clear()
            await self._check_user()

    def _cannot_learn(self, reason: CannotLearn) -> None:
        """If clients bring all credentials, keyfence may lack the permission: this is not a warning then."""
        text = f"the upstream does not list its commands ({reason}): commands of its modules stay unknown"
        if isinstance(reason, NotAllowed):
            if COMMAND not in self._missing:  # else it was reported already
                self._tell(f"{text}; give its URL a user that may run COMMAND")
        elif not self._quiet:
            warn(text)

    def _fault(self, kind: str) -> None:
        self._telemetry.counters.upstream_fault(kind)
        if kind == "out_of_step":
            text = "a shared connection was closed: its replies were out of step with its requests"
            notice(kind, f"{text}. Somebody's text may pass for a reply; please report how")

    # -- when it goes, moves and comes back

    def _changed(self, up: bool) -> None:
        self._telemetry.counters.upstream_state(self.upstream.address.shown, up)
        self._outage_changed.set()
        self._turn_away()
        if self.learner is not None:
            self.learner.upstream_changed(up)
        if up:
            self._user_changed.set()

    def _turn_away(self) -> None:
        """Clients of a node of a cluster are to ask another node while it is down, as without keyfence."""
        if self.listeners is not None:
            self.listeners.refuse(self.upstream.turns_away)

    def _moved(self, node: str, held: Collection[str]) -> None:
        """It leads to another node now. Connections to the `held` addresses stay."""
        if self.context is not None:
            self.context.upstream_moved(f"upstream {self.upstream.address.shown} is {node} now", held)
        self._look_anew()

    def _failed_over(self, now: Failover) -> None:
        """Another node is the primary now."""
        shown = self.upstream.address.shown
        if not self._quiet:
            self._telemetry.counters.upstream_event(shown, "failovers")
            what = "a primary again" if now.why == ROLE else f"{now.node} now"
            notice(f"failover {now.node}", f"upstream {shown} is {what}, as {now.why} says")
        if now.why == ROLE:  # otherwise it has moved, which was told before
            self._look_anew()

    def _look_anew(self) -> None:
        """The node may have other commands and users than the former one."""
        if self.learner is not None:
            self.learner.upstream_changed(True)
        self._user_changed.set()

    def _served(self, seconds: float) -> None:
        """A failover is over that took this long."""
        if not self._quiet:
            self._telemetry.counters.upstream_failover_took(self.upstream.address.shown, seconds)

    def _renew(self) -> None:
        """Connections may lead to a replica, and new ones to a primary."""
        if self.context is not None:
            self.context.renew()

    async def _tell_of_outages_forever(self, context: ServerContext) -> None:
        """Tell clients that take maintenance notifications when Redis goes away, so that they wait as long
        for replies as keyfence does, and when it is back."""
        seconds = math.ceil(self.upstream.connect_timeout)
        number = 0
        while True:
            await self._outage_changed.wait()
            self._outage_changed.clear()
            if self.upstream.up is False:
                number = new_number()
                await context.notify(failing_over(number, seconds))
            elif number:
                await context.notify(failed_over(number))
                number = 0

    async def _close_idle_clients_forever(self, context: ServerContext) -> None:
        """In an outage, close earlier clients that wait for nothing, as the end of Redis would: then they
        know of it, and keep their next commands until they can connect again."""
        while True:
            await asyncio.sleep(1)
            given_up_at = self.upstream.given_up_at
            if not given_up_at:
                continue
            async for client in context.each_client():
                if client.speaks_to_redis and client.connected_at < given_up_at and client.is_idle:
                    client.give_up(UPSTREAM_LOST)
