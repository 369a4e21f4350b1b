"""Takes the pictures in docs/images: `make screenshots`, or `python -m tools.screenshots [NAME...]`.

Needs a redis-server, Chromium and its driver (Debian: `apt install chromium chromium-driver`), and the
package selenium. Plays the demo's traffic through a keyfence of its own, and opens its page in Chromium.

What differs from run to run (dates, process ids, ports, folders, ids of decisions) is replaced by fixed
values before a picture is taken. Latencies stay as they were measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service

from keyfence.cli.demo.play import minute
from keyfence.cli.demo.player import DemoError, connected
from keyfence.cli.demo.private import ENFORCE, OBSERVE, ON_THE_WAY, Private, private_keyfence
from keyfence.cli.demo.running import addresses_of, asked
from keyfence.cli.demo.traffic import Minute
from keyfence.cli.terminal.policies import shipped_policies
from tools.palette import reduced

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "images"
TAGS = ("7c8f01", "7c8f02", "7c8f03", "7c8f04")
WIDTH, PHONE = 1200, 360
MAX_SIZE = 150_000  # bytes of a picture
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
EXPLAINED = "service=CubeProxy&command=HSET+cube%3Av1%3Ashared%3Asandbox%3Aproxy%3A7c8f+HostIP+10.0.0.8"


class Picture(NamedTuple):
    """One picture: the address of a view, and how it is shown."""

    path: str
    width: int = WIDTH
    dark: bool = False
    height: int = 1200  # at most


PICTURES = {
    "overview": Picture("/", height=900),  # the README begins with it
    "overview-phone": Picture("/", PHONE),
    "overview-dark": Picture("/", dark=True, height=900),
    "findings": Picture("/findings?state=active"),
    "finding": Picture("/findings/{finding}"),
    "service": Picture("/services/CubeProxy"),
    "policy": Picture("/policy"),
    "explain": Picture(f"/explain?{EXPLAINED}"),
    "candidate": Picture("/candidate"),
}

# Before a page is loaded: it is never refreshed.
STILL = "window.EventSource = class { addEventListener() {} close() {} };"
# Replaces what differs from run to run. A time keeps its distance from now, in days.
STEADY = """
const DAY = 86400000, NOW = Date.UTC(2026, 10, 2, 9, 30);
function moved(time) {
  const days = Math.trunc((Date.parse(time.replace(" ", "T") + "Z") - Date.now()) / DAY);
  return new Date(NOW + days * DAY).toISOString().replace("T", " ").slice(0, time.length);
}
const steady = [
  [/\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d(:\\d\\d)?/g, moved],
  [/\\b\\d+ (second|minute)s? ago\\b/g, "just now"],
  [/\\bpid \\d+/g, "pid 4711"],
  [/unix:\\S*\\/keyfence-[^\\/\\s]+/g, "unix:///tmp/keyfence-redis"],
  [/\\S*\\/keyfence-demo-[^\\/\\s]+/g, "/tmp/keyfence-demo"],
  [/\\bd-[0-9a-f]{8}\\b/g, "d-1f0c2a9b"],
];
const ports = [];
function port(all) {
  if (!ports.includes(all)) ports.push(all);
  return "127.0.0.1:" + (7100 + ports.indexOf(all));
}
steady.push([/\\b127\\.0\\.0\\.1:\\d+/g, port]);
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node; (node = walker.nextNode()); ) {
  let text = node.data;
  for (const [pattern, value] of steady) text = text.replace(pattern, value);
  if (text !== node.data) node.data = text;
}
"""


def main(names: Sequence[str]) -> None:
    unknown = [name for name in names if name not in PICTURES]
    if unknown:
        sys.exit(f"there is no picture {unknown[0]}; choose from {', '.join(PICTURES)}")
    try:
        with _browser() as browser:
            asyncio.run(_take(browser, names or list(PICTURES)))
    except DemoError as exc:
        sys.exit(str(exc))
    except WebDriverException as exc:
        sys.exit(f"Chromium cannot be driven: {exc.msg}")


async def _take(browser: webdriver.Chrome, names: Sequence[str]) -> None:
    async with private_keyfence(shipped_policies()["cubesandbox"], copied=True) as own:
        addresses = addresses_of(own.admin)
        own.compare()
        for modes, tag in zip((OBSERVE, ENFORCE, ON_THE_WAY), TAGS, strict=False):
            own.set_modes(modes)
            await minute(addresses, tag)
        async with connected(addresses) as player:  # stays connected, so that the page shows clients
            await player.play(Minute(TAGS[-1]).steps())
            FOLDER.mkdir(exist_ok=True)
            for name in names:
                _shoot(browser, own, name)


def _shoot(browser: webdriver.Chrome, own: Private, name: str) -> None:
    path, width, dark, highest = PICTURES[name]
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    _resize(browser, width, 200)
    browser.get(own.admin + path.replace("{finding}", _finding(own) if "{" in path else ""))
    browser.execute_script(STEADY)
    height = min(browser.execute_script("return document.documentElement.scrollHeight"), highest)
    _resize(browser, width, height)
    picture = reduced(browser.get_screenshot_as_png())
    (FOLDER / f"{name}.png").write_bytes(picture)
    print(f"docs/images/{name}.png: {width} x {height}, {len(picture) // 1000} kB")
    if len(picture) > MAX_SIZE:
        sys.exit(f"{name}.png is larger than {MAX_SIZE // 1000} kB")


def _resize(browser: webdriver.Chrome, width: int, height: int) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def _finding(own: Private) -> str:
    """The finding that is shown: CubeProxy writes a route."""
    rows: list[dict[str, Any]] = asked(own.admin, "/findings?service=CubeProxy&rule=scope.write")["findings"]
    return str(rows[0]["id"])


@contextlib.contextmanager
def _browser() -> Iterator[webdriver.Chrome]:
    """Chromium without a window. Ends the program if it is not installed."""
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        sys.exit("there is no Chromium with its driver: apt install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, "--font-render-hinting=none", "--disable-lcd-text", "--force-color-profile=srgb"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=Service(driver))
    try:
        browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": STILL})
        yield browser
    finally:
        browser.quit()


if __name__ == "__main__":
    main(sys.argv[1:])
