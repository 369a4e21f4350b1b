"""Who has signed in can change things; each change is in force at once, and written down with who and why."""

from __future__ import annotations

import datetime
import json
import shutil
import signal
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from redis.exceptions import NoPermissionError
from selenium.webdriver.common.keys import Keys

from tests.clients.running import ROUTE
from tests.servers import PATIENCE_SECONDS, RedisServer

from .chromium import AXE, PHONE, Browser
from .site import API, MASTER, PROXY, RIGHT, SIDECAR, TOKEN, WRONG, Site, running_site

NAME = "Ada <ada@example.com>"
TOLD = r"\A(keyfence: break-glass[^\n]*\n)*\Z"
WRITE = ("HSET", ROUTE, "HostIP", "10.0.0.8")


@pytest.fixture(scope="module")
def acting(redis_of_page: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("acting"), redis_of_page, expect_stderr=TOLD) as acting:
        for service, *words in (*RIGHT, *WRONG):
            acting.send(service, *words)
        yield acting


@pytest.fixture
def browser(visit: Callable[[Site], Browser], acting: Site) -> Browser:
    """Someone who has signed in."""
    browser = visit(acting)
    browser.sign_in(NAME, TOKEN)
    return browser


def do(action: str) -> str:
    return f"form[action='/do/{action}']"


def unfold(browser: Browser) -> None:
    browser.js("document.querySelectorAll('details').forEach((one) => { one.open = true; })")


def is_refused(site: Site) -> bool:
    with site.keyfence.client(PROXY) as client:
        try:
            client.execute_command(*WRITE)
        except NoPermissionError:
            return True
        return False


