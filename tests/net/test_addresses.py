"""Parsing addresses, and binding sockets to them."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from keyfence.net import addresses as sockets
from keyfence.net.addresses import Address, Bound, bind, parse_address, parse_listen


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:6380", "127.0.0.1", 6380),
        ("[::1]:0", "::1", 0),
        (":65535", "", 65535),
        ("redis.example:1", "redis.example", 1),
    ],
)
def test_a_tcp_address_is_parsed(text: str, host: str, port: int) -> None:
    assert parse_address(text).host_port == parse_listen(text).host_port == (host, port)
    assert not parse_listen(text).unix_path


@pytest.mark.parametrize(
    "text", ["", ":", "6380", "h:", "h:x", "h:-1", "h:65536", "h:٣", "::1:80", "h: 80", "unix:/s"]
)
def test_an_invalid_tcp_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not an address|put an IPv6 address in brackets"):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("unix:/run/k.sock", "/run/k.sock"),
        ("unix:///run/k.sock", "/run/k.sock"),
        ("unix:k.sock", "k.sock"),
        ("unix:/run/a:b", "/run/a:b"),
    ],
)
def test_a_unix_address_is_parsed(text: str, path: str) -> None:
    assert parse_listen(text).unix_path == path


@pytest.mark.parametrize("text", ["unix:", "unix://", "unix:/run/", "unix:/a\0b", "unix:/" + "x" * 107])
def test_an_invalid_unix_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"does not name a socket|may have 107 bytes"):
        parse_listen(text)


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_a_host_that_can_be_none_is_an_error_as_one_that_is_not_known(host: str) -> None:
    with pytest.raises(OSError, match=f"{host}' is not a name of a host"):
        bind(Address(f"{host}:0"))


def test_a_relative_path_is_resolved_against_a_folder() -> None:
    assert Address("unix:k.sock").relative_to(Path("/run/x")) == "unix:/run/x/k.sock"
    assert Address("unix:/k.sock").relative_to(Path("/run/x")) == "unix:/k.sock"
    assert Address("h:1").relative_to(Path("/run/x")) == "h:1"


# -- TCP


def families(bound: Bound) -> set[int]:
    return {sock.family for sock in bound.sockets}


needs_ipv6 = pytest.mark.skipif(
    not Path("/proc/net/if_inet6").exists()
    or "00000000000000000000000000000001" not in Path("/proc/net/if_inet6").read_text(),
    reason="no IPv6 here",
)


@needs_ipv6
@pytest.mark.parametrize("host", ["localhost", ""])
def test_port_0_becomes_the_same_port_in_both_families(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    both = [
        (family, socket.SOCK_STREAM, 6, "", (address, 0) if family == socket.AF_INET else (address, 0, 0, 0))
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
    ]
    if host:  # the hosts file of this machine decides
        monkeypatch.setattr(sockets.socket, "getaddrinfo", lambda *_, **__: both)
    bound = bind(Address(f"{host}:0"))
    try:
        assert families(bound) == {socket.AF_INET, socket.AF_INET6}
        assert len({sock.getsockname()[1] for sock in bound.sockets}) == 1
        assert bound.name == f"{host}:{bound.sockets[0].getsockname()[1]}"
    finally:
        bound.close()


@needs_ipv6
def test_another_port_is_tried_if_one_family_cannot_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real, tried = sockets._bind_tcp, []

    def taken_twice(*arguments: object) -> Bound:
        tried.append(arguments)
        if len(tried) < 3:
            raise OSError(98, "Address already in use")
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sockets, "_bind_tcp", taken_twice)
    bind(Address("127.0.0.1:0")).close()
    assert len(tried) == 3
    tried.clear()
    with pytest.raises(OSError, match="in use"):
        bind(Address("127.0.0.1:1"))  # a requested port is not replaced
    assert len(tried) == 1


@needs_ipv6
def test_an_ipv6_address_can_be_bound_alone() -> None:
    bound = bind(Address("[::1]:0"))
    assert families(bound) == {socket.AF_INET6}
    assert bound.name.startswith("[::1]:")
    bound.close()


@pytest.mark.usefixtures("nothing_leaks")
def test_a_taken_port_leaves_nothing_open() -> None:
    first = bind(Address("127.0.0.1:0"))
    first.sockets[0].listen()
    with pytest.raises(OSError, match="in use"):
        bind(Address(first.name))
    first.close()


def test_several_sockets_share_an_address_with_reuse_port() -> None:
    first = bind(Address("127.0.0.1:0"), reuse_port=True)
    second = bind(Address(first.name), reuse_port=True)
    assert first.name == second.name
    first.close()
    second.close()


@pytest.fixture
def nothing_leaks() -> object:
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) == before


# -- unix sockets


def test_the_file_of_a_unix_socket_is_removed_with_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    bound = bind(Address(f"unix:{path}"))
    assert bound.name == f"unix:{path}"
    assert stat.S_ISSOCK(path.stat().st_mode)
    bound.close()
    assert not path.exists()
    bound.close()


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_a_unix_socket_has_the_requested_permissions(mode: int, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        bound = bind(Address(f"unix:{tmp_path}/k.sock"), unix_mode=mode)
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "k.sock").stat().st_mode) == mode
    bound.close()


def test_the_socket_file_of_a_dead_process_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    assert path.exists()
    bind(Address(f"unix:{path}")).close()


def full_queue(path: Path) -> list[socket.socket]:
    waiting = []
    while True:
        waiting.append(socket.socket(socket.AF_UNIX))
        waiting[-1].setblocking(False)
        try:
            waiting[-1].connect(str(path))
        except BlockingIOError:
            return waiting


@pytest.mark.parametrize("crowd", [lambda *_: [], full_queue], ids=["idle", "busy"])
def test_a_socket_in_use_is_not_replaced(
    crowd: Callable[[Path], list[socket.socket]], tmp_path: Path
) -> None:
    path = tmp_path / "k.sock"
    with socket.socket(socket.AF_UNIX) as live:
        live.bind(str(path))
        live.listen(1)
        waiting = crowd(path)
        with pytest.raises(OSError, match="in use"):
            bind(Address(f"unix:{path}"))
        for one in waiting:
            one.close()
    assert path.exists()


def test_a_regular_file_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="existing file, not a socket"):
        bind(Address(f"unix:{path}"))
    assert path.read_text() == "precious"


def test_a_process_that_inherits_a_unix_socket_does_not_remove_its_file(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    bound = bind(Address(f"unix:{path}"))
    child = os.fork()
    if child == 0:
        bound.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert path.exists()
    Bound(bound.name, [bound.sockets[0].dup()]).close()
    assert path.exists()
    bound.close()
    assert not path.exists()


def test_a_socket_file_that_another_process_has_replaced_stays(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    first = bind(Address(f"unix:{path}"))
    path.unlink()
    second = bind(Address(f"unix:{path}"))
    first.close()
    assert path.exists()
    second.close()
