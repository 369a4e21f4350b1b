"""Faults that are put into keyfence on purpose are found soon: the invariants have teeth."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation import keyfence_under_test, schedule
from tests.simulation.journal import Broken
from tests.simulation.keyfence_under_test import Keyfence, SimulatedClient
from tests.simulation.schedule import Player, Schedule

MOST_SCHEDULES = 2_000  # some tens of seconds


def found(*ways: str, first: int = 0, kind: type[Player] = Schedule) -> str:
    """What breaks in one of these ways, in the first schedule that has it, of the seeds from `first` on. One
    soon after that has it as the models are now, so the test is short."""
    for seed in range(first, first + MOST_SCHEDULES):
        played = kind(seed)
        try:
            played.run()
        except Broken:
            for one in played.journal.broken:
                if any(how in one for how in ways):
                    return one
    return ""


class Misdelivers(SimulatedClient):
    """What is due to a client that goes is left on the shared connection, and comes to another client."""

    def connection_lost(self, exc: Exception | None) -> None:
        connections = list(self._context.pools.connections())
        left = [link for one in connections for link in one.links if link.sharer is self and link.awaited]
        super().connection_lost(exc)
        conversations = ((one, one._session.conversation) for one in self._context.clients)
        heirs = [one for one, about in conversations if about.outstanding and about.route.is_shared]
        heirs.sort(key=lambda one: -one._session.conversation.outstanding)
        for link in left:
            link.sharer = heirs[0] if heirs else None


class Resends(SimulatedClient):
    """Once, after a lost connection, what was outstanding is sent again on another one."""

    _sent = b""
    _has_sent_again = False

    def data_received(self, data: bytes) -> None:
        if not self._session.conversation.outstanding:
            self._sent = b""
        self._sent += data
        super().data_received(data)

    def shared_lost(self, link: Any, reason: str) -> None:
        conversation = self._session.conversation
        count = self._sent.count(b"*")
        may_send = count == conversation.outstanding and not self._has_sent_again
        if may_send and self._links.may_share(conversation.profile):
            self._has_sent_again = True
            self._links.send_shared([self._sent], [count])
        else:
            super().shared_lost(link, reason)


class Stays(SimulatedClient):
    """A client whose own connection is left on the former primary."""

    def upstream_moved(self, reason: str, held: Any) -> None:
        """Do nothing."""


def test_a_reply_that_goes_to_another_client_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyfence_under_test, "SimulatedClient", Misdelivers)
    monkeypatch.setattr("keyfence.downstream.client.report_fault", lambda _: None)
    assert found("and got", "internal error")


def test_a_request_that_is_sent_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyfence_under_test, "SimulatedClient", Resends)
    assert found("again on", first=115)


class RenewsNothing(Keyfence):
    """Connections that lead to a replica are not replaced."""

    async def start(self) -> None:
        self.upstream.on_renewal = lambda: None
        await super().start()


def test_a_connection_that_is_used_again_after_readonly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "Keyfence", RenewsNothing)
    assert found("used again")


def test_a_subscriber_that_stays_on_the_former_primary_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyfence_under_test, "SimulatedClient", Stays)
    assert found("hears nothing", first=140)
