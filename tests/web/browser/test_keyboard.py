"""Everything can be reached and done by keyboard alone."""

from __future__ import annotations

import pytest
from selenium.webdriver.common.keys import Keys

from .chromium import PHONE, Browser
from .site import PROXY, Site
from .test_views import VIEWS, opened

# Visible elements that a mouse can use. Fields of a date have further stops inside them.
USABLE = (
    "return [...document.querySelectorAll('a[href], button, input:not([type=hidden]), select, summary')]"
    ".filter((one) => one.checkVisibility()).length"
)
# Walks along with Tab: marks the focused element, and says whether it can be seen to be focused.
VISIT = """
const one = document.activeElement;
if (one === document.body) return ["", true];
const box = one.getBoundingClientRect();
const style = getComputedStyle(one);
const isShown = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 && box.width > 0;
one.wasVisited = true;
return [one.tagName, isShown && box.bottom > 0 && box.top < innerHeight];
"""
UNVISITED = (
    "return [...document.querySelectorAll('a[href], button, input:not([type=hidden]), select, summary')]"
    ".filter((one) => one.checkVisibility() && !one.wasVisited).map((one) => one.outerHTML.slice(0, 200))"
)


@pytest.mark.parametrize("width", [1200, PHONE])
@pytest.mark.parametrize("view", VIEWS)
def test_tab_reaches_everything_and_shows_where_it_is(
    view: str, width: int, browser: Browser, site: Site
) -> None:
    browser.run_scripts(False)  # nothing is replaced while we walk
    browser.look(width)
    opened(browser, site, view)
    browser.run_scripts(True)
    unseen = []
    for _ in range(browser.js(USABLE) + 60):
        browser.press(Keys.TAB)
        tag, is_shown = browser.js(VISIT)
        if not tag:
            break
        if not is_shown:
            unseen.append(browser.js("return document.activeElement.outerHTML.slice(0, 200)"))
    assert browser.js(UNVISITED) == []
    assert unseen == []


def test_the_first_stop_skips_to_the_content(browser: Browser) -> None:
    browser.open("/findings")
    browser.press(Keys.TAB)
    assert browser.js("return document.activeElement.innerText") == "Skip to the content"
    assert browser.js("return document.activeElement.getBoundingClientRect().left >= 0")
    browser.press(Keys.ENTER)
    assert browser.js("return document.activeElement.id") == "main"
    browser.press(Keys.TAB)
    assert browser.js("return document.activeElement.name") == "service"


def test_enter_follows_links_sends_forms_and_unfolds(browser: Browser) -> None:
    browser.open("/findings")
    browser.js("document.querySelector('[name=service]').focus()")
    browser.press(*PROXY, Keys.ENTER)
    browser.eventually(f"location.search.includes('service={PROXY}') && document.readyState === 'complete'")
    browser.js("document.querySelector('#rows .rule a').focus()")
    browser.press(Keys.ENTER)
    browser.eventually("location.pathname.startsWith('/findings/') && document.readyState === 'complete'")
    is_open = browser.js("return document.querySelector('details').open")
    browser.js("document.querySelector('summary').focus()")
    browser.press(Keys.ENTER)
    assert browser.js("return document.querySelector('details').open") is not is_open


def test_a_wide_table_can_be_scrolled_by_keyboard(browser: Browser) -> None:
    browser.look(PHONE)
    browser.go_live()
    browser.js("document.querySelector('#matrix .scroll').focus()")
    browser.press(Keys.ARROW_RIGHT)
    browser.eventually("document.querySelector('#matrix .scroll').scrollLeft > 0")
