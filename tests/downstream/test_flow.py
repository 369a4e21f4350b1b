"""The flow control between a client and Redis, without sockets."""

from __future__ import annotations

import asyncio

import pytest

from keyfence.downstream.flow import MOST_LEFT_WAITING, Flow, Leaving
from keyfence.resp.limits import IDENTIFIED
from keyfence.resp.profile import unchanged
from keyfence.session.conversation.conversation import Conversation
from keyfence.session.conversation.routing import Route
from keyfence.upstream.address import UpstreamAddress
from keyfence.upstream.dedicated import Owner
from keyfence.upstream.health import Upstream
from keyfence.upstream.links import Links
from keyfence.upstream.pools import Pools


class Talk(Conversation):
    """A conversation of which a test says what it wants and what is due."""

    def __init__(self, *, sharing: bool) -> None:
        super().__init__(unchanged(0), Route(sharing, lambda: 0.0), IDENTIFIED)
        self.wanted = True
        self.due = 0
        self.queues = False

    def wants_input(self) -> bool:
        return self.wanted

    @property
    def outstanding(self) -> int:
        return self.due

    @property
    def in_transaction(self) -> bool:
        return self.queues


class Pipe(asyncio.Transport):
    """A transport that records what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.closing = False

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.told.append("pause")

    def resume_reading(self) -> None:
        self.told.append("resume")


class Play:
    """One client's flow, and what it controls."""

    def __init__(self, *, sharing: bool = True) -> None:
        upstream = Upstream(UpstreamAddress("tcp", "127.0.0.1", 1, shown="fake"))
        self.flow = Flow()
        self.pipe = Pipe()
        self.talk = Talk(sharing=sharing)
        self.links = Links(upstream, Pools(upstream, 1), Owner())

    def settle(self) -> list[str]:
        """Returns what the transport is told."""
        self.pipe.told.clear()
        self.flow.settle_reading(self.pipe, self.talk, self.links)
        return self.pipe.told


def test_a_client_is_told_only_what_changes() -> None:
    play = Play()
    assert play.settle() == []
    play.talk.wanted = False
    assert play.settle() == ["pause"]
    assert play.settle() == []
    play.talk.wanted = True
    assert play.settle() == ["resume"]


def test_a_client_is_not_read_while_redis_reads_too_slowly() -> None:
    play = Play()
    play.flow.upstream_is_full = True
    assert play.settle() == ["pause"]
    play.flow.upstream_is_full = False
    assert play.settle() == ["resume"]


@pytest.mark.parametrize(("sharing", "told"), [(True, ["pause"]), (False, [])])
def test_a_client_that_does_not_read_is_read_on_with_its_own_connection(
    sharing: bool, told: list[str]
) -> None:
    play = Play(sharing=sharing)
    play.flow.is_full = True
    assert play.settle() == told


def test_at_the_end_of_the_process_only_a_transaction_is_read_on() -> None:
    play = Play()
    play.talk.queues = True
    play.flow.leaving = int(Leaving.AFTER_REPLY)
    assert play.settle() == []
    play.flow.leaving = int(Leaving.AT_REST)
    assert play.settle() == []
    play.talk.queues = False
    assert play.settle() == ["pause"]


def test_a_closing_transport_is_told_nothing() -> None:
    play = Play()
    play.pipe.closing, play.talk.wanted = True, False
    assert play.settle() == []
    play.flow.read_on(play.pipe)
    assert play.pipe.told == []


def test_a_client_may_be_read_whatever_its_requests_wait_for() -> None:
    play = Play()
    play.talk.wanted = False
    play.settle()
    play.flow.read_on(play.pipe)
    assert play.pipe.told == ["pause", "resume"]
    assert play.flow.is_reading


def test_the_output_limit_applies_once_many_replies_are_due() -> None:
    play = Play(sharing=False)
    play.flow.is_full = True
    for due, paused in ((1, True), (MOST_LEFT_WAITING, True), (MOST_LEFT_WAITING + 1, False)):
        play.talk.due = due
        play.flow.settle_upstream(play.talk, play.links)
        assert play.flow.upstream_is_paused == paused
