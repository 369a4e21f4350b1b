"""When the topology is asked for, whom, and which answers count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.policy.compiled.hash_slots import SLOTS
from keyfence.upstream.cluster.refresh import (
    ANSWER_SECONDS,
    GATHER_SECONDS,
    MOST_ANSWER_SECONDS,
    MOST_SECONDS,
    POLL_SECONDS,
    Question,
    Reason,
    Refresh,
)
from tests.upstream.cluster.replies import FIRST, NODES, REPLICA, SECOND

SEEDS = [("seed.example", 7000), ("10.0.0.1", 7001)]
OLD, NEW = NODES, NODES.replace(" 3 connected", " 9 connected")


def refresh(text: str | None = NODES) -> Refresh:
    """One that has asked once, at 0."""
    made = Refresh(SEEDS, spread=lambda: 0.5)
    if text is not None:
        made.answered(asked(made, 0.0), text, 0.0)
    return made


def asked(made: Refresh, now: float) -> Question:
    question = made.question(now)
    assert question is not None
    return question


def epoch(made: Refresh) -> int:
    assert made.topology is not None
    return made.topology.epoch


def due_after(made: Refresh, now: float) -> float:
    """Seconds until the next question, which is then asked."""
    seconds = made.seconds_left(now)
    assert made.question(now + seconds - 0.001) is None
    asked(made, now + seconds)
    return seconds


def test_the_first_question_goes_to_the_first_seed_at_once() -> None:
    made = refresh(None)
    assert asked(made, 5.0).address == SEEDS[0]
    assert made.reasons == {Reason.START: 1}


def test_an_answer_gives_the_topology() -> None:
    made = refresh(None)
    made.answered(asked(made, 0.0), NODES, 1.0)
    assert made.topology is not None
    assert len(made.topology.nodes) == 4
    assert made.taken_at == 1.0


def test_while_nothing_happens_the_topology_is_asked_for_now_and_then() -> None:
    made = refresh()
    assert due_after(made, 0.0) == POLL_SECONDS
    assert made.reasons == {Reason.START: 1, Reason.INTERVAL: 1}


def test_signs_that_come_together_lead_to_one_question_after_a_moment() -> None:
    made = refresh()
    for now in (1.0, 1.02, 1.09):
        made.noticed(Reason.CONNECT, now)
    made.noticed(Reason.READONLY, 1.09)
    assert made.seconds_left(1.09) == pytest.approx(GATHER_SECONDS - 0.09)
    made.answered(asked(made, 1.0 + GATHER_SECONDS), NODES, 1.2)
    assert made.seconds_left(1.2) == POLL_SECONDS
    assert made.reasons == {Reason.START: 1, Reason.CONNECT: 1}


def test_a_sign_during_a_question_leads_to_another_one() -> None:
    made = refresh()
    made.noticed(Reason.RESET, 1.0)
    question = asked(made, 1.1)
    made.noticed(Reason.RESET, 1.2)
    made.answered(question, NODES, 1.3)
    assert made.seconds_left(1.3) < POLL_SECONDS / 10


def test_pauses_grow_while_signs_come_and_nothing_changes() -> None:
    made, now, pauses = refresh(), 0.0, []
    for _ in range(5):
        made.noticed(Reason.CLUSTERDOWN, now)
        pauses.append(made.seconds_left(now))
        now += pauses[-1]
        made.answered(asked(made, now), NODES, now)
    assert pauses == pytest.approx([0.1, 0.2, 0.4, MOST_SECONDS, MOST_SECONDS])
    made.noticed(Reason.CLUSTERDOWN, now + 0.45)  # most of the pause is over
    assert made.seconds_left(now + 0.45) == pytest.approx(GATHER_SECONDS)
    now += 1.0
    changed = NODES.replace("10.0.0.3:7003", "10.0.0.3:7009")
    made.answered(asked(made, now), changed, now)
    made.noticed(Reason.CLUSTERDOWN, now)
    assert made.seconds_left(now) == pytest.approx(GATHER_SECONDS)


def test_a_redirect_that_the_topology_explains_is_no_sign() -> None:
    made = refresh()
    assert made.sign_in("MOVED", 0, ("10.0.0.1", 7001)) is None
    assert made.sign_in("ASK", 0, ("10.0.0.3", 7003)) is None


@pytest.mark.parametrize(
    ("word", "address", "reason"),
    [
        ("MOVED", ("10.0.0.3", 7003), Reason.MOVED),
        ("MOVED", ("10.0.0.8", 7003), Reason.MOVED),
        ("ASK", ("10.0.0.8", 7003), Reason.ASK),
    ],
)
def test_a_redirect_that_the_topology_does_not_explain_is_a_sign(
    word: str, address: tuple[str, int], reason: Reason
) -> None:
    assert refresh().sign_in(word, 0, address) is reason
    assert refresh(None).sign_in(word, 0, address) is Reason(word.lower())


@pytest.mark.parametrize("reason", [one for one in Reason if one not in (Reason.START, Reason.INTERVAL)])
def test_every_sign_leads_to_one_round_that_is_counted_by_it(reason: Reason) -> None:
    made = refresh()
    made.noticed(reason, 1.0)
    assert made.seconds_left(1.0) == pytest.approx(GATHER_SECONDS)
    assert made.reasons == {Reason.START: 1}
    asked(made, 1.0 + GATHER_SECONDS)
    assert made.reasons == {Reason.START: 1, reason: 1}


def test_a_round_without_an_answer_that_counts_is_followed_by_a_retry() -> None:
    made = refresh(None)
    for now in (0.0, 0.1):
        made.failed(asked(made, now), "it is away", now)
    asked(made, 1.0)
    assert made.reasons == {Reason.START: 1, Reason.RETRY: 1}


def test_a_topology_that_another_process_tells_counts() -> None:
    made, told = refresh(None), refresh(NEW).topology
    assert told is not None
    made.take(told, 5.0)
    assert made.topology is told
    assert made.taken_at == 5.0


def test_one_node_is_asked_at_a_time_and_the_next_one_if_it_is_silent() -> None:
    made = refresh()
    first = asked(made, POLL_SECONDS)
    assert made.question(POLL_SECONDS + ANSWER_SECONDS / 2) is None
    second = asked(made, POLL_SECONDS + ANSWER_SECONDS)
    assert second.address != first.address
    made.answered(first, NEW, 13.0)  # too late
    assert epoch(made) == 3
    made.answered(second, NEW, 13.0)
    assert epoch(made) == 9


def test_nodes_have_more_time_if_no_answer_has_counted() -> None:
    made, now, seconds = refresh(), POLL_SECONDS, []
    for _ in range(4):
        question: Question | None = asked(made, now)
        seconds.append(question.seconds if question else 0)
        while question is not None:
            made.failed(question, "silent", now)
            question = made.question(now)
        now += made.seconds_left(now)
    assert seconds == [ANSWER_SECONDS, 1.0, MOST_ANSWER_SECONDS, MOST_ANSWER_SECONDS]
    made.answered(asked(made, now), NODES, now)
    assert asked(made, now + POLL_SECONDS).seconds == ANSWER_SECONDS


def test_nodes_have_much_time_before_there_is_a_topology() -> None:
    assert asked(refresh(None), 0.0).seconds == MOST_ANSWER_SECONDS


def test_a_node_that_fails_is_asked_after_those_that_do_not_and_then_come_the_seeds() -> None:
    made = refresh(
        NODES.replace(
            f"{SECOND} 10.0.0.2:7002@17002,two.example master", f"{SECOND} 10.0.0.2:7002@1 master,fail"
        )
    )
    whom = []
    for _ in range(5):
        question = asked(made, POLL_SECONDS)
        whom.append(question.address)
        made.failed(question, "connection refused", POLL_SECONDS)
    assert set(whom[:3]) == {("10.0.0.1", 7001), ("10.0.0.3", 7003), ("10.0.0.4", 7004)}
    assert whom[3:] == [("10.0.0.2", 7002), SEEDS[0]]
    assert "10.0.0.2:7002: connection refused" in made.trouble
    assert "; 1 more" in made.trouble
    assert 0 < made.seconds_left(POLL_SECONDS) <= GATHER_SECONDS


def test_trouble_ends_with_an_answer_that_counts() -> None:
    made = refresh(None)
    for _ in SEEDS:
        made.failed(asked(made, 0.0), "connection refused", 0.0)
    assert made.trouble.startswith("no node of the cluster tells its topology (seed.example:7000: ")
    made.answered(asked(made, 1.0), NODES, 1.0)
    assert made.trouble == ""


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"garbage", "too short"),
        (b"", "it knows no node that has hash slots"),
        (f"{FIRST} :7001@17001 myself,master - 0 0 0 connected\n", "it knows no node that has hash slots"),
    ],
)
def test_an_answer_without_hash_slots_never_counts(reply: object, why: str) -> None:
    made = refresh()
    before = made.topology
    for _ in range(5):
        made.answered(asked(made, POLL_SECONDS), reply, POLL_SECONDS)
    assert made.topology is before
    assert why in made.trouble


def test_an_older_answer_does_not_replace_a_newer_one() -> None:
    made = refresh(NEW)
    made.answered(asked(made, POLL_SECONDS), OLD, POLL_SECONDS)
    assert epoch(made) == 9
    made.answered(asked(made, POLL_SECONDS), NEW, POLL_SECONDS)
    assert made.taken_at == POLL_SECONDS


def test_a_node_that_does_not_know_all_hash_slots_yet_is_older() -> None:
    made = refresh()
    partial = "".join(line + "\n" for line in NODES.splitlines() if SECOND not in line.split(" ")[0])
    made.answered(asked(made, POLL_SECONDS), partial, POLL_SECONDS)
    assert made.topology is not None
    assert made.topology.covered == SLOTS


def answers_of_a_round(made: Refresh, old: set[str]) -> int:
    """Goes through one round, in which the nodes at these hosts answer with OLD and all others not at all.
    Returns the epoch of the topology after it."""
    asked_at = POLL_SECONDS
    for _ in range(5):
        question = asked(made, asked_at)
        if question.host in old:
            made.answered(question, OLD, asked_at)
        else:
            made.failed(question, "connection refused", asked_at)
    return epoch(made)


def test_a_minority_that_is_cut_off_is_not_believed() -> None:
    assert answers_of_a_round(refresh(NEW), {"10.0.0.1", "10.0.0.4"}) == 9


def test_most_nodes_are_believed_even_if_their_answer_is_older() -> None:
    assert answers_of_a_round(refresh(NEW), {"10.0.0.1", "10.0.0.4", "10.0.0.3"}) == 3


def test_seeds_are_believed_if_no_known_node_answers() -> None:
    assert answers_of_a_round(refresh(NEW), {"seed.example"}) == 3


def test_a_failover_is_taken_from_the_first_node_that_knows_it() -> None:
    made = refresh()
    lines = NODES.replace(f"slave {FIRST} 0 1795541062267 1 connected", "master - 0 0 4 connected 0-5460")
    lines = lines.replace(
        "myself,master - 0 1795541060000 1 connected 0-5460", f"slave {REPLICA} 0 0 4 connected"
    )
    before = made.topology
    made.answered(asked(made, POLL_SECONDS), lines, POLL_SECONDS)
    assert made.topology is not None
    assert before is not None
    changes = made.topology.changes_since(before)
    assert {one.id for one in changes.changed_role} == {FIRST, REPLICA}


EVENTS = st.tuples(
    st.sampled_from(["sign", "answer", "fail", "late", "wait"]), st.sampled_from([OLD, NEW, "", "?"])
)


@given(st.lists(EVENTS, max_size=60), st.floats(0, 1, exclude_max=True))
def test_whatever_happens_one_question_at_a_time_goes_on(
    events: list[tuple[str, str]], spread: float
) -> None:
    made, now, open_questions = Refresh(SEEDS, lambda: spread), 0.0, []
    for event, reply in events:
        assert made.seconds_left(now) <= 1.5 * POLL_SECONDS
        question = made.question(now)
        if question is not None:
            assert question.number > len(open_questions)
            assert made.question(now) is None
            open_questions.append(question)
        if event == "sign":
            made.noticed(Reason.RESET, now)
        elif event == "wait":
            now += made.seconds_left(now)
        elif event == "late":
            made.answered(open_questions[0], reply, now)
        elif event == "answer":
            made.answered(open_questions[-1], reply, now)
        else:
            made.failed(open_questions[-1], "connection refused", now)
        assert made.topology is None or made.topology.covered == SLOTS
