"""No link of the page leads to an error, and the page claims nothing that keyfence does not know."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from keyfence.cli.main import cli
from keyfence.resp import encode
from tests.clients.running import POLICY, ROUTE
from tests.servers import Keyfence, RedisServer, running_redis
from tests.web.crawl import anchors_without_a_place, crawl
from tests.web.person import Person, said
from tests.web.traffic import play

STORES = {"a store": "sqlite:///{folder}/findings.db", "no store": "none"}


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


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("more", [(), ("--splice",)], ids=["", "splice"])
def test_no_link_leads_to_an_error_before_the_first_command(
    start: Start, store: str, more: tuple[str, ...]
) -> None:
    pages = crawl(Person(start(store, *more)))
    assert {"/", "/findings", "/services", "/policy", "/explain", "/candidate"} <= pages.keys()
    if not more:
        assert "No command has been evaluated yet." in said(pages["/"])


@pytest.mark.parametrize("store", STORES)
def test_no_link_leads_to_an_error_after_commands(start: Start, store: str) -> None:
    keyfence = start(store)
    play(keyfence)
    pages = crawl(Person(keyfence))
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
