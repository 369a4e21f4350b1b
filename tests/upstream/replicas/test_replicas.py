"""Which replicas there are, and how each stands."""

from __future__ import annotations

import pytest

from keyfence.upstream.address import UpstreamAddress
from keyfence.upstream.health import Upstream
from keyfence.upstream.replicas import replica, replicas
from keyfence.upstream.replicas.position import Position
from keyfence.upstream.replicas.replicas import Replicas
from keyfence.upstream.sentinel.answers import replicas_in
from tests.downstream.test_client import in_loop

PRIMARY = UpstreamAddress("tcp", "primary", 1, username="u", password="secret", shown="primary")


def known(patch: pytest.MonkeyPatch, nodes: list[tuple[str, int]], **positions: Position) -> Replicas:
    """Replicas of a primary; all nodes stand where `positions` say."""

    async def position_of(upstream: Upstream) -> Position:
        return positions[upstream.address.host]

    patch.setattr(replicas, "position_of", position_of)
    patch.setattr(replica, "position_of", position_of)
    return Replicas(Upstream(PRIMARY), 1, [b"GET"], nodes)


@in_loop
async def test_a_replica_says_why_it_is_not_used(patch: pytest.MonkeyPatch) -> None:
    primary = Position("master", "ab", 9, "it is a primary")
    nodes = {
        "good": Position("slave", "ab", 9, ""),
        "late": Position("slave", "ab", 4, ""),
        "cut": Position("slave", "ab", 9, "its link to the primary is down"),
        "turned": Position("master", "cd", 9, "it is a primary"),
        "other": Position("slave", "cd", 9, ""),
    }
    all_ = known(patch, [(name, 1) for name in nodes], primary=primary, **nodes)
    await all_.check()
    assert all_.status() == [
        {"address": "good:1", "reason": "", "behind": 0},
        {"address": "late:1", "reason": "it is more than 5 s behind the primary", "behind": 5},
        {"address": "cut:1", "reason": "its link to the primary is down", "behind": None},
        {"address": "turned:1", "reason": "it is a primary", "behind": None},
        {"address": "other:1", "reason": "it has another history than the primary", "behind": None},
    ]


@in_loop
async def test_keyfence_logs_in_at_a_replica_as_at_the_primary(patch: pytest.MonkeyPatch) -> None:
    [one] = known(patch, [("a", 7)])
    address = one.upstream.address
    assert (address.host, address.port, address.kind) == ("a", 7, "tcp")
    assert address.login() == PRIMARY.login()
    assert not one.upstream.is_followed
    assert "secret" not in repr(one.upstream.address)


@in_loop
async def test_replicas_come_and_go() -> None:
    found: list[list[tuple[str, int]] | None] = [[("a", 1), ("b", 1)], [("b", 1), ("c", 1)], None]

    async def find() -> list[tuple[str, int]] | None:
        return found.pop(0)

    all_ = Replicas(Upstream(PRIMARY), 1, [b"GET"], find=find)
    await all_.find()
    assert [one.shown for one in all_] == ["a:1", "b:1"]
    _, kept = all_
    await all_.find()
    assert [one.shown for one in all_] == ["b:1", "c:1"]
    assert next(iter(all_)) is kept
    await all_.find()  # no Sentinel answers
    assert [one.shown for one in all_] == ["b:1", "c:1"]


def test_sentinels_leave_out_replicas_that_are_not_sound() -> None:
    def row(port: int, flags: str = "slave", link: str = "ok") -> list[bytes]:
        words = f"ip 10.0.0.1 port {port} flags {flags} master-link-status {link}"
        return [word.encode() for word in words.split()]

    reply = [
        row(1),
        row(2, "s_down,slave"),
        row(3, "slave,o_down"),
        row(4, "slave,disconnected"),
        row(5, link="err"),
        row(6),
        [b"ip", b"10.0.0.1"],
    ]
    assert replicas_in(reply) == [("10.0.0.1", 1), ("10.0.0.1", 6)]
    assert replicas_in(b"nothing") == []
