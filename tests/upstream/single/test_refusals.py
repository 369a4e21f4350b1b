"""Errors that say that a command has not run, and what the client gets of them."""

from __future__ import annotations

import pytest

from keyfence.upstream.single.refusals import (
    MOVING,
    Refusal,
    error_for,
    may_begin,
    pause_before,
    refusal_in,
)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (b"-MOVED 12 10.0.0.1:6379\r\n", Refusal("MOVED", 12, "10.0.0.1", 6379)),
        (b"-ASK 12 name:6379\r\n", Refusal("ASK", 12, "name", 6379)),
        (b"-MOVED 12 :6379\r\n", Refusal("MOVED", 12, "", 6379)),
        (b"-TRYAGAIN Multiple keys\r\n", Refusal("TRYAGAIN")),
        (b"-CLUSTERDOWN The cluster is down\r\n", Refusal("CLUSTERDOWN")),
        (b"-MOVED there\r\n", None),
        (b"-ERR MOVED 12 a:1\r\n", None),
        (b"+MOVED 12 a:1\r\n", None),
        (b"$5\r\nMOVED\r\n", None),
    ],
)
def test_only_errors_of_a_cluster_are_refusals(reply: bytes, expected: Refusal | None) -> None:
    assert refusal_in(reply) == expected


def test_no_client_gets_an_address() -> None:
    assert error_for(b"-MOVED 12 10.0.0.1:6379\r\n") == MOVING
    assert error_for(b"-TRYAGAIN Multiple\r\n") == b"-TRYAGAIN Multiple\r\n"


def test_a_beginning_may_become_a_refusal() -> None:
    assert may_begin(b"-")
    assert may_begin(b"-MOV")
    assert may_begin(b"-CLUSTERDOWN The")
    assert not may_begin(b"-ERR")
    assert not may_begin(b"+MOVED")


def test_pauses_grow() -> None:
    assert pause_before("MOVED", 1) == 0.0
    pauses = [pause_before("ASK", hops) for hops in range(1, 7)]
    assert pauses == sorted(pauses)
    assert 0.001 < pauses[0] < pauses[-1] < 0.1
    assert pause_before("CLUSTERDOWN", 20) == 0.5
