"""What is in force is what the server has confirmed, whatever its ETags say."""

from __future__ import annotations

from keyfence.fleet.copy import Copy
from keyfence.fleet.model import Answer, Offer, PolicyServer
from keyfence.fleet.settling import RETRY_SECONDS
from keyfence.fleet.source import (
    JITTER,
    MAX_WAIT,
    PUSHED_PAUSE,
    TRUSTED_ANSWERS,
    WAITED_PAUSE,
    PolicySource,
    Request,
)

SERVER = PolicyServer("https://policies.example/shop.yaml", poll=30.0, stale_after=600.0)
UNCHANGED = Answer(None, "", False)


def content(text: str, etag: str = "") -> Answer:
    return Answer(text.encode(), etag or f'"{text}"', False)


def with_one(text: str = "one", at: float = 100.0) -> PolicySource:
    """Returns a source whose policy is in force."""
    source = PolicySource(SERVER, None)
    source.answered(content(text), at)
    put_in_force(source)
    return source


def put_in_force(source: PolicySource) -> None:
    """What the source offers is in force."""
    assert source.is_due(0.0)
    assert source.offered is not None
    source.tried(source.offered)
    assert source.accepted(source.offered)
    assert not source.is_due(0.0)


def refuse(source: PolicySource) -> None:
    """What the source offers has faults."""
    assert source.offered is not None
    source.tried(source.offered)


def test_the_first_request_asks_for_all_and_the_next_for_what_is_new() -> None:
    source = PolicySource(SERVER, None)
    assert source.request() == Request("", 0.0)
    assert with_one().request() == Request('"one"', 30.0)
    long = PolicySource(PolicyServer(SERVER.url, poll=3600.0), Copy(b"one", '"one"', 0.0))
    assert long.request() == Request('"one"', MAX_WAIT)


def test_a_content_is_due_until_it_was_tried_and_in_force_when_it_was_accepted() -> None:
    source = with_one()
    for answer in (content("two"), content("two"), UNCHANGED):
        source.answered(answer, 200.0)
        assert source.is_due(0.0), "another request may have brought it, and nobody has loaded it"
    refuse(source)
    for answer in (content("two"), UNCHANGED):
        source.answered(answer, 230.0)
        assert not source.is_due(0.0)
    assert source.held is not None
    assert source.held.content == b"one"
    assert source.request().etag == '"two"', "what was refused is not sent again and again"
    assert source.offered is not None
    assert source.accepted(source.offered)
    assert (source.held.content, source.offered) == (b"two", None)


def test_a_content_whose_load_fails_for_another_reason_is_due_again_after_a_minute() -> None:
    source = PolicySource(PolicyServer(SERVER.url, poll=3600.0), Copy(b"one", "", 0.0))
    assert source.pause(0.0) > RETRY_SECONDS * (1 + JITTER)
    source.answered(content("two"), 200.0)
    source.put_off(10.0)
    source.answered(content("two"), 230.0)
    assert not source.is_due(9.0 + RETRY_SECONDS)
    assert source.pause(0.0) <= RETRY_SECONDS * (1 + JITTER), "the next poll may be far"
    assert source.is_due(10.0 + RETRY_SECONDS)
    source.answered(content("three"), 240.0)
    assert source.is_due(11.0), "another one need not wait"


def test_a_content_that_comes_while_another_is_loaded_is_due() -> None:
    source = with_one()
    source.answered(content("two"), 200.0)
    loaded = source.offered
    assert loaded is not None
    source.answered(content("three"), 201.0)
    source.tried(loaded)
    assert source.accepted(loaded)
    assert source.is_due(0.0)


def test_what_the_server_does_not_have_any_more_grows_old() -> None:
    """A policy that is refused does not make the one in force any fresher."""
    source = with_one(at=100.0)
    source.answered(UNCHANGED, 130.0)
    assert (source.age(140.0), source.is_stale(730.0), source.is_stale(731.0)) == (10.0, False, True)
    source.answered(content("faulty"), 160.0)
    refuse(source)
    source.answered(UNCHANGED, 700.0)
    assert source.is_stale(731.0)
    source.answered(content("one"), 740.0)
    assert source.is_due(0.0), "the offer was taken back"
    assert not source.is_stale(741.0)
    assert source.offered is None


