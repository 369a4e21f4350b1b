"""The parent binds the nodes' ports, and each worker gets its own socket of each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import socket
from collections.abc import Iterator

import pytest

from keyfence.net.addresses import Address, Bound
from keyfence.process.workers.channel import to_json, to_pickle
from keyfence.process.workers.nodes import (
    MAX_SENT,
    GivenDoors,
    NodeDoors,
    Signs,
    send_descriptors,
    signs_in,
)
from keyfence.upstream.cluster.refresh import Reason
from keyfence.upstream.cluster.topology import Topology
from tests.servers import free_port
from tests.upstream.cluster.replies import FIRST, SECOND, topology


class Worker:
    """A worker of one place: what it was told, and its sockets."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.handing, handed = socket.socketpair()
        handed.setblocking(False)
        self.doors = GivenDoors(handed)
        self.known: set[int] = set()
        self.open: dict[str, Bound] = {}
        self._handed = handed

    def told(self, parent: NodeDoors) -> tuple[Topology, list[str]]:
        """Takes an order as it comes over the channel, with its descriptors."""
        order, descriptors = parent.order_for(self.place, self.known)
        send_descriptors(self.handing, descriptors)
        self.known = {one.number for one in order.listeners}
        return self.doors.take(pickle.loads(to_pickle(order)))

    def listen(self, node_id: str) -> socket.socket:
        (bound,) = self.doors.open(node_id, Address("127.0.0.1:0"))
        self.open[node_id] = bound
        (sock,) = bound.sockets
        sock.listen()
        sock.setblocking(False)
        return sock

    def close(self) -> None:
        for bound in self.open.values():
            bound.close()
        self.handing.close()
        self._handed.close()


@contextlib.contextmanager
def parent_and_workers(number: int = 2) -> Iterator[tuple[NodeDoors, list[Worker]]]:
    parent, workers = NodeDoors(number), [Worker(place) for place in range(number)]
    try:
        yield parent, workers
    finally:
        for one in workers:
            one.close()
        parent.close_all()


def address() -> Address:
    return Address(f"127.0.0.1:{free_port()}")


def accepted(*listening: socket.socket) -> int:
    """Returns how many connections wait in the queues."""
    number = 0
    for sock in listening:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock.accept()[0].close()
                number += 1
    return number


def test_each_worker_has_a_socket_of_its_own_at_the_same_port() -> None:
    with parent_and_workers() as (parent, workers):
        where = address()
        assert parent.open(FIRST, where) == ()
        parent.told(topology())
        sockets = []
        for one in workers:
            told, node_ids = one.told(parent)
            assert told.nodes == topology().nodes
            assert node_ids == [FIRST]
            sockets.append(one.listen(FIRST))
        assert {sock.getsockname() for sock in sockets} == {where.host_port}
        for _ in range(20):
            socket.create_connection(where.host_port).close()
        assert accepted(*sockets) == 20


def test_connections_go_only_to_workers_that_listen_already() -> None:
    with parent_and_workers() as (parent, (early, late)):
        where = address()
        parent.open(FIRST, where)
        parent.told(topology())
        early.told(parent)
        late.told(parent)
        sock = early.listen(FIRST)
        for _ in range(10):
            socket.create_connection(where.host_port).close()
        assert accepted(sock) == 10
        late.listen(FIRST)


def test_a_worker_gets_each_socket_once() -> None:
    with parent_and_workers(1) as (parent, (worker,)):
        parent.open(FIRST, address())
        parent.told(topology())
        worker.told(parent)
        worker.listen(FIRST)
        parent.open(SECOND, address())
        order, descriptors = parent.order_for(0, worker.known)
        assert len(descriptors) == len(order.fresh) == 1
        assert len(order.listeners) == 2
        worker.told(parent)
        worker.listen(SECOND)
        with pytest.raises(OSError, match="cannot listen there"):
            worker.listen(FIRST)


