from __future__ import annotations

from keyfence.upstream.cluster.topology import Node, Topology
from keyfence.upstream.single.masters import Masters

from .model import HOST, Later


class Client:
    def __init__(self, fault: Exception | None) -> None:
        self.fault = fault
        self.calls = 0
        self.failures: list[Exception] = []

    def topology_changed(self) -> None:
        self.calls += 1
        if self.fault is not None:
            raise self.fault

    def pass_on_some(self) -> None:
        self.topology_changed()

    def failed(self, exc: Exception) -> None:
        self.failures.append(exc)


FAULT = ValueError("a fault of this client")


def test_a_client_whose_change_of_topology_fails_does_not_keep_it_from_the_others() -> None:
    later = Later()
    masters = Masters(1, 1.0, lambda _sign: None, later)
    first, second = Client(FAULT), Client(None)
    masters.know(first)
    masters.know(second)
    masters.take(Topology([Node("n0", HOST, 7000, slots=((0, 16383),))]), {"n0": Client(None)})  # type: ignore[dict-item]
    later.run_next()
    assert (first.failures, second.failures) == ([FAULT], [])
    assert second.calls == 1


def test_a_client_whose_late_replies_fail_does_not_keep_the_others_from_theirs() -> None:
    later = Later()
    masters = Masters(1, 1.0, lambda _sign: None, later)
    first, second = Client(FAULT), Client(None)
    masters.behind(first)
    masters.behind(second)
    later.run_next()
    assert (first.failures, second.failures) == ([FAULT], [])
    assert second.calls == 1
