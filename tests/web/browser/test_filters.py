"""A list of findings is its address: who gets the link gets the list."""

from __future__ import annotations

import csv
import io
import json
import urllib.request
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.servers import PATIENCE_SECONDS, RedisServer

from .chromium import Browser
from .site import MASTER, PROXY, SIDECAR, WRONG, Site, running_site

FORM = "form.filter"
# Neither service may send any of these commands for any of these keys.
WRITES = ("HSET", "HSETNX", "HDEL", "HINCRBY", "HINCRBYFLOAT", "HMSET", "DEL", "UNLINK", "PERSIST", "EXPIRE")
READ_ONLY = ("cube:v1:shared:sandbox:proxy:7c8f", "cube:v1:master:node:metric:n", "cube:v1:api:setting:x")
SIZE = 50


@pytest.fixture(scope="module")
def many(site: Site, redis_of_page: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A keyfence with more findings than fit on a page."""
    assert site
    with running_site(tmp_path_factory.mktemp("many"), redis_of_page) as many:
        for service, *words in WRONG:
            many.send(service, *words)
        for service in (PROXY, SIDECAR):
            for key in READ_ONLY:
                for command in WRITES:
                    many.send(service, command, key, "1", "1", "1")
        assert len(many.findings(rule="scope.write")) > SIZE
        yield many


@pytest.fixture
def browser(visit: Callable[[Site], Browser], many: Site) -> Browser:
    return visit(many)


def ids(browser: Browser) -> list[str]:
    """The ids of the findings that are listed."""
    script = (
        "return [...document.querySelectorAll('#rows .rule a')].map((one) => one.pathname.split('/').pop())"
    )
    return list(browser.js(script))


def answer(url: str) -> tuple[str, str]:
    """The content type and the text at an address, for someone who has only the address."""
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as response:
        return response.headers["Content-Type"], response.read().decode()


def test_the_form_becomes_the_address_and_the_address_alone_gives_the_list(
    browser: Browser, many: Site
) -> None:
    browser.open("/findings")
    browser.submit(FORM, service=PROXY, rule="scope.write", state="new", text="sandbox", sort="state")
    query = {name: values[0] for name, values in parse_qs(urlsplit(browser.path).query).items()}
    assert query == {
        "service": PROXY, "rule": "scope.write", "state": "new", "text": "sandbox", "sort": "state"
    }  # fmt: skip
    shown, address = ids(browser), browser.path
    expected = many.findings(service=PROXY, rule="scope.write", state="new", text="sandbox", sort="state")
    assert shown == [one["id"] for one in expected]
    assert 0 < len(shown) < SIZE
    browser.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    browser.open(address)
    assert ids(browser) == shown
    assert browser.js("return document.querySelector('[name=service]').value") == PROXY
    assert browser.js("return document.querySelector('[name=state]').value") == "new"


@pytest.mark.parametrize(
    ("name", "value", "column"),
    [
        ("service", PROXY, "service"),
        ("rule", "key.unregistered", "rule"),
        ("state", "new", "state"),
        ("owner", "#cube-redis", "owner"),
        ("entry", "sandbox-route", "keys"),
    ],
)
def test_each_field_filters(name: str, value: str, column: str, browser: Browser) -> None:
    browser.open("/findings")
    browser.submit(FORM, **{name: value})
    assert set(browser.texts(f"#rows td.{column}")) == {value}


def test_a_text_is_found_in_examples(browser: Browser, many: Site) -> None:
    browser.open("/findings")
    browser.submit(FORM, text="7c8fbcd45ffe450fb8f7fb223ad45507")
    assert [f"/findings/{one}" for one in ids(browser)] == [many.finding(service=MASTER, rule="key.legacy")]


@pytest.mark.parametrize(("order", "column"), [("service", "service"), ("rule", "rule")])
def test_a_list_can_be_ordered(order: str, column: str, browser: Browser) -> None:
    browser.open("/findings")
    browser.submit(FORM, sort=order)
    shown = browser.texts(f"#rows td.{column}")
    assert shown == sorted(shown)


def test_no_finding_fits_and_the_page_says_so(browser: Browser) -> None:
    browser.open("/findings?service=nobody")
    assert "0 findings" in browser.text("#rows")
    browser.click(f"{FORM} a")
    assert browser.path == "/findings"
    assert len(ids(browser)) == SIZE


def test_a_long_list_has_pages(browser: Browser, many: Site) -> None:
    browser.open("/findings?rule=scope.write&sort=service")
    everything = [one["id"] for one in many.findings(rule="scope.write", sort="service")]
    assert browser.text("#rows .total").endswith(f"1 to {SIZE} are shown")
    assert not browser.has("#earlier")
    first = ids(browser)
    browser.click("#later")
    second = ids(browser)
    assert first + second == everything
    assert not browser.has("#later")
    assert "rule=scope.write" in browser.path
    browser.click("#earlier")
    assert ids(browser) == first


def test_a_list_is_there_for_spreadsheets_and_programs_too(browser: Browser, many: Site) -> None:
    browser.open(f"/findings?service={PROXY}&rule=scope.write&sort=rule")
    hrefs = {
        one.text: one.get_attribute("href")
        for one in browser.driver.find_elements("css selector", "main p a")
    }
    expected = [one["id"] for one in many.findings(service=PROXY, rule="scope.write", sort="rule")]
    kind, text = answer(hrefs["CSV"])
    assert kind.startswith("text/csv")
    assert [row["id"] for row in csv.DictReader(io.StringIO(text))] == expected
    kind, text = answer(hrefs["JSON"])
    assert kind.startswith("application/json")
    assert [one["id"] for one in json.loads(text)["findings"]] == expected


@pytest.mark.parametrize("query", ["state=wrong", "offset=x", "sort=up", "colour=red"])
def test_an_address_with_a_mistake_is_a_page_that_says_so(query: str, browser: Browser) -> None:
    browser.open(f"/findings?{query}")
    assert browser.text("h1") == "That did not work"
    assert query.split("=")[0 if "colour" in query else 1] in browser.text()
