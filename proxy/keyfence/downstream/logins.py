"""Brings connections to Redis to keyfence's new login, and ends those that cannot be brought there.

Rule: a connection that Redis would close at its login's end is ended before, on purpose and for a named
reason. A client's own login is never replaced by keyfence's: it is taken to last as long as keyfence's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from keyfence.net.closures import CREDENTIALS, Closure
from keyfence.session.conversation.beside import ask_beside
from keyfence.session.conversation.conversation import Conversation
from keyfence.telemetry.counters import Counters
from keyfence.telemetry.operator_log import notice, report_fault
from keyfence.upstream.credentials.login import ACCEPTED, ENDED_BY, ENDED_FROM, Login, Pace, each_second
from keyfence.upstream.health import Upstream


class Connected(Protocol):
    """A connection to Redis."""

    @property
    def login(self) -> Login | None:
        """Keyfence's login that it has; None: there was none when it was opened."""

    @property
    def is_clients(self) -> bool:
        """Whether a client has logged in there itself, so that keyfence's login does not count any more."""

    @property
    def is_logging_in(self) -> bool:
        """Whether the answer to `log_in_again` is due."""

    @property
    def is_idle(self) -> bool:
        """Whether no reply is due."""

    def log_in_again(self, login: Login, answered: Callable[[bytes], None]) -> bool:
        """Send this login; `answered` gets Redis' reply. Returns False if that is not possible now."""

    def login_ends(self, *, at_once: bool) -> None:
        """End the connection as soon as nobody notices, or `at_once`."""


class Link(Protocol):
    """The state of a client's own connection."""

    login: Login | None
    is_kept: bool
    is_logging_in: bool
    logged_in_as: tuple[bytes, bytes] | None

    def ask(self, request: bytes, answered: Callable[[bytes], None]) -> bool: ...


class Owner(Protocol):
    """The client that a connection belongs to."""

    @property
    def own(self) -> tuple[Link | None, Conversation]: ...

    @property
    def is_idle(self) -> bool: ...

    def shared_turn(self, link: None) -> None: ...

    def give_up(self, why: Closure) -> None: ...


class OwnConnection:
    """A client's own connection."""

    def __init__(self, client: Owner, link: Link, conversation: Conversation, login: Login) -> None:
        """`login` is the one of new connections. A client that has logged in has one of the same life."""
        self._client = client
        self._link = link
        self._conversation = conversation
        profile = conversation.profile
        self.is_clients = profile.is_logged_in
        if self.is_clients and link.logged_in_as != (profile.user, profile.password):
            link.logged_in_as, link.login = (profile.user, profile.password), login.from_now(time.time())

    @property
    def login(self) -> Login | None:
        return self._link.login

    @property
    def is_logging_in(self) -> bool:
        return self._link.is_logging_in

    @property
    def is_idle(self) -> bool:
        return self._client.is_idle

    def log_in_again(self, login: Login, answered: Callable[[bytes], None]) -> bool:
        link = self._link

        def take(reply: bytes) -> None:
            link.is_logging_in = False
            if reply == ACCEPTED:
                link.login = login
            answered(reply)

        if link.is_kept:
            link.is_logging_in = link.ask(login.request, take)
        else:
            link.is_logging_in = ask_beside(self._conversation, login.request, take)
            self._client.shared_turn(None)  # send it
        return link.is_logging_in

    def login_ends(self, *, at_once: bool) -> None:  # noqa: ARG002 - a client without replies notices too
        self._client.give_up(CREDENTIALS)


class LoginSweep:
    """Works once a second, through the connections of one process."""

    def __init__(
        self, upstream: Upstream, counters: Counters, clock: Callable[[], float] = time.time
    ) -> None:
        self._upstream = upstream
        self._counters = counters
        self._clock = clock
        self._pace = Pace()

    def tick(self, shared: Iterable[Connected], clients: Iterable[Owner]) -> None:
        """Call this about once a second, with all shared connections and all clients of the process."""
        login = self._upstream.login
        if login is None:
            return
        try:
            self._sweep(shared, clients, login)
        except Exception as exc:  # the caller's other work goes on
            self._counters.internal_error("relay")
            report_fault(exc)

    def _sweep(self, shared: Iterable[Connected], clients: Iterable[Owner], login: Login) -> None:
        owns = []
        for client in clients:
            link, talk = client.own
            # There may be thousands, almost all of which have the login.
            if link is not None and (link.login is not login or talk.profile.is_logged_in):
                owns.append(OwnConnection(client, link, talk, login))
        now = self._clock()
        old = [one for one in (*shared, *owns) if one.login is not login]
        waiting = [one for one in old if not one.is_logging_in and not one.is_clients]
        left = self._pace.may([one.login for one in waiting], login, now)
        for one in waiting:
            if left <= 0:
                break
            left -= one.log_in_again(login, self._answered)
        self._end([one for one in old if one.login is not login], now)

    def _end(self, old: Sequence[Connected], now: float) -> None:
        """End some of those whose login ends soon: in time those that await nothing, at last all."""
        logins = [(one, one.login) for one in old if one.login is not None]
        ending = [(one, login) for one, login in logins if now >= login.at(ENDED_FROM)]
        left = each_second(len(ending), now, min((login.at(ENDED_BY) for _, login in ending), default=now))
        for one, login in ending:
            is_last = now >= login.at(ENDED_BY)
            if is_last or (one.is_idle and left > 0):
                one.login_ends(at_once=is_last)
                left -= 1

    def _answered(self, reply: bytes) -> None:
        """Redis has answered a connection that was sent a new login."""
        upstream, is_accepted = self._upstream, reply == ACCEPTED
        self._pace.answered(self._clock(), accepted=is_accepted)
        self._counters.upstream_reauthenticated(upstream.address.shown, accepted=is_accepted)
        if not is_accepted and upstream.login is not None:
            upstream.on_refused(upstream.login.number)
            refusal = reply[1:].decode("utf-8", "replace").strip()
            text = "refused keyfence's new login on an open connection"
            notice("login", f"upstream {upstream.address.shown} {text}: {refusal}")
