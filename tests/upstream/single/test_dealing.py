"""Replies of several nodes are merged into the client's order, and turned over to turns at any time."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from keyfence.upstream.single.dealing import Deals, new_deal
from keyfence.upstream.single.sides import Side
from keyfence.upstream.single.turns import Order

MASTER: Any = type("Master", (), {"number": 7})


def sides(count: int) -> list[Side]:
    return [Side(None, MASTER, place) for place in range(count)]


def reply(number: int) -> bytes:
    return random.Random(number).choice([b":%d\r\n", b"$4\r\n%04d\r\n", b"*2\r\n$-1\r\n:%d\r\n"]) % number


def merged(deals: Deals) -> list[tuple[bytes, int]]:
    found = []
    while (data := deals.merged()) is not None:
        found.append((data, deals.completed))
    return found


def test_replies_come_in_the_order_of_the_requests() -> None:
    (a, b, c) = nodes = sides(3)
    deals = Deals(nodes)
    deals.add(new_deal(bytes([0, 1, 0, 0, 2]), 0, 5, 0))
    deals.take_in(c, b":5\r\n", 1)
    deals.take_in(a, b":1\r\n:3\r\n:4\r\n", 3)
    assert merged(deals) == [(b":1\r\n", 1)]
    assert deals.held == 12
    deals.take_in(b, b":2\r\n", 1)
    assert merged(deals) == [(b":2\r\n:3\r\n:4\r\n:5\r\n", 4)]
    assert deals.head is None
    assert deals.held == 0


def test_replies_to_requests_that_came_apart_stay_apart() -> None:
    (a, b) = nodes = sides(2)
    deals = Deals(nodes)
    deals.add(new_deal(None, 0, 2, 0))
    deals.add(new_deal(bytes([1, 0]), 0, 2, 2))
    deals.take_in(b, b":3\r\n", 1)
    deals.take_in(a, b":1\r\n:2\r\n:4\r\n", 3)
    assert merged(deals) == [(b":1\r\n:2\r\n", 2), (b":3\r\n:4\r\n", 2)]


def test_in_any_order_nothing_is_lost_and_turns_can_take_over_at_any_time() -> None:
    chosen = random.Random(5)
    for _ in range(200):
        nodes = sides(3)
        deals = Deals(nodes)
        got: list[bytes] = []
        order = Order(lambda data, _completed, _whole, got=got: got.append(data))
        due: list[deque[bytes]] = [deque() for _ in nodes]
        number = 0
        for _ in range(chosen.randint(1, 4)):
            count = chosen.randint(1, 9)
            places = [chosen.randrange(3) for _ in range(count)]
            if chosen.random() < 0.3:
                places = [places[0]] * count
                deals.add(new_deal(None, places[0], count, number))
            else:
                deals.add(new_deal(bytes(places), 0, count, number))
            for place in places:
                due[place].append(reply(number))
                number += 1
        until = chosen.randint(0, number)
        while any(due):
            place = chosen.choice([place for place, replies in enumerate(due) if replies])
            count = chosen.randint(1, len(due[place]))
            pieces = [due[place].popleft() for _ in range(count)]
            if number - sum(map(len, due)) > until and deals.head is not None:
                deals.hand_over(order)
                order.settle(False)
                assert (deals.head, deals.held, [one.stock for one in nodes]) == (None, 0, [0, 0, 0])
            if deals.head is not None:
                deals.take_in(nodes[place], b"".join(pieces), count)
                got.extend(data for data, _ in merged(deals))
                continue
            for piece in pieces:
                turn = nodes[place].turn
                assert turn is not None
                if turn.count == 1:
                    nodes[place].next_turn()
                order.came(turn, piece, 1)
            order.settle(False)
        assert b"".join(got) == b"".join(map(reply, range(number)))
        assert order.head is None
        assert deals.head is None
