"""The parent binds each listener's address once for each worker."""

from __future__ import annotations

import pytest

from keyfence.config.models import ListenerModel
from keyfence.process.workers.sockets import CannotBind, bind_places
from tests.servers import free_port


def bound(number: int, *hosts: str) -> int:
    """Binds listeners of one port at these hosts for some workers. Returns the number of sockets."""
    port = free_port()
    places = bind_places([ListenerModel(listen=f"{host}:{port}") for host in hosts], number)
    for one in (one for place in places for one in place):
        one.close()
    return sum(len(one.sockets) for place in places for one in place)


@pytest.mark.parametrize("number", [1, 2])
def test_two_listeners_cannot_have_one_address_by_two_names(number: int) -> None:
    """The kernel would share the connections among both services."""
    with pytest.raises(CannotBind) as caught:
        bound(number, "127.0.0.1", "localhost")
    assert "in use" in str(caught.value.fault)


def test_one_process_cannot_listen_at_all_addresses_and_at_one_of_them() -> None:
    with pytest.raises(CannotBind):
        bound(1, "0.0.0.0", "127.0.0.1")


def test_with_workers_clients_of_one_address_come_by_the_listener_that_names_it() -> None:
    assert bound(2, "0.0.0.0", "127.0.0.1") == 4


@pytest.mark.parametrize("number", [1, 2])
def test_different_addresses_may_have_one_port(number: int) -> None:
    assert bound(number, "127.0.0.1", "127.0.0.2") == 2 * number
