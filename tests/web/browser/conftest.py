"""One Chromium for all tests of this folder, and a keyfence whose findings fill every view."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from selenium.webdriver import Chrome

from tests.servers import RedisServer, running_redis

from .chromium import Browser, running_chromium, why_missing
from .site import RIGHT, WRONG, Site, running_site


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chrome]:
    if why := why_missing():
        pytest.skip(why)
    with running_chromium() as driver:
        yield driver


@pytest.fixture(scope="session")
def redis_of_page() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@pytest.fixture(scope="session")
def site(
    chromium: Chrome, redis_of_page: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """A keyfence with findings of many kinds. Tests may add some of CubeAPI, and change nothing else."""
    assert chromium
    with running_site(tmp_path_factory.mktemp("site"), redis_of_page) as site:
        for service, *words in (*RIGHT, *WRONG):
            site.send(service, *words)
        yield site


@pytest.fixture
def visit(chromium: Chrome) -> Iterator[Callable[[Site], Browser]]:
    """Opens a browser in front of a keyfence. After the test, it has asked no one else, and its console has
    no complaints."""
    browsers: list[Browser] = []

    def visit(site: Site) -> Browser:
        browsers.append(Browser(chromium, site.url))
        return browsers[-1]

    yield visit
    for browser in browsers:
        browser.leave()
        known = tuple(f"{one}/" for one in (browser.url, *browser.elsewhere))
        others = [url for url in browser.requests if not url.startswith(("about:", "data:", *known))]
        assert others == []
        assert browser.complaints == []


@pytest.fixture
def browser(visit: Callable[[Site], Browser], site: Site) -> Browser:
    return visit(site)
