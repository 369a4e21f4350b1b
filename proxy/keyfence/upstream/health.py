"""The upstream Redis: its address, how to connect to it, and whether it is up.

Rule: only `Upstream` knows the upstream's state. While it is down, there is one connection attempt per
back-off step, besides the prober's, for any number of waiting clients. While it seems up, a few attempts run
at a time, so that not all clients try one that has just gone. In the first seconds of an outage clients wait
for its end, because most outages are restarts. No client waits while Redis refuses keyfence's login.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence

from keyfence.net.host_port import host_port
from keyfence.resp.replies import DOUBTS, READ_ONLY, TO_NODES, TO_PRIMARY
from keyfence.resp.role import REPLICA

from .address import UpstreamAddress
from .attempt import Attempt
from .credentials.login import Login
from .credentials.model import Credentials
from .doubt import Doubt, Looker, Renewals
from .failovers import ROLE, Failover, Failovers
from .handshake import Answers, GreetingError, Misplaced, describe
from .names import HeldAddresses, addresses_of, is_name
from .own_commands import PING, READONLY
from .patience import at_most
from .probe import NOT_READY, Probe, Silence
from .standing import HELLO, ROLES, Standing

FIRST_BACKOFF = 0.05  # seconds
LONGEST_BACKOFF = 1.0
PROBE_INTERVAL = 1.0
PROBE_INTERVAL_WAITED = 0.25  # in the first seconds of an outage, in which clients wait
DROPS_IN_A_ROW = 3
ATTEMPTS_AT_ONCE = 16  # concurrent connection attempts for clients; the other clients wait for their result
SLACK_SECONDS = 1.0  # beyond the time that a login may take to be fetched
_FULL = "max number of clients"  # in the error of a Redis that has as many as it takes
# What is noticed of an upstream besides errors to clients: a connection has ended, or cannot be made, or the
# prober gets no answer.
RESET, CONNECT, SILENT = "RESET", "CONNECT", "SILENT"


class Upstream:
    """One upstream: address, TLS, and its state according to the last attempts."""

    def __init__(
        self,
        address: UpstreamAddress,
        tls: ssl.SSLContext | None = None,
        connect_timeout: float = 5.0,
        on_change: Callable[[bool], None] = lambda _up: None,
        on_failure: Callable[[], None] = lambda: None,
        on_fault: Callable[[str], None] = lambda _kind: None,
        on_state: Callable[[bool, str], None] = lambda _up, _reason: None,
    ) -> None:
        """`on_change` is called when it goes up or down, `on_state` also for each new reason. `on_fault` is
        called for unexpected data on a shared connection, with `push` or `out_of_step`."""
        self.address = address
        self.connect_timeout = connect_timeout
        self.up: bool | None = None  # None: not tried yet
        self.reason = "not tried yet"
        self.is_refused = False  # whether Redis refused keyfence's login at the last attempt
        self.since = time.time()  # when `up` changed last
        self.standing = Standing()
        self.silence = Silence(PROBE_INTERVAL, lambda: self.on_sign(SILENT))
        # For how many seconds clients wait for the end of an outage; 0.0: they leave it at once, because
        # another node of the cluster takes over, for which they have to ask.
        self.patience = connect_timeout
        self.unnamed = "no Sentinel has named the primary yet"  # why its host is not known, while it is not
        self.connects = 0
        self.failures = 0
        self.moved_at = 0.0  # when another node became the primary; 0.0: never
        # Called when it leads to another node: connections must leave all others, but not these addresses.
        self.on_move: Callable[[str, Collection[str]], None] = lambda _node, _held: None
        # Called when another node is the primary, or the same address leads to a primary again.
        self.on_failover: Callable[[Failover], None] = lambda _now: None
        self.reads_only = False  # a replica of a cluster: its clients' connections begin with READONLY
        self.on_served: Callable[[float], None] = lambda _seconds: None  # how long a failover took
        # Called when connections are to be replaced, as far as nobody notices.
        self.on_renewal: Callable[[], None] = lambda: None
        self.on_remade: Callable[[], None] = lambda: None  # a connection took the place of an earlier one
        # Told RESET, CONNECT, SILENT, and the word of an error to a client: MOVED, ASK, or one of `DOUBTS`.
        self.on_sign: Callable[[str], None] = lambda _word: None
        self._to_remake = 0  # connections that were given up, and not made again
        self._failovers = Failovers()
        self._renewals = Renewals()
        self._held = HeldAddresses()
        self._doubt = Doubt()  # the prober's
        self._lookers: list[Looker] = []  # others who look who the primary is
        self.login: Login | None = None  # of new connections, if it changes
        # Told that Redis refused the login of this number; answers whether there may be another one soon.
        self.on_refused: Callable[[int], bool] = lambda _number: False
        self._tls = tls
        self._on_change = on_change
        self._on_failure = on_failure
        self._on_state = on_state
        self.on_fault = on_fault
        self._backoff = 0.0
        self._retry_at = 0.0
        self._drops = 0  # calls of `dropped` since the last success
        self._back = asyncio.Event()  # set while connections can be made
        self._patient_until = 0.0  # when clients stop waiting for the end of the outage, in the loop's time
        self._trying = False  # whether an attempt is under way while it is down
        self._attempts = asyncio.Semaphore(ATTEMPTS_AT_ONCE)

    def take(self, address: UpstreamAddress, tls: ssl.SSLContext | None) -> None:
        """Use this login and these certificates for new connections. The host and port do not change."""
        known = self.address
        address = dataclasses.replace(address, host=known.host, port=known.port, shown=known.shown)
        if address.credentials is not None:
            address = dataclasses.replace(address, username=known.username, password=known.password)
        else:
            self.login = None
        self.address = address
        self._tls = tls

    def log_in_with(self, credentials: Credentials, number: int) -> None:
        """Use this login for new connections, which are made at once if they wait for it."""
        user, password = credentials.username, credentials.password
        self.address = dataclasses.replace(self.address, username=user, password=password)
        now = time.time()
        self.login = Login(number, self.address.login()[0], now, credentials.ends_at(now))
        self.try_again()

    def try_again(self) -> None:
        """Connections that wait for the end of an outage are made at once."""
        self._can_connect()

    def move(self, host: str, port: int, why: str) -> None:
        """Connect to this node from now on, because it is the primary now."""
        is_first = not self.address.host
        self._lead_to(host, port)
        if not is_first:
            self._moved(host_port(host, port), why)

    def choose(self, host: str, port: int) -> None:
        """Connect to this node from now on, which will do as well as the former one: it is no failover."""
        self._lead_to(host, port)
        self.up = None  # what is known is about the former node
        self._leave_for(host_port(host, port))

    def _lead_to(self, host: str, port: int) -> None:
        self.address = dataclasses.replace(self.address, host=host, port=port)
        self._held = HeldAddresses()

    def _moved(self, node: str, why: str, held: Collection[str] = ()) -> None:
        """Another node is the primary now."""
        self._failovers.moved(node, why)
        self._leave_for(node, held)
        assert self._failovers.last is not None
        self.on_failover(self._failovers.last)

    def _leave_for(self, node: str, held: Collection[str] = ()) -> None:
        """What stands on other nodes must leave them, but not what stands on one of the `held` addresses."""
        self.moved_at = time.time()
        self.standing.moved()
        self._can_connect()
        self.on_move(node, held)
        self.look_again()

    def opening(self, settings: list[bytes]) -> list[bytes]:
        """The first commands on a connection of clients with these `settings`. keyfence's own user sends
        READONLY, if there is one: clients' users need no permission for it then."""
        login = self.address.login()
        if not self.reads_only:
            return [*login, *settings]
        asked = READONLY.request()
        return [*login, asked, *settings] if login else [*settings, asked]

    @property
    def role(self) -> str:
        """One of `standing.ROLES`."""
        return (self.standing.role if self.up or self.standing.is_demoted else "") or ROLES[-1]

    @property
    def last_failover(self) -> Failover | None:
        """The last time that another node became the primary; None: never."""
        return self._failovers.last

    def looked_for_by(self, looker: Looker) -> None:
        """Somebody else looks who the primary is, or which nodes there are."""
        self._lookers.append(looker)

    def look_again(self) -> None:
        """There is a sign that another node may be the primary: look at once."""
        self._doubt.look_again()
        for one in self._lookers:
            one.look_again()

    def remake(self) -> None:
        """A connection is given up that had been used, and another one may take its place."""
        self._to_remake += 1

    def lost(self) -> None:
        """A connection ended that had been used."""
        self.remake()
        self._failovers.doubted()
        self.on_sign(RESET)
        self.look_again()

    def answered(self, error: str) -> None:
        """Redis answered a client with an error that begins with one of `resp.replies.DOUBTS`."""
        if error == READ_ONLY:
            self._failovers.doubted()
            self._renewals.refused()
        self.on_sign(error)
        self.look_again()

    def seen(self, word: str, at: float | None = None) -> None:
        """A session has seen something of Redis (`Standing.shown`), now or `at` that Unix time."""
        if word == TO_PRIMARY:  # what a replica of Valkey says in place of READONLY, if the client can follow
            word = READ_ONLY
        self.standing.shown(word, time.time() if at is None else at)
        if word in DOUBTS:
            self.answered(word)
        elif word in TO_NODES:
            self.on_sign(word)

    @property
    def node(self) -> str:
        """The node that Sentinels name now; "": there are none, or they have named none yet."""
        address = self.address
        return host_port(address.host, address.port) if address.sentinels and address.host else ""

    @property
    def is_followed(self) -> bool:
        """Whether Sentinels name its node, so that only a primary will do."""
        return self.address.sentinels is not None

    @property
    def tls(self) -> ssl.SSLContext | None:
        """With what connections are secured."""
        return self._tls

    @property
    def state(self) -> str:
        """The state as a phrase for clients and operators."""
        where = f"upstream {self.address.shown}"
        return f"{where} is up" if self.up else f"{where} is unreachable: {self.reason}"

    @property
    def must_wait(self) -> bool:
        """Whether no attempt should be made now, because the last failure is recent or another attempt is
        under way while the upstream is down. A process that stands still takes connections."""
        if self._back.is_set():
            return False
        return self._trying or self.is_dead or asyncio.get_running_loop().time() < self._retry_at

    @property
    def is_patient(self) -> bool:
        """Whether an outage has only begun, so that clients wait for its end."""
        return asyncio.get_running_loop().time() < self._patient_until

    @property
    def given_up_at(self) -> float:
        """When clients stopped waiting for the end of the outage, in the loop's time; 0.0: they wait, or
        there is none."""
        return 0.0 if self._back.is_set() or self.is_patient else self._patient_until

    @property
    def turns_away(self) -> bool:
        """Whether its clients are to ask another node."""
        return not self.patience and self.up is False and not self._back.is_set()

    @property
    def is_dead(self) -> bool:
        """Whether others say that its node is dead, and it has not answered since."""
        return self.silence.is_dead

    def died(self, why: str) -> None:
        """Its node does not answer, and others say that it is dead: what stands on it must leave it."""
        self.failed(why)
        self.silence.is_dead = True

    def succeeded(self) -> None:
        """A connection for clients can be used."""
        if self._to_remake:
            self._to_remake -= 1
            self.on_remade()
        self._came_up()

    def _came_up(self) -> None:
        self.connects += 1
        self.silence.is_dead = False
        self._can_connect()
        self._set(up=True, reason="")
        self._serves()

    def _serves(self) -> None:
        """A connection can be used."""
        if self.standing.is_demoted:
            return
        seconds = self._failovers.served()
        if seconds is not None:
            self.on_served(seconds)

    def _can_connect(self) -> None:
        self._backoff = self._retry_at = self._patient_until = 0.0
        self._drops = 0
        self.is_refused = False
        self._back.set()

    def dropped(self, reason: str) -> None:
        """A connection was opened and ended before a byte was received.

        An operator may have killed a single one. Several in a row count as a failure: a load balancer without
        servers, or a Redis at `maxclients`, behaves like this.
        """
        self._drops += 1
        if self._drops >= DROPS_IN_A_ROW:
            self.failed(reason)

    def failed(self, reason: str, *, is_refused: bool = False) -> None:
        """A connection attempt failed. The next ones wait longer each time, with jitter to spread them.
        `is_refused`: Redis refused keyfence's login, which no client should wait for."""
        self.failures += 1
        self._failovers.doubted()
        self.on_sign(CONNECT)
        for one in self._lookers:
            one.look_again()
        self._on_failure()
        now = asyncio.get_running_loop().time()
        self._backoff = min(max(self._backoff * 2, FIRST_BACKOFF), LONGEST_BACKOFF)
        self._retry_at = now + self._backoff * random.uniform(0.5, 1.0)
        if self._back.is_set():
            self._back.clear()
            self._patient_until = now + self.patience
        self.is_refused = is_refused
        if is_refused:
            self._patient_until = 0.0
        self._set(up=False, reason=reason)

    def login_failed(self, failure: GreetingError) -> str:
        """Record that a connection was made, and could not be used. Returns the `state` after it."""
        self.failed(str(failure), is_refused=bool(failure.refusal))
        return self.state

    def may_try_again(self, failure: GreetingError, login: Login | None) -> bool:
        """Whether a connection that could not be used is worth being made anew: it has led to a replica, or
        Redis has refused this login of keyfence's, and there may be another."""
        if isinstance(failure, Misplaced):
            self.failed(str(failure))
            return True
        return failure.is_first and self._renews(failure.refusal, login)

    def _renews(self, refusal: str, login: Login | None) -> bool:
        """Whether there may be another login than this one, which Redis has refused. Until it is known,
        connections wait."""
        if login is None or _FULL in refusal or not self.on_refused(login.number):
            return False
        if login is self.login and self._back.is_set():
            self._back.clear()
            self._retry_at = self._patient_until = (
                asyncio.get_running_loop().time() + self.connect_timeout + SLACK_SECONDS
            )
        return True

    def _failed_by(self, exc: OSError) -> None:
        """An attempt failed. With a broken pipe, the connection was made, and ended before anything was
        written."""
        if isinstance(exc, BrokenPipeError):
            self.dropped(describe(exc))
        else:
            self.failed(describe(exc), is_refused=isinstance(exc, NoLogin))

    def _set(self, *, up: bool, reason: str) -> None:
        before = self.up, self.reason
        self.up, self.reason = up, reason
        if before[0] is not up:
            self.since = time.time()
            self._on_change(up)
        if before != (up, reason):
            self._on_state(up, reason)

    async def connect(self, attempt: Attempt) -> None:
        """Open a connection for a client. If that fails, or another one failed recently, wait while
        `is_patient`, and then raise UpstreamDown."""
        while True:
            async with self._attempts:
                if not self.must_wait:
                    try:
                        await self.attempt(attempt.protocol)
                        return
                    except OSError as exc:
                        if attempt.failed(exc):
                            return
                        self._failed_by(exc)
            if not await self._comes_back():
                raise UpstreamDown(self.state, is_refused=self.is_refused)

    async def can_connect(self) -> None:
        """Wait until connections can be made, however long that takes."""
        await self._back.wait()

    async def _comes_back(self) -> bool:
        """Wait until connections can be made again, while `is_patient`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._patient_until):
                await self._back.wait()
                return True
        return False

    async def attempt(
        self, protocol: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Open a connection for keyfence itself, in any state of the upstream. Raises OSError; TimeoutError
        and ssl.SSLError are subclasses."""
        if self.up is not False or self._back.is_set():
            return await self._connect(protocol)
        self._trying = True
        try:
            return await self._connect(protocol)
        finally:
            self._trying = False

    async def _connect(
        self, protocol: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        address = self.address
        if address.sentinels is not None and not address.host:
            raise ConnectionError(self.unnamed)
        if address.credentials is not None and not address.password:
            raise NoLogin
        async with at_most(self.connect_timeout):
            if address.kind == "unix":
                loop = asyncio.get_running_loop()
                return await loop.create_unix_connection(protocol, address.path)
            hosts = await self._resolved(address) if is_name(address.host) else [address.host]
            for host in hosts[:-1]:
                with contextlib.suppress(OSError):
                    async with at_most(self.connect_timeout / len(hosts)):
                        return await self._connect_to(host, protocol)
            return await self._connect_to(hosts[-1], protocol)

    async def _connect_to(
        self, host: str, protocol: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        address = self.address
        name = (address.server_name or address.host) if self._tls is not None else None
        loop = asyncio.get_running_loop()
        return await loop.create_connection(protocol, host, address.port, ssl=self._tls, server_hostname=name)

    async def _resolved(self, address: UpstreamAddress) -> list[str]:
        """The addresses that a name has now. If one has gone, what stands there must leave it."""
        found = await addresses_of(address.host, address.port)
        if address is self.address and self._held.answered(found):
            self._name_moved()
        return found

    def _name_moved(self) -> None:
        """An address counts no more: what stands there must leave it."""
        address, held = self.address, self._held.held
        if address.sentinels is None:
            node = " or ".join(host_port(one, address.port) for one in sorted(held))
            self._moved(node, f"the name {address.host}", held)

    @contextlib.asynccontextmanager
    async def _asking(
        self, protocol: asyncio.Protocol, requests: Sequence[bytes], host: str = ""
    ) -> AsyncIterator[None]:
        """A connection for keyfence itself, on which the requests were sent. It ends with the block, which
        may not take longer than `connect_timeout`. `host`: one of the name's addresses. Raises OSError."""
        async with at_most(self.connect_timeout):
            made = self._connect_to(host, lambda: protocol) if host else self.attempt(lambda: protocol)
            transport, _ = await made
            try:
                transport.write(b"".join(requests))
                yield
            finally:
                transport.abort()

    async def ask(self, greeting: Sequence[bytes], requests: Sequence[bytes], most: int) -> bytes:
        """Send keyfence's own requests after a greeting, on a new connection, and return the replies to them.
        Raises OSError, and GreetingError: also if the replies have more than `most` bytes."""
        answers = Answers(len(greeting), len(requests), most)
        async with self._asking(answers, [*greeting, *requests]):
            return await answers.raw

    async def probe_forever(self) -> None:
        """Probe Redis each second, and at once in doubt, so that its state is known without any client."""
        while True:
            if await self.probe():
                await self._leave_absent()
            interval = PROBE_INTERVAL_WAITED if self.is_patient else PROBE_INTERVAL
            await self._doubt.wait(interval * random.uniform(0.9, 1.1))  # not in step with other keyfences

    async def probe(self) -> bool:
        """Connect, send the greeting and PING, and record the state. Returns whether Redis is up.

        Any reply to PING counts, but no greeting command may fail.
        """
        moved_at = self.moved_at
        login = self.login
        try:
            with self.silence.watched():
                probe = await self._ask()
        except OSError as exc:
            if moved_at == self.moved_at:  # else it says nothing about the node that is the primary now
                self._failed_by(exc)
            return False
        self._told(probe.about)
        reason = probe.trouble
        if moved_at != self.moved_at:
            return not reason
        if not reason and self.is_followed and self.standing.role == REPLICA:
            reason = str(Misplaced())
        if probe.is_refused and self._renews(reason, login):
            return False  # it is not known yet whether it is up
        if probe.dropped:
            self.dropped(reason)
        elif reason.startswith(NOT_READY):
            self._can_connect()  # clients get Redis' own error
            self._set(up=False, reason=reason)
        elif reason:
            self.failed(reason, is_refused=probe.is_refused)
        elif self.up:
            self._drops = 0
            self._serves()
        else:
            self._came_up()
        is_wanted = self.is_followed or (not reason and self.standing.role != REPLICA)
        if is_wanted and self._renewals.take():
            self.on_renewal()
        return not reason

    async def _leave_absent(self) -> None:
        """Leave the addresses that the name's last answer lacks, and where no primary answers."""
        for host in () if self.is_followed else sorted(self._held.absent):
            at_host = Standing()
            with contextlib.suppress(OSError):
                probe = await self._ask(host)
                at_host.told(probe.about)
                if not probe.trouble and at_host.role != REPLICA:
                    continue
            if host in self._held.absent:
                self._held.leave(host)
                self._name_moved()

    async def _ask(self, host: str = "") -> Probe:
        """What Redis says, or the node at this one of the name's addresses. Raises OSError."""
        greeting = self.address.greeting()
        probe = Probe(len(greeting))
        async with self._asking(probe, [*greeting, PING.request(), HELLO], host):
            await probe.settled
            await asyncio.wait([probe.told], timeout=PROBE_INTERVAL)
        return probe

    def _told(self, about: object) -> None:
        """Redis has answered the prober's HELLO. If its address led to a replica for a while, connections of
        that time and before may still lead there."""
        was_demoted = self.standing.is_demoted
        self.standing.told(about)
        if self.standing.is_demoted:
            self._failovers.doubted()
        elif was_demoted and not self.is_followed:
            self._renewals.refused()
            self._failovers.moved(self.address.shown, ROLE)
            assert self._failovers.last is not None
            self.on_failover(self._failovers.last)


class NoLogin(ConnectionError):
    """keyfence has no login for the upstream yet. The operators' log has the reason."""

    def __init__(self) -> None:
        super().__init__("keyfence has no credentials for it")


class UpstreamDown(Exception):
    """No connection is available. `str` is the upstream's `state`. `is_refused`: Redis refuses keyfence's
    login."""

    def __init__(self, state: str, *, is_refused: bool = False) -> None:
        super().__init__(state)
        self.is_refused = is_refused
