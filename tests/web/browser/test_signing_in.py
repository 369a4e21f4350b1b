"""Without the admin token the page is read-only and says so; no other site can act in its reader's name."""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from keyfence.admin.access import FAILURE_SECONDS
from keyfence.web.actions import ACTIONS
from tests.clients.running import ask, metric
from tests.servers import PATIENCE_SECONDS, RedisServer

from .chromium import AXE, PHONE, Browser
from .site import PROXY, TOKEN, WRONG, Site, running_site

REASON = "Sign in first: this page is read-only without the admin token."


@pytest.fixture(scope="module", params=["with a token", "without a token"])
def closed(
    request: pytest.FixtureRequest,
    site: Site,
    redis_of_page: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    """A keyfence to which no one has signed in."""
    if request.param == "with a token":
        yield site
        return
    with running_site(tmp_path_factory.mktemp("closed"), redis_of_page, token=False) as closed:
        for service, *words in WRONG:
            closed.send(service, *words)
        yield closed


@pytest.fixture(scope="module")
def guarded(
    site: Site, redis_of_page: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """A keyfence that people sign in to, and try to."""
    assert site
    told = r"\A(keyfence: a wrong admin token came from 127\.0\.0\.1[^\n]*\n)+\Z"
    folder = tmp_path_factory.mktemp("guarded")
    with running_site(folder, redis_of_page, expect_stderr=told) as guarded:
        yield guarded


def post(site: Site, path: str, fields: dict[str, str], **headers: str) -> int:
    """Sends a form, as a program would. Returns the status."""
    address = urllib.parse.urlsplit(site.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=PATIENCE_SECONDS)
    given = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "text/html"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    with closing(connection):
        connection.request("POST", path, urllib.parse.urlencode(fields), given)
        return connection.getresponse().status


def state(site: Site) -> tuple[str, ...]:
    """Everything that an action could change."""
    files = [(site.folder / name).read_text() for name in ("keyfence.yaml", "policy.yaml", "waivers.yaml")]
    status = json.loads(ask(site.keyfence, "/status")[1])
    kept = [json.dumps(status[name]) for name in ("policy", "candidate", "modes", "break_glass", "waivers")]
    return (*files, *kept)


# -- read-only


@pytest.mark.parametrize("path", ["/", "/findings", "/services/CubeProxy", "/candidate", "finding"])
def test_the_page_offers_nothing_to_change_and_says_why(
    path: str, visit: Callable[[Site], Browser], closed: Site
) -> None:
    browser = visit(closed)
    browser.open(closed.finding(service=PROXY, text="HSET") if path == "finding" else path)
    assert not browser.has("form[method=post]")
    assert browser.text(".who") in ("Sign in to change something", "read-only: there is no admin token")


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_is_refused_and_changes_nothing(action: str, closed: Site) -> None:
    before = state(closed)
    fields = {"why": "because", "minutes": "5", "mode": "enforce", "rule": "", "service": "", "owner": "me"}
    fields |= {"until": "2099-01-01", "file": str(closed.folder / "policy.yaml"), "csrf": "", "finding": ""}
    assert post(closed, f"/do/{action}", fields) == 401
    assert state(closed) == before


def test_without_a_token_no_one_can_sign_in(
    visit: Callable[[Site], Browser], redis_of_page: RedisServer, tmp_path: Path
) -> None:
    told = "a wrong admin token came from"
    with running_site(tmp_path, redis_of_page, token=False, expect_stderr=told) as closed:
        browser = visit(closed)
        browser.open("/sign-in")
        assert "keyfence has no admin token" in browser.text()
        assert not browser.has("main form")
        assert not AXE.exists() or browser.axe() == []
        assert post(closed, "/sign-in", {"name": "me", "token": ""}) == 401


# -- the token


def test_a_wrong_token_is_refused_counted_and_slow(visit: Callable[[Site], Browser], guarded: Site) -> None:
    def counted() -> float:
        return metric(guarded.keyfence, "keyfence_admin_refused_total", reason="wrong_token")

    browser, before = visit(guarded), counted()
    began = time.monotonic()
    assert post(guarded, "/sign-in", {"name": "Ada", "token": "a-wrong-token"}) == 401
    assert time.monotonic() - began >= FAILURE_SECONDS * 0.9
    browser.sign_in("Ada", "another-wrong-token", "/findings")
    assert browser.text("[role=alert]") == "The admin token is wrong."
    assert browser.js("return document.querySelector('main [name=token]').value") == ""
    assert browser.js("return document.activeElement.name") == "name"
    assert not AXE.exists() or browser.axe() == []
    assert counted() == before + 2
    browser.submit("main form", name="Ada", token=TOKEN)
    assert browser.path == "/findings"
    assert browser.text(".who span") == "Ada"


def test_the_cookie_is_for_this_site_only_and_holds_no_token(
    visit: Callable[[Site], Browser], guarded: Site
) -> None:
    browser = visit(guarded)
    browser.sign_in("Ada", TOKEN)
    (cookie,) = browser.driver.get_cookies()
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert TOKEN not in cookie["value"]
    assert browser.js("return document.cookie") == ""
    assert TOKEN not in browser.driver.page_source
    browser.click(".who button")
    assert browser.driver.get_cookies() == []
    # The id is worth nothing afterwards.
    assert post(guarded, "/do/reload", {"why": "x"}, Cookie=f"{cookie['name']}={cookie['value']}") == 401


def test_only_the_pages_own_forms_are_taken(visit: Callable[[Site], Browser], guarded: Site) -> None:
    browser = visit(guarded)
    browser.sign_in("Ada", TOKEN)
    (cookie,) = browser.driver.get_cookies()
    signed_in = {"Cookie": f"{cookie['name']}={cookie['value']}"}
    own = {"Origin": guarded.url, **signed_in}
    browser.open("/")
    csrf = browser.js("return document.querySelector('form.action [name=csrf]').value")
    fields = {"csrf": csrf, "why": "a test", "back": "/"}
    before, lines = state(guarded), len(guarded.audit())

    assert post(guarded, "/do/reload", {**fields, "csrf": "wrong"}, **own) == 403
    assert post(guarded, "/do/reload", {"why": "a test"}, **own) == 403
    assert post(guarded, "/do/reload", {"why": "a test"}, **signed_in) == 403  # and no Origin
    assert post(guarded, "/do/reload", fields, Origin="http://other.example", **signed_in) == 403
    assert post(guarded, "/do/reload", fields, Origin="null", **signed_in) == 403
    assert post(guarded, "/do/reload", fields, Sec_Fetch_Site="cross-site", **own) == 403
    assert post(guarded, "/do/reload", fields, Sec_Fetch_Site="same-site", **own) == 403
    assert post(guarded, "/do/reload", fields, Origin=guarded.url) == 401  # and no cookie
    assert post(guarded, "/do/reload", fields, Content_Type="application/json", **own) == 415
    assert post(guarded, "/sign-out", {"csrf": "wrong"}, **own) == 403
    assert post(guarded, "/sign-in", {"name": "x", "token": TOKEN}, Origin="http://other.example") == 403
    assert (state(guarded), len(guarded.audit())) == (before, lines)
    assert post(guarded, "/do/reload", fields, **own) == 303


@contextmanager
def other_site(html: str) -> Iterator[str]:
    """A page at another port of this machine: to cookies it is the same site."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(PATIENCE_SECONDS)
        server.server_close()


def test_another_page_cannot_send_a_form_in_the_readers_name(
    visit: Callable[[Site], Browser], guarded: Site
) -> None:
    browser = visit(guarded)
    browser.sign_in("Ada", TOKEN)
    browser.open("/")
    csrf = browser.js("return document.querySelector('form.action [name=csrf]').value")  # it even knows this
    before = state(guarded)
    html = (
        f"<form method=post action='{guarded.url}/do/observe'><input name=csrf value='{csrf}'>"
        "<input name=why value=x><input name=minutes value=9><button>go</button></form>"
    )
    with other_site(html) as url:
        browser.elsewhere.append(url)
        browser.driver.get(url)
        browser.click("button")
        assert "Pages of other sites may not send this request." in browser.text()
    assert state(guarded) == before


def test_another_page_cannot_show_this_one_in_a_frame(
    visit: Callable[[Site], Browser], guarded: Site
) -> None:
    browser = visit(guarded)
    with other_site(f"<iframe src='{guarded.url}/'></iframe>") as url:
        browser.elsewhere += [url, "chrome-error:/"]
        browser.driver.get(url)
        browser.driver.switch_to.frame(0)
        assert not browser.has("main")
        browser.driver.switch_to.default_content()
    browser.forgive("frame-ancestors")


def test_the_form_to_sign_in_fits_on_a_phone(visit: Callable[[Site], Browser], guarded: Site) -> None:
    browser = visit(guarded)
    browser.look(PHONE)
    browser.sign_in("Ada", TOKEN)
    assert browser.text(".who span") == "Ada"
    assert browser.js("return document.documentElement.scrollWidth") <= PHONE
