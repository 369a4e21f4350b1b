"""Five instances under load take a signed policy from each kind of store; none ever judges by a wrong one.

Takes half an hour: `make soak` runs it. The bounds need a machine that is otherwise idle.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.clients.running import ask, eventually
from tests.fleet.policy_server import PolicyServer, properly, reply
from tests.fleet.publishing import NAME, Publisher
from tests.fleet.refused import shows_refusal
from tests.servers import Certificates, Keyfence, RedisServer, running_redis

if not os.environ.get("KEYFENCE_SOAK"):
    pytest.skip("it takes half an hour: make soak", allow_module_level=True)

INSTANCES = 5
PUSHES = 100
FILE = "shop.yaml"
SIGNATURE = f"{FILE}.sig"
WRONG = 0  # the version that no instance may put in force
DISK_BYTES = 8 << 20
SETTLE_SECONDS = 6.0  # after a start, until the process is there that loads


def policy(version: int, writer: str = "one") -> str:
    """Only the key `v:VERSION` may be written."""
    return f"""policy: fleet
claims: ["v:"]
services: [one]
scopes: {{s: {{prefix: "v:", writers: [{writer}]}}}}
keys: {{now: {{key: "v:{version}", type: string}}}}
"""


class Put(NamedTuple):
    """What is put into a store; it may be wrong."""

    sequence: int
    text: str
    signature: bytes | None


class Place:
    """Where the policy is. `bound`: the seconds from a push until it is in force on all instances."""

    bound = 2.0
    keeps_a_copy = True  # on the disk of each instance

    def source(self) -> str:
        """As a configuration names it."""
        raise NotImplementedError

    def put(self, it: Put) -> None:
        """Make this the newest version, whatever it is."""
        raise NotImplementedError

    def lose(self) -> None:
        raise NotImplementedError

    def come_back(self) -> None:
        raise NotImplementedError


class RedisPlace(Place):
    def __init__(self, server: RedisServer) -> None:
        self._server = server

    def source(self) -> str:
        return f"redis: 'redis://127.0.0.1:{self._server.port}', poll: 1s"

    def put(self, it: Put) -> None:
        with self._server.client() as client:
            key = f"keyfence:{{{NAME}}}:version:{it.sequence}"
            client.delete(key)
            client.hset(key, mapping={"content": it.text, "signature": it.signature or b""})
            client.set(f"keyfence:{{{NAME}}}:sequence", it.sequence)
            client.publish(f"keyfence:{{{NAME}}}:changed", it.sequence)

    def lose(self) -> None:
        self._server.pause()

    def come_back(self) -> None:
        self._server.resume()


class FolderPlace(Place):
    bound = 6.0  # looked at once a second, and left alone for two; the load takes the rest
    keeps_a_copy = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def source(self) -> str:
        return f"path: '{self._folder}/current/{FILE}'"

    def put(self, it: Put) -> None:
        self._count += 1
        new = self._folder / str(self._count)
        new.mkdir(parents=True)
        (new / FILE).write_text(it.text)
        if it.signature is not None:
            (new / SIGNATURE).write_bytes(it.signature)
        link = self._folder / "next"
        link.symlink_to(new)
        link.rename(self._folder / "current")

    def lose(self) -> None:
        self._folder.rename(self._folder.with_name("away"))

    def come_back(self) -> None:
        self._folder.with_name("away").rename(self._folder)


class HttpsPlace(Place):
    def __init__(self, server: PolicyServer, ca: Path) -> None:
        self._server, self._ca = server, ca
        self._signature: bytes | None = None
        server.waits = True
        self.come_back()

    def source(self) -> str:
        return f"url: '{self._server.url}', ca: {self._ca}, poll: 1s"

    def put(self, it: Put) -> None:
        self._signature = it.signature
        self._server.put(it.text)

    def lose(self) -> None:
        self._server.respond = lambda *_: None  # it stalls

    def come_back(self) -> None:
        self._server.respond = self._answer

    def _answer(self, server: PolicyServer, headers: dict[str, str]) -> bytes | None:
        if not headers[":path"].endswith(SIGNATURE):
            return properly(server, headers)
        if self._signature is None:
            return reply(b"", "404 Not Found")
        return reply(self._signature)


class Told:
    """What has been published, for those who watch."""

    def __init__(self, bound: float) -> None:
        self.bound = bound
        self.sequence = 0  # of the newest one
        self.newest = self.before = 0
        self.published: dict[int, float] = {}  # by version, when
        self.replaced: dict[int, float] = {}
        self.faults: list[str] = []

    def publish(self, version: int) -> None:
        """The next sequence has this version."""
        now = time.monotonic()
        self.replaced[self.newest] = now
        self.replaced.pop(version, None)
        self.published[version] = now
        self.sequence += 1
        self.newest, self.before = version, self.newest


class Load(threading.Thread):
    """A client that writes without end, and sees by the reply which version has judged each command."""

    def __init__(self, keyfence: Keyfence, told: Told) -> None:
        super().__init__(daemon=True)
        self._keyfence, self._told = keyfence, told
        self._ended = threading.Event()
        self.seen: dict[int, float] = {}  # by version, when a command was first judged by it
        self.commands = 0

    def run(self) -> None:
        try:
            with self._keyfence.connect("one") as connection:
                while not self._ended.wait(0.002):
                    for version in {self._told.newest, self._told.before, WRONG}:
                        self._write(connection, version)
        except (OSError, AssertionError) as exc:
            self._told.faults.append(f"the client of {self._keyfence.ready.admin}: {exc!r}")

    def _write(self, connection: Any, version: int) -> None:
        sent = time.monotonic()
        connection.sendall(b"SET v:%d x\r\n" % version)
        answer = connection.recv(4096)
        assert answer.startswith((b"+OK\r\n", b"-NOPERM")), answer
        self.commands += 1
        if not answer.startswith(b"+OK"):
            return
        told = self._told
        self.seen.setdefault(version, time.monotonic())
        if version == WRONG:
            told.faults.append("a command was judged by a policy that does not check or is not signed")
        late = sent - told.replaced.get(version, sent) - told.bound
        if late > 0:
            told.faults.append(f"version {version} judged {late:.2f} s after the bound")

    def end(self) -> None:
        self._ended.set()
        self.join()


class Fleet:
    """The instances, each with a client at work."""

    def __init__(self, folder: Path, place: Place, upstream: RedisServer) -> None:
        self.place, self.told, self.publisher = place, Told(place.bound), Publisher()
        self._folder, self._upstream = folder, upstream
        self._running = [contextlib.ExitStack() for _ in range(INSTANCES)]
        self.instances: list[Keyfence] = []
        self.loads: list[Load] = []
        self.commands = 0
        self.push()
        for number in range(INSTANCES):
            self.instances.append(self._start(number))
            self.loads.append(self._load(number))
        time.sleep(SETTLE_SECONDS)

    def state(self, number: int) -> Path:
        return self._folder / f"disk-{number}"

    def _start(self, number: int) -> Keyfence:
        config = self._folder / f"{number}.yaml"
        self.state(number).mkdir(exist_ok=True)
        config.write_text(
            f"policy: {{{self.place.source()}, name: {NAME}, trust: '{self.publisher.key}'}}\n"
            f"reload: auto\nupstream: {self._upstream.url}\nadmin: 127.0.0.1:0\n"
            f"findings: 'sqlite:///{self.state(number)}/findings.db'\n"
            f"workers: {2 if number == 0 else 1}\nmodes: [{{mode: enforce}}]\n"
            "listeners: [{listen: '127.0.0.1:0', service: one}]\n"
        )
        env = {"STATE_DIRECTORY": str(self.state(number) / "state")}
        return self._running[number].enter_context(Keyfence("--config", config, env=env, expect_stderr="^"))

    def _load(self, number: int) -> Load:
        load = Load(self.instances[number], self.told)
        load.start()
        return load

    def restart(self, number: int) -> None:
        self._end_load(number)
        self._running[number].close()
        self.instances[number] = self._start(number)
        self.loads[number] = self._load(number)
        time.sleep(SETTLE_SECONDS)

    def _end_load(self, number: int) -> None:
        self.loads[number].end()
        self.commands += self.loads[number].commands

    def end(self) -> None:
        for number in range(INSTANCES):
            self._end_load(number)
        for one in self._running:
            one.close()

    def push(self) -> int:
        """Publishes the next version."""
        return self._publish(max(self.told.published, default=WRONG) + 1)

    def roll_back(self) -> int:
        """Publishes the version before the newest one, as a new sequence."""
        for load in self.loads:
            del load.seen[self.told.before]
        return self._publish(self.told.before)

    def _publish(self, version: int) -> int:
        sequence, text = self.told.sequence + 1, policy(version)
        self.place.put(Put(sequence, text, self.publisher.sign(sequence, {FILE: text}).text()))
        self.told.publish(version)
        return version

    def reach(self, version: int) -> float:
        """Waits until all clients are judged by this version. Returns the seconds that the last one took."""
        eventually(lambda: all(version in load.seen for load in self.loads), f"{version} is in force")
        return max(load.seen[version] for load in self.loads) - self.told.published[version]

    def everywhere(self, check: Callable[[Keyfence], object], what: str) -> None:
        for one in self.instances:
            eventually(lambda one=one: check(one), what)  # type: ignore[misc]

    def refuse(self, why: str, it: Put) -> None:
        """Puts what no instance may take, and reads the reason on every surface of each."""
        self.place.put(it)
        for one in self.instances:
            shows_refusal(one, why)


def is_strictly_ready(one: Keyfence) -> bool:
    return ask(one, "/readyz?strict")[0] == 200


def has_confirmed(since: float) -> Callable[[Keyfence], bool]:
    """Whether the store, if it is a server, has answered an instance since then. A request that had no answer
    before the store came back takes its time limit first."""

    def check(one: Keyfence) -> bool:
        server = json.loads(ask(one, "/status")[1])["policy"]["server"]
        return is_strictly_ready(one) and (server is None or server["confirmed"] > since)

    return check


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, certificates: Certificates) -> Iterator[Place]:
    if request.param == "a folder":
        yield FolderPlace(tmp_path / "store")
    elif request.param == "Redis":
        with running_redis(tcp=True) as server:
            yield RedisPlace(server)
    else:
        with PolicyServer("", certificates) as policies:
            yield HttpsPlace(policies, certificates.ca)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path | None]:
    """A file system of 8 MiB for the last instance; None: it cannot be mounted here."""
    disk = tmp_path / f"disk-{INSTANCES - 1}"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)]
    mounted = (
        shutil.which("mount") and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )
    yield disk if mounted else None
    if mounted:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture
def fleet(tmp_path: Path, place: Place, small_disk: Path | None) -> Iterator[Fleet]:  # noqa: ARG001
    with running_redis() as upstream:
        one = Fleet(tmp_path, place, upstream)
        yield one
        one.end()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("place", ["Redis", "a folder", "HTTPS"], indirect=True)
def test_no_command_is_judged_by_a_policy_that_is_too_old_or_wrong(
    fleet: Fleet, small_disk: Path | None, request: pytest.FixtureRequest
) -> None:
    times = sorted(fleet.reach(fleet.push()) for _ in range(PUSHES))
    told = fleet.told
    refuse_all(fleet)
    fleet.reach(fleet.push())
    fleet.everywhere(is_strictly_ready, "the next version ends the refusal")
    fleet.reach(fleet.roll_back())
    lose_the_store(fleet)
    if small_disk is not None:
        fill_the_disk(fleet, small_disk)
    assert told.faults == []
    name = request.node.callspec.params["place"]
    print(f"\n{name}: {PUSHES} pushes, the last instance after {times[PUSHES // 2]:.2f} s", end="")
    print(f" (median), {times[-1]:.2f} s (longest); {'a' if small_disk else 'no'} full disk")


def refuse_all(fleet: Fleet) -> None:
    newest = fleet.told.sequence
    following, wrong, faulty = newest + 1, policy(WRONG), policy(WRONG, "Nobody")
    old = policy(fleet.told.before)

    def signed(sequence: int, text: str, publisher: Publisher = fleet.publisher) -> bytes:
        return publisher.sign(sequence, {FILE: text}).text()

    fleet.refuse("'Nobody'", Put(following, faulty, signed(following, faulty)))
    fleet.refuse("unsigned: ", Put(following, wrong, None))
    fleet.refuse("changed content: ", Put(following, wrong, signed(following, policy(following))))
    fleet.refuse("untrusted key: ", Put(following, wrong, signed(following, wrong, Publisher())))
    fleet.refuse("replayed: ", Put(newest - 1, old, signed(newest - 1, old)))


def lose_the_store(fleet: Fleet) -> None:
    """The policy in force stays, over a restart too if there is a copy of it."""
    fleet.place.lose()
    time.sleep(2 * fleet.place.bound)
    if fleet.place.keeps_a_copy:
        fleet.restart(1)
        assert not is_strictly_ready(fleet.instances[1]), "it is the copy on disk"
    fleet.place.come_back()
    fleet.everywhere(has_confirmed(time.time()), "the store is back")
    fleet.reach(fleet.push())


def fill_the_disk(fleet: Fleet, disk: Path) -> None:
    """Clients notice nothing, a new version comes into force, and the page says what could not be kept."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    last = fleet.instances[-1]
    fleet.reach(fleet.push())
    eventually(lambda: "cannot be kept" in ask(last, "/readyz")[1], "it says that the disk is full")
    filler.unlink()
    fleet.reach(fleet.push())
    eventually(lambda: "cannot be kept" not in ask(last, "/readyz")[1], "the disk has room again")
