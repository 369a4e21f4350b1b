"""Faults that are put into keyfence before a cluster are found soon: the invariants have teeth."""

from __future__ import annotations

import pytest

from keyfence.upstream.single import again, own, retries
from keyfence.upstream.single.waiting import Request
from tests.simulation import keyfence_under_test
from tests.simulation.cluster.schedule import ClusterSchedule
from tests.simulation.test_teeth import Resends, found


def found_before_cluster(*ways: str, first: int = 0) -> str:
    return found(*ways, first=first, kind=ClusterSchedule)


def test_an_ask_that_is_not_followed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(again.Again, "is_asking", False)
    assert found_before_cluster("got ReplyError('TRYAGAIN", first=8)


def test_a_moved_that_is_not_followed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries.Retries, "is_refused", lambda *_: False)
    assert found_before_cluster("got ReplyError('TRYAGAIN")


def test_an_address_that_is_passed_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (own, retries):
        monkeypatch.setattr(module, "error_for", lambda reply: reply)
    assert found_before_cluster("is told a node's address", first=33)


def test_a_transaction_at_another_node_than_watch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "refused_request", lambda request, slot: Request(request, b"", slot))
    assert found_before_cluster("MULTI went to")


def test_a_request_that_is_sent_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyfence_under_test, "SimulatedClient", Resends)
    assert found_before_cluster("again on", "was sent fewer times")


def test_a_topology_that_is_never_asked_for_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keyfence.upstream.cluster.refresh.Refresh.noticed", lambda *_: None)
    monkeypatch.setattr("keyfence.upstream.cluster.refresh.POLL_SECONDS", 1e6)
    assert found_before_cluster("got no answers")
