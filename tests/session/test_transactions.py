"""Whole transactions: evaluated, and sent as one piece, on a shared connection too."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine.authorizer import Authorizer, InForce
from keyfence.policy.engine.pending import PendingTtls
from keyfence.policy.loading.load import parse_policy
from keyfence.session.conversation.conversation import ABORT_MARKER, ROOM
from keyfence.session.conversation.routing import STAY
from tests.session.fake_redis import FakeRedis
from tests.session.sessions import (
    ADMITTED,
    REFUSED,
    RecordingObserver,
    Session,
    at_barrier,
    authorizer_with,
    cmd,
    is_refusal,
    observed,
    passed,
    replies,
    sent,
    session,
)

OBSERVE = [ModeRule("observe")]
MULTI, EXEC = cmd("MULTI"), cmd("EXEC")
WHOLE = MULTI + ADMITTED * 2 + EXEC
ANSWERS = b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n*0\r\n*0\r\n"


def shared(**options: object) -> Session:
    return session(sharing=True, **options)  # type: ignore[arg-type]


def of_policy(text: str, pending: PendingTtls | None = None, mode: str = "enforce") -> Authorizer:
    loaded = parse_policy(text)
    rules = [ModeRule(mode)]  # type: ignore[arg-type]
    return Authorizer(loaded, Modes(rules, loaded.services), pending=pending)


@pytest.mark.parametrize(
    "whole",
    [
        WHOLE,
        MULTI + EXEC,
        cmd("multi") + ADMITTED + cmd("exec"),
        b"Multi\r\nPING\r\nEXEC\n",
        MULTI + cmd("MGET", "cube:v1:shared:sandbox:proxy:a", "cube:v1:shared:sandbox:proxy:b") + EXEC,
        MULTI + cmd("GET") + EXEC,  # Redis will say what is wrong, twice
    ],
)
def test_a_whole_transaction_goes_on_a_shared_connection(whole: bytes) -> None:
    observer = RecordingObserver()
    one = shared(rules=OBSERVE, observer=observer)
    one.from_client(ADMITTED + whole + ADMITTED)
    requests = len(observer.commands)
    assert one.route.is_shared
    assert (b"".join(one.to_upstream), sum(one.counts)) == (ADMITTED + whole + ADMITTED, requests)
    assert whole in one.to_upstream  # in one piece, so that nobody's requests come between
    assert not one.in_transaction
    names = [name for _, name, _ in observer.commands]
    assert (names.count("MULTI"), names.count("EXEC")) == (1, 1)
    assert names.count("HGETALL") >= 2


def test_the_replies_of_a_whole_transaction_reach_the_client_as_they_come() -> None:
    one = shared()
    one.from_client(WHOLE + REFUSED)
    one.from_shared(ANSWERS[:30], 3, False)
    one.from_shared(ANSWERS[30:], 1, True)
    got = replies(sent(one))
    assert b"".join(got[:4]) == ANSWERS
    assert is_refusal(got[4], "scope.write")
    assert one.outstanding == 0


def test_a_whole_transaction_goes_in_one_piece_on_the_clients_own_connection_too() -> None:
    one = session()
    one.from_client(WHOLE)
    assert one.to_upstream == [WHOLE]
    assert not one.in_transaction
    one.from_upstream(b"-NOPERM multi\r\n*0\r\n*0\r\n-ERR EXEC without MULTI\r\n")
    one.from_client(cmd("AUTH", "master", "pw"))
    at_barrier(one)
    one.from_upstream(b"+OK\r\n")
    assert one.service == "CubeMaster"


def test_whole_transactions_do_not_keep_a_client_from_sharing() -> None:
    now = 100.0
    one = shared(clock=lambda: now)
    one.from_client(MULTI)
    assert not one.route.is_shared
    one.from_upstream(b"+OK\r\n")
    one.from_client(EXEC)
    one.from_upstream(b"*0\r\n")
    passed(one)
    one.from_client(WHOLE)
    passed(one)
    one.from_upstream(ANSWERS)
    now += STAY
    one.from_client(WHOLE)
    assert one.route.is_shared


@pytest.mark.parametrize(
    "begun",
    [
        MULTI,
        MULTI + ADMITTED,
        MULTI + ADMITTED + EXEC[:-1],
        MULTI + ADMITTED + cmd("DISCARD"),
        MULTI + ADMITTED + cmd("EXEC now") + EXEC,
        MULTI + MULTI + EXEC,
        MULTI + cmd("SELECT 1") + EXEC,
        MULTI + cmd("WATCH a") + EXEC,
        MULTI + b"\r\n" + ADMITTED + EXEC,
        MULTI + cmd("HELLO 3") + EXEC,
        MULTI + cmd("RESET") + EXEC,
        MULTI + cmd("BLPOP", "a", 0) + EXEC,
        MULTI + ADMITTED + cmd("NO.SUCH") + EXEC,
        MULTI + cmd("CLIENT", "TRACKING", "ON") + EXEC,
    ],
)
def test_any_other_transaction_waits_for_a_connection_of_its_own(begun: bytes) -> None:
    observer = RecordingObserver()
    one = shared(rules=OBSERVE, observer=observer)
    one.from_client(ADMITTED + begun)
    assert (passed(one), one.counts) == (ADMITTED, [1])
    one.from_shared(b"*0\r\n", 1, True)
    assert not one.route.is_shared
    redis = FakeRedis()
    rounds = 0
    while due := redis.feed(passed(one)):
        rounds += 1
        for reply in due:
            one.from_upstream(reply)
    assert rounds
    assert redis.received[0] == (b"MULTI",)
    assert one.outstanding == 0


def test_keys_are_watched_on_the_connection_that_executes() -> None:
    one = shared(rules=OBSERVE)
    one.from_client(cmd("WATCH a"))
    one.from_upstream(b"+OK\r\n")
    passed(one)
    one.from_client(WHOLE)
    assert not one.route.is_shared
    assert one.route.watching is False  # EXEC ends that
    assert passed(one) == WHOLE


def test_keys_stay_watched_where_redis_refuses_unwatch() -> None:
    now = 100.0
    one = shared(rules=OBSERVE, clock=lambda: now)
    one.from_client(cmd("WATCH a") + cmd("UNWATCH"))
    one.from_upstream(b"+OK\r\n-NOPERM no\r\n")
    passed(one)
    now += STAY * 2
    one.settle()
    assert not one.route.is_shared
    one.from_client(cmd("UNWATCH"))
    one.from_upstream(b"+OK\r\n")
    passed(one)
    now += STAY * 2
    one.settle()
    assert one.route.is_shared


def test_a_transaction_that_is_too_large_or_too_long_goes_on_a_connection_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = shared()
    one.from_client(MULTI + cmd("HGET", ROUTE_OF, "x" * 40_000) * 2 + EXEC)
    assert not one.route.is_shared
    monkeypatch.setattr(ROOM, "shared_requests", 10)
    two = shared()
    two.from_client(MULTI + ADMITTED * 11 + EXEC)
    assert not two.route.is_shared
    assert passed(two) == MULTI + ADMITTED * 11 + EXEC


ROUTE_OF = "cube:v1:shared:sandbox:proxy:7c8f"


@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_refusal_aborts_a_whole_transaction_and_each_command_is_evaluated_once(
    sharing: bool, before: int
) -> None:
    observer = RecordingObserver()
    one = session(sharing=sharing, observer=observer)
    one.from_client(MULTI + ADMITTED * before + REFUSED + ADMITTED + REFUSED + EXEC + ADMITTED)
    assert not one.route.is_shared
    assert passed(one) == MULTI + ADMITTED * before + ABORT_MARKER + ADMITTED + ABORT_MARKER + EXEC + ADMITTED
    names = [(name, outcome) for _, name, outcome in observer.commands]
    assert sorted(names) == sorted(
        [
            ("MULTI", "forwarded"),
            *[("HGETALL", "forwarded")] * before,
            ("HSET", "refused"),
            ("HGETALL", "forwarded"),
            ("HSET", "refused"),
            ("EXEC", "forwarded"),
            ("HGETALL", "forwarded"),
        ]
    )
    assert observer.found == [("CubeProxy", "HSET", "scope.write", "refused")] * 2
    one.from_upstream(b"+OK\r\n" + b"+QUEUED\r\n" * before + b"-ERR arity\r\n+QUEUED\r\n-ERR arity\r\n")
    one.from_upstream(b"-EXECABORT no\r\n*0\r\n")
    got = replies(sent(one))
    assert is_refusal(got[1 + before], "scope.write")
    assert is_refusal(got[3 + before], "scope.write")
    assert got[-2:] == [b"-EXECABORT no\r\n", b"*0\r\n"]
    assert not one.in_transaction


def test_a_refusal_in_a_whole_transaction_waits_for_due_replies() -> None:
    one = shared()
    one.from_client(ADMITTED + MULTI + ADMITTED + REFUSED)
    assert (passed(one), one.counts) == (ADMITTED, [1])
    one.from_client(EXEC + ADMITTED)  # ends what was read before
    one.from_client(ADMITTED)
    assert passed(one) == b""
    one.from_shared(b"*0\r\n", 1, True)
    assert passed(one) == MULTI + ADMITTED + ABORT_MARKER + EXEC + ADMITTED * 2


def test_a_refusal_in_a_complete_transaction_waits_for_due_replies() -> None:
    one = shared()
    one.from_client(ADMITTED + MULTI + ADMITTED + REFUSED + EXEC)
    assert (passed(one), one.counts) == (ADMITTED, [1])
    one.from_client(ADMITTED)
    one.from_client(ADMITTED)
    assert passed(one) == b""
    one.from_shared(b"*0\r\n", 1, True)
    assert passed(one) == MULTI + ADMITTED + ABORT_MARKER + EXEC + ADMITTED * 2


def test_a_transaction_opened_late_keeps_the_policy_that_it_was_evaluated_by() -> None:
    in_force = InForce(authorizer_with())
    one = shared(in_force=in_force)
    one.from_client(ADMITTED + MULTI + ADMITTED + REFUSED + EXEC + REFUSED)
    in_force.authorizer = authorizer_with(ModeRule("observe"))
    passed(one)
    one.from_client(b"")
    one.from_shared(b"*0\r\n", 1, True)
    assert passed(one) == MULTI + ADMITTED + ABORT_MARKER + EXEC + REFUSED


def test_without_a_connection_each_request_of_it_gets_an_error_and_the_client_stays() -> None:
    one = shared()
    one.from_client(WHOLE)
    one.upstream_refused("upstream is down")
    assert replies(sent(one)) == [b"-ERR keyfence: upstream is down\r\n"] * 4
    assert one.closing == ""
    one.from_client(WHOLE)
    assert b"".join(one.to_upstream) == WHOLE


def test_a_protocol_error_behind_multi_is_reported_behind_the_replies() -> None:
    one = shared()
    one.from_client(MULTI + ADMITTED + b"*1\r\n+x\r\n")
    assert passed(one) == MULTI + ADMITTED
    one.from_upstream(b"+OK\r\n+QUEUED\r\n")
    assert sent(one) == b"+OK\r\n+QUEUED\r\n-ERR Protocol error: expected '$', got '+'\r\n"
    assert one.closing.startswith("protocol error")


def test_an_observed_violation_in_a_whole_transaction_is_reported_once_and_passes() -> None:
    observer = RecordingObserver()
    one = shared(rules=OBSERVE, observer=observer)
    one.from_client((MULTI + REFUSED * 3 + EXEC) * 2)
    assert one.route.is_shared
    assert b"".join(one.to_upstream) == (MULTI + REFUSED * 3 + EXEC) * 2
    assert observer.found == [("CubeProxy", "HSET", "scope.write", "observed")] * 6
    assert len(observer.commands) == 10


def test_an_exec_that_the_policy_forbids_is_refused_on_the_ordinary_path() -> None:
    strict = of_policy(
        "policy: p\nservices: [CubeProxy]\ncommands: {forbid: [EXEC]}\n"
        "scopes: {all: {prefix: 'k', writers: [CubeProxy], unregistered: allow}}\n"
    )
    one = shared(in_force=InForce(strict))
    one.from_client(MULTI + cmd("GET k") + EXEC)
    assert not one.route.is_shared
    assert passed(one) == MULTI + cmd("GET k") + ABORT_MARKER


def test_the_keys_of_a_whole_transaction_share_a_hash_slot_where_the_policy_says_so() -> None:
    cluster = of_policy(
        "policy: p\nservices: [CubeProxy]\ncluster: true\n"
        "scopes: {all: {prefix: 'k', writers: [CubeProxy], unregistered: allow}}\n"
    )
    observer = RecordingObserver()
    one = shared(in_force=InForce(cluster), observer=observer)
    same = MULTI + cmd("GET k:{a}:1") + cmd("GET k:{a}:2") + EXEC
    one.from_client(same + MULTI + cmd("GET k:{b}:1") + EXEC)
    assert one.route.is_shared
    assert b"".join(one.to_upstream) == same + MULTI + cmd("GET k:{b}:1") + EXEC
    one = shared(in_force=InForce(cluster), observer=observer)
    one.from_client(MULTI + cmd("GET k:{a}:1") + cmd("GET k:{b}:1") + EXEC)
    assert passed(one) == MULTI + cmd("GET k:{a}:1") + ABORT_MARKER + EXEC
    assert observer.found == [("CubeProxy", "GET", "slot.cross", "refused")]


TTL = """
policy: p
services: [one]
placeholders: {id: "[0-9]{1,6}"}
scopes: {all: {prefix: "k:", writers: [one]}}
keys: {must: {key: "k:<id>", type: hash, ttl: {max: 100s}}}
"""


def test_a_time_to_live_may_be_given_in_the_same_transaction() -> None:
    table = PendingTtls()
    held = of_policy(TTL, table)
    one = shared(service="one", in_force=InForce(held))
    one.from_client(MULTI + cmd("HSET k:1 f v") + cmd("EXPIRE k:1 50") + EXEC)
    assert one.route.is_shared
    assert len(table) == 0
    one.from_client(MULTI + cmd("HSET k:2 f v") + EXEC)
    (pending,) = table
    assert pending.write.asker.transaction is not None
    one.from_client(MULTI + cmd("EXPIRE k:2 50") + EXEC)  # it may come to nothing: Redis will be asked
    assert len(table) == 1
    one.from_client(cmd("EXPIRE k:2 50"))
    assert len(table) == 0


def test_what_a_partly_refused_transaction_leaves_open_is_noted_once() -> None:
    table = PendingTtls()
    held = of_policy(TTL, table)
    one = shared(service="one", in_force=InForce(held))
    one.from_client(MULTI + cmd("HSET k:1 f v") + cmd("GET x") + cmd("EXPIRE k:1 50") + EXEC)
    assert passed(one) == MULTI + cmd("HSET k:1 f v") + ABORT_MARKER + cmd("EXPIRE k:1 50") + EXEC
    assert len(table) == 0  # the EXPIRE is in the same transaction: both are carried out, or neither


def test_a_transaction_in_pieces_of_any_size_has_the_same_result() -> None:
    """The transaction has come as a whole, or its EXEC is cut off, or its MULTI."""
    stream = ADMITTED + WHOLE + MULTI + REFUSED + EXEC + WHOLE * 3 + cmd("WATCH a") + WHOLE + ADMITTED
    wanted = replies(_talk(observed(), [stream]))
    dice = random.Random(1)
    for _ in range(300):
        cuts = sorted(dice.sample(range(1, len(stream)), dice.choice([1, 1, 2, 5])))
        pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
        assert replies(_talk(shared(rules=OBSERVE), pieces)) == wanted


def _talk(one: Session, pieces: Sequence[bytes]) -> bytes:
    """What a client gets whose Redis answers at once, whatever connection its requests take."""
    redis = FakeRedis()
    got = b""
    for piece in pieces:
        one.from_client(piece)
        while one.to_upstream:
            counts, one.counts = one.counts, []
            is_shared = one.route.is_shared
            due = redis.feed(passed(one))
            for count in counts if is_shared else [1] * len(due):
                head, due = b"".join(due[:count]), due[count:]
                if is_shared:
                    one.from_shared(head, count, True)
                else:
                    one.from_upstream(head)
        got += sent(one)
    assert one.outstanding == 0
    return got
