"""Where the upstream stands, by what the prober and the sessions see of it."""

from __future__ import annotations

import pytest

from keyfence.upstream.standing import CREDENTIALS, KINDS, Standing


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def standing(clock: Clock) -> Standing:
    return Standing(clock)


def hello(role: str, mode: str = "standalone") -> list[object]:
    return [b"server", b"redis", b"mode", mode.encode(), b"role", role.encode(), b"modules", []]


NOAUTH = Exception("NOAUTH HELLO must be called with the client already authenticated")


def kinds(standing: Standing) -> list[str]:
    return [one.kind for one in standing.concerns()]


def is_ready(standing: Standing) -> bool:
    return not any(one.is_fatal for one in standing.concerns())


def test_a_primary_that_becomes_a_replica_is_fatal_until_it_is_a_primary_again(standing: Standing) -> None:
    standing.told(hello("master"))
    assert kinds(standing) == []
    standing.told(hello("replica"))
    assert (kinds(standing), is_ready(standing)) == (["read_only"], False)
    standing.told(hello("master"))
    assert (kinds(standing), is_ready(standing)) == ([], True)


def test_a_replica_that_refuses_a_write_is_read_only_although_it_was_never_a_primary(
    standing: Standing, clock: Clock
) -> None:
    """As after a restart of keyfence: it does not know what Redis was before."""
    standing.told(hello("replica"))
    assert kinds(standing) == ["replica"]
    standing.shown("READONLY", 0.0)
    assert (kinds(standing), is_ready(standing)) == (["replica", "read_only"], True)
    clock.now += 120
    assert kinds(standing) == ["replica", "read_only"]


def test_an_error_that_a_primary_seems_to_answer_with_counts_for_a_minute(
    standing: Standing, clock: Clock
) -> None:
    """A script can word it."""
    standing.told(hello("master"))
    standing.shown("READONLY", 0.0)
    assert (kinds(standing), is_ready(standing)) == (["read_only"], True)
    clock.now += 61
    assert kinds(standing) == []


# -- Redis wants a login before it says anything, and only clients have one


def test_without_a_login_a_refused_write_counts_until_a_client_is_told_of_a_primary(
    standing: Standing, clock: Clock
) -> None:
    standing.told(NOAUTH)
    standing.shown("READONLY", 0.0)
    clock.now += 1_800
    assert kinds(standing) == ["read_only"]
    standing.shown("master", 0.0)
    assert kinds(standing) == []


def test_without_a_login_a_refused_write_counts_for_an_hour_if_no_client_is_told_anything(
    standing: Standing, clock: Clock
) -> None:
    standing.shown("READONLY", 0.0)
    clock.now += 3_601
    assert kinds(standing) == []


def test_without_a_login_a_failover_is_fatal_once_clients_are_told_of_it(standing: Standing) -> None:
    for role in ("master", "replica"):
        standing.told(NOAUTH)
        standing.shown(role, 0.0)
    assert (kinds(standing), is_ready(standing)) == (["read_only"], False)
    standing.told(NOAUTH)
    assert not is_ready(standing)
    standing.shown("master", 0.0)
    assert is_ready(standing)


def test_a_role_that_a_worker_tells_late_does_not_hide_a_newer_one(standing: Standing) -> None:
    standing.told(NOAUTH)
    standing.shown("replica", 2.0)
    standing.shown("READONLY", 2.0)
    standing.shown("master", 1.0)
    assert (kinds(standing), is_ready(standing)) == (["read_only"], False)


def test_what_the_prober_is_told_counts_more_than_what_clients_are_told(standing: Standing) -> None:
    """An older connection may lead to the former primary."""
    standing.told(hello("master"))
    standing.shown("replica", 0.0)
    standing.told(None)  # no reply in time
    standing.shown("replica", 0.0)
    assert kinds(standing) == []


# -- ways past keyfence


def test_errors_that_redirect_show_a_cluster_unless_redis_says_otherwise(standing: Standing) -> None:
    standing.shown("MOVED", 0.0)
    assert kinds(standing) == ["cluster"]
    standing.told(hello("master"))
    assert kinds(standing) == []
    standing.told(hello("master", "cluster"))
    assert kinds(standing) == ["cluster"]


def test_a_replica_that_redirects_to_its_primary_shows_no_cluster(standing: Standing) -> None:
    standing.shown("REDIRECT", 0.0)
    assert kinds(standing) == []


def test_a_client_that_gets_notices_is_a_concern_for_a_day(standing: Standing, clock: Clock) -> None:
    standing.told(hello("master"))
    standing.shown("notices", 0.0)
    assert (kinds(standing), is_ready(standing)) == (["notices"], True)
    assert "CLIENT MAINT_NOTIFICATIONS ON" in standing.concerns()[0].text
    clock.now += 86_401
    assert kinds(standing) == []


def test_every_kind_of_concern_has_a_row_of_its_metric() -> None:
    standing = Standing(Clock())
    standing.told(hello("replica", "cluster"))
    for word in ("READONLY", "notices"):
        standing.shown(word, 0.0)
    found = set(kinds(standing))
    standing.told(hello("master", "sentinel"))
    assert found | set(kinds(standing)) | {CREDENTIALS} == set(KINDS)
