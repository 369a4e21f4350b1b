"""The page over HTTP, with a keyfence that has no process of its own."""

from __future__ import annotations

import asyncio
import csv
import functools
import html
import io
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yarl

from keyfence.admin import server as admin
from keyfence.admin.access import Access
from keyfence.admin.audit import Audit
from keyfence.admin.bounds import DEFAULT_BOUNDS, Bounds
from keyfence.admin.server import Server, start_admin
from keyfence.admin.token import Token
from keyfence.findings.batch import Batch
from keyfence.policy.diagnostics import Diagnostic, Place
from keyfence.web import site
from keyfence.web.live import MAX_STREAMS
from keyfence.web.render import SECURITY_POLICY
from keyfence.web.site import Page
from tests.admin.test_server import ANY_PORT
from tests.admin.tokens import tokens
from tests.findings.test_fleet import an_instance
from tests.servers import PATIENCE_SECONDS
from tests.web.stage import NASTY, Stage, violation

TOKEN = "a-token-for-this-test"
BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "FAILURE_SECONDS", 0.0)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


class Answer:
    def __init__(self, status: int, headers: Any, text: str) -> None:
        self.status = status
        self.headers = headers
        self.text = text

    @property
    def is_page(self) -> bool:
        return self.text.startswith("<!doctype html>")

    @property
    def said(self) -> str:
        """The page's main part as text."""
        main = re.search(r"(?s)<main.*</main>", self.text)
        assert main is not None
        return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", main.group())).split())


class Browser:
    """Asks one listener, and remembers its cookies."""

    def __init__(
        self, session: aiohttp.ClientSession, server: Server, stage: Stage, audit: list[str]
    ) -> None:
        self.session = session
        self.server = server
        self.base = server.url
        self.stage = stage
        self.audit = audit  # lines for the operator
        self.csrf = ""

    async def ask(self, method: str, path: str, **options: Any) -> Answer:
        options.setdefault("headers", BROWSER)
        options.setdefault("allow_redirects", False)
        async with self.session.request(method, self.base + path, **options) as response:
            return Answer(response.status, response.headers, await response.text())

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.ask("GET", path, **options)

    async def post(self, path: str, **form: str) -> Answer:
        return await self.ask("POST", path, data={"csrf": self.csrf, **form})

    async def sign_in(self, name: str = "ann", token: str = TOKEN, back: str = "/findings") -> Answer:
        answer = await self.post("/sign-in", name=name, token=token, back=back)
        found = re.search('name="csrf" value="([^"]+)"', (await self.get("/")).text)
        self.csrf = found[1] if found else ""
        return answer

    async def act(self, name: str, **form: str) -> Answer:
        """Carry out an action, and return the page after it."""
        answer = await self.post(f"/do/{name}", why="a test", back="/findings", **form)
        return await self.get(answer.headers["Location"]) if answer.status == 303 else answer


Scenario = Callable[[Browser], Awaitable[None]]


def play(
    stage: Stage,
    scenario: Scenario,
    token: str = TOKEN,
    bounds: Bounds = DEFAULT_BOUNDS,
    audit_log: Path | str = "",
    named: Sequence[Token] = (),
) -> None:
    async def run() -> None:
        lines: list[str] = []
        access = Access([], named or tokens(token.encode()))
        audit = Audit(str(audit_log), lines.append)
        page = functools.partial(Page, stage, access, audit)
        server = await start_admin(stage, access, ANY_PORT, bounds, audit=audit, site=page)
        jar = aiohttp.CookieJar(unsafe=True)  # of an address without a name
        try:
            async with aiohttp.ClientSession(cookie_jar=jar) as session:
                await asyncio.wait_for(scenario(Browser(session, server, stage, lines)), PATIENCE_SECONDS)
        finally:
            await server.close()

    asyncio.run(run())


