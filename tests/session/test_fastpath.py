"""The fast path takes in what the cache admits, and says in one outcome what comes then."""

from __future__ import annotations

import pytest

from keyfence.policy.enforcement.modes import Modes
from keyfence.policy.engine.authorizer import Authorizer, InForce
from keyfence.policy.loading.load import parse_policy
from keyfence.session.fastpath import EMPTY, EVALUATE, LEAVES, NOTHING, REFUSED, FastPath, Outcome
from tests.session.sessions import ADMITTED, ROUTE, Session, authorizer_with, cmd, passed, session
from tests.session.sessions import REFUSED as FOREIGN

MULTI = cmd("MULTI")


def served() -> Session:
    """A session whose cache knows an admitted, a refused and a blocking command."""
    one = session("CubeMaster", sharing=True)
    other = session("CubeProxy", in_force=InForce(one.current_authorizer()))
    for each, requests in ((other, [FOREIGN] * 3), (one, [ADMITTED] * 3)):
        for request in requests:
            each.from_client(request)
            passed(each)
    return other


def fast_path(one: Session) -> FastPath:
    return FastPath(one.executor.client, one.executor.conversation)


def read(one: Session, fast: FastPath, data: bytes) -> Outcome:
    one.reader.feed(data)
    return fast.read(fast.current_cache())


@pytest.mark.parametrize(
    ("data", "kind", "joined"),
    [
        (b"", NOTHING, 0),
        (ADMITTED, NOTHING, 1),
        (ADMITTED + ADMITTED[:-1], NOTHING, 1),
        (ADMITTED * 2 + b"*0\r\n", EMPTY, 2),
        (ADMITTED + MULTI, EVALUATE, 1),
        (cmd("GET nobody:1") + ADMITTED, EVALUATE, 0),
        (ADMITTED * 3 + FOREIGN + ADMITTED, REFUSED, 3),
    ],
)
def test_the_outcome_is_what_comes_after_the_admitted_requests(data: bytes, kind: int, joined: int) -> None:
    one = served()
    fast = fast_path(one)
    found = read(one, fast, data)
    assert (found.kind, fast.count) == (kind, joined)


def test_a_request_to_evaluate_comes_with_what_the_cache_knows_of_it() -> None:
    one = served()
    fast = fast_path(one)
    found = read(one, fast, cmd("GET nobody:1"))
    assert found.argv == [b"GET", b"nobody:1"]
    assert found.lookup is not None
    assert not found.lookup.is_admitted
    found = read(one, fast, MULTI)
    assert (found.argv, found.lookup) == ([b"MULTI"], None)


def test_a_refusal_that_the_cache_holds_comes_with_the_outcome() -> None:
    one = served()
    fast = fast_path(one)
    for _ in range(2):  # the first one of a session is read as a list, the second one in place
        found = read(one, fast, FOREIGN)
        assert found.kind == REFUSED
        assert found.refusal.startswith(b"-NOPERM [scope.write] CubeProxy may not HSET " + ROUTE)


def test_a_blocking_command_leaves_the_shared_connection() -> None:
    loaded = parse_policy(
        "policy: p\nservices: [a]\nplaceholders: {id: '[0-9]'}\nkeys: {k: {key: 'k:<id>', writers: a}}\n"
    )
    one = session("a", in_force=InForce(Authorizer(loaded, Modes((), loaded.services))), sharing=True)
    fast = fast_path(one)
    for _ in range(2):
        found = read(one, fast, cmd("BLPOP k:1 k:2 0"))
        assert found.kind == LEAVES
        assert found.call is not None
        assert found.call.name == "BLPOP"
    one.take_own(for_good=False)
    assert (read(one, fast, cmd("BLPOP k:1 k:2 0")).kind, fast.count) == (NOTHING, 1)


def test_the_next_read_knows_nothing_of_the_last_outcome() -> None:
    one = served()
    fast = fast_path(one)
    assert read(one, fast, FOREIGN).kind == REFUSED
    assert read(one, fast, ADMITTED).kind == NOTHING
    assert read(one, fast, cmd("GET nobody:1")).kind == EVALUATE


def test_without_a_cache_each_request_is_evaluated() -> None:
    one = session(in_force=InForce(authorizer_with()))
    fast = fast_path(one)
    one.reader.feed(ADMITTED + b"\r\n")
    assert fast.read(None).argv == [b"HGETALL", ROUTE]
    assert [fast.read(None).kind for _ in range(2)] == [EMPTY, NOTHING]


def test_after_a_login_the_cache_is_the_one_of_the_new_service() -> None:
    one = served()
    fast = fast_path(one)
    before = fast.current_cache()
    assert fast.current_cache() is before
    one.executor.client.become("CubeMaster", b"master")
    assert fast.current_cache() is not before
    assert read(one, fast, FOREIGN).kind != REFUSED, "CubeMaster may do what CubeProxy may not"


def test_a_session_keeps_nothing_of_what_another_one_has_read() -> None:
    one, other = served(), served()
    assert read(one, fast_path(one), cmd("GET nobody:1")).lookup is not None
    found = read(other, fast_path(other), MULTI)
    assert (found.kind, found.argv, found.lookup) == (EVALUATE, [b"MULTI"], None)
