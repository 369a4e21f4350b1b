"""Sockets that a supervisor passes, without a supervisor."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from keyfence.net import passed
from keyfence.net.addresses import Address, bind


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    passed.close_left()


def pass_on(monkeypatch: pytest.MonkeyPatch, *sockets: socket.socket) -> None:
    """As a supervisor passes these sockets, but at the numbers that they have."""
    first = min(one.fileno() for one in sockets)
    assert sorted(one.fileno() for one in sockets) == list(range(first, first + len(sockets)))
    monkeypatch.setattr(passed, "FIRST", first)
    passed.receive({passed.COUNT: str(len(sockets)), passed.PROCESS: str(os.getpid())})
    for one in sockets:
        one.detach()


def listening(where: tuple[str, int] = ("127.0.0.1", 0)) -> tuple[socket.socket, int]:
    sock = socket.create_server(where)
    return sock, sock.getsockname()[1]


def test_a_passed_socket_serves_the_listener_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    sock, port = listening()
    pass_on(monkeypatch, sock)
    bound = bind(Address(f"127.0.0.1:{port}"))
    assert bound.is_passed
    assert [one.getsockname() for one in bound.sockets] == [("127.0.0.1", port)]
    assert passed.left() == []
    socket.create_connection(("127.0.0.1", port)).close()  # it listens already
    bound.close()


def test_a_passed_unix_socket_keeps_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "keyfence.sock"
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    pass_on(monkeypatch, sock)
    bound = bind(Address(f"unix:{path}"))
    assert bound.is_passed
    bound.close()
    assert path.exists()


def test_other_addresses_are_bound_as_always(monkeypatch: pytest.MonkeyPatch) -> None:
    sock, port = listening()
    pass_on(monkeypatch, sock)
    bound = bind(Address("127.0.0.1:0"))
    assert not bound.is_passed
    assert passed.left() == [f"127.0.0.1:{port}"]
    bound.close()


def test_sockets_for_another_process_are_left_alone() -> None:
    environment = {passed.COUNT: "1", passed.PROCESS: str(os.getpid() + 1), "PATH": "/bin"}
    passed.receive(environment)
    assert passed.left() == []
    assert environment == {"PATH": "/bin"}


def receive_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(passed, "FIRST", number)
    passed.receive({passed.COUNT: "1", passed.PROCESS: str(os.getpid())})


def test_what_is_no_stream_socket_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    number = socket.socket(socket.AF_INET, socket.SOCK_DGRAM).detach()
    with pytest.raises(passed.CannotTake, match=f"descriptor {number}, .* needs ListenStream="):
        receive_at(monkeypatch, number)


def test_a_file_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file, pytest.raises(passed.CannotTake, match="is no socket"):
        receive_at(monkeypatch, file.fileno())
