"""`keyfence look` in front of a real Redis."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from keyfence.cli.look.look import Asked, in_front, origin_of
from keyfence.config.loading import load_settings
from keyfence.process.serving.reload import load
from tests.cli.look.looking import Looking
from tests.cli.test_main import keyfence
from tests.servers import (
    PATIENCE_SECONDS,
    PROJECT,
    RedisServer,
    issue_certificate,
    make_certificates,
    running_redis,
)
from tests.web.person import Person

SECRET = "s3cret-word"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis(tcp=True, password=SECRET) as server:
        with server.client() as client:
            for number in range(20):
                client.hset(f"cart:{number}", "colour", "red")
                client.set(f"page:{number}", "text", ex=3600)
        yield server


@pytest.fixture
def password_file(tmp_path: Path) -> str:
    path = tmp_path / "password"
    path.write_text(f"{SECRET}\n")
    return str(path)


@pytest.fixture
def looking(server: RedisServer, tmp_path: Path, password_file: str) -> Iterator[Looking]:
    with Looking(tmp_path, server.url, "--password-file", password_file) as one:
        yield one


def test_a_client_certificate_names_the_service(
    server: RedisServer, tmp_path: Path, password_file: str
) -> None:
    own = make_certificates(tmp_path)
    booking = issue_certificate(own.ca, "booking", "/CN=x", "URI:spiffe://ferrypost/booking")
    tls = ["--cert", str(own.certificate), "--key", str(own.key), "--client-ca", str(own.ca)]
    with Looking(tmp_path, server.url, "--password-file", password_file, *tls) as looking:
        looking.until("  redis-cli --tls --insecure -p ")
        looking.until("Ctrl-C ends it")
        options: dict[str, Any] = {"ssl": True, "ssl_ca_certs": str(own.ca), "client_name": "web-1"}
        shown = {"ssl_certfile": str(booking.certificate), "ssl_keyfile": str(booking.key)}
        with looking.client(**options, **shown) as client, looking.client(**options) as nameless:
            client.hget("cart:1", "colour")
            nameless.hset("cart:1", "colour", "red")
            looking.until("  ferrypost-booking reads cart:<int>")
            looking.until("  web writes cart:<int>")
        printed = looking.end()
    assert re.search(r"^ferrypost-booking \(told by certificate", printed, re.MULTILINE)
    assert re.search(r"^web \(told by client name", printed, re.MULTILINE)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--cert", "c.pem"], "give --cert and --key"),
        (["--client-ca", "c.pem"], "give --cert and --key"),
        (["--cert", "no.pem", "--key", "no.key"], "no.pem cannot be read"),
    ],
)
def test_certificates_that_cannot_be_used_are_an_error(
    server: RedisServer, password_file: str, options: list[str], says: str
) -> None:
    ended = keyfence("look", server.url, "--password-file", password_file, *options)
    assert ended.code == 2
    assert says in ended.err
    assert "Traceback" not in ended.err


def test_it_shows_keys_and_clients_and_how_to_go_on(looking: Looking, server: RedisServer) -> None:
    printed = looking.until("Ctrl-C ends it")
    assert printed.startswith("The page is at http://127.0.0.1:")
    assert f"{server.url}, database 0: 40 keys" in printed
    assert re.search(r"^cart:<int> +20 .* hash +never$", printed, re.MULTILINE)
    assert re.search(r"^page:<int> +20 .* string +in 59m", printed, re.MULTILINE)
    with looking.client(client_name="web-1") as web, looking.client(client_name="mailer-7") as mailer:
        assert web.hset("cart:1", "colour", "blue") == 0
        assert mailer.hget("cart:1", "colour") == b"blue"
        looking.until("  web writes cart:<int>")
        looking.until("  mailer reads cart:<int>")
        page = Person(looking.admin).read("/look")
    printed = looking.end()
    assert "2 services, 1 kind of keys, 2 uses" in page
    assert "cart:<int> 20 50%" in page
    assert "web told by client name" in page
    assert printed.splitlines()[-1].strip() in page
    assert "2 services, 1 kind of keys, 2 uses" in printed
    record = Path(re.findall(r"keyfence draft (\S+commands\.log)", printed.splitlines()[-1])[0])
    draft = keyfence("draft", record)
    assert "writers: [web]" in draft.out
    assert "readers: [mailer]" in draft.out
    kept = b"".join(path.read_bytes() for path in record.parent.iterdir())
    assert b"blue" not in kept
    assert SECRET.encode() not in kept
    assert SECRET not in printed


def test_without_clients_nothing_is_left_behind(
    server: RedisServer, tmp_path: Path, password_file: str
) -> None:
    looking = Looking(tmp_path, f"{server.url}/3", "--password-file", password_file, "--for", "10ms")
    assert looking.process.wait(PATIENCE_SECONDS) == 0
    assert "database 3: no keys.\nDatabase 0 was not looked at: 40 keys; name it with /0." in looking.printed
    assert " -n 3\n" in looking.printed
    assert "No client has used a key" in looking.printed
    assert {path.name for path in tmp_path.iterdir()} == {"out", "password"}


def test_what_cannot_be_looked_at_says_what_to_do(server: RedisServer, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong-word\n")
    for arguments, said in {
        ("redis://127.0.0.1:1",): "is it there? Name another HOST:PORT",
        (server.url,): "give its password with --password-file FILE",
        (server.url, "--password-file", str(wrong)): "check the user in the URL, and the password",
        (server.url, "--password-file", str(tmp_path / "none")): "--password-file: ",
        ("unix:///none/redis.sock",): "unix:///none/redis.sock cannot be reached",
        ("sentinel://h:1/mymaster",): "is not an upstream URL",
    }.items():
        found = keyfence("look", *arguments)
        assert (found.code, found.out) == (2, ""), found
        assert said in found.err
        assert "wrong-word" not in found.err


def test_a_port_that_is_taken_is_named(server: RedisServer, password_file: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = [server.url, "--password-file", password_file, "--listen", address]
        run = subprocess.run(
            [sys.executable, "-m", "keyfence", "look", *arguments],
            env=os.environ | {"PYTHONPATH": str(PROJECT / "proxy")},
            capture_output=True,
            text=True,
            check=False,
        )
    assert (run.returncode, run.stdout) == (2, "")
    assert f"cannot listen on {address}" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--cluster-enabled", "yes"), "is a node of a Redis Cluster"),
        (
            ("--replicaof", "127.0.0.1", "1"),
            "is a replica, and its clients cannot write; look at its primary 127.0.0.1:1",
        ),
    ],
)
def test_only_a_primary_can_be_looked_at(
    arguments: tuple[str, ...], said: str, start_redis: Callable[..., RedisServer]
) -> None:
    found = keyfence("look", start_redis(arguments=arguments).url)
    assert found.code == 2
    assert said in found.err


@pytest.mark.parametrize(
    "url", ["redis://h:1/3", "redis://h:1", "unix:///run/redis.sock?db=3", "redis://h/0"]
)
def test_clients_begin_in_the_database_that_they_had(url: str, tmp_path: Path) -> None:
    origin = origin_of(Asked(url, "127.0.0.1:0", "127.0.0.1:0"), tmp_path)
    settings = load_settings("", origin.overrides)
    reloaded, packed = in_front(origin, settings, load(settings))
    assert packed.settings.upstream is not None
    assert packed.settings.upstream.database == 0
    assert packed.settings.upstream.shown == url.partition("/3")[0].partition("?")[0].removesuffix("/0")
    assert reloaded.overrides.upstream == ""