def test_pages_are_rendered_beside_the_loop(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of thousands of rows takes tenths of a second."""
    by: dict[str, threading.Thread] = {}
    original = site.render

    def render(template: str, values: Mapping[str, Any]) -> str:
        by[template] = threading.current_thread()
        return original(template, values)

    monkeypatch.setattr(site, "render", render)

    async def scenario(browser: Browser) -> None:
        for path in ("/", "/findings", "/services", "/policy", "/explain", "/candidate"):
            assert (await browser.get(path)).status == 200

    play(stage, scenario)
    assert len(by) == 6
    assert threading.main_thread() not in by.values()


def test_the_templates_are_compiled_beside_the_loop_whatever_a_browser_gets_first(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a tenth of a second."""
    compiling: list[threading.Thread] = []
    monkeypatch.setattr(site, "prepare", lambda: compiling.append(threading.current_thread()))

    async def first(path: str, browser: Browser) -> None:
        assert (await browser.get(path)).is_page

    for path in ("/sign-in", "/nothing", "/?x=1", "/"):
        play(stage, functools.partial(first, path))
    assert len(compiling) == 4
    assert threading.main_thread() not in compiling


# -- which answer a client gets


@pytest.mark.parametrize("accept", ["*/*", "", "application/json", "text/plain", None])
def test_programs_get_what_they_got(stage: Stage, accept: str | None) -> None:
    stage.see(violation())

    async def scenario(browser: Browser) -> None:
        headers = {} if accept is None else {"Accept": accept}
        one = (await browser.get("/findings", headers=headers)).text
        finding = json.loads(one)["findings"][0]["id"]
        for path in ("/findings", f"/findings/{finding}", "/candidate"):
            answer = await browser.get(path, headers=headers)
            assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json; charset=utf-8")
            json.loads(answer.text)
        index = await browser.get("/", headers=headers)
        assert index.text.startswith("keyfence\n\nGET ")
        missing = await browser.get("/nothing", headers=headers)
        assert missing.status == 404
        assert json.loads(missing.text)["error"].startswith("There is no such page")

    play(stage, scenario)


def test_browsers_get_the_page(stage: Stage) -> None:
    stage.see(violation())

    async def scenario(browser: Browser) -> None:
        found = await browser.get("/findings")
        links = re.findall(r'href="(/[^"]*)"', found.text)
        own = {html.unescape(link) for link in links if not link.startswith("/assets/")}
        assert any(link.startswith("/findings/f-") for link in own)
        for path in {*own, "/", "/explain?service=CubeProxy&command=GET+a"}:
            answer = await browser.get(path)
            assert (answer.status, answer.is_page) == (200, True), path
            assert answer.headers["Content-Security-Policy"] == SECURITY_POLICY
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cache-Control"] == "no-store"
            assert answer.headers["Vary"] == "Accept, Cookie"

    play(stage, scenario)


def test_the_menu_leads_to_the_fleet_if_there_is_one(stage: Stage) -> None:
    link = '<a href="/fleet"'

    async def alone(browser: Browser) -> None:
        assert link not in (await browser.get("/services")).text

    async def scenario(browser: Browser) -> None:
        assert link in (await browser.get("/services")).text
        assert link in (await browser.get("/sign-in")).text
        assert (await browser.get("/fleet")).is_page
        answer = json.loads((await browser.get("/fleet", headers={"Accept": "*/*"})).text)
        assert [one["name"] for one in answer["instances"]] == ["web-1:9464"]

    play(stage, alone)
    made = Batch()
    made.instance = an_instance("web-1:9464", "prod", last=time.time())
    assert stage.store is not None
    stage.store.write(made)
    play(stage, scenario)


def test_views_without_an_answer_for_programs_are_the_page_for_everyone(stage: Stage) -> None:
    async def scenario(browser: Browser) -> None:
        for path in ("/services", "/services/CubeProxy", "/policy", "/explain"):
            answer = await browser.get(path, headers={"Accept": "*/*"})
            assert (answer.status, answer.is_page) == (200, True)
            fault = await browser.get(path + "?colour=red", headers={"Accept": "*/*"})
            assert (fault.status, json.loads(fault.text)["error"][:17]) == (400, "Unknown parameter")

    play(stage, scenario)


@pytest.mark.parametrize("headers", [BROWSER, {"Accept": "*/*"}])
def test_head_gets_the_headers_only(stage: Stage, headers: dict[str, str]) -> None:
    async def scenario(browser: Browser) -> None:
        for path in ("/", "/findings", "/services", "/policy", "/candidate", "/assets/page.css", "/live"):
            answer = await browser.ask("HEAD", path, headers=headers)
            assert (answer.status, answer.text) == (200, ""), path
        assert (await browser.ask("HEAD", "/services/nobody", headers=headers)).status == 404

    play(stage, scenario)


def test_a_browser_can_ask_for_json_and_csv(stage: Stage) -> None:
    stage.see(violation(3), violation(entry="", shape="=cmd|' /C calc'!A0", command="SET"))

    async def scenario(browser: Browser) -> None:
        as_json = await browser.get("/findings?format=json&rule=scope.write")
        assert json.loads(as_json.text)["total"] == 2
        for headers in (BROWSER, {"Accept": "*/*"}):
            answer = await browser.get("/findings?format=csv&sort=violations", headers=headers)
            assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
            assert answer.headers["Content-Disposition"] == 'attachment; filename="findings.csv"'
            first, second = csv.DictReader(io.StringIO(answer.text))
            assert (first["service"], first["observed"], first["owner"]) == ("CubeProxy", "3", "#cube-redis")
            assert second["shape"] == "'=cmd|' /C calc'!A0"
        faulty = await browser.get("/findings?format=csv&state=nonsense", headers={"Accept": "*/*"})
        assert (faulty.status, "error" in json.loads(faulty.text)) == (400, True)
        assert (await browser.get("/findings?format=csv&state=nonsense")).is_page

    play(stage, scenario)


@pytest.mark.parametrize(
    "path",
    [
        "/findings?format=xml",
        "/services?format=csv",
        "/policy?format=json",
        "/explain?format=csv",
        "/findings?colour=red",
        "/findings?rule=a&rule=b",
        "/findings?offset=ten",
        "/findings?offset=-1",
        "/findings?offset=99999999999999999999",
        "/findings?sort=size",
        "/findings?state=opne",
        "/?x=1",
    ],
)
def test_a_query_that_makes_no_sense_is_a_400(stage: Stage, path: str) -> None:
    async def scenario(browser: Browser) -> None:
        assert (await browser.get(path)).status == 400

    play(stage, scenario)


def test_a_very_long_query_is_answered(stage: Stage) -> None:
    async def scenario(browser: Browser) -> None:
        long = await browser.get("/findings?text=" + "x" * 7000)
        assert (long.status, long.is_page) == (200, True)
        longest = await browser.get("/findings?text=" + "x" * 100_000)
        assert 400 <= longest.status < 500
        assert (await browser.get("/")).status == 200

    play(stage, scenario)


@pytest.mark.parametrize("name", ["Cube%50roxy", "CubeProxy"])
def test_the_name_of_a_service_may_be_quoted_in_its_address(stage: Stage, name: str) -> None:
    async def scenario(browser: Browser) -> None:
        url = yarl.URL(f"{browser.base}/services/{name}", encoded=True)
        async with browser.session.get(url, headers=BROWSER) as response:
            assert "<h1>CubeProxy</h1>" in await response.text()

    play(stage, scenario)


@pytest.mark.parametrize(
    "name", ["a%2Fb", "%3Cscript%3E", "%E2%80%AE", "%FF", "%00", "..%2f..", "%7Bservice%7D"]
)
def test_a_service_that_is_not_there_is_a_404(stage: Stage, name: str) -> None:
    async def scenario(browser: Browser) -> None:
        url = yarl.URL(f"{browser.base}/services/{name}", encoded=True)
        async with browser.session.get(url, headers=BROWSER) as response:
            text = await response.text()
            assert response.status == 404
            assert "<script>" not in text
            assert "\u202e" not in text

    play(stage, scenario)


def test_errors_are_a_page_for_browsers(stage: Stage) -> None:
    async def scenario(browser: Browser) -> None:
        missing = await browser.get("/nothing")
        assert (missing.status, missing.is_page) == (404, True)
        assert "There is no such page" in missing.said
        assert (await browser.get("/findings/f-none")).status == 404
        assert (await browser.get("/services/nobody")).status == 404
        foreign = await browser.get("/", headers={**BROWSER, "Host": "evil.example"})
        assert (foreign.status, foreign.is_page) == (403, True)
        odd = await browser.get("/", headers={**BROWSER, "Host": "evil:99999999"})
        assert odd.status in (400, 403)

    play(stage, scenario)


def test_assets_are_kept_by_browsers_and_their_address_changes_with_them(stage: Stage) -> None:
    async def scenario(browser: Browser) -> None:
        page = (await browser.get("/")).text
        for link in re.findall(r'(?:href|src)="(/assets/[^"]*)"', page):
            answer = await browser.get(link)
            assert answer.status == 200
            assert "immutable" in answer.headers["Cache-Control"]
        assert answer.headers["Content-Type"].startswith(("text/", "image/"))
        for path in ("/assets/none.css", "/assets/..%2fsite.py", "/assets/"):
            assert (await browser.get(path)).status == 404

    play(stage, scenario)


# -- signing in


def test_without_a_token_the_page_is_read_only_and_says_so(stage: Stage) -> None:
    async def scenario(browser: Browser) -> None:
        assert "read-only" in (await browser.get("/")).text
        assert (await browser.sign_in()).status == 401
        assert (await browser.post("/do/reload", why="x")).status == 401
        assert stage.asked == []

    play(stage, scenario, token="")


def test_signing_in_leads_back_and_out_again(stage: Stage) -> None:
    async def scenario(browser: Browser) -> None:
        assert "Sign in" in (await browser.get("/")).text
        assert 'action="/do/' not in (await browser.get("/")).text
        answer = await browser.sign_in()
        assert (answer.status, answer.headers["Location"]) == (303, "/findings")
        assert "HttpOnly" in answer.headers["Set-Cookie"]
        assert "SameSite=Strict" in answer.headers["Set-Cookie"]
        page = (await browser.get("/")).text
        assert "<span>ann</span>" in page
        assert 'action="/do/reload"' in page
        assert (await browser.post("/sign-out")).status == 303
        assert 'action="/do/' not in (await browser.get("/")).text
        assert (await browser.post("/do/reload", why="x")).status == 401
        assert browser.audit == ["audit: sign in by ann from 127.0.0.1 [done]"]

    play(stage, scenario)


@pytest.mark.parametrize(
    "back", ["//evil.example", "http://evil.example", "/\\evil.example", "evil", "", "/a\r\nX: y", "/\x00"]
)
def test_signing_in_leads_to_no_other_site(stage: Stage, back: str) -> None:
    async def scenario(browser: Browser) -> None:
        assert (await browser.sign_in(back=back)).headers["Location"] == "/"

    play(stage, scenario)


def test_a_wrong_token_is_a_401_and_counted(stage: Stage) -> None:
    counted: list[tuple[str, str]] = []

    async def scenario(browser: Browser) -> None:
        answer = await browser.sign_in(token="wrong")
        assert (answer.status, answer.is_page) == (401, True)
        assert "The admin token is wrong." in answer.said
        assert "Set-Cookie" not in answer.headers
        assert (await browser.sign_in(name=" ")).status == 400

    bounds = Bounds(count=lambda listener, reason: counted.append((listener, reason)))
    play(stage, scenario, bounds=bounds)
    assert counted == [("admin", "wrong_token")]


def test_wrong_tokens_by_the_dozen_keep_nobody_out(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is answered late, and until then its connection makes room for another."""
    monkeypatch.setattr(admin, "FAILURE_SECONDS", PATIENCE_SECONDS)
    wrong: list[str] = []

    async def scenario(browser: Browser) -> None:
        guesses = [asyncio.create_task(browser.sign_in(token="wrong")) for _ in range(4)]
        while len(wrong) < len(guesses):
            await asyncio.sleep(0.005)
        assert (await browser.get("/")).status == 200
        for guess in guesses:
            guess.cancel()
        await asyncio.gather(*guesses, return_exceptions=True)

    def count(_listener: str, reason: str) -> None:
        if reason == "wrong_token":
            wrong.append(reason)

    play(stage, scenario, bounds=Bounds(connections=4, count=count))


def test_a_form_must_be_a_form(stage: Stage) -> None:
    async def scenario(browser: Browser) -> None:
        await browser.sign_in()
        kinds = ("application/json", "text/plain", "multipart/form-data; boundary=x")
        for kind in kinds:
            headers = {**BROWSER, "Content-Type": kind}
            answer = await browser.ask("POST", "/do/reload", data=b"{}", headers=headers)
            assert answer.status == 415
        headers = {**BROWSER, "Content-Type": "application/x-www-form-urlencoded"}
        for body in (b"\xff=1", b"&".join(b"a%d=1" % n for n in range(99))):
            answer = await browser.ask("POST", "/do/reload", data=body, headers=headers)
            assert answer.status == 400
        assert stage.asked == []

    play(stage, scenario)


def test_a_large_form_is_refused_before_it_is_decoded(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anyone may send one, and decoding it keeps the clients of Redis waiting."""
    decoded: list[int] = []
    decode = urllib.parse.parse_qsl

    def noted(text: str, *given: Any, **options: Any) -> Any:
        decoded.append(len(text))
        return decode(text, *given, **options)

    async def scenario(browser: Browser) -> None:
        monkeypatch.setattr(site.urllib.parse, "parse_qsl", noted)
        headers = {**BROWSER, "Content-Type": "application/x-www-form-urlencoded"}
        for size, status in ((site.MAX_FORM, 401), (site.MAX_FORM + 1, 413)):
            body = b"token=wrong&name=".ljust(size, b"x")
            answer = await browser.ask("POST", "/sign-in", data=body, headers=headers)
            assert (answer.status, answer.is_page) == (status, True)

    play(stage, scenario)
    assert decoded == [site.MAX_FORM]


# -- actions


def test_an_action_needs_a_session_its_secret_and_this_site(stage: Stage) -> None:
    async def scenario(browser: Browser) -> None:
        assert (await browser.post("/do/reload", why="x")).status == 401
        await browser.sign_in()
        assert (await browser.post("/do/reload", csrf="", why="x")).status == 403
        assert (await browser.post("/do/reload", csrf=browser.csrf[:-1] + "!", why="x")).status == 403
        form = {"csrf": browser.csrf, "why": "x"}
        for name, value in (
            ("Origin", "http://evil.example"),
            ("Origin", "null"),
            ("Sec-Fetch-Site", "cross-site"),
            ("Sec-Fetch-Site", "same-site"),
        ):
            answer = await browser.ask("POST", "/do/reload", data=form, headers={**BROWSER, name: value})
            assert (answer.status, answer.is_page) == (403, True)
        assert stage.asked == []
        own = {**BROWSER, "Origin": browser.base, "Sec-Fetch-Site": "same-origin"}
        assert (await browser.ask("POST", "/do/reload", data=form, headers=own)).status == 303
        assert stage.asked == [("reload",)]

    play(stage, scenario)


def test_the_token_itself_is_no_session(stage: Stage) -> None:
    async def scenario(browser: Browser) -> None:
        headers = {**BROWSER, "Authorization": f"Bearer {TOKEN}"}
        answer = await browser.ask("POST", "/do/reload", data={"why": "x"}, headers=headers)
        assert (answer.status, stage.asked) == (401, [])

    play(stage, scenario)


def test_an_action_needs_a_reason(stage: Stage) -> None:
    async def scenario(browser: Browser) -> None:
        await browser.sign_in()
        answer = await browser.post("/do/reload", why="  ")
        assert (answer.status, stage.asked) == (400, [])
        assert "The field 'why' is empty." in answer.said
        assert (await browser.post("/do/nothing", why="x")).status == 404
        assert (await browser.get("/do/reload")).status == 405

    play(stage, scenario)


def test_each_action_is_carried_out_said_once_and_written_down(stage: Stage) -> None:
    stage.see(violation())

    async def scenario(browser: Browser) -> None:
        await browser.sign_in(name="ann\x1b")
        page = await browser.act("mode", rule="scope.write", service="CubeProxy", mode="enforce")
        assert "scope.write for CubeProxy: enforce. It is in /keyfence.yaml and in force." in page.said
        assert 'role="status"' in page.text
        assert "in force" not in (await browser.get("/findings")).said
        await browser.act("observe", minutes="10")
        assert [one[0] for one in stage.asked] == ["set_mode", "observe"]
        who = "by ann\ufffd from 127.0.0.1"
        assert browser.audit == [
            f"audit: sign in {who} [done]",
            f"audit: mode (scope.write for CubeProxy: enforce) {who}: a test [done]",
            f"audit: observe (every rule, every service, 10 minutes) {who}: a test [done]",
        ]

    play(stage, scenario)


def test_a_failed_action_is_said_and_written_down_too(stage: Stage) -> None:
    async def scenario(browser: Browser) -> None:
        await browser.sign_in()
        page = await browser.act("observe", minutes="soon")
        assert "The minutes must be a number from 1 to 1440." in page.said
        assert 'role="alert"' in page.text
        stage.faults = [Diagnostic(Place("p.yaml", 1, 1), "error", "wrong") for _ in range(3)]
        page = await browser.act("reload")
        assert "Nothing has changed: p.yaml:1:1: error: wrong (and 2 more)" in page.said
        assert browser.audit[1:] == [
            "audit: observe by ann from 127.0.0.1: a test [The minutes must be a number from 1 to 1440.]",
            "audit: reload by ann from 127.0.0.1: a test "
            "[Nothing has changed: p.yaml:1:1: error: wrong (and 2 more)]",
        ]

    play(stage, scenario)


def test_a_bug_in_an_action_is_a_500_without_details_and_written_down(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def reload() -> dict[str, Any]:
        raise RuntimeError("a bug")

    monkeypatch.setattr(stage, "reload", reload)

    async def scenario(browser: Browser) -> None:
        await browser.sign_in()
        answer = await browser.post("/do/reload", why="x")
        assert (answer.status, answer.is_page) == (500, True)
        assert "a bug" not in answer.text
        assert browser.audit[-1].endswith("[an internal error: RuntimeError('a bug')]")

    play(stage, scenario)


def test_what_must_be_written_by_hand_is_a_page_of_its_own(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def waive(*_: object) -> dict[str, Any]:
        return {"written": False, "file": "", "why": "no file", "line": f"{{keys: '{NASTY}'}}", "wide": []}

    monkeypatch.setattr(stage, "waive", waive)

    async def scenario(browser: Browser) -> None:
        await browser.sign_in()
        page = await browser.act("waive", finding="f-1", owner="a", until="2999-01-01")
        assert page.status == 200
        assert "Nothing was written: no file." in page.said
        assert "- {keys:" in page.said
        assert "<b onload" not in page.text
        assert 'href="/findings">Back' in page.text
        assert browser.audit[-1] == "audit: waive (f-1) by ann from 127.0.0.1: a test [by hand]"

    play(stage, scenario)


def test_changes_through_the_routes_for_programs_are_written_down_too(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"

    async def scenario(browser: Browser) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}"}

        async def send(method: str, path: str, body: Any = None) -> int:
            return (await browser.ask(method, path, json=body, headers=headers)).status

        assert await send("POST", "/-/observe", {"for": 60, "service": "CubeProxy"}) == 200
        assert await send("DELETE", "/-/observe") == 200
        stage.faults = [Diagnostic(Place("p.yaml", 1, 1), "error", "wrong")]
        assert await send("POST", "/-/reload", {}) == 422
        assert await send("POST", "/explain", {"service": "CubeProxy", "argv": ["GET", "a"]}) == 200
        await browser.get("/findings", headers=headers)
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        assert {(one["who"], one["address"], one["why"]) for one in entries} == {
            ("a program", "127.0.0.1", "")
        }
        assert [(one["action"], one["detail"], one["outcome"]) for one in entries] == [
            ("POST /-/observe", '{"for": 60, "service": "CubeProxy"}', "done"),
            ("DELETE /-/observe", "", "done"),
            ("POST /-/reload", "", "status 422"),
        ]
        assert browser.audit == []  # the process has lines of its own for these

    play(stage, scenario, audit_log=path)


# -- the stream


async def opened(browser: Browser, view: str) -> aiohttp.ClientResponse:
    url = f"{browser.base}/live?view={urllib.parse.quote(view, safe='')}"
    return await browser.session.get(url, headers={"Accept": "text/event-stream"})


async def line_of(stream: aiohttp.ClientResponse, start: bytes) -> bytes:
    while not (line := await stream.content.readline()).startswith(start):
        assert line, "the stream has ended"
    return line


def test_an_open_page_gets_what_has_changed(stage: Stage) -> None:
    async def scenario(browser: Browser) -> None:
        stream = await opened(browser, "/findings?service=CubeProxy")
        assert stream.status == 200
        assert stream.headers["Content-Type"] == "text/event-stream"
        assert stream.headers["Cache-Control"] == "no-store"
        assert await stream.content.readline() == b"retry: 3000\n"
        first = json.loads((await line_of(stream, b"data: "))[6:])
        assert "0 findings" in first["regions"]["rows"]
        stage.see(violation())
        second = json.loads((await line_of(stream, b"data: "))[6:])
        assert "1 finding" in second["regions"]["rows"]
        stream.close()

    play(stage, scenario)


def test_the_page_names_the_stream_of_its_own_address(stage: Stage) -> None:
    async def scenario(browser: Browser) -> None:
        page = (await browser.get("/findings?text=a%26b%C3%BC&state=new")).text
        (live,) = re.findall('data-live="([^"]*)"', page)
        stream = await opened(browser, html.unescape(live))
        assert stream.status == 200
        stream.close()
        assert 'data-live=""' in (await browser.get("/policy")).text

    play(stage, scenario)


def test_streams_are_bounded_and_leave_room_for_others(stage: Stage) -> None:
    async def scenario(browser: Browser) -> None:
        streams = [await opened(browser, f"/findings?text={n}") for n in range(MAX_STREAMS)]
        assert {stream.status for stream in streams} == {200}
        further = await opened(browser, "/")
        assert (further.status, "error" in await further.json()) == (503, True)
        for _ in range(3):
            answers = await asyncio.gather(*(browser.get("/healthz") for _ in range(20)))
            assert {answer.status for answer in answers} == {200}
        for stream in streams:
            stream.close()

    play(stage, scenario)


def test_a_listener_with_few_connections_refreshes_few_pages(stage: Stage) -> None:
    async def scenario(browser: Browser) -> None:
        streams = [await opened(browser, "/") for _ in range(3)]
        assert [stream.status for stream in streams] == [200, 200, 503]
        assert (await browser.get("/healthz")).status == 200

    play(stage, scenario, bounds=Bounds(connections=4))


@pytest.mark.parametrize("view", ["", "/nothing", "/policy", "//[", "/findings?colour=red", "http://[x"])
def test_there_is_no_stream_of_what_is_not_refreshed(stage: Stage, view: str) -> None:
    async def scenario(browser: Browser) -> None:
        stream = await opened(browser, view)
        assert stream.status == 404

    play(stage, scenario)


def test_open_pages_do_not_delay_the_end(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    # Far more than the test may take: nothing may wait for it.
    monkeypatch.setattr("keyfence.admin.connections.SHUTDOWN_TIMEOUT", 10 * PATIENCE_SECONDS)

    async def scenario(browser: Browser) -> None:
        streams = [await opened(browser, view) for view in ("/", "/findings", "/findings/f-none")]
        for stream in streams:
            await stream.content.readline()
        await browser.server.close()
        for stream in streams:
            await stream.read()

    play(stage, scenario)


def test_a_token_with_the_role_waive_allows_a_waiver_and_no_other_change(stage: Stage) -> None:
    async def scenario(browser: Browser) -> None:
        await browser.sign_in()
        page = await browser.act("observe", minutes="5")
        assert page.status == 403
        assert "This needs the role operate; the token ci has the role waive." in page.said
        page = await browser.act("waive", finding="f-1", owner="a", until="2999-01-01")
        assert page.status == 200
        assert browser.audit[-1].startswith("audit: waive (f-1) by ann (token ci) from 127.0.0.1: a test")
        assert [one[0] for one in stage.asked if one[0] in ("observe", "waive")] == ["waive"]

    play(stage, scenario, named=[Token("ci", "waive", TOKEN.encode())])
