"""Each view shows what it is for, to everyone: in light and dark, on a phone, by screen reader, with and
without JavaScript."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.clients.running import ROUTE
from tests.servers import RedisServer

from .chromium import AXE, PHONE, Browser
from .site import PROXY, RIGHT, WRONG, Site, running_site

# What each view must show. {finding} is that of CubeProxy, which writes what it may only read.
EXPLAINED = f"/explain?service={PROXY}&command=HSET+{ROUTE}+HostIP+10.0.0.8"
VIEWS = {
    "overview": (
        "/",
        [
            "Next step",
            "new findings since yesterday",
            "State of enforcement",
            "scope.write",
            "What runs",
        ],
    ),
    "findings": ("/findings", ["scope.write", "key.unregistered", "CubeProxy", "CSV"]),
    "a finding": (
        "{finding}",
        ["scope.write by CubeProxy", "What to do", "its writers: CubeMaster", ROUTE, "redis-py", "History"],
    ),
    "services": ("/services", ["CubeMaster", "CubeProxy", "external", "State of enforcement"]),
    "a service": ("/services/CubeProxy", ["What it breaks", "scope.write", "What it may", "sandbox-route"]),
    "policy": ("/policy", ["Policy cubesandbox", "node-metric", "written by CubeMaster", "Scripts"]),
    "a part of the policy": ("/policy?text=cubeapi", ["of 13 entries", "Scope api", "api-setting"]),
    "explain": (EXPLAINED, ["scope.write", "CubeProxy may not HSET", "its writers: CubeMaster"]),
    "fleet": ("/fleet", ["Fleet", "cubesandbox", "ok"]),
    "candidate": ("/candidate", ["None is loaded"]),
    "sign-in": ("/sign-in", ["Your name", "Admin token"]),
    "nothing": ("/nothing", ["There is no such page"]),
}


@pytest.fixture(scope="module")
def no_store(
    site: Site, redis_of_page: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    assert site
    with running_site(tmp_path_factory.mktemp("no-store"), redis_of_page, more="findings: none") as no_store:
        for service, *words in (*RIGHT, *WRONG):
            no_store.send(service, *words)
        yield no_store


every_view = pytest.mark.parametrize("view", VIEWS)


def opened(browser: Browser, site: Site, view: str) -> list[str]:
    """Opens a view. Returns what it must show."""
    path, expected = VIEWS[view]
    finding = site.finding(service=PROXY, rule="scope.write") if path == "{finding}" else ""
    browser.open(path.format(finding=finding))
    return expected


@every_view
def test_a_view_shows_what_it_is_for(view: str, browser: Browser, site: Site) -> None:
    expected = opened(browser, site, view)
    shown = browser.text()
    assert [text for text in expected if text not in shown] == []
    assert len(browser.texts("h1")) == 1


@every_view
def test_a_view_shows_the_same_without_javascript(view: str, browser: Browser, site: Site) -> None:
    browser.run_scripts(False)
    expected = opened(browser, site, view)
    browser.run_scripts(True)  # the driver itself needs it to read the page; the page's own did not run
    shown = browser.text()
    assert [text for text in expected if text not in shown] == []
    assert browser.streams == (0, 0)


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed in tests/node")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@every_view
def test_a_view_passes_axe(view: str, scheme: str, browser: Browser, site: Site) -> None:
    browser.look(dark=scheme == "dark")
    opened(browser, site, view)
    # Only colors differ in the dark.
    assert browser.axe(*(["color-contrast"] if scheme == "dark" else [])) == []


@every_view
def test_a_view_fits_on_a_phone(view: str, browser: Browser, site: Site) -> None:
    browser.look(PHONE)
    expected = opened(browser, site, view)
    wide = browser.js(
        "return [...document.querySelectorAll('main *')].filter((one) => !one.closest('.scroll, .hidden')"
        " && one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.outerHTML.slice(0, 200))"
    )
    assert wide == []
    assert browser.js("return document.documentElement.scrollWidth") <= PHONE
    shown = browser.text()
    assert [text for text in expected if text not in shown] == []


@pytest.mark.parametrize("width", [1280, PHONE])
def test_a_link_to_an_entry_unfolds_its_scope(width: int, browser: Browser) -> None:
    browser.look(width)
    browser.open("/policy")
    browser.js("document.querySelectorAll('.scope').forEach((one) => { one.open = false })")
    assert "node-metric" not in browser.text()
    browser.js("location.hash = 'entry-node-metric'")
    browser.eventually("document.getElementById('entry-node-metric').checkVisibility()")
    assert "sandbox-route" not in browser.text()


def test_dark_mode_is_dark(browser: Browser) -> None:
    colors = []
    for dark in (False, True):
        browser.look(dark=dark)
        browser.open("/")
        script = "const root = getComputedStyle(document.documentElement); return root[arguments[0]]"
        seen = [browser.js(script, name) for name in ("backgroundColor", "color")]
        colors.append([sum(map(int, one.strip("rgba()").split(",")[:3])) for one in seen])
    (light_page, light_text), (dark_page, dark_text) = colors
    assert min(light_page, dark_text) > 600
    assert max(light_text, dark_page) < 200


@pytest.mark.parametrize("view", ["overview", "services", "a service", "policy", "explain"])
def test_without_a_findings_store_a_view_shows_the_rest_and_is_live(
    view: str, visit: Callable[[Site], Browser], no_store: Site
) -> None:
    browser = visit(no_store)
    path, _ = VIEWS[view]
    browser.open(path)
    assert browser.text("h1") not in ("That did not work", "Nothing new since yesterday")
    if browser.js("return document.body.dataset.live"):
        browser.go_live(path)


def test_without_a_findings_store_the_list_says_why_it_is_empty(
    visit: Callable[[Site], Browser], no_store: Site
) -> None:
    browser = visit(no_store)
    browser.open("/findings")
    assert "without a findings store" in browser.text()
