"""Connection quotas, tested without connections."""

from __future__ import annotations

import random

from keyfence.config.limits import ClientLimits
from keyfence.downstream.quotas import ConnectionQuota, ConnectionQuotas


def test_the_connections_in_all_are_limited() -> None:
    quotas = ConnectionQuotas(ClientLimits(connections=2))
    first, second = quotas.take(), quotas.take()
    assert first
    assert second
    assert quotas.take() is None
    first.leave()
    first.leave()  # the second call has no effect
    assert quotas.taken == 1
    assert quotas.take()
    assert quotas.take() is None


def test_the_connections_of_one_address_are_limited() -> None:
    quotas = ConnectionQuotas(ClientLimits(per_address=2))
    assert [taken(quotas).at("10.0.0.1") for _ in range(3)] == [True, True, False]
    assert taken(quotas).at("10.0.0.2")
    assert [taken(quotas).at("") for _ in range(5)] == [True] * 5  # clients of a unix socket have no address


def test_the_connections_of_each_service_are_limited() -> None:
    quotas = ConnectionQuotas(ClientLimits(per_service={"*": 1, "A": 2, "B": 0}))
    assert [taken(quotas).serve("A") for _ in range(3)] == [True, True, False]
    assert [taken(quotas).serve("B") for _ in range(3)] == [True] * 3  # 0: no limit
    assert [taken(quotas).serve("C") for _ in range(2)] == [True, False]


def test_a_client_that_changes_its_service_counts_for_the_new_one_only() -> None:
    quotas = ConnectionQuotas(ClientLimits(per_service={"A": 1, "B": 1}))
    one, two = taken(quotas), taken(quotas)
    assert one.serve("A")
    assert two.serve("B")
    assert not two.serve("A")
    assert quotas.of_service == {"A": 1, "B": 1}
    assert one.serve("A")  # it already is that service
    assert one.serve("unknown")
    assert two.serve("A")
    assert quotas.of_service == {"unknown": 1, "A": 1}


def test_a_lower_limit_closes_no_connection() -> None:
    quotas = ConnectionQuotas(ClientLimits(per_service={"A": 3}))
    held = [taken(quotas) for _ in range(3)]
    assert all(place.serve("A") for place in held)
    quotas.limits = ClientLimits(connections=1, per_service={"A": 1})
    assert held[0].serve("A")
    assert quotas.take() is None


def test_closed_connections_leave_no_counts() -> None:
    quotas = ConnectionQuotas(ClientLimits(per_address=3, per_service={"*": 3}))
    chance = random.Random(1)
    held: list[ConnectionQuota] = []
    for _ in range(3000):
        if held and chance.random() < 0.5:
            held.pop(chance.randrange(len(held))).leave()
        else:
            held.append(taken(quotas))
            held[-1].at(f"10.0.0.{chance.randrange(20)}")
        if held:
            chance.choice(held).serve(chance.choice("ABCDE"))
    assert quotas.taken == len(held)
    assert max(quotas.of_address.values()) <= 3
    for place in held:
        place.leave()
    assert (quotas.taken, quotas.of_address, quotas.of_service) == (0, {}, {})


def taken(quotas: ConnectionQuotas) -> ConnectionQuota:
    place = quotas.take()
    assert place is not None
    return place
