"""A real Chromium, driven with selenium.

Rule: Chromium and its driver are Debian's, found on PATH. Selenium's own search for drivers, which asks the
network, is never used.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from tests.servers import PATIENCE_SECONDS, PROJECT

AXE = PROJECT / "tests" / "node" / "node_modules" / "axe-core" / "axe.min.js"
WIDE, PHONE = 1200, 360  # CSS pixels
# As root, as in containers, Chromium has no sandbox; it opens pages of these tests only.
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-extensions",
    ),
)
_LOGS = {"performance": "ALL", "browser": "ALL"}


def why_missing() -> str:
    """Why there is no browser here; "" if there is one."""
    missing = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    return f"not installed: {', '.join(missing)}" if missing else ""


@contextmanager
def running_chromium() -> Iterator[webdriver.Chrome]:
    """A browser that keeps a log of its requests and of its console."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in _FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", _LOGS)
    options.add_experimental_option("perfLoggingPrefs", {"enableNetwork": True, "enablePage": False})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        driver.set_page_load_timeout(PATIENCE_SECONDS)
        driver.set_script_timeout(PATIENCE_SECONDS)
        Browser(driver, "").look()
        yield driver
    finally:
        driver.quit()


class Browser:
    """One person in front of one keyfence's page."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        self.url = url
        self.elsewhere: list[str] = []  # other origins that a test opens by itself
        self._is_odd = False
        self._requests: list[str] = []
        self._ended_streams = 0
        self._console: list[dict[str, Any]] = []
        driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
        self.take_logs()
        self._requests.clear()
        self._console.clear()
        self._ended_streams = 0

    def leave(self) -> None:
        """Close the page, and have the window as it was."""
        self.driver.get("about:blank")
        if self._is_odd:
            self.run_scripts(True)
            self.look()
        self.take_logs()

    # -- how it looks

    def look(self, width: int = WIDE, *, dark: bool = False, height: int = 900) -> None:
        """Have a window of this width, and a light or dark scheme."""
        self._is_odd = True
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def run_scripts(self, allowed: bool) -> None:
        """Whether the next pages may run JavaScript."""
        self._is_odd = True
        self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not allowed})

    # -- where it is

    def open(self, path: str) -> None:
        self.driver.get(self.url + path)

    @property
    def path(self) -> str:
        """Path and query of the page that is open."""
        parts = urlsplit(self.driver.current_url)
        return parts.path + (f"?{parts.query}" if parts.query else "")

    # -- what it shows

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str = "main") -> str:
        """The visible text of the first such element, read in one step: a live page replaces its parts."""
        found = self.texts(selector)
        assert found, f"nothing is {selector}"
        return found[0]

    def texts(self, selector: str) -> list[str]:
        """The visible text of each such element."""
        script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.innerText.trim())"
        return list(self.js(script, selector))

    def has(self, selector: str) -> bool:
        return bool(self.driver.find_elements(By.CSS_SELECTOR, selector))

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def eventually(self, script: str, *arguments: Any) -> Any:
        """Wait until an expression holds in the page. Nothing passes by waiting."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := self.js(f"return ({script})", *arguments)):
            assert time.monotonic() < deadline, f"it never came to pass: {script} {arguments}"
            time.sleep(0.05)
        return found

    # -- what a person does

    def click(self, selector: str) -> None:
        """Click a link or button, and wait until the next page is there. A live page may replace it between
        looking and clicking; a person clicks again then."""
        self.js("window.isOld = true")
        patient = WebDriverWait(
            self.driver, PATIENCE_SECONDS, ignored_exceptions=[StaleElementReferenceException]
        )
        patient.until(lambda _: self.find(selector).click() or True)  # type: ignore[func-returns-value]
        self.eventually("!window.isOld && document.readyState === 'complete'")

    def go_live(self, path: str = "/") -> None:
        """Open a page, and wait for its stream's first snapshot."""
        self.open(path)
        self.eventually("document.getElementById('pulse').textContent === 'live'")

    def press(self, *keys: str) -> None:
        ActionChains(self.driver, duration=0).send_keys(*keys).perform()

    def fill(self, form: str, **fields: str) -> None:
        """Fill the fields of a form."""
        for name, value in fields.items():
            field = self.find(f"{form} [name={name}]")
            if field.tag_name == "select" or field.get_attribute("type") == "date":
                self.js("arguments[0].value = arguments[1]", field, value)
            else:
                field.clear()
                field.send_keys(value)

    def submit(self, form: str, **fields: str) -> None:
        """Fill a form, send it, and wait for what comes."""
        self.fill(form, **fields)
        self.click(f"{form} button")

    def sign_in(self, name: str, token: str, path: str = "/") -> None:
        self.open(path)
        self.click(".who a")
        self.submit("main form", name=name, token=token)

    def carry(self, cookie: str) -> None:
        """Have this cookie, given as NAME=VALUE."""
        name, _, value = cookie.partition("=")
        given = {"url": self.url, "name": name, "value": value, "httpOnly": True, "sameSite": "Strict"}
        self.driver.execute_cdp_cmd("Network.setCookie", given)

    # -- what it has done

    def take_logs(self) -> None:
        """Take what the browser has logged since the last call."""
        for entry in self.driver.get_log("performance"):
            event = json.loads(entry["message"])["message"]
            if event["method"] == "Network.requestWillBeSent":
                self._requests.append(event["params"]["request"]["url"])
            elif event["method"] == "Network.loadingFailed":
                self._ended_streams += event["params"]["type"] == "EventSource"
        self._console += self.driver.get_log("browser")

    @property
    def requests(self) -> list[str]:
        """The URLs of all requests until the logs were taken."""
        return self._requests

    @property
    def streams(self) -> tuple[int, int]:
        """How many streams were opened, and how many of them are still open."""
        self.take_logs()
        opened = sum("/live?" in url for url in self.requests)
        return opened, opened - self._ended_streams

    @property
    def complaints(self) -> list[str]:
        """What the console shows, except for the statuses of answers: exceptions, and what the
        Content-Security-Policy has stopped."""
        return [one["message"] for one in self._console if one["source"] != "network"]

    def forgive(self, words: str) -> None:
        """Forget the complaints with these words, of which there is one at least."""
        self.take_logs()
        kept = [one for one in self._console if words not in one["message"]]
        assert len(kept) < len(self._console)
        self._console = kept

    def axe(self, *rules: str) -> list[str]:
        """What axe-core finds fault with on this page, by these rules or by all."""
        self.js(AXE.read_text())
        found = self.driver.execute_async_script(
            "const [rules, done] = arguments; const chosen = rules.length ? {runOnly: rules} : {};"
            "axe.run({resultTypes: ['violations'], ...chosen}).then((found) => done(found.violations))",
            rules,
        )
        return [f"{one['id']}: {node['html'][:200]}" for one in found for node in one["nodes"]]
