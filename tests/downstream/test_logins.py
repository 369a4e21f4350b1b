"""Connections come to keyfence's new login in time, and those that cannot are ended."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from keyfence.downstream.logins import LoginSweep, OwnConnection
from keyfence.net.closures import CREDENTIALS, Closure
from keyfence.resp.profile import Profile
from keyfence.session.conversation.conversation import Conversation
from keyfence.telemetry.counters import Counters
from keyfence.upstream.address import UpstreamAddress
from keyfence.upstream.credentials.login import ACCEPTED, Login
from keyfence.upstream.health import Upstream
from tests.session.sessions import passed, session

START = 1000.0
FIRST = Login(1, b"AUTH first", START, START + 1000)
SECOND = Login(2, b"AUTH second", START + 750, START + 1750)


class Connection:
    """A connection that answers at once, or that nothing can be sent on."""

    def __init__(self, *, answer: bytes = ACCEPTED, is_idle: bool = True, is_clients: bool = False) -> None:
        self.login: Login | None = FIRST
        self.answer = answer  # empty: it cannot log in again
        self.is_idle = is_idle
        self.is_clients = is_clients
        self.is_logging_in = False
        self.asked = 0
        self.ended: list[bool] = []

    def log_in_again(self, login: Login, answered: Callable[[bytes], None]) -> bool:
        if not self.answer:
            return False
        self.asked += 1
        if self.answer == ACCEPTED:
            self.login = login
        answered(self.answer)
        return True

    def login_ends(self, *, at_once: bool) -> None:
        self.ended.append(at_once)


class Sweep:
    """A sweep through connections, with a clock that goes second by second."""

    def __init__(self, *connections: Connection) -> None:
        self.now = START + 750
        self.refused: list[int] = []  # the numbers of logins
        self.connections = list(connections)
        self._counters = Counters()
        self._upstream = Upstream(UpstreamAddress("tcp", shown="fake"))
        self._upstream.on_refused = lambda number: not self.refused.append(number)  # type: ignore[func-returns-value]
        self._sweep = LoginSweep(self._upstream, self._counters, lambda: self.now)

    def until(self, end: float, login: Login | None = SECOND) -> None:
        self._upstream.login = login
        while self.now <= end:
            self._sweep.tick([one for one in self.connections if not one.ended or not one.ended[-1]], ())
            self.now += 1

    def faults(self) -> int:
        return self._counters.internal_errors.get("relay", 0)

    def answers(self, answer: str) -> int:
        """How many connections Redis has given this answer."""
        return self._counters.upstream_reauthentications.get(("fake", answer), 0)


def test_all_log_in_again_before_the_former_login_ends() -> None:
    sweep = Sweep(*(Connection() for _ in range(300)))
    sweep.until(START + 751)
    assert 0 < sum(one.asked for one in sweep.connections) < 10
    sweep.until(START + 850)
    assert [one.asked for one in sweep.connections] == [1] * 300
    assert (sweep.answers("accepted"), sweep.answers("refused")) == (300, 0)
    sweep.until(START + 1000)
    assert not any(one.ended for one in sweep.connections)


def test_those_that_cannot_are_ended_one_after_another_while_they_await_nothing() -> None:
    sweep = Sweep(*(Connection(answer=b"") for _ in range(60)))
    sweep.until(START + 899)
    assert not any(one.ended for one in sweep.connections)
    sweep.until(START + 901)
    assert 0 < sum(bool(one.ended) for one in sweep.connections) < 5
    sweep.until(START + 970)
    assert all(one.ended for one in sweep.connections)


def test_one_that_awaits_a_reply_is_ended_at_last() -> None:
    busy = Connection(answer=b"", is_idle=False)
    sweep = Sweep(busy)
    sweep.until(START + 969)
    assert busy.ended == []
    sweep.until(START + 970)
    assert busy.ended == [True]


def test_a_clients_own_login_is_not_replaced_but_its_connection_ends() -> None:
    connection = Connection(is_clients=True)
    sweep = Sweep(connection)
    sweep.until(START + 901)
    assert connection.asked == 0
    assert connection.ended


def test_a_refusal_is_told_and_the_others_wait_for_a_while() -> None:
    sweep = Sweep(*(Connection(answer=b"-WRONGPASS no\r\n") for _ in range(1000)))
    sweep.until(START + 752)
    assert sweep.answers("accepted") == 0
    asked = sum(one.asked for one in sweep.connections)
    assert asked == sweep.answers("refused") == len(sweep.refused) <= 22  # two ticks of three
    assert set(sweep.refused) == {2}


def test_nothing_ends_while_there_is_no_newer_login() -> None:
    connection = Connection()
    sweep = Sweep(connection)
    sweep.until(START + 1100, FIRST)
    assert (connection.asked, connection.ended) == (0, [])


def test_without_a_login_that_changes_nothing_is_done() -> None:
    connection = Connection(answer=b"")
    sweep = Sweep(connection)
    sweep.until(START + 1100, None)
    assert (connection.asked, connection.ended) == (0, [])


def test_a_fault_is_counted_and_ends_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    class Faulty(Connection):
        def log_in_again(self, _login: Login, _answered: Callable[[bytes], None]) -> bool:
            raise ZeroDivisionError

    sweep = Sweep(Faulty())
    sweep.until(START + 751)
    assert sweep.faults() == 2
    assert "ZeroDivisionError" in capfd.readouterr().err


class Link:
    """A client's connection that notes what it is asked."""

    def __init__(self, *, is_kept: bool) -> None:
        self.login: Login | None = FIRST
        self.is_kept = is_kept
        self.is_logging_in = False
        self.logged_in_as: tuple[bytes, bytes] | None = None
        self.answered: list[Callable[[bytes], None]] = []

    def ask(self, request: bytes, answered: Callable[[bytes], None]) -> bool:
        assert request == SECOND.request
        self.answered.append(answered)
        return True


