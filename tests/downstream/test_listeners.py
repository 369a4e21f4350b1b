"""Listeners with TLS, PROXY headers, unix sockets and quotas, in one loop with their clients."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import re
import resource
import socket
import ssl
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from keyfence.config.limits import ClientLimits
from keyfence.config.models import ListenerModel, ListenerTlsModel
from keyfence.downstream import accepting as accepting_module
from keyfence.downstream import listeners as listeners_module
from keyfence.downstream.client import Client
from keyfence.downstream.idle import look
from keyfence.downstream.tls import listener_context
from keyfence.identity import unix_users
from keyfence.identity.resolver import make_resolver
from keyfence.net.addresses import Address, bind
from keyfence.telemetry import operator_log as notices
from tests.downstream.test_client import Handler, Stage, answer_all, in_loop
from tests.net.test_proxy_protocol import header, ipv4, ipv6
from tests.servers import Certificates, issue_certificate, make_certificates
from tests.session.sessions import ADMITTED, cmd

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
HOST = "127.0.0.1"


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The messages for operators."""
    lines: list[str] = []
    monkeypatch.setattr(listeners_module, "notice", lambda _kind, text: lines.append(text))
    monkeypatch.setattr(notices, "_kinds", {})
    return lines


@pytest.fixture(autouse=True)
def _quiet_loop(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No client causes an error in the event loop."""
    yield
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == []


class OneListener:
    """One listener with an upstream that answers HGETALL, and with identities for the test."""

    def __init__(
        self,
        listener: ListenerModel,
        limits: ClientLimits | None = None,
        handler: Handler = answer_all,
        **who: Any,
    ) -> None:
        self._listener = listener
        self._stage = Stage(handler, limits=limits)
        self._identities = make_resolver(frozenset({"CubeMaster", "CubeProxy", "unknown"}), **who)
        self.tls: ssl.SSLContext | None = None

    async def __aenter__(self) -> OneListener:
        await self._stage.__aenter__()
        self.context = self._stage.context
        self.context.common.identities = self._identities
        self.context.admit()
        self.listeners = listeners_module.Listeners(self.context)
        self.listeners.open(self._listener, tls=self.tls)
        await self.listeners.start()
        self.name = self.listeners.bound[0][0]
        self._opened = contextlib.AsyncExitStack()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()
        await self.listeners.close(0)
        await self._stage.__aexit__()
        assert self.context.quotas.taken == 0
        assert (self.context.quotas.of_address, self.context.quotas.of_service) == ({}, {})

    async def connect(self, tls: ssl.SSLContext | None = None) -> Streams:
        path = Address(self.name).unix_path
        if path:
            streams = await asyncio.open_unix_connection(path, ssl=tls)
        else:
            streams = await asyncio.open_connection(HOST, Address(self.name).host_port[1], ssl=tls)
        self._opened.callback(streams[1].close)
        return streams

    async def service(self, before: bytes = b"", tls: ssl.SSLContext | None = None) -> str:
        """The service of a client that sends these bytes first, and then a request."""
        there = set(self.context.clients)
        reader, writer = await self.connect(tls)
        writer.write(before + ADMITTED)
        assert await reader.readline() != b""
        (client,) = self.context.clients - there
        return client._session.client.service

    async def turned_away(self, before: bytes = b"", tls: ssl.SSLContext | None = None) -> bytes:
        """The reply to a client that sends these bytes and is closed."""
        reader, writer = await self.connect(tls)
        writer.write(before)
        data = b""
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(1000):
                data += piece
        return data

    @property
    def rejected(self) -> dict[str, int]:
        counted: dict[str, int] = {}
        for (_, reason), number in self.context.telemetry.counters.connections_rejected.items():
            counted[reason] = counted.get(reason, 0) + number
        return counted


def tcp(**settings: Any) -> ListenerModel:
    return ListenerModel(listen=f"{HOST}:0", service="CubeProxy").model_copy(update=settings)


# -- PROXY headers


BEHIND = {"networks": [(ipaddress.ip_network("192.0.2.0/24"), "CubeMaster")]}


@in_loop
async def test_a_proxy_header_names_the_client() -> None:
    async with OneListener(tcp(proxy_protocol=True), **BEHIND) as place:
        assert await place.service(ipv4("192.0.2.7", 40000)) == "CubeMaster"
        assert await place.service(ipv4("198.51.100.7", 40000)) == "CubeProxy"
        assert await place.service(ipv6("::ffff:192.0.2.9", 40000)) == "CubeMaster"
        # a client whose address it does not know
        assert await place.service(header(0x21, 0x00)) == "CubeProxy"
        shown = sorted(client.shown for client in place.context.clients)
        assert shown == ["192.0.2.7:40000", "192.0.2.9:40000", "198.51.100.7:40000", "unknown"]


@in_loop
async def test_a_health_check_of_a_balancer_has_its_own_address() -> None:
    networks = [(ipaddress.ip_network("127.0.0.0/8"), "CubeMaster")]
    async with OneListener(tcp(proxy_protocol=True), networks=networks) as place:
        assert await place.service(header(0x20, 0x00)) == "CubeMaster"
        assert await place.service(header(0x21, 0x00)) == "CubeProxy"


@in_loop
async def test_a_header_may_come_byte_by_byte_and_the_rest_belongs_to_the_client() -> None:
    async with OneListener(tcp(proxy_protocol=True), **BEHIND) as place:
        reader, writer = await place.connect()
        for byte in ipv4("192.0.2.7", 40000) + ADMITTED:
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert await reader.readline() == b"*0\r\n"


@in_loop
async def test_a_malformed_header_is_refused_with_a_message() -> None:
    async with OneListener(tcp(proxy_protocol=True)) as place:
        assert await place.turned_away(ADMITTED) == b""
        assert await place.turned_away(b"PROXY TCP4 192.0.2.7 10.0.0.1 40000 6379\r\n") == b""
        assert place.rejected == {"proxy_header": 2}


@in_loop
async def test_a_check_of_the_port_alone_is_not_an_error() -> None:
    async with OneListener(tcp(proxy_protocol=True)) as place:
        _, writer = await place.connect()
        writer.close()
        while place.context.quotas.taken or not place.listeners:
            await asyncio.sleep(0.001)
        assert place.rejected == {}


@in_loop
async def test_only_trusted_addresses_may_send_proxy_headers() -> None:
    async with OneListener(tcp(proxy_protocol=True, trusted=["192.0.2.0/24"])) as place:
        assert await place.turned_away(ipv4("192.0.2.7", 1)) == b""
        assert place.rejected == {"untrusted": 1}
    async with OneListener(tcp(proxy_protocol=True, trusted=["192.0.2.0/24", "127.0.0.0/8"])) as place:
        assert await place.service(ipv4("192.0.2.7", 1)) == "CubeProxy"


@in_loop
async def test_a_header_that_comes_too_late_is_refused() -> None:
    async with OneListener(tcp(proxy_protocol=True), ClientLimits(handshake=0.05)) as place:
        assert await place.turned_away(ipv4("192.0.2.7", 1)[:20]) == b""
        assert place.rejected == {"handshake": 1}


@in_loop
async def test_an_unexpected_header_is_not_a_request() -> None:
    async with OneListener(tcp()) as place:
        answer = await place.turned_away(ipv4("192.0.2.7", 1) + ADMITTED)
        assert answer.startswith(b"-ERR Protocol error")


# -- TLS


def server_tls(certificates: Certificates, **settings: Any) -> ListenerTlsModel:
    files = {"cert": str(certificates.certificate), "key": str(certificates.key)}
    return ListenerTlsModel(**(files | settings))


def context_of(model: ListenerTlsModel) -> ssl.SSLContext:
    class Settings:
        listeners = (tcp(tls=model),)

    context = listener_context(Settings(), 0)  # type: ignore[arg-type]
    assert context is not None
    return context


class OneTlsListener(OneListener):
    """A listener with TLS that accepts clients of the test authority."""

    def __init__(
        self,
        files: Certificates,
        limits: ClientLimits | None = None,
        *,
        required: str = "no",
        proxied: bool = False,
        **who: Any,
    ) -> None:
        model = server_tls(files, client_ca=str(files.ca), require_client_cert=required)
        super().__init__(tcp(tls=model, proxy_protocol=proxied), limits, **who)
        self.tls = context_of(model)


def client_tls(ca: Path, mine: Certificates | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(ca))
    if mine is not None:
        context.load_cert_chain(mine.certificate, mine.key)
    return context


def with_files(test: Callable[[Certificates], Any]) -> Callable[[Certificates, pytest.MonkeyPatch], None]:
    """Run a test in the event loop with the session's certificates."""

    def run(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
        async def body() -> None:
            await test(certificates)

        in_loop(body)(monkeypatch)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@with_files
async def test_the_certificate_of_a_client_decides_its_service(files: Certificates) -> None:
    spiffe = issue_certificate(
        files.ca, "spiffe", "/CN=CubeProxy", "URI:spiffe://cube.example/ns/a/sa/master"
    )
    named = issue_certificate(files.ca, "named", "/CN=x", "DNS:master.cube.example")
    same = issue_certificate(files.ca, "same", "/CN=CubeMaster")
    other = issue_certificate(files.ca, "other", "/CN=CubeMaster", "DNS:nobody.example")
    certified = {"spiffe://cube.example/ns/a/sa/master": "CubeMaster", "master.cube.example": "CubeMaster"}
    async with OneTlsListener(files, certificates=certified) as place:
        assert await place.service(tls=client_tls(files.ca, spiffe)) == "CubeMaster"
        assert await place.service(tls=client_tls(files.ca, named)) == "CubeMaster"
        assert await place.service(tls=client_tls(files.ca, same)) == "CubeMaster"
        # The CN does not count if there is a DNS name, so the listener decides.
        assert await place.service(tls=client_tls(files.ca, other)) == "CubeProxy"
        assert await place.service(tls=client_tls(files.ca)) == "CubeProxy"


@with_files
async def test_a_certificate_may_be_required(files: Certificates) -> None:
    mine = issue_certificate(files.ca, "mine", "/CN=CubeMaster")
    async with OneTlsListener(files, required="yes") as place:
        assert await place.service(tls=client_tls(files.ca, mine)) == "CubeMaster"
        with contextlib.suppress(ssl.SSLError):
            assert await place.turned_away(ADMITTED, tls=client_tls(files.ca)) == b""
        assert place.rejected == {"tls": 1}


@with_files
async def test_a_certificate_of_another_authority_is_refused(files: Certificates) -> None:
    folder = files.ca.parent / "strangers"
    folder.mkdir(exist_ok=True)
    stranger = make_certificates(folder)
    async with OneTlsListener(files) as place:
        with contextlib.suppress(ssl.SSLError):
            assert await place.turned_away(ADMITTED, tls=client_tls(files.ca, stranger)) == b""
        assert place.rejected == {"tls": 1}


@with_files
async def test_a_client_without_tls_is_refused_by_a_tls_listener(files: Certificates) -> None:
    async with OneTlsListener(files) as place:
        await place.turned_away(cmd("PING"))
        while place.rejected != {"tls": 1}:  # counted right after the end
            await asyncio.sleep(0.001)


@with_files
async def test_a_silent_client_of_a_tls_listener_is_refused_after_a_while(files: Certificates) -> None:
    async with OneTlsListener(files, ClientLimits(handshake=0.1)) as place:
        assert await place.turned_away() == b""
        while place.rejected != {"handshake": 1}:  # counted right after the end
            await asyncio.sleep(0.001)


@with_files
async def test_a_proxy_header_comes_before_tls(files: Certificates) -> None:
    async with OneTlsListener(files, proxied=True, **BEHIND) as place:
        there = set(place.context.clients)
        reader, writer = await place.connect()
        writer.write(ipv4("192.0.2.7", 40000))
        await writer.start_tls(client_tls(files.ca), server_hostname=HOST)
        writer.write(ADMITTED)
        assert await reader.readline() != b""
        (client,) = place.context.clients - there
        assert client._session.client.service == "CubeMaster"


@with_files
async def test_new_connections_get_renewed_certificates(files: Certificates) -> None:
    renewed = issue_certificate(files.ca, "renewed", "/CN=renewed", "IP:127.0.0.1")
    async with OneTlsListener(files) as place:
        old_reader, old_writer = await place.connect(client_tls(files.ca))
        place.listeners.replace_tls([context_of(server_tls(renewed))])
        _, writer = await place.connect(client_tls(files.ca))
        certificate = writer.get_extra_info("peercert")
        assert (("commonName", "renewed"),) in certificate["subject"]
        old_writer.write(ADMITTED)
        assert await old_reader.readline() == b"*0\r\n"


@with_files
async def test_an_old_version_of_tls_is_refused(files: Certificates) -> None:
    model = server_tls(files, min_version="1.3")
    place = OneListener(tcp(tls=model))
    place.tls = context_of(model)
    async with place:
        old = client_tls(files.ca)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await place.connect(old)
        assert await place.service(tls=client_tls(files.ca)) == "CubeProxy"


# -- unix sockets


@in_loop
async def test_the_user_of_a_unix_socket_decides_the_service(patch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        listener = ListenerModel(listen=f"unix:{folder}/k.sock", service="CubeProxy")
        async with OneListener(listener, uids={os.getuid(): "CubeMaster"}) as place:
            assert await place.service() == "CubeMaster"
            assert {client.shown for client in place.context.clients} == {"unix"}
            credentials = struct.pack("iII", 1, 4242, 1)
            patch.setattr(unix_users, "_UCRED", Fixed(credentials))
            assert await place.service() == "CubeProxy"
        assert not os.path.exists(f"{folder}/k.sock")


class Fixed(struct.Struct):
    """Credentials of another user."""

    def __new__(cls, _: bytes) -> Fixed:
        return super().__new__(cls, "iII")

    def __init__(self, credentials: bytes) -> None:
        super().__init__("iII")
        self._credentials = credentials

    def unpack(self, _: Any) -> tuple[Any, ...]:
        return super().unpack(self._credentials)


# -- inherited sockets


@in_loop
async def test_sockets_bound_by_a_parent_are_served() -> None:
    bound = bind(Address(f"{HOST}:0"), reuse_port=True)
    async with OneListener(tcp()) as place:
        second = listeners_module.Listeners(place.context)
        second.open(tcp(service="CubeMaster"), bound)
        await second.start()
        assert second.bound == [(bound.name, "CubeMaster")]
        reader, writer = await asyncio.open_connection(HOST, Address(bound.name).host_port[1])
        writer.write(ADMITTED)
        assert await reader.readline() == b"*0\r\n"
        writer.close()
        await second.close(0)


# -- limits


@in_loop
async def test_the_connections_of_one_address_are_limited() -> None:
    async with OneListener(tcp(), ClientLimits(per_address=2)) as place:
        assert await place.service() == await place.service() == "CubeProxy"
        assert await place.turned_away() == b"-ERR max number of clients reached\r\n"
        assert place.rejected == {"address": 1}
    async with OneListener(tcp(proxy_protocol=True), ClientLimits(per_address=1)) as place:
        assert await place.service(ipv4("192.0.2.7", 1)) == await place.service(ipv4("192.0.2.8", 1))
        assert await place.turned_away(ipv4("192.0.2.7", 2)) == b"-ERR max number of clients reached\r\n"


@in_loop
async def test_the_connections_of_one_service_are_limited() -> None:
    async with OneListener(tcp(), ClientLimits(per_service={"CubeProxy": 1})) as place:
        assert await place.service() == "CubeProxy"
        assert await place.turned_away() == b"-ERR max number of clients reached for CubeProxy\r\n"
        assert place.rejected == {"service": 1}


@in_loop
async def test_connections_that_are_still_in_their_handshake_count() -> None:
    async with OneListener(tcp(proxy_protocol=True), ClientLimits(connections=1)) as place:
        await place.connect()
        while not place.context.quotas.taken:
            await asyncio.sleep(0.001)
        assert await place.turned_away() == b"-ERR max number of clients reached\r\n"


async def let_anybody_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An upstream that accepts every password."""
    while data := await reader.read(65536):
        for word, barrier in re.findall(rb"(AUTH|HGETALL|HELLO)(?:\r\n\$1\r\n2\r\n\$32\r\n(\w+))?", data):
            answers = {b"AUTH": b"+OK\r\n", b"HGETALL": b"*0\r\n"}
            writer.write(answers.get(word, b"-ERR Syntax error in HELLO option '%b'\r\n" % barrier))


@in_loop
async def test_no_client_can_authenticate_as_a_service_that_is_full() -> None:
    limits = ClientLimits(per_service={"CubeMaster": 1})
    async with OneListener(tcp(), limits, let_anybody_in, users={"m": "CubeMaster"}) as place:
        login = cmd("AUTH", "m", "pw")
        reader, writer = await place.connect()
        writer.write(login + ADMITTED)
        assert await reader.readline() + await reader.readline() == b"+OK\r\n*0\r\n"
        second, writer = await place.connect()
        writer.write(ADMITTED + login + ADMITTED)
        assert await second.read() == b"*0\r\n+OK\r\n-ERR max number of clients reached for CubeMaster\r\n"
        counters = place.context.telemetry.counters
        assert counters.closures == {"service_connections": 1}
        assert counters.connections_open[("CubeMaster", place.name)] == 1
        writer.write(login)
        writer.close()
    assert counters.connections_open == dict.fromkeys(counters.connections_open, 0)


async def never_answer(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    while await reader.read(65536):
        pass


@in_loop
async def test_an_idle_client_is_closed_and_one_that_waits_for_a_reply_is_not() -> None:
    async with OneListener(tcp(), handler=never_answer) as place:
        _, writer = await place.connect()
        writer.write(ADMITTED)
        while not any(client.waits for client in place.context.clients):
            await asyncio.sleep(0.001)
        # set only now, because getting here may take longer
        place.context.quotas.limits = ClientLimits(idle=0.2)
        for _ in range(3):
            idle, _ = await place.connect()
            assert await idle.read() == b""
        assert place.context.telemetry.counters.closures == {"idle": 3}
        assert len(place.context.clients) == 1


@in_loop
async def test_one_slow_request_closes_the_client_and_many_quick_ones_do_not() -> None:
    half = len(ADMITTED) // 2
    limits = ClientLimits(request_time=0.3)
    async with OneListener(tcp(), ClientLimits(request_time=600)) as place:

        async def begins(before: set[Client]) -> tuple[Streams, Client]:
            """A connection whose first request is incomplete."""
            streams = await place.connect()
            streams[1].write(ADMITTED[:half])
            while not (there := [one for one in place.context.clients - before if one.partial_since]):
                await asyncio.sleep(0.001)
            return streams, there[0]

        (reader, _), slow = await begins(set())
        (_, writer), quick = await begins({slow})
        begun = quick.partial_since
        while asyncio.get_running_loop().time() <= begun:  # the loop's clock counts milliseconds
            await asyncio.sleep(0.001)
        writer.write(ADMITTED[half:] + ADMITTED[:half])  # there is always an incomplete request
        while quick.partial_since <= begun:
            await asyncio.sleep(0.001)
        look(place.context.clients, limits, now=slow.partial_since + 0.299)
        assert place.context.telemetry.counters.closures == {}
        between = (slow.partial_since + quick.partial_since) / 2
        look(place.context.clients, limits, now=between + 0.3)
        assert await reader.read() == b""
        assert place.context.telemetry.counters.closures == {"request_time": 1}
        assert place.context.clients == {quick}


@in_loop
async def test_a_slow_request_is_noticed_while_it_arrives() -> None:
    async with OneListener(tcp(), ClientLimits(request_time=0.1)) as place:
        assert await place.turned_away(ADMITTED[:5]) == b""
        assert place.context.telemetry.counters.closures == {"request_time": 1}


class Exhausted(socket.socket):
    """A listening socket of a process without free file descriptors."""

    tries = 0
    left = 0

    def _accept(self) -> Any:
        if Exhausted.left:
            Exhausted.left -= 1
            Exhausted.tries += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super()._accept()  # type: ignore[misc]


@in_loop
async def test_without_file_descriptors_accepting_pauses_and_resumes(patch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    patch.setattr(listeners_module, "notice", lambda _kind, text: told.append(text))
    patch.setattr(accepting_module, "PAUSE_SECONDS", 0.05)
    Exhausted.tries, Exhausted.left = 0, 3
    async with OneListener(tcp()) as place:
        bound = bind(Address(f"{HOST}:0"))
        short = Exhausted(fileno=bound.sockets.pop().detach())
        bound.sockets.append(short)
        second = listeners_module.Listeners(place.context)
        second.open(tcp(), bound)
        await second.start()
        reader, writer = await asyncio.open_connection(HOST, Address(bound.name).host_port[1])
        writer.write(ADMITTED)
        assert await reader.readline() == b"*0\r\n"
        assert (Exhausted.tries, place.context.telemetry.counters.accept_pauses) == (3, 3)
        assert told[0].startswith(f"{bound.name} cannot accept: too many open files; raise `ulimit -n`")
        writer.close()
        await second.close(0)


@in_loop
async def test_connections_that_end_before_they_are_accepted_delay_no_one() -> None:
    async with OneListener(tcp(proxy_protocol=True)) as place:
        for _ in range(50):
            with socket.create_connection((HOST, Address(place.name).host_port[1])) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert await place.service(header(0x20, 0x00)) == "CubeProxy"
        while place.context.quotas.taken > 1:
            await asyncio.sleep(0.001)


@in_loop
async def test_two_thousand_clients_at_once() -> None:
    number = min(2000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2 - 100)
    async with OneListener(tcp(), ClientLimits(connections=number)) as place:
        clients = [await place.connect() for _ in range(number)]
        while place.context.quotas.taken < number or len(place.context.clients) < number:
            await asyncio.sleep(0.001)
        assert await place.turned_away() == b"-ERR max number of clients reached\r\n"
        for reader, writer in (clients[0], clients[number // 2], clients[-1]):
            writer.write(ADMITTED)
            assert await reader.readline() == b"*0\r\n"
        for _, writer in clients:
            writer.close()
        while place.context.clients:
            await asyncio.sleep(0.001)


@in_loop
async def test_connections_in_a_handshake_do_not_delay_the_end_of_the_process() -> None:
    async with OneListener(tcp(proxy_protocol=True)) as place:
        reader, _ = await place.connect()
        while not place.context.quotas.taken:
            await asyncio.sleep(0.001)
        await place.listeners.close(0)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""


@in_loop
async def test_a_client_that_has_just_connected_when_the_process_ends_is_answered() -> None:
    async with OneListener(tcp()) as place:
        with socket.create_connection((HOST, Address(place.name).host_port[1])) as sock:
            sock.setblocking(False)
            sock.sendall(ADMITTED)
            while not place.context.quotas.taken:
                await asyncio.sleep(0)
            await place.listeners.close(5)
            assert sock.recv(100) == b"*0\r\n"


@in_loop
async def test_a_plain_connection_needs_no_task() -> None:
    async with OneListener(tcp()) as place:
        tasks = len(asyncio.all_tasks())
        streams = [await place.connect() for _ in range(10)]
        while len(place.context.clients) < len(streams):
            await asyncio.sleep(0)
            assert len(asyncio.all_tasks()) == tasks


@in_loop
async def test_a_connection_inherits_that_vanished_peers_are_detected() -> None:
    async with OneListener(tcp()) as place:
        await place.service()
        (client,) = place.context.clients
        assert client._transport is not None
        descriptor = client._transport.get_extra_info("socket").fileno()
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            assert copy.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 300


@in_loop
async def test_a_connection_that_cannot_be_served_is_closed(patch: pytest.MonkeyPatch) -> None:
    async with OneListener(tcp()) as place:

        def fails(*_: object) -> None:
            raise OSError(errno.ENOTCONN, "it has ended")

        patch.setattr(listeners_module, "Client", fails)
        reader, _ = await place.connect()
        assert await reader.read() == b""
        assert place.context.quotas.taken == 0


@in_loop
async def test_a_fault_while_a_connection_is_admitted_closes_it(patch: pytest.MonkeyPatch) -> None:
    async with OneListener(tcp()) as place:
        patch.setattr(listeners_module, "Client", lambda *_: 1 / 0)
        faults: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, told: faults.append(told))
        reader, _ = await place.connect()
        assert await reader.read() == b""
        assert place.context.quotas.taken == 0
        assert [type(one["exception"]) for one in faults] == [ZeroDivisionError]
