"""Only its own reply passes a barrier."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from keyfence.resp.barrier import Barrier, Form
from tests.servers import RedisServer

FORMS = list(Form)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_the_reply_of_redis_passes_each_form(form: Form, redis_server: RedisServer) -> None:
    barrier = Barrier.draw(form)
    assert barrier.is_passed(raw_reply(redis_server, barrier.request))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_the_reply_to_another_barrier_does_not_pass(form: Form, redis_server: RedisServer) -> None:
    reply = raw_reply(redis_server, Barrier.draw(form).request)
    assert not Barrier.draw(form).is_passed(reply)


def test_without_permissions_only_hello_passes(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(acl=["nobody on nopass resetchannels -@all"])
    login = b"AUTH nobody x\r\n"
    for form in (Form.ECHO, Form.PING):
        barrier = Barrier.draw(form)
        reply = raw_reply(server, login + barrier.request).removeprefix(b"+OK\r\n")
        assert reply.startswith(b"-NOPERM")
        assert not barrier.is_passed(reply)
        assert barrier.is_undecided(reply) is (form is Form.ECHO)
    barrier = Barrier.draw(Form.HELLO)
    assert barrier.is_passed(raw_reply(server, login + barrier.request).removeprefix(b"+OK\r\n"))


def test_hello_passes_before_a_password_is_given(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(password="secret")
    barrier = Barrier.draw(Form.HELLO)
    assert barrier.is_passed(raw_reply(server, barrier.request))


def test_hello_as_a_barrier_leaves_the_protocol_as_it_is(redis_server: RedisServer) -> None:
    sent = b"HELLO 3\r\n" + Barrier.draw(Form.HELLO).request + b"HGETALL nothing\r\n"
    assert raw_reply(redis_server, sent).endswith(b"%0\r\n")


def test_no_two_barriers_have_the_same_number() -> None:
    assert len({Barrier.draw(Form.ECHO).nonce for _ in range(1000)}) == 1000


def raw_reply(server: RedisServer, sent: bytes) -> bytes:
    """Everything the server sends until QUIT closes the connection."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(server.socket_path))
        connection.sendall(sent + b"QUIT\r\n")
        received = b""
        while piece := connection.recv(65536):
            received += piece
    return received.removesuffix(b"+OK\r\n")