def test_the_successor_of_a_worker_gets_the_connections_that_wait() -> None:
    with parent_and_workers(1) as (parent, (worker,)):
        where = address()
        parent.open(FIRST, where)
        parent.told(topology())
        worker.told(parent)
        worker.listen(FIRST)
        with socket.create_connection(where.host_port):
            worker.open.pop(FIRST).close()
            successor = Worker(0)
            successor.told(parent)
            assert accepted(successor.listen(FIRST)) == 1
            successor.close()


def test_the_socket_of_a_new_port_outlives_the_close_of_the_former_listener() -> None:
    with parent_and_workers(1) as (parent, (worker,)):
        parent.open(FIRST, address())
        worker.told(parent)
        worker.listen(FIRST)
        parent.close(FIRST)
        where = address()
        parent.open(FIRST, where)
        worker.told(parent)
        worker.open.pop(FIRST).close()
        worker.doors.close(FIRST)
        assert worker.listen(FIRST).getsockname() == where.host_port


def test_a_port_of_another_program_is_an_error_even_if_it_shares_it() -> None:
    with parent_and_workers() as (parent, _), socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        where = Address(f"127.0.0.1:{other.getsockname()[1]}")
        with pytest.raises(OSError, match="in use"):
            parent.open(FIRST, where)
        other.close()
        parent.open(FIRST, where)


def test_a_port_can_be_given_to_another_node_while_workers_still_listen_for_the_former() -> None:
    with parent_and_workers(1) as (parent, (worker,)):
        where = address()
        parent.open(FIRST, where)
        worker.told(parent)
        worker.listen(FIRST)
        parent.close(FIRST)
        parent.open(SECOND, where)
        worker.told(parent)
        worker.open.pop(FIRST).close()
        assert worker.listen(SECOND).getsockname() == where.host_port


def test_more_sockets_than_one_message_takes_arrive() -> None:
    number = MAX_SENT + 3
    with parent_and_workers(1) as (parent, (worker,)):
        for index in range(number):
            parent.open(f"{index}", Address("127.0.0.1:0"))
        _, node_ids = worker.told(parent)
        assert len(node_ids) == number
        worker.listen("0")
        worker.listen(f"{number - 1}")
        for index in range(1, number - 1):
            worker.open[f"{index}"] = worker.doors.open(f"{index}", Address(""))[0]


def test_too_few_sockets_are_an_error() -> None:
    with parent_and_workers(1) as (parent, (worker,)):
        parent.open(FIRST, address())
        order, _ = parent.order_for(0, ())
        worker.handing.close()
        with pytest.raises(OSError, match="too few sockets"):
            worker.doors.take(order)


def test_the_workers_are_told_of_changes_only() -> None:
    with parent_and_workers() as (parent, _):
        published: list[None] = []
        parent.publish = lambda: published.append(None)
        parent.told(topology())
        parent.told(topology())
        assert len(published) == 1
        parent.open(FIRST, address())
        parent.told(topology())
        assert len(published) == 2
        parent.close(FIRST)
        parent.told(topology())
        assert len(published) == 3


def test_signs_that_come_together_are_one_message() -> None:
    async def play() -> None:
        sent: list[dict[str, object]] = []
        signs = Signs(sent.append)
        for reason in (Reason.MOVED, Reason.RESET, Reason.MOVED):
            signs.noticed(reason)
        while not sent:
            await asyncio.sleep(0.001)
        assert [signs_in(json.loads(to_json(one))["signs"]) for one in sent] == [[Reason.MOVED, Reason.RESET]]
        signs.noticed(Reason.RESET)
        while len(sent) < 2:
            await asyncio.sleep(0.001)

    asyncio.run(play())


@pytest.mark.parametrize("message", [None, "reset", 5, {"reset": 1}, ["nonsense"]])
def test_a_worker_cannot_send_signs_that_are_none(message: object) -> None:
    assert signs_in(message) == []