def test_an_answer_about_an_earlier_content_confirms_nothing() -> None:
    source = with_one("two", at=100.0)
    source.answered(UNCHANGED, 700.0, '"one"')
    assert source.age(700.0) == 600.0
    source.answered(UNCHANGED, 700.0, '"two"')
    assert source.age(700.0) == 0.0


def test_a_clock_that_was_set_back_makes_nothing_stale() -> None:
    assert with_one(at=10_000.0).age(100.0) == 0.0


def test_without_a_bound_nothing_is_stale() -> None:
    source = PolicySource(PolicyServer(SERVER.url), Copy(b"one", "", 0.0))
    assert not source.is_stale(10**9)


def test_the_copy_on_disk_counts_as_such_until_the_server_confirms_it() -> None:
    source = PolicySource(SERVER, Copy(b"one", '"one"', 100.0))
    assert source.is_copy
    source.failed("cannot be reached")
    assert source.is_copy
    source.answered(UNCHANGED, 200.0)
    assert (source.is_copy, source.trouble) == (False, "")


def test_another_content_under_the_same_etag_is_another_policy() -> None:
    source = with_one()
    source.answered(content("two", '"one"'), 130.0)
    assert source.is_due(0.0)
    assert source.lies
    assert source.request() == Request("", 0.0), "its ETags are not used any more"


def test_a_server_that_only_says_unchanged_is_asked_for_the_whole_now_and_then() -> None:
    source = with_one()
    for second in range(TRUSTED_ANSWERS):
        assert source.request().etag
        source.answered(UNCHANGED, float(second))
    assert source.request() == Request("", 0.0)
    source.answered(content("one"), 500.0)
    assert not source.is_due(0.0)
    assert source.request().etag


def test_pauses_differ_by_a_fifth_and_no_server_makes_them_short() -> None:
    source = with_one()
    pauses = [source.pause(0.0) for _ in range(1000)]
    assert 30 * (1 - JITTER) <= min(pauses) < 26
    assert 34 < max(pauses) <= 30 * (1 + JITTER)
    source.answered(Answer(None, "", True), 200.0)
    assert source.pause(0.0) >= 24, "it says that it waits, and answers at once"
    assert source.pause(29.0) <= WAITED_PAUSE * (1 + JITTER)
    source.failed("sends an answer that ends early")
    assert source.pause(29.0) >= 24


def test_a_server_that_waits_is_heard_again_within_a_second_whatever_it_was_asked() -> None:
    """A change that comes within a pause waits for the end of the pause."""
    source = PolicySource(SERVER, None)
    source.answered(content("one"), 100.0, has_asked_to_wait=False)
    put_in_force(source)
    assert source.pause(0.0) <= PUSHED_PAUSE * (1 + JITTER), "it has not been asked to wait yet"
    source.answered(Answer(b"two", "two", True), 101.0)
    assert source.pause(0.1) <= PUSHED_PAUSE * (1 + JITTER), "it had a change, so it need not wait"
    source.answered(Answer(b"two", "two", True), 102.0)
    assert source.pause(0.1) >= 24, "it had no change, and did not wait"
    for second in range(TRUSTED_ANSWERS):
        source.answered(Answer(None, "two", True), float(second))
    assert source.request().wait == 0.0
    assert source.pause(29.0) <= PUSHED_PAUSE
    source.answered(Answer(b"two", "two", False), 500.0, has_asked_to_wait=False)
    assert source.pause(0.1) <= PUSHED_PAUSE * (1 + JITTER), "the whole was asked for, now and then"


def test_a_server_that_had_another_candidate_is_asked_again_soon() -> None:
    source = with_one()
    source.answered(Answer(None, "one", True, candidate=Offer(b"next", b"signed")), 101.0)
    assert source.pause(0.1) <= PUSHED_PAUSE * (1 + JITTER), "it had a change, so it need not wait"
    source.answered(Answer(None, "one", True), 102.0)
    assert source.pause(0.1) >= 24, "it had no change, and did not wait"
    assert source.candidate == Offer(b"next", b"signed")


def test_a_content_with_another_signature_is_another_version() -> None:
    source = PolicySource(SERVER, None)
    source.answered(Answer(b"one", "1", False, b"first"), 100.0)
    put_in_force(source)
    source.answered(Answer(b"one", "2", False, b"second"), 130.0)
    put_in_force(source)
    assert source.held is not None
    assert source.held.signature == b"second"