class Client:
    """A client that notes how it ends."""

    def __init__(self, link: Link) -> None:
        self.is_idle = True
        self.closed: Closure | None = None
        self.session = session()
        self.own: tuple[Link | None, Conversation] = (link, self.session.conversation)
        self.passed = b""

    def shared_turn(self, link: None) -> None:  # noqa: ARG002
        self.passed += passed(self.session)

    def give_up(self, why: Closure) -> None:
        self.closed = why


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("reply", [ACCEPTED, b"-WRONGPASS no\r\n"])
def test_a_clients_own_connection_has_the_login_once_redis_has_accepted_it(
    reply: bytes, is_kept: bool
) -> None:
    link, replies = Link(is_kept=is_kept), list[bytes]()
    client = Client(link)
    own = OwnConnection(client, link, client.session.conversation, SECOND)
    assert own.log_in_again(SECOND, replies.append)
    assert own.is_logging_in
    assert own.login is FIRST
    if is_kept:
        link.answered[0](reply)
    else:
        assert client.passed == SECOND.request
        client.session.from_upstream(reply)
    assert not own.is_logging_in
    assert own.login is (SECOND if reply == ACCEPTED else FIRST)
    assert replies == [reply]
    own.login_ends(at_once=False)
    assert client.closed is CREDENTIALS


def test_a_client_that_logs_in_has_a_login_of_the_same_life_each_time() -> None:
    link = Link(is_kept=False)
    client = Client(link)
    client.session.profile = Profile(user=b"u", password=b"one")
    before = time.time()
    own = OwnConnection(client, link, client.session.conversation, SECOND)
    first = own.login
    assert own.is_clients
    assert first is not None
    assert first.ends_at >= before + 1000
    assert OwnConnection(client, link, client.session.conversation, SECOND).login is first
    client.session.profile = Profile(user=b"u", password=b"two")
    assert OwnConnection(client, link, client.session.conversation, SECOND).login is not first
