"""What strangers write is text: it does nothing, moves nothing, and gives no secret away."""

from __future__ import annotations

import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from tests.servers import PATIENCE_SECONDS, RedisServer

from .chromium import PHONE, Browser
from .site import HOSTILE, OPEN_POLICY, PROXY, SECRET, Site, running_site

WRITER = "writer"
# A command of its own for each key, so that each has a finding of its own.
COMMANDS = dict(zip(HOSTILE, ("APPEND", "GETSET", "SETNX", "LPUSH", "SADD"), strict=True))
# What moves, hides or reverses text, or drives a terminal.
UNSEEN = (
    r"/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufffd]/"
)
# What a reader sees of each key.
SEEN = {
    "HTML": "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>",
    "terminal escapes": r"\x1b[31mred\x1b]0;title\x07\r\n",
    "right to left": r"abc\xe2\x80\xaegpj.exe",
    "8 KiB": "LongLongLong",
    "not UTF-8": r"\xff\xfe\x80",
}


@pytest.fixture(scope="module")
def hostile(
    site: Site, redis_of_page: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """A keyfence whose policy knows no secrets, and which so shows every key as it is."""
    assert site
    folder = tmp_path_factory.mktemp("hostile")
    with running_site(folder, redis_of_page, policy=OPEN_POLICY, services=[WRITER]) as hostile:
        for kind, key in HOSTILE.items():
            hostile.send(WRITER, COMMANDS[kind], key, "1")
            hostile.send(WRITER, COMMANDS[kind], b"app:v1:" + key, "1")
            hostile.send(WRITER, "KEYS", key)
        yield hostile


@pytest.fixture
def browser(visit: Callable[[Site], Browser], hostile: Site) -> Browser:
    return visit(hostile)


def is_inert(browser: Browser) -> None:
    assert browser.js("return window.hacked") is None
    assert not browser.has("main script, main img, main iframe")
    assert browser.js(f"return document.documentElement.outerHTML.match({UNSEEN})") is None
    assert browser.js("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [1200, PHONE])
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_key_is_inert_in_its_findings(
    kind: str, width: int, browser: Browser, hostile: Site
) -> None:
    browser.look(width)
    found = [one for one in hostile.findings() if one["command"] == COMMANDS[kind]]
    assert {one["rule"] for one in found} == {"key.unregistered", "key.format"}
    for one in found:
        browser.open(f"/findings/{one['id']}")
        is_inert(browser)
        assert SEEN[kind] in browser.text("#examples + .example")
        if kind == "8 KiB":
            assert "only a part of the command is kept" in browser.text().lower()
        else:
            assert SEEN[kind][:4] in browser.text("details")  # it is explained


@pytest.mark.parametrize("width", [1200, PHONE])
@pytest.mark.parametrize("path", ["/", "/findings", "/services/writer", "/policy"])
def test_hostile_keys_are_inert_in_lists(path: str, width: int, browser: Browser) -> None:
    browser.look(width)
    browser.open(path)
    is_inert(browser)
    if path == "/findings":
        assert r"\x3cimg src=x onerror=window.hacked=" in browser.text("#rows")  # a shape
    if path != "/policy":
        browser.go_live(path)
        is_inert(browser)


@pytest.mark.parametrize("kind", [kind for kind in HOSTILE if kind != "8 KiB"])  # addresses are shorter
def test_a_hostile_command_is_inert_in_its_explanation(kind: str, browser: Browser) -> None:
    key = HOSTILE[kind].decode("utf-8", "ignore").replace("'", "")
    typed = urllib.parse.quote(f"GET '{key}'")
    browser.open(f"/explain?service={WRITER}&command={typed}")
    assert "key.unregistered" in browser.text()
    # The field itself holds what was typed.
    browser.js("document.querySelector('[name=command]').removeAttribute('value')")
    is_inert(browser)


@pytest.mark.parametrize("name", ["service", "rule", "owner", "entry", "text"])
def test_a_hostile_filter_is_inert(name: str, browser: Browser) -> None:
    browser.open(f"/findings?{name}=" + urllib.parse.quote('"><script>window.hacked=1</script>'))
    is_inert(browser)
    assert "0 findings" in browser.text()


def test_a_hostile_name_of_a_client_is_inert(browser: Browser, hostile: Site) -> None:
    hostile.send(WRITER, "CLIENT", "SETNAME", "<script>window.hacked=1</script>")
    hostile.send(WRITER, "RPOP", "session:42")
    browser.open(hostile.finding(text="RPOP"))
    is_inert(browser)
    assert "<script>window.hacked=1</script>" in browser.text("#clients + .scroll")


@pytest.mark.parametrize("form", ["text/html", "application/json", "text/csv"])
def test_a_secret_is_masked_in_every_view_and_form(form: str, site: Site) -> None:
    finding = site.finding(service=PROXY, rule="scope.read")
    paths = [
        "/",
        "/findings",
        finding,
        "/services/CubeProxy",
        "/services",
        "/policy",
        "/findings?text=session",
    ]
    if form == "text/csv":
        paths = ["/findings?format=csv"]
    elif form == "application/json":
        paths = [path for path in paths if path.startswith("/findings")]
    texts = []
    for path in paths:
        request = urllib.request.Request(site.url + path, headers={"Accept": form})
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
            texts.append(response.read().decode())
    assert not any(SECRET[4:] in text for text in texts)
    assert any("cube:v1:api:session:" in text for text in texts)
    assert not site.findings(text=SECRET)


def test_an_explanation_masks_the_secret_that_was_typed(visit: Callable[[Site], Browser], site: Site) -> None:
    browser = visit(site)
    browser.open(f"/explain?service={PROXY}&command=GET+cube:v1:api:session:{SECRET}")
    assert "scope.read" in browser.text()
    assert SECRET not in browser.text()
