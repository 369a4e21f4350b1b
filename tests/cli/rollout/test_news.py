"""`keyfence news`: what a digest says, before anybody gets one."""

from __future__ import annotations

import html.parser
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keyfence.findings.database import Database
from keyfence.findings.finding import DAY, HOUR
from keyfence.findings.store import Store
from tests.cli.test_main import keyfence
from tests.findings.news.webhooks import Hooks, hooks_in_a_thread
from tests.findings.rows import batch, look, row
from tests.servers import Keyfence, RedisServer

POLICY = """policy: shop
owner: {contact: "#shop"}
claims: ["shop:"]
services: [web]
placeholders: {id: "[0-9]+"}
keys: {cart: {key: "shop:cart:<id>", writers: [web]}}
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of a store with a finding of an hour ago that has an owner, and one of three days ago."""
    found = f"sqlite:///{tmp_path}/findings.db"
    now = time.time()
    database = Database(found)
    store = Store(database, "here:1")
    store.write(
        batch(
            row(7, now - HOUR, service="web", rule="key.unregistered", entry="", shape="shop:crat:<n>"),
            row(2, now - 3 * DAY, service="web", entry="cart", contact=""),
            at=now,
        )
    )
    look(store, now - 9 * DAY, now)
    database.close()
    return found


def test_the_last_day_is_text_for_80_columns(url: str) -> None:
    code, out, err = keyfence("news", "--findings", url)
    assert code == 0
    first, _, about, *rest = out.splitlines()
    assert first == "keyfence: 1 new finding"
    assert about.startswith("From 20")
    assert rest[1] == "New findings"
    assert " web breaks key.unregistered with SET on shop:crat:<n>: 7 times," in rest[2]
    assert max(map(len, out.splitlines())) <= 80
    assert err.startswith("which rules are ready is not known")


def test_a_longer_time_has_more_in_it(url: str) -> None:
    assert keyfence("news", "--findings", url, "--since", "7d").out.startswith("keyfence: 2 new findings\n")


def test_an_owner_sees_what_is_theirs(url: str) -> None:
    code, out, err = keyfence("news", "--findings", url, "--owner", "billing@x", "--since", "7d")
    assert (code, err) == (0, "")
    assert "What belongs to billing@x." in out
    assert out.startswith("keyfence: 1 new finding\n")
    assert keyfence("news", "--findings", url, "--owner", "x").out.startswith("keyfence: nothing new\n")


def test_every_format_says_the_same(url: str) -> None:
    found = json.loads(keyfence("news", "--findings", url, "--format", "json").out)
    assert (found["text"], found["knows_ready"]) == ("keyfence: 1 new finding", False)
    (one,) = found["new"]
    assert (one["shape"], one["count"], one["owner"]) == ("shop:crat:<n>", 7, "billing@x")
    markdown = keyfence("news", "--findings", url, "--format", "markdown").out
    assert markdown.startswith("# keyfence: 1 new finding\n")
    assert "on `shop:crat:<n>`: 7 times" in markdown
    page = keyfence("news", "--findings", url, "--format", "html").out
    html.parser.HTMLParser().feed(page)
    assert "<code>shop:crat:&lt;n&gt;</code>: 7 times" in page


# -- with a configuration


@pytest.fixture
def hooks() -> Iterator[Hooks]:
    with hooks_in_a_thread() as running:
        yield running


@pytest.fixture
def config(tmp_path: Path, url: str) -> Callable[..., Path]:
    def written(*lines: str) -> Path:
        (tmp_path / "policy.yaml").write_text(POLICY)
        path = tmp_path / "keyfence.yaml"
        path.write_text("\n".join(["policy: policy.yaml", f"findings: {url}", *lines]) + "\n")
        return path

    return written


def test_with_a_configuration_causes_and_ready_rules_are_known(config: Callable[..., Path]) -> None:
    code, out, err = keyfence("news", "--config", config(), "--format", "json")
    found = json.loads(out)
    assert (code, err, found["knows_ready"]) == (0, "", True)


def test_a_digest_is_sent_to_all_targets_to_try_them(hooks: Hooks, config: Callable[..., Path]) -> None:
    path = config(
        "news:",
        "  every: day",
        f"  to: {{webhook: {hooks.url}/all/secret, as: slack}}",
        "  owners:",
        f"    billing@x: {{webhook: {hooks.url}/billing}}",
        f"    billing@y: {{webhook: {hooks.url}/nobody, as: teams}}",
        "  page: https://kf.example",
    )
    code, out, err = keyfence("news", "--config", path, "--send")
    assert (code, out) == (0, "the webhook at 127.0.0.1: sent\n" * 3)
    assert err == "nothing in this digest belongs to 'billing@y'; keyfence findings lists owners\n"
    bodies = dict(hooks.got)
    assert bodies["/all/secret"]["text"].startswith("keyfence: nothing new\n")
    assert [one["shape"] for one in bodies["/billing"]["new"]] == ["shop:crat:<n>"]
    assert bodies["/billing"]["page"] == "https://kf.example"
    assert bodies["/nobody"]["type"] == "message"


def test_a_target_that_does_not_take_it_is_exit_code_1(hooks: Hooks, config: Callable[..., Path]) -> None:
    hooks.status = 403
    path = config("news:", "  every: week", f"  to: {{webhook: {hooks.url}/secret}}")
    code, out, err = keyfence("news", "--config", path, "--send")
    assert (code, out, err) == (1, "the webhook at 127.0.0.1: HTTP status 403\n", "")


def test_what_a_keyfence_that_runs_knows_is_told(
    tmp_path: Path, redis_server: RedisServer, url: str, start_keyfence: Callable[..., Keyfence]
) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    arguments = ["--policy", tmp_path / "policy.yaml", "--upstream", redis_server.url, "--findings", url]
    running = start_keyfence(
        *arguments, "--listen", "127.0.0.1:0", "--service", "web", "--admin", "127.0.0.1:0"
    )
    admin = running.ready.admin
    with running.connect("web") as sock:
        sock.sendall(b"*2\r\n$3\r\nGET\r\n$12\r\nshop:bag:one\r\n")
        assert sock.recv(100) == b"$-1\r\n"
    found = json.loads(keyfence("news", "--admin", admin, "--format", "json", "--owner", "#shop").out)
    assert [one["shape"] for one in found["new"]] == ["shop:bag:one"]
    code, out, err = keyfence("news", "--admin", admin)
    assert (code, err) == (0, "")
    assert out.startswith("keyfence: 2 new findings")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--findings", "sqlite:////none/f.db"), "the findings store sqlite:////none/f.db cannot be opened"),
        (
            ("--findings", "sqlite:////f", "--config", "c"),
            "give only one of --admin, --findings and --config",
        ),
        (("--send",), "--send is for all targets of a configuration; name it with --config"),
        (("--since", "2999-01-01"), "--since: the time is not over"),
        (("--admin", "127.0.0.1:1"), "127.0.0.1:1"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    code, out, err = keyfence("news", *arguments)
    assert (code in (1, 2), out) == (True, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_configuration_without_news_cannot_send(config: Callable[..., Path]) -> None:
    code, out, err = keyfence("news", "--config", config(), "--send")
    assert (code, out) == (2, "")
    assert err.endswith("has no news: to send; docs/news.md says how they are written\n")
