"""The states in which people find the page: a running keyfence for each.

`python -m tests.web.states FOLDER [STATE...]` (`make states`) takes a picture of every view in every state,
on a desk and on a phone, and names what does not fit on the screen. It needs Chromium and its driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from keyfence.admin.client import AskError, ask
from keyfence.cli.demo.play import minute
from keyfence.cli.demo.private import ON_THE_WAY, private_keyfence
from keyfence.cli.demo.running import addresses_of
from keyfence.cli.terminal.policies import shipped_policies
from keyfence.resp import encode
from tests.cli.look.looking import Looking
from tests.clients.running import POLICY
from tests.servers import Keyfence, running_redis
from tests.web.crawl import crawl, view_of
from tests.web.person import Person
from tests.web.traffic import TRAFFIC, play

ENTRIES, AREAS = 2000, 20
WIDTHS = {"desk": 1280, "phone": 390}
_SIZE = "const one = document.documentElement; return [one.scrollHeight, one.scrollWidth]"
_ONLY_NAMES = "policy: shop\nservices: [web, mailer]\n"

Start = Callable[[Path], contextlib.AbstractContextManager[str]]  # gives the URL of the page


@contextlib.contextmanager
def _running(
    folder: Path, policy: str, services: Sequence[str], *more: str, findings: str = "", stderr: str = ""
) -> Iterator[Keyfence]:
    (folder / "policy.yaml").write_text(policy)
    listeners = [f"{{listen: '127.0.0.1:0', service: {one}}}" for one in services]
    with running_redis() as server:
        (folder / "keyfence.yaml").write_text(
            f"policy: policy.yaml\nupstream: {server.url}\nadmin: 127.0.0.1:0\n"
            f"findings: {findings or f'sqlite:///{folder}/findings.db'}\n"
            f"listeners: [{', '.join([*listeners, '{listen: 127.0.0.1:0}'])}]\n"
        )
        with Keyfence("--config", folder / "keyfence.yaml", *more, expect_stderr=stderr) as keyfence:
            yield keyfence


@contextlib.contextmanager
def no_store(folder: Path) -> Iterator[str]:
    with _running(folder, POLICY.read_text(), ("CubeMaster", "CubeProxy"), findings="none") as keyfence:
        play(keyfence)
        yield keyfence.ready.admin


@contextlib.contextmanager
def no_traffic(folder: Path) -> Iterator[str]:
    with _running(folder, POLICY.read_text(), ("CubeMaster", "CubeProxy")) as keyfence:
        yield keyfence.ready.admin


@contextlib.contextmanager
def spliced(folder: Path) -> Iterator[str]:
    services = ("CubeMaster", "CubeProxy")
    with (
        _running(folder, POLICY.read_text(), services, "--splice") as keyfence,
        keyfence.client("CubeProxy") as client,
    ):
        client.set("a", "v")
        yield keyfence.ready.admin


@contextlib.contextmanager
def no_policy(folder: Path) -> Iterator[str]:
    """The policy only names the services, as that of `keyfence init`."""
    record = str(folder / "commands.log")
    with _running(folder, _ONLY_NAMES, ("web", "mailer"), "--record", record) as keyfence:
        play(keyfence, {"web": TRAFFIC["CubeMaster"], "mailer": TRAFFIC["CubeProxy"]})
        yield keyfence.ready.admin


@contextlib.contextmanager
def refused(folder: Path) -> Iterator[str]:
    """The policy was changed to a faulty one, and read again."""
    services = ("CubeMaster", "CubeProxy")
    with _running(folder, POLICY.read_text(), services, stderr="no services") as keyfence:
        play(keyfence)
        (folder / "policy.yaml").write_text("policy: cubesandbox\nservices: []\n")
        with contextlib.suppress(AskError):
            ask(keyfence.ready.admin, "/-/reload", {})
        yield keyfence.ready.admin


@contextlib.contextmanager
def demo(_folder: Path) -> Iterator[str]:
    async def begin(stack: contextlib.AsyncExitStack) -> str:
        own = await stack.enter_async_context(
            private_keyfence(shipped_policies()["cubesandbox"], copied=True)
        )
        own.compare()
        await minute(addresses_of(own.admin), "7c8f01")
        own.set_modes(ON_THE_WAY)
        await minute(addresses_of(own.admin), "7c8f02")
        return own.admin

    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        try:
            yield runner.run(begin(stack))
        finally:
            runner.run(stack.aclose())


@contextlib.contextmanager
def look_without_clients(folder: Path) -> Iterator[str]:
    with _looking(folder) as looking:
        looking.until("Ctrl-C ends it")
        yield looking.admin


@contextlib.contextmanager
def look(folder: Path) -> Iterator[str]:
    with _looking(folder) as looking:
        names = ("web-1", "mailer-7", "")
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(looking.client(client_name=one or None)) for one in names]
            for number, client in enumerate(clients):
                client.hset(f"cart:{number}", "colour", "blue")
                client.publish("news:1", "x")
                client.keys("cart:*")
                client.get(f'<b>"{number}\x1b[31m')
            looking.until("  redis-py writes cart:<int>")
            yield looking.admin


@contextlib.contextmanager
def _looking(folder: Path) -> Iterator[Looking]:
    with running_redis(tcp=True) as server:
        with server.client() as client, client.pipeline() as pipeline:
            for number in range(60):
                pipeline.hset(f"cart:{number}", "colour", "red")
                pipeline.set(f"page:{number}:of:a:catalogue:with:a:long:name", "text", ex=3600)
            pipeline.execute()
        with Looking(folder, server.url) as looking:
            yield looking


@contextlib.contextmanager
def many_entries(folder: Path) -> Iterator[str]:
    with _running(folder, _long_policy(), ("web", "mailer")) as keyfence:
        with keyfence.connect("web") as sock:
            for number in range(0, ENTRIES, ENTRIES // 20):
                sock.sendall(encode.command("SET", f"area{number % AREAS}:kind{number}:X", "v"))
                assert sock.recv(65_536)
        yield keyfence.ready.admin


def _long_policy() -> str:
    """One of ENTRIES entries, in AREAS scopes."""
    areas = [f"area{number}" for number in range(AREAS)]
    scopes = (f'  {one}: {{prefix: "{one}:", writers: [web], readers: [mailer]}}' for one in areas)
    keys = (
        f'  kind{number}: {{key: "{areas[number % AREAS]}:kind{number}:<id>", type: hash}}'
        for number in range(ENTRIES)
    )
    claims = ", ".join(f'"{one}:"' for one in areas)
    head = ["policy: long", f"claims: [{claims}]", "services: [web, mailer]", 'placeholders: {id: "[0-9]+"}']
    return "\n".join([*head, "scopes:", *scopes, "keys:", *keys, ""])


STATES: dict[str, Start] = {
    "no store": no_store,
    "no traffic": no_traffic,
    "splice": spliced,
    "no policy": no_policy,
    "refused": refused,
    "demo": demo,
    "look, no clients": look_without_clients,
    "look": look,
    "2,000 entries": many_entries,
}


def pictures(folder: Path, states: Sequence[str]) -> Iterator[str]:
    """Takes the pictures. Yields what does not fit."""
    from tests.web.browser.chromium import Browser, running_chromium

    folder.mkdir(parents=True, exist_ok=True)
    with running_chromium() as driver:
        for state in states:
            with tempfile.TemporaryDirectory() as name, STATES[state](Path(name)) as url:
                time.sleep(1.5)  # until what is asked only now and then knows of the traffic
                pages = crawl(Person(url), 3)
                views = {view_of(path): path for path in sorted(pages, key=lambda path: len(pages[path]))}
                for view, path in views.items():
                    if "<main" not in pages[path]:
                        continue
                    for device, width in WIDTHS.items():
                        browser = Browser(driver, url)
                        browser.look(width)
                        browser.open(path)
                        height, wide = browser.js(_SIZE)
                        if wide > width:
                            yield f"{state}: {path} is {wide} wide on {width}"
                        browser.look(width, height=min(height, 6000))
                        words = re.sub(r"\W+", "-", f"{state} {view} {device}").strip("-")
                        browser.driver.save_screenshot(str(folder / f"{words}.png"))


if __name__ == "__main__":
    for fault in pictures(Path(sys.argv[1]), sys.argv[2:] or list(STATES)):
        print(fault)
