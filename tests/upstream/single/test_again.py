"""When refused commands are sent again, and when they are given up, in virtual time."""

from __future__ import annotations

from keyfence.resp import encode
from keyfence.upstream.cluster.fan_out import NOT_SERVED
from keyfence.upstream.single.again import Again, Round
from keyfence.upstream.single.cutting import NO_NODE
from keyfence.upstream.single.masters import Masters
from keyfence.upstream.single.refusals import MOST_HOPS, MOVED, TRYAGAIN, Refusal

from .model import Later

PATIENCE = 1.0
REDIRECT = Refusal(MOVED, 7, "10.0.0.9", 6379)


class Stage:
    """The refused commands of a client, and what becomes of them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.later = Later()
        masters = Masters(1, PATIENCE, lambda _sign: None, self.later)
        masters.clock = lambda: self.now
        masters.any = lambda: 0  # type: ignore[method-assign]
        self.sent: list[Again] = []
        self.answers: list[bytes] = []
        self.round = Round(
            masters,
            lambda again, _node, _asking: self.sent.append(again),
            lambda _again, reply: self.answers.append(reply),
            lambda: None,
        )

    def is_refused(self, again: Again) -> None:
        again.not_served(NOT_SERVED)
        self.round.add(again)
        self.round.begin()

    def passes(self) -> None:
        """The pause passes."""
        self.now += self.later.waiting[0].seconds
        self.later.run_next()


def test_a_command_is_given_up_after_pauses_as_long_as_the_patience() -> None:
    stage = Stage()
    again = Again([encode.command(b"PING")], 0, False)
    while not stage.answers:
        stage.is_refused(again)
        if stage.later.waiting:
            stage.passes()
    assert PATIENCE <= stage.now < 1.5 * PATIENCE
    assert stage.answers == [NOT_SERVED]


def test_a_pause_that_a_change_cuts_short_counts_as_long_as_it_was() -> None:
    stage = Stage()
    again = Again([encode.command(b"PING")], 0, False)
    for number in range(1, 40):
        stage.is_refused(again)
        stage.now += 0.01
        stage.round.begin(at_once=True)
        assert len(stage.sent) == number
    assert stage.answers == []
    assert not again.ends(0.5)
    assert again.ends(0.3)


def test_a_command_waits_for_a_node_that_is_named_and_not_known_yet() -> None:
    again = Again([encode.command(b"GET", b"k")], 0, False)
    for _ in range(MOST_HOPS + 1):
        again.refused(REDIRECT, NO_NODE, b"-error")
    assert not again.ends(PATIENCE)
    again.has_waited(PATIENCE)
    assert again.ends(PATIENCE)


def test_a_command_that_no_node_runs_is_not_overtaken() -> None:
    for words, answers in (((b"MGET", b"a", b"b"), []), ((b"MGET", b"{a}", b"a"), [NOT_SERVED])):
        stage = Stage()
        again = Again([encode.command(*words)], 0, False)
        again.not_sent(NOT_SERVED)
        stage.round.add(again)
        stage.round.ran([b"a"], 1)
        stage.round.begin()
        assert stage.answers == answers


def test_each_reason_to_wait_has_its_own_patience() -> None:
    again = Again([encode.command(b"GET", b"k")], 0, False)
    again.not_served(NOT_SERVED)
    again.has_waited(PATIENCE)
    assert again.ends(PATIENCE)
    again.refused(REDIRECT, NO_NODE, b"-error")
    assert not again.ends(PATIENCE)
    again.has_waited(PATIENCE)
    assert again.ends(PATIENCE)
    again.not_served(NOT_SERVED)
    assert again.ends(PATIENCE)


def test_refusals_by_nodes_that_are_known_count_from_the_end_of_the_wait_on() -> None:
    for wait in (
        lambda again: again.refused(REDIRECT, NO_NODE, b"-error"),
        lambda again: again.not_served(NOT_SERVED),
    ):
        again = Again([encode.command(b"GET", b"k")], 0, False)
        for _ in range(MOST_HOPS + 1):
            wait(again)
        for _ in range(MOST_HOPS):
            again.refused(Refusal(TRYAGAIN), NO_NODE, b"-error")
            assert not again.ends(PATIENCE)
        again.refused(Refusal(TRYAGAIN), NO_NODE, b"-error")
        assert again.ends(PATIENCE)
