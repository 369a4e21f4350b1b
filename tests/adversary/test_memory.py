"""The resources that one client can make keyfence and Redis hold: memory, output buffers, connections.

The bounds are those of the configuration, with room for the process itself. A client sends as long as
keyfence accepts bytes. It has reached its maximum once keyfence sleeps and accepts no more.
"""

from __future__ import annotations

import contextlib
import math
import random
import select
import time
from collections.abc import Callable, Iterator

import pytest

from tests.adversary.conftest import Search
from tests.adversary.resp import command, requests
from tests.adversary.stage import Attacker, Client, Stage, attacker, running_stage
from tests.servers import PATIENCE_SECONDS, server_binaries

MIB = 1 << 20
# Far more than `client_output` (8 MiB here) and the largest request (64 KiB).
ROOM = 80 * MIB
SENT = 24 * MIB
OWN = "hunt:audit:"

Start = Callable[[], Stage]


@pytest.fixture
def start_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts a fresh keyfence, whose memory is unused. The version of Redis does not matter."""
    with contextlib.ExitStack() as running:

        def start() -> Stage:
            limits = "limits: {client_output: 8mb}"
            folder = tmp_path_factory.mktemp("memory")
            return running.enter_context(running_stage(server_binaries()[0], folder, limits))

        yield start


def flood(stage: Stage, one: Attacker, data: bytes, size: int, most: int) -> None:
    """Sends this number of bytes, as far as keyfence accepts them, reads nothing, and watches its memory."""
    piece = data * max(1, (256 << 10) // len(data))
    sent, pending = 0, memoryview(piece)
    one.socket.setblocking(False)
    tired = stage.cpu_seconds() + 2.0  # some commands are answered one by one
    while sent < size and until_writable(stage, one, tired):
        try:
            taken = one.socket.send(pending)
        except BlockingIOError:
            continue
        except OSError:
            break  # closing the connection is also a bound
        sent += taken
        pending = pending[taken:] or memoryview(piece)
        assert stage.resident() < most, f"{(stage.resident() - most + ROOM) >> 20} MiB for {sent >> 20} MiB"
    until_idle(stage, tired=tired)
    assert stage.resident() < most, f"{(stage.resident() - most + ROOM) >> 20} MiB for {sent >> 20} MiB"
    one.socket.setblocking(True)


def until_writable(stage: Stage, one: Attacker, tired: float) -> bool:
    """Waits until keyfence accepts more, or sleeps without accepting."""

    def writable() -> bool:
        return bool(select.select([], [one.socket], [], 0)[1])

    return stage.cpu_seconds() < tired and until_idle(stage, writable, tired)


def until_idle(stage: Stage, done: Callable[[], bool] = lambda: False, tired: float = math.inf) -> bool:
    """Waits until `done`, until keyfence has slept for a while, or until it has used this much CPU time."""
    last, naps = stage.cpu_seconds(), 0
    while not (is_done := done()) and naps < 10 and last < tired:
        time.sleep(0.01)
        now = stage.cpu_seconds()
        naps = naps + 1 if now == last and stage.sleeps() else 0
        last = now
    return is_done


BLOCKED = {
    "BLPOP": [["BLPOP", f"{OWN}none", "0"]],
    "BLPOP behind MULTI": [["BLPOP", f"{OWN}none", "0"], ["MULTI"]],
    "XREAD": [["XREAD", "BLOCK", "0", "STREAMS", f"{OWN}stream", "$"]],
    "WAIT": [["SET", f"{OWN}s", "1"], ["WAIT", "9", "0"]],
}
EFFECTS = [
    ["CLIENT", "SETNAME", "x"],
    ["CLIENT", "SETINFO", "LIB-NAME", "x"],
    ["HELLO", "2"],
    ["HELLO", "3"],
    ["UNWATCH"],
    ["WATCH", f"{OWN}s"],
    ["SELECT", "0"],
    ["SELECT", "2"],
    ["MULTI"],
    ["EXEC"],
    ["DISCARD"],
    ["RESET"],
    ["AUTH", "audit", "audit-password"],
    ["AUTH", "audit", "wrong"],
    ["CLIENT", "ID"],
    ["CLIENT", "TRACKING", "ON"],
    ["CLIENT", "REPLY", "ON"],
    ["CLIENT", "REPLY", "SKIP"],
    ["SUBSCRIBE", "c"],
    ["UNSUBSCRIBE"],
    ["GET", f"{OWN}s"],
    ["SET", f"{OWN}s", "v"],
    ["GET", "hunt:stock:s"],
    ["PING"],
    ["EVAL", "return 1", "1", f"{OWN}s"],
    ["FROBNICATE"],
]
SETTINGS = EFFECTS.index(["SUBSCRIBE", "c"])  # how many of the effects change the session


@pytest.mark.parametrize(
    ("blocked", "effect"),
    [
        ("BLPOP", "CLIENT SETNAME x"),
        ("BLPOP", "HELLO 2"),
        ("XREAD", "UNWATCH"),
    ],
)
def test_requests_after_a_blocked_command_cost_bounded_memory(
    start_stage: Start, blocked: str, effect: str
) -> None:
    stage = start_stage()
    most = stage.resident() + ROOM
    with contextlib.closing(attacker(stage, "audit")) as one:
        one.send(requests(BLOCKED[blocked]))
        flood(stage, one, command(*effect.split()), SENT, most)


@pytest.mark.parametrize("effect", ["CLIENT SETNAME x", "HELLO 2"])
def test_requests_in_a_transaction_cost_bounded_memory(start_stage: Start, effect: str) -> None:
    """Redis hangs once it has answered MULTI."""
    stage = start_stage()
    most = stage.resident() + ROOM
    with contextlib.closing(attacker(stage, "audit")) as one:
        one.ask("WATCH", f"{OWN}s")
        one.ask("MULTI")
        stage.server.pause()
        try:
            flood(stage, one, command(*effect.split()), SENT, most)
        finally:
            stage.server.resume()


def test_no_client_costs_unbounded_memory(start_stage: Start, search: Search) -> None:
    """Mixes state changes with blocking commands, before a hanging Redis or with unread replies."""
    stage = start_stage()
    most = stage.resident() + ROOM
    for rng in search.attempts_of_at_least(2):
        with contextlib.ExitStack() as then:
            one = then.enter_context(contextlib.closing(attacker(stage, "audit")))
            one.ask("PING")
            if rng.random() < 0.15:
                stage.server.pause()
                then.callback(stage.server.resume)
            elif rng.random() < 0.85:
                one.send(requests(rng.choice(list(BLOCKED.values()))))
            choices = EFFECTS if rng.random() < 0.2 else EFFECTS[:SETTINGS]
            mix = rng.choices(choices, k=rng.choice([1, 1, 1, 2, 3, 30]))
            flood(stage, one, requests(mix) + padding(rng), rng.choice([SENT >> 2, SENT, SENT]), most)


def padding(rng: random.Random) -> bytes:
    """Returns a large request now and then."""
    size = rng.choice([0, 0, 0, 1000, 60_000])
    return command("SET", f"{OWN}s", b"x" * size) if size else b""


# -- resources of Redis


def output_of_redis(stage: Stage) -> int:
    """Returns the bytes of replies that Redis keeps because no client reads them."""
    return sum(int(client["omem"]) for client in stage.direct.client_list())


def settled(stage: Stage, look: Callable[[], int], low: int) -> int:
    """Returns the number once it has stopped falling, or is low, and keyfence sleeps."""
    until_idle(stage)
    seen, since = look(), time.monotonic()
    while seen > low and time.monotonic() - since < 1.0:
        time.sleep(0.02)
        if (now := look()) < seen:
            since = time.monotonic()
        seen = now
    return seen


PINNED = {
    "after WATCH": [["WATCH", f"{OWN}s"]],
    "after BLPOP": [["BLPOP", f"{OWN}list", "0"]],
}


@pytest.mark.parametrize("pinned", PINNED)
def test_redis_keeps_few_unread_replies(start_stage: Start, pinned: str) -> None:
    stage = start_stage()
    stage.direct.rpush(f"{OWN}list", "1")
    stage.direct.set(f"{OWN}large", b"x" * 100_000)
    with contextlib.closing(attacker(stage, "audit")) as one:
        one.send(requests(PINNED[pinned]))
        one.frames(1)
        with contextlib.suppress(OSError):  # closed while it sends
            one.socket.sendall(command("GET", f"{OWN}large") * 3000)
        assert settled(stage, lambda: output_of_redis(stage), 16 * MIB) <= 16 * MIB


def test_a_client_that_reads_one_large_value_slowly_is_served(start_stage: Start) -> None:
    """Only requests beyond the large value count against the limit."""
    stage = start_stage()
    size = 100 * MIB
    stage.direct.setrange(f"{OWN}large", size - 1, b"x")
    connection = stage.keyfence.connect("audit")
    connection.settimeout(PATIENCE_SECONDS)
    with contextlib.closing(Client(connection)) as one:
        assert one.ask("WATCH", f"{OWN}s") == b"+OK\r\n"
        one.send(command("GET", f"{OWN}large"))
        until_idle(stage)
        left = len(b"$104857600\r\n") + size + 2
        while left > 0:
            data = connection.recv(1 << 20)
            assert data, f"closed with {left} bytes to come"
            left -= len(data)
            time.sleep(0.001)
        assert one.ask("PING") == b"+PONG\r\n"


def test_equivalent_logins_do_not_use_up_redis_connections(start_stage: Start) -> None:
    """The default user has no password, so Redis accepts any, and each makes another kind of connection."""
    stage = start_stage()
    with contextlib.ExitStack() as open_ones:
        for number in range(70):
            with contextlib.closing(attacker(stage, "audit")) as one:
                assert one.ask("AUTH", "default", f"random-{number}") == b"+OK\r\n"
                one.ask("GET", f"{OWN}s")
        others = [open_ones.enter_context(contextlib.closing(stage.client("web"))) for _ in range(200)]
        for other in others:
            assert other.ask("GET", "hunt:web:s") == b"$-1\r\n"

        def connections() -> int:
            for other in others[:3]:
                other.ask("GET", "hunt:web:s")
            return len(stage.direct.client_list())

        assert settled(stage, connections, 90) <= 90


def test_different_logins_do_not_use_up_redis_connections(start_stage: Start, search: Search) -> None:
    """Random logins, databases and protocols, many at a time; then clients that only work."""
    stage = start_stage()
    for rng in search.attempts_of_at_least(1):
        with contextlib.ExitStack() as open_ones:
            for _ in range(rng.randrange(70, 100)):
                one = attacker(stage, "audit")
                for words in (*login(rng), ["GET", f"{OWN}s"]):
                    one.ask(*words)
                if rng.random() < 0.8:
                    one.close()
                else:
                    open_ones.callback(one.close)
            work = honest(rng)
            before = len(stage.direct.client_list())
            for _ in range(60):
                one = attacker(stage, "web")
                open_ones.callback(one.close)
                for words in work:
                    one.ask(*words)
            assert settled(stage, lambda: len(stage.direct.client_list()), before + 8) <= before + 8


def login(rng: random.Random) -> list[list[str]]:
    """Returns a login that no client has used, and other settings that make connections differ."""
    user, password = "default", str(rng.random())
    words = [["AUTH", user, password], ["HELLO", rng.choice("23"), "AUTH", user, password]]
    more = [["SELECT", "2"], ["CLIENT", "SETNAME", password], ["HELLO", "3"], ["AUTH", password]]
    return [rng.choice(words), *rng.choices(more, k=rng.choice([0, 0, 1]))]


def honest(rng: random.Random) -> list[list[str]]:
    """Returns the handshake and the work of many equal clients."""
    said = [["AUTH", "web", "web-password"]] if rng.random() < 0.5 else []
    said += [["SELECT", "2"]] if rng.random() < 0.5 else []
    return [*said, ["GET", "hunt:web:s"], ["GET", "hunt:web:s"]]
