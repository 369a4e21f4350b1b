"""Places for connections, counted without any connection."""

from __future__ import annotations

import random

from keyfence.config.limits import ClientLimits
from keyfence.downstream.quotas import ConnectionQuota, ConnectionQuotas


def test_there_are_so_many_places_in_all() -> None:
    places = ConnectionQuotas(ClientLimits(connections=2))
    first, second = places.take(), places.take()
    assert first
    assert second
    assert places.take() is None
    first.leave()
    first.leave()  # again: nothing
    assert places.taken == 1
    assert places.take()
    assert places.take() is None


def test_there_are_so_many_places_for_one_address() -> None:
    places = ConnectionQuotas(ClientLimits(per_address=2))
    assert [taken(places).at("10.0.0.1") for _ in range(3)] == [True, True, False]
    assert taken(places).at("10.0.0.2")
    assert [taken(places).at("") for _ in range(5)] == [True] * 5  # a unix socket's clients have none


def test_there_are_so_many_places_for_each_service() -> None:
    places = ConnectionQuotas(ClientLimits(per_service={"*": 1, "A": 2, "B": 0}))
    assert [taken(places).serve("A") for _ in range(3)] == [True, True, False]
    assert [taken(places).serve("B") for _ in range(3)] == [True] * 3  # 0: no limit
    assert [taken(places).serve("C") for _ in range(2)] == [True, False]


def test_who_becomes_another_service_takes_a_place_there_and_leaves_the_old_one() -> None:
    places = ConnectionQuotas(ClientLimits(per_service={"A": 1, "B": 1}))
    one, two = taken(places), taken(places)
    assert one.serve("A")
    assert two.serve("B")
    assert not two.serve("A")
    assert places.of_service == {"A": 1, "B": 1}
    assert one.serve("A")  # it is that service already
    assert one.serve("unknown")
    assert two.serve("A")
    assert places.of_service == {"unknown": 1, "A": 1}


def test_a_lower_limit_turns_nobody_out() -> None:
    places = ConnectionQuotas(ClientLimits(per_service={"A": 3}))
    held = [taken(places) for _ in range(3)]
    assert all(place.serve("A") for place in held)
    places.limits = ClientLimits(connections=1, per_service={"A": 1})
    assert held[0].serve("A")
    assert places.take() is None


def test_nothing_is_left_of_those_who_have_gone() -> None:
    places = ConnectionQuotas(ClientLimits(per_address=3, per_service={"*": 3}))
    chance = random.Random(1)
    held: list[ConnectionQuota] = []
    for _ in range(3000):
        if held and chance.random() < 0.5:
            held.pop(chance.randrange(len(held))).leave()
        else:
            held.append(taken(places))
            held[-1].at(f"10.0.0.{chance.randrange(20)}")
        if held:
            chance.choice(held).serve(chance.choice("ABCDE"))
    assert places.taken == len(held)
    assert max(places.of_address.values()) <= 3
    for place in held:
        place.leave()
    assert (places.taken, places.of_address, places.of_service) == (0, {}, {})


def taken(places: ConnectionQuotas) -> ConnectionQuota:
    place = places.take()
    assert place is not None
    return place
