"""No link of the page leads to an error, and the page claims nothing that keyfence does not know."""

from __future__ import annotations

import html
import json
import re
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from keyfence.cli.main import cli
from keyfence.resp import encode
from tests.clients.running import POLICY, ROUTE
from tests.servers import Keyfence, RedisServer, running_redis
from tests.web.person import Person, said

STORES = {"a store": "sqlite:///{folder}/findings.db", "no store": "none"}
TRAFFIC = {
    "CubeMaster": [
        ("HSET", ROUTE, "HostIP", "10.0.0.7"),
        ("SET", "cbe:v1:shared:x:<b>\"'&\x1b[31m", "v"),
        ("KEYS", "*"),
        ("NOSUCH", "a"),
    ],
    "CubeProxy": [
        ("HSET", ROUTE, "HostIP", "10.0.0.8"),
        ("DEL", "bypass_host_proxy:7c8f"),
        ("EVAL", "x", "0"),
    ],
    "unknown": [("GET", ROUTE), ("SET", "a/b:c d", "v")],
}


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as one:
        yield one


Start = Callable[..., Keyfence]


@pytest.fixture
def start(start_keyfence: Start, server: RedisServer, tmp_path: Path) -> Start:
    def begin(store: str, *more: str) -> Keyfence:
        config = tmp_path / "keyfence.yaml"
        listeners = [f"{{listen: '127.0.0.1:0', service: {one}}}" for one in ("CubeMaster", "CubeProxy")]
        config.write_text(
            f"policy: {POLICY}\nupstream: {server.url}\nadmin: 127.0.0.1:0\n"
            f"findings: {STORES[store].format(folder=tmp_path)}\n"
            f"listeners: [{', '.join(listeners)}, {{listen: '127.0.0.1:0'}}]\n"
        )
        return start_keyfence("--config", config, *more)

    return begin


def play(keyfence: Keyfence) -> None:
    for service, commands in TRAFFIC.items():
        with keyfence.connect(service) as sock:
            for words in commands:
                sock.sendall(encode.command(*words))
                assert sock.recv(65_536)


def crawl(keyfence: Keyfence) -> dict[str, str]:
    """Follows every link from the overview on. Returns the page at each address. No answer is an error."""
    person = Person(keyfence)
    pages: dict[str, str] = {}
    waiting = ["/"]
    while waiting:
        path = waiting.pop()
        if path in pages:
            continue
        status, _, text = person.ask("GET", path)
        assert status < 400, (path, status, said(text) if "<main" in text else text)
        pages[path] = text
        for link in links_of(text):
            joined = urllib.parse.urljoin(path, link)
            if not urllib.parse.urlsplit(joined).netloc:
                waiting.append(urllib.parse.urldefrag(joined).url)
    return pages


def links_of(text: str) -> list[str]:
    if "<main" not in text:
        return []
    return [html.unescape(one) for one in re.findall(r'<a [^>]*href="([^"]*)"', text)]


def anchors_without_a_place(pages: dict[str, str]) -> list[str]:
    """The links whose part of a page does not exist."""
    missing = []
    for path, text in pages.items():
        for link in links_of(text):
            target, fragment = urllib.parse.urldefrag(urllib.parse.urljoin(path, link))
            if fragment and f'id="{html.escape(fragment)}"' not in pages.get(target, ""):
                missing.append(link)
    return missing


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("more", [(), ("--splice",)], ids=["", "splice"])
def test_no_link_leads_to_an_error_before_the_first_command(
    start: Start, store: str, more: tuple[str, ...]
) -> None:
    pages = crawl(start(store, *more))
    assert {"/", "/findings", "/services", "/policy", "/explain", "/candidate"} <= pages.keys()
    if not more:
        assert "No command has been evaluated yet." in said(pages["/"])


@pytest.mark.parametrize("store", STORES)
def test_no_link_leads_to_an_error_after_commands(start: Start, store: str) -> None:
    keyfence = start(store)
    play(keyfence)
    pages = crawl(keyfence)
    assert sum(path.startswith("/findings/f-") for path in pages) >= 6
    assert any(path.startswith("/services/unknown") for path in pages)
    assert any(path.startswith("/explain?") for path in pages)
    assert anchors_without_a_place(pages) == []


def test_without_a_store_the_page_shows_the_report_in_memory(start: Start) -> None:
    keyfence = start("no store")
    play(keyfence)
    person = Person(keyfence)
    overview = person.read("/")
    assert "new findings since yesterday" in overview
    assert "keyfence runs without a findings store. This is what it has seen since it began" in overview
    assert "No command has been evaluated yet" not in overview
    assert "not ready 1 finding" in overview
    assert "None." not in person.read("/services/CubeProxy")
    text = person.read("/services/CubeProxy")
    assert "bypass_host_proxy" in text or "key.legacy" in text
    assert "The policy gives it no rights." not in text
    one = person.read("/findings?service=CubeProxy&rule=scope.write")
    assert one.startswith("Findings keyfence runs without a findings store.")
    assert "1 finding" in one
    for state in ("open", "reopened", "resolved", "quiet,resolved"):
        listed = person.read(f"/findings?state={state}")
        assert f"does not keep which findings are {state}." in listed
        assert "0 findings" not in listed
        assert "None." not in listed
    assert "0 findings None." in person.read("/findings?state=waived")


def test_without_a_store_a_service_that_breaks_nothing_is_not_called_silent(start: Start) -> None:
    keyfence = start("no store")
    with keyfence.connect("CubeMaster") as sock:
        sock.sendall(b"PING\r\n")
        assert sock.recv(100) == b"+PONG\r\n"
    person = Person(keyfence)
    assert "1 command evaluated. What that says of the rules is not known yet." in person.read("/")
    assert "It is not known which rules its commands were checked against." in person.read(
        "/services/CubeMaster"
    )
    assert "None. All its findings" in person.read("/services/CubeMaster")


def test_with_splice_the_page_says_that_nothing_is_evaluated(start: Start) -> None:
    person = Person(start("no store", "--splice"))
    assert "eyfence runs with --splice" in person.read("/policy")
    assert "None." not in person.read("/")


@pytest.mark.parametrize("store", STORES)
def test_the_list_names_what_was_meant_and_shows_findings_of_one_cause_together(
    start: Start, store: str
) -> None:
    keyfence = start(store)
    with keyfence.connect("CubeMaster") as sock:
        slips = ("SET", "cbue:v1:shared:a:7", "v"), ("GET", "cbue:v1:shared:b:7")
        for words in (slips[0], ("PERSIST", ROUTE), slips[1], ("GET", "x:7")):
            sock.sendall(encode.command(*words))
            assert sock.recv(65_536)
    person = Person(keyfence)
    listed = person.read("/findings")
    assert "keys that begin with cbue: (did you mean cube:?), 2 findings" in listed
    assert listed.count("without a common cause") == 1
    found = json.loads(person.ask("GET", "/findings?format=json&sort=cause")[2])["findings"]
    assert {one["cause"] for one in found if "cbue" not in one["shape"]} == {""}
    (one,) = {one["id"] for one in found if one["command"] == "SET"}
    assert "id you mean cube:?" in person.read(f"/findings/{one}")
    ran = CliRunner().invoke(cli, ["findings", "--admin", keyfence.ready.admin])
    assert ran.exit_code == 0
    assert ran.output.count("did you mean cube:?") == 2  # each of its rows
    assert "runs without a findings store" in ran.output or store == "a store"