def ask_as_operator(site: Site, method: str, path: str, body: object) -> int:
    """Does what the command line does. Returns the status."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    request = urllib.request.Request(site.url + path, json.dumps(body).encode(), headers, method=method)
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
        return int(response.status)


def last(site: Site) -> tuple[str, ...]:
    """The last change in the audit log: who, what, on what, why, and the outcome."""
    entry = site.audit()[-1]
    return tuple(entry[name] for name in ("who", "action", "detail", "why", "outcome"))


def test_signing_in_leads_back_to_where_one_was(visit: Callable[[Site], Browser], acting: Site) -> None:
    browser = visit(acting)
    browser.sign_in(NAME, TOKEN, f"/findings?service={PROXY}")
    assert browser.path == f"/findings?service={PROXY}"
    assert browser.text(".who span") == NAME
    assert last(acting) == (NAME, "sign in", "", "", "done")
    browser.click(".who button")
    assert browser.text(".who") == "Sign in to change something"


def test_a_waiver_is_written_and_in_force(browser: Browser, acting: Site) -> None:
    finding = acting.finding(service=SIDECAR, rule="ttl.required")
    browser.open(finding)
    until = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=7)
    browser.submit(do("waive"), owner="sidecar-team", until=until.isoformat(), why="mended in release 7")
    assert browser.path == finding
    assert "The waiver is in waivers.yaml and in force." in browser.text(".notice.good").replace(
        str(acting.folder) + "/", ""
    )
    (waiver,) = yaml.safe_load((acting.folder / "waivers.yaml").read_text())["waivers"]
    assert waiver["service"] == SIDECAR
    assert waiver["rule"] == "ttl.required"
    assert (waiver["owner"], waiver["reason"]) == ("sidecar-team", "mended in release 7")
    assert waiver["until"] == until
    acting.send(SIDECAR, "SET", "cube:v1:shared:sandbox:lifecycle:state:7c8f", "running")
    browser.go_live(finding)
    browser.eventually("document.getElementById('counts').innerText.includes('1 waived')")
    assert browser.texts("#counts .badge") == ["waived"]
    assert not browser.has(".notice")
    # Another one can be written: a reload knows the file.
    assert "Waivers are in" in browser.text()
    assert last(acting) == (NAME, "waive", finding.removeprefix("/findings/"), "mended in release 7", "done")


def test_a_waiver_that_cannot_be_written_is_shown_to_be_written_by_hand(
    browser: Browser, acting: Site
) -> None:
    file = acting.folder / "waivers.yaml"
    kept = file.read_text()
    browser.open(acting.finding(service=MASTER, rule="key.legacy"))
    file.unlink()
    try:
        browser.submit(do("waive"), owner="us", why="why not")
    finally:
        file.write_text(kept)
    assert "Nothing was written" in browser.text()
    (line,) = yaml.safe_load(browser.text("main pre"))
    assert (line["service"], line["rule"], line["reason"]) == (MASTER, "key.legacy", "why not")
    assert not AXE.exists() or browser.axe() == []
    assert last(acting)[-1] == "by hand"


def test_a_mode_is_set_and_in_force(browser: Browser, acting: Site) -> None:
    assert not is_refused(acting)
    browser.open(f"/services/{PROXY}")
    unfold(browser)
    browser.submit(do("mode"), rule="scope.write", mode="enforce", why="all is mended")
    assert is_refused(acting)
    assert f"scope.write for {PROXY}: enforce" in browser.text(".notice.good")
    first = yaml.safe_load((acting.folder / "keyfence.yaml").read_text())["modes"][0]
    assert first == {"rule": "scope.write", "service": PROXY, "mode": "enforce"}
    assert last(acting) == (NAME, "mode", f"scope.write for {PROXY}: enforce", "all is mended", "done")


def test_break_glass_lets_everything_pass_until_it_ends(browser: Browser, acting: Site) -> None:
    browser.open(f"/services/{PROXY}")
    unfold(browser)
    browser.submit(do("mode"), rule="scope.write", mode="enforce", why="so that something is refused")
    assert is_refused(acting)
    browser.open("/")
    unfold(browser)
    browser.submit(do("observe"), minutes="5", why="an outage")
    assert not is_refused(acting)
    assert "Break-glass is open" in browser.text("#glass")
    assert "every rule, every service, until" in browser.text("#glass")
    assert not AXE.exists() or browser.axe() == []
    browser.submit(do("end-observe"), why="it is over")
    assert is_refused(acting)
    assert browser.text("#glass") == ""
    assert [(one["action"], one["why"]) for one in acting.audit()[-2:]] == [
        ("observe", "an outage"),
        ("end-observe", "it is over"),
    ]


def test_a_page_that_is_open_shows_that_someone_else_opens_break_glass(
    browser: Browser, acting: Site
) -> None:
    browser.go_live()
    assert ask_as_operator(acting, "POST", "/-/observe", {"for": 60, "service": MASTER}) == 200
    browser.eventually("document.getElementById('glass').innerText.includes('Break-glass is open')")
    assert ask_as_operator(acting, "DELETE", "/-/observe", {}) == 200
    browser.eventually("document.getElementById('glass').innerText === ''")


def test_a_reload_puts_the_files_in_force(browser: Browser, acting: Site) -> None:
    policy = acting.folder / "policy.yaml"
    policy.write_text(policy.read_text().replace("Node resource metrics", "What nodes have left"))
    browser.open("/")
    unfold(browser)
    browser.submit(do("reload"), why="a better description")
    assert "Reloaded; changed: policy" in browser.text(".notice.good")
    browser.open("/policy")
    assert "What nodes have left" in browser.text()
    assert last(acting)[1:] == ("reload", "policy", "a better description", "done")


def test_a_candidate_is_loaded_compared_dropped_and_promoted(browser: Browser, acting: Site) -> None:
    new = acting.folder / "new.yaml"
    text = (acting.folder / "policy.yaml").read_text()
    new.write_text(
        text.replace("readers: [CubeProxy]\n    ttl: none ", "readers: [external]\n    ttl: none ")
    )
    assert new.read_text() != text

    browser.open("/candidate")
    browser.submit(do("load-candidate"), file=str(new), why="what would it change")
    assert "new.yaml" in browser.text(".lead")
    browser.go_live("/candidate")
    acting.send(PROXY, "HGET", ROUTE, "HostIP")
    browser.eventually("document.getElementById('rows').innerText.includes('scope.read')")
    assert "new" in browser.texts("#rows .badge")
    assert not AXE.exists() or browser.axe() == []
    browser.look(PHONE)
    assert browser.js("return document.documentElement.scrollWidth") <= PHONE
    browser.look()

    browser.submit(do("promote"), why="too early")
    assert "write the candidate" in browser.text(".notice.bad")
    assert last(acting)[-1] != "done"
    browser.submit(do("drop"), why="look again")
    assert "None is loaded" in browser.text()

    browser.submit(do("load-candidate"), file=str(new), why="once more")
    revision = browser.text(".lead").split("revision ")[1].split(",")[0]
    shutil.copy(new, acting.folder / "policy.yaml")
    browser.submit(do("promote"), why="decided today")
    assert f"Revision {revision} of the policy is in force." in browser.text(".notice.good")
    browser.open("/policy")
    assert revision in browser.text()
    assert last(acting) == (NAME, "promote", revision, "decided today", "done")


def test_what_cannot_be_done_changes_nothing_and_says_why(browser: Browser, acting: Site) -> None:
    browser.open("/candidate")
    missing = str(Path("missing.yaml"))
    browser.submit(do("load-candidate"), file=missing, why="a typing mistake")
    assert "Nothing has changed" in browser.text(".notice.bad")
    assert missing in browser.text(".notice.bad")
    who, action, _, why, outcome = last(acting)
    assert (who, action, why) == (NAME, "load-candidate", "a typing mistake")
    assert outcome != "done"
    browser.open("/candidate")
    assert not browser.has(".notice")


def test_every_action_needs_a_reason(browser: Browser, acting: Site) -> None:
    lines = len(acting.audit())
    for path in ("/", f"/services/{PROXY}", "/candidate", acting.finding(service=PROXY, text="HSET")):
        browser.open(path)
        unfold(browser)
        forms = browser.js("return [...document.querySelectorAll('form.action')].map((one) => one.action)")
        assert forms
        # The browser itself does not send a form without one.
        assert browser.js(
            "return [...document.querySelectorAll('form.action')].every((one) => !one.checkValidity()"
            " && one.elements.why.validity.valueMissing)"
        )
    assert len(acting.audit()) == lines


def test_an_action_can_be_done_by_keyboard_alone(browser: Browser, acting: Site) -> None:
    browser.open(f"/services/{API}")
    browser.js(
        "[...document.querySelectorAll('summary')].find((one) => one.innerText === 'Set a mode').focus()"
    )
    browser.press(Keys.ENTER, Keys.TAB)
    browser.press(*"key.unregistered", Keys.TAB, *"obs", Keys.TAB, *"by hand", Keys.TAB)
    browser.js("window.isOld = true")
    browser.press(Keys.ENTER)
    browser.eventually("!window.isOld && document.readyState === 'complete'")
    assert last(acting) == (NAME, "mode", f"key.unregistered for {API}: observe", "by hand", "done")


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed in tests/node")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/", f"/services/{PROXY}", "/candidate", "finding"])
def test_views_with_actions_pass_axe_and_fit_on_a_phone(
    path: str, scheme: str, browser: Browser, acting: Site
) -> None:
    browser.look(PHONE, dark=scheme == "dark")
    browser.open(acting.finding(service=PROXY, text="HSET") if path == "finding" else path)
    unfold(browser)
    assert browser.axe() == []
    assert browser.js("return document.documentElement.scrollWidth") <= PHONE


def test_the_session_ends_with_the_token(browser: Browser, acting: Site) -> None:
    token = acting.folder / "token"
    token.write_text("another-token-0123456789\n")
    try:
        assert ask_as_operator(acting, "POST", "/-/reload", {}) == 200
        browser.open("/")
        assert browser.text(".who") == "Sign in to change something"
    finally:
        token.write_text(TOKEN + "\n")
        acting.keyfence.process.send_signal(signal.SIGHUP)
    acting.keyfence.wait_for_line("keyfence: reloaded")
