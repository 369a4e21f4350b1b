"""Who may use the admin listener to change something."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from keyfence.admin import server as admin
from keyfence.admin.access import Access
from keyfence.admin.audit import Audit
from keyfence.admin.client import AskError, ask
from keyfence.admin.server import start_admin
from keyfence.admin.token import (
    ROLES,
    Token,
    TokenError,
    is_open_to_others,
    read_token,
    token_warnings,
    tokens_of,
)
from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides
from keyfence.net.addresses import Address
from keyfence.policy.diagnostics import FileError
from keyfence.process.serving.reload import Origin
from tests.admin.test_server import ANY_PORT, Client, FakeControl
from tests.admin.tokens import tokens
from tests.servers import PROJECT

TOKEN = b"a-token-for-this-test"
BEARER = {"Authorization": f"Bearer {TOKEN.decode()}"}
Scenario = Callable[[Client], Awaitable[None]]


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "FAILURE_SECONDS", 0.0)


def play(
    scenario: Scenario,
    token: bytes | None = None,
    address: Address = ANY_PORT,
    named: Sequence[Token] = (),
    audit: Audit | None = None,
) -> None:
    async def run() -> None:
        control = FakeControl()
        access = Access([], [*tokens(token), *named])
        server = await start_admin(control, access, address, audit=audit)
        try:
            async with aiohttp.ClientSession() as session:
                await scenario(Client(session, server.url, control))
        finally:
            await server.close()

    asyncio.run(run())


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "PATCH", "TRACE"])
@pytest.mark.parametrize("path", ["/-/observe", "/-/reload", "/explain", "/metrics", "/nothing"])
def test_without_the_token_only_reading_is_possible(method: str, path: str) -> None:
    async def scenario(client: Client) -> None:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eDp5"}):
            assert (await client.ask(method, path, headers=headers, json={"for": 60}))[0] == 401
        assert client.control.asked == []

    play(scenario, TOKEN)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer",
        "Bearer ",
        TOKEN.decode(),
        f"Bearer {TOKEN.decode()}x",
        f"Bearer {TOKEN.decode()[:-1]}",
        f"Bearer {TOKEN.decode().upper()}",
        f"Basic {TOKEN.decode()}",
        f"Bearer {TOKEN.decode()}, Bearer {TOKEN.decode()}",
        "Bearer \udcff\udcfe",
    ],
)
def test_an_invalid_token_is_rejected(value: str) -> None:
    async def scenario(client: Client) -> None:
        host, port = client.base.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"DELETE /-/observe HTTP/1.1\r\nHost: {host}\r\nAuthorization: {value}\r\n\r\n"
        writer.write(head.encode("utf-8", "surrogateescape"))
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b'WWW-Authenticate: Bearer realm="keyfence"\r\n' in answer
        writer.close()
        assert client.control.asked == []

    play(scenario, TOKEN)


def test_two_tokens_are_rejected() -> None:
    async def scenario(client: Client) -> None:
        headers = [*BEARER.items(), ("Authorization", "Bearer other")]
        assert (await client.ask("DELETE", "/-/observe", headers=headers))[0] == 401
        assert client.control.asked == []

    play(scenario, TOKEN)


def test_the_right_token_is_accepted_and_reading_needs_none() -> None:
    async def scenario(client: Client) -> None:
        assert (await client.ask("DELETE", "/-/observe", headers=BEARER))[0] == 200
        assert (await client.ask("GET", "/report"))[0] == 200
        async with client.session.head(client.base + "/healthz") as response:
            assert response.status == 200
        assert client.control.asked == [("end",)]

    play(scenario, TOKEN)


def test_a_wrong_token_waits_and_delays_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    may_end = asyncio.Event()

    class Loop:
        """asyncio with a clock that the test sets."""

        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

        async def wait_for(self, until: Coroutine[Any, Any, Any], seconds: float) -> None:
            until.close()
            waited.append(seconds)
            await may_end.wait()
            raise TimeoutError

    monkeypatch.setattr(admin, "asyncio", Loop())
    monkeypatch.setattr(admin, "FAILURE_SECONDS", 1.0)

    async def scenario(client: Client) -> None:
        wrong = [
            asyncio.ensure_future(client.ask("DELETE", "/-/observe", headers={"Authorization": "Bearer x"}))
            for _ in range(20)
        ]
        while len(waited) < len(wrong):
            await asyncio.sleep(0.001)
        assert (await client.ask("DELETE", "/-/observe", headers=BEARER))[0] == 200
        assert not any(one.done() for one in wrong)
        may_end.set()
        assert {status for status, _ in await asyncio.gather(*wrong)} == {401}
        assert waited == [1.0] * len(wrong)

    play(scenario, TOKEN)


@pytest.mark.parametrize("token", [None, TOKEN])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": ""},
    ],
)
def test_requests_from_another_sites_page_are_refused(headers: dict[str, str], token: bytes | None) -> None:
    async def scenario(client: Client) -> None:
        for method in ("POST", "DELETE"):
            status, answer = await client.ask(
                method, "/-/observe", json={"for": 60}, headers=headers | BEARER
            )
            assert (status, answer) == (403, {"error": "Pages of other sites may not send this request."})
        assert client.control.asked == []

    play(scenario, token)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
@pytest.mark.parametrize("path", ["/", "/report", "/status", "/metrics", "/findings", "/nothing"])
def test_another_sites_page_cannot_read_either(headers: dict[str, str], path: str) -> None:
    async def scenario(client: Client) -> None:
        for method in ("GET", "HEAD", "OPTIONS"):
            async with client.session.request(method, client.base + path, headers=headers) as response:
                assert response.status == 403
        assert client.control.asked == []

    play(scenario)


def test_a_link_on_another_site_opens_a_page_and_nothing_else() -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}

    async def scenario(client: Client) -> None:
        assert (await client.ask("GET", "/report", headers=headers))[0] == 200
        assert (await client.ask("POST", "/-/observe", json={"for": 60}, headers=headers))[0] == 403
        foreign = headers | {"Origin": "http://evil.example"}
        assert (await client.ask("GET", "/report", headers=foreign))[0] == 403

    play(scenario)


def test_requests_from_its_own_page_are_accepted() -> None:
    async def scenario(client: Client) -> None:
        headers = {"Origin": client.base, "Sec-Fetch-Site": "same-origin"}
        assert (await client.ask("DELETE", "/-/observe", headers=headers))[0] == 200

    play(scenario)


def test_every_one_of_several_host_headers_must_be_right() -> None:
    async def scenario(client: Client) -> None:
        host, port = client.base.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"DELETE /-/observe HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert int((await reader.readline()).split()[1]) in (400, 403)
        writer.close()
        assert client.control.asked == []

    play(scenario)


# -- the token's file


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"short\n", "must hold 16 to 1024 characters"),
        (b"x" * 1025, "must hold 16 to 1024 characters"),
        (b"x" * 10_000_000, "has more than 1026 bytes"),
        (b"0123456789abcdef\n0123456789abcdef\n", "must hold one line"),
        (b"0123456789 abcdef", "must hold one line"),
        (b"0123456789abcd\xff\x00", "must hold one line"),
    ],
)
def test_a_file_without_a_token_is_reported_without_its_content(
    text: bytes, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_bytes(text)
    with pytest.raises(TokenError, match=told) as raised:
        read_token(str(path))
    assert "0123" not in str(raised.value)


def test_reading_a_file_that_is_not_regular_does_not_block(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "socket"))
        for path in (fifo, tmp_path, Path("/dev/zero"), tmp_path / "socket", tmp_path / "none"):
            with pytest.raises(TokenError, match="cannot be read"):
                read_token(str(path))


def test_a_token_is_read_without_its_line_end(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(TOKEN + b"\r\n")
    assert read_token(str(path)) == TOKEN


@pytest.mark.parametrize(("mode", "is_open"), [(0o600, False), (0o640, False), (0o644, True), (0o602, True)])
def test_whether_others_may_read_a_token(mode: int, is_open: bool, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(TOKEN)
    path.chmod(mode)
    assert is_open_to_others(str(path)) == is_open


def test_a_broken_token_file_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("short")
    config = tmp_path / "keyfence.yaml"
    config.write_text(
        f"policy: {PROJECT}/policies/cubesandbox.yaml\nadmin:\n  token_file: token\nmetrics: here\n"
    )
    with pytest.raises(FileError) as raised:
        Origin(str(config)).load()
    assert "keyfence.yaml:4:10: error: 'here' is not an address" in str(raised.value)
    config.write_text(config.read_text().replace("metrics: here\n", ""))
    with pytest.raises(FileError) as raised:
        Origin(str(config)).load()
    file = tmp_path / "token"
    assert str(raised.value).endswith(
        f"keyfence.yaml:3:15: error: the token file {file} must hold 16 to 1024 characters"
    )


@pytest.mark.parametrize(
    ("admin_address", "is_told"),
    [
        ("127.0.0.1:1", False),
        ("[::1]:1", False),
        ("localhost:1", False),
        ("127.9.9.9:1", False),
        ("none", False),
        ("0.0.0.0:1", True),
        (":1", True),
        ("[::]:1", True),
        ("keyfence.internal:1", True),
    ],
)
def test_an_address_that_others_reach_without_a_token_causes_a_warning(
    admin_address: str, is_told: bool
) -> None:
    settings = load_settings("", Overrides(policy="p", admin=admin_address))
    assert bool(token_warnings(settings)) == is_told


# -- the command line


def test_the_token_follows_no_redirect(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(TOKEN)
    seen: list[bytes] = []

    async def elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(elsewhere, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(AskError, match="HTTP 302"):
            await asyncio.to_thread(ask, f"http://127.0.0.1:{port}", "/-/reload", {}, 10, str(path))
        server.close()

    asyncio.run(run())
    assert len(seen) == 1


def test_a_missing_token_file_is_reported_in_one_line() -> None:
    with pytest.raises(AskError, match=r"the token file /nowhere cannot be read: No such file"):
        ask("http://127.0.0.1:1", "/-/reload", {}, 1, "/nowhere")


NAMED = [Token(f"{role}-token", role, f"secret-of-{role}-0123456789".encode()) for role in ROLES]


@pytest.mark.parametrize("token", NAMED, ids=lambda one: one.role)
def test_a_token_allows_what_its_role_does_and_the_refusal_names_both(token: Token) -> None:
    async def scenario(client: Client) -> None:
        headers = {"Authorization": f"Bearer {token.secret.decode()}"}
        asked = {"service": "CubeProxy", "argv": ["GET", "a"]}
        assert (await client.ask("POST", "/explain", headers=headers, json=asked))[0] == 200
        status, answer = await client.ask("POST", "/-/reload", headers=headers, json={})
        if token.role == "operate":
            assert status == 200
            return
        said = f"This needs the role operate; the token {token.name} has the role {token.role}."
        assert (status, answer["error"]) == (403, said)

    play(scenario, TOKEN, named=NAMED)


def test_the_name_of_a_token_is_in_the_audit_log(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        for secret in (TOKEN, NAMED[-1].secret):
            headers = {"Authorization": f"Bearer {secret.decode()}"}
            assert (await client.ask("POST", "/-/reload", headers=headers, json={}))[0] == 200

    play(scenario, TOKEN, named=NAMED, audit=Audit(str(tmp_path / "audit"), head=lambda: "here:1 3 abc"))
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert [one["who"] for one in lines] == ["a program", "operate-token"]
    assert {one["history"] for one in lines} == {"here:1 3 abc"}


def test_tokens_of_a_configuration_have_names_roles_and_contents_of_their_own(tmp_path: Path) -> None:
    config = tmp_path / "keyfence.yaml"
    for name, secret in (("one", "a" * 16), ("two", "b" * 16), ("same", "a" * 16)):
        (tmp_path / name).write_text(secret)
    config.write_text(
        "admin:\n  token_file: one\n  tokens:\n    - {name: ci, token_file: two, role: waive}\n"
    )
    settings = load_settings(str(config), Overrides(), needs_policy=False)
    assert tokens_of(settings) == (Token("", "operate", b"a" * 16), Token("ci", "waive", b"b" * 16))
    config.write_text(
        "admin:\n  token_file: one\n  tokens:\n    - {name: ci, token_file: same, role: waive}\n"
        "    - {name: ci, token_file: two, role: read}\n    - {name: x, token_file: none, role: read}\n"
    )
    with pytest.raises(FileError) as caught:
        tokens_of(load_settings(str(config), Overrides(), needs_policy=False))
    faults = [str(one).partition("keyfence.yaml:")[2] for one in caught.value.diagnostics]
    assert len(faults) == 3
    said = ("4:", "holds the token of token_file; make another"), ("5:", "another token with the name ci")
    for fault, (line, text) in zip(faults, (*said, ("6:", "token file")), strict=True):
        assert fault.startswith(line)
        assert text in fault


@pytest.mark.parametrize(
    "token", ["{name: 'a b', token_file: x, role: read}", "{name: a, token_file: x, role: all}"]
)
def test_a_token_with_a_wrong_name_or_role_is_a_fault(tmp_path: Path, token: str) -> None:
    config = tmp_path / "keyfence.yaml"
    config.write_text(f"admin:\n  tokens:\n    - {token}\n")
    with pytest.raises(FileError):
        load_settings(str(config), Overrides(), needs_policy=False)
