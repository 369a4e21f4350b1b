"""Clients share connections to Redis; an attack by one of them affects no other.

A neighbour is a victim if it gets a byte of another client, gets an error, or loses its connection.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.adversary.calls import PLANTED, WORDS, Argv, mutated, noise, shareable_calls
from tests.adversary.conftest import Search
from tests.adversary.resp import requests
from tests.adversary.stage import Attacker, Ended, Stage, Victim, attacker

ATTACKERS = ("audit", "lax", "ops")  # one under enforcement, one observed, one with a grant for everything
FRAMES = (
    b"+OK",
    b":1",
    b"$8\\r\\nINJECTED",
    b"*2\\r\\n:1\\r\\n:2",
    b"-NOPERM",
    b"%1\\r\\n+a\\r\\n+b",
    b"_",
    b"*0",
)
KEYS = {call[1] for call in PLANTED} | {b"d", b"r"}
CALLS = shareable_calls()
SCRIPTS = [call for call in CALLS if call[0].startswith((b"EVAL", b"FCALL", b"SCRIPT"))] or [
    [b"EVAL", b"return 1", b"1", b"s"]
]


def slow(own: bytes) -> Argv:
    """Returns a call that keeps Redis busy for milliseconds, so that neighbours ask after the attack."""
    return [b"EVAL", b"local n = 0 for i = 1, 300000 do n = n + i end return n", b"1", own + b"s"]


def shaped(frames: bytes, own: bytes) -> Argv:
    """Returns a call whose error, on Redis 7 and later, contains the option and so these frames."""
    return [b"EVAL", b'#!lua "x\\r\\n' + frames + b'"\nreturn 1', b"1", own + b"s"]


def nested(depth: int, own: bytes) -> Argv:
    text = b"local t = {} local r = t for i = 1, %d do local u = {} t[1] = u t = u end return r"
    return [b"EVAL", text % depth, b"1", own + b"s"]


def redirected(to: int, own: bytes) -> list[Argv]:
    """Returns calls that redirect the invalidations of the attacker's own keys to another connection's id."""
    on = [b"CLIENT", b"TRACKING", b"ON", b"REDIRECT", b"%d" % to, b"BCAST", b"PREFIX", own]
    return [[b"CLIENT", b"TRACKING", b"OFF"], on, [b"SET", own + b"s", b"1"]]


@pytest.fixture
def victims(stage: Stage) -> Iterator[list[Victim]]:
    """Two victims in each protocol, on connections shared with the attacker."""
    with neighbours(stage) as found:
        yield found


@contextlib.contextmanager
def neighbours(stage: Stage) -> Iterator[list[Victim]]:
    found = [Victim(stage, f"v{number}", 2 + number % 2) for number in range(4)]
    try:
        for one in found:
            one.send()
            one.check()
        yield found
    finally:
        for one in found:
            one.close()


def attack(stage: Stage, victims: list[Victim], one: Attacker, pieces: list[bytes], *, late: bool) -> None:
    """Plays the attack while the victims ask, and lets them ask once more afterwards.

    With `late`, keyfence holds the whole attack before Redis sees any of it, so the victims' replies come
    after it.
    """
    with contextlib.ExitStack() as then:
        if late:
            stage.server.pause()
            then.callback(stage.server.resume)
        one.play(pieces)
        if late:
            time.sleep(0.005)
        for victim in victims:
            victim.send()
        if late:
            time.sleep(0.005)
    one.drain(0.005)
    for victim in victims:
        victim.send()
        victim.check()


def attack_once(stage: Stage, victims: list[Victim], service: str, resp: int, calls: list[Argv]) -> None:
    with contextlib.closing(attacker(stage, service)) as one:
        one.ask("HELLO", resp)
        one.ask("SET", f"hunt:{service}:s", "1")  # on a connection that is shared
        attack(stage, victims, one, [requests(calls)], late=True)


@pytest.mark.parametrize("service", ATTACKERS)
@pytest.mark.parametrize("resp", [2, 3])
def test_frames_within_an_error_reach_no_neighbour(
    stage: Stage, victims: list[Victim], service: str, resp: int
) -> None:
    own = f"hunt:{service}:".encode()
    for frames in (b"$8\\r\\nINJECTED", b"+OK\\r\\n:1", b"x\\r\\n"):
        call = shaped(frames, own)
        attack_once(stage, victims, service, resp, [call])
        attack_once(stage, victims, service, resp, [[b"SCRIPT", b"LOAD", call[1]]])
        attack_once(stage, victims, service, resp, [[b"MULTI"], call, [b"EXEC"]])


@pytest.mark.parametrize("service", ATTACKERS)
def test_a_second_reply_to_one_command_reaches_no_neighbour(
    stage: Stage, victims: list[Victim], service: str
) -> None:
    """Since Redis 8.4, a SET with GET and a malformed digest has two replies."""
    call = [b"SET", b"hunt:%b:s" % service.encode(), b"v", b"IFDEQ", b"zz", b"GET"]
    for calls in ([call], [[b"MULTI"], call, [b"EXEC"]], [call, [b"GET", call[1]]] * 9):
        attack_once(stage, victims, service, 2, calls)


@pytest.mark.parametrize("service", ATTACKERS)
def test_a_deeply_nested_reply_ends_no_neighbour_s_connection(
    stage: Stage, victims: list[Victim], service: str
) -> None:
    for depth in (127, 128, 129, 200, 7900):
        attack_once(stage, victims, service, 2, [nested(depth, f"hunt:{service}:".encode())])


@pytest.mark.parametrize("service", ATTACKERS)
def test_redirected_tracking_ends_no_neighbour_s_connection(
    stage: Stage, victims: list[Victim], service: str
) -> None:
    """Ids of Redis' connections are small and consecutive, so an attacker can guess them.

    A push to a victim's own id belongs to the victim, as without keyfence, if the attacker is not held to its
    own connections (tests/test_tracking.py).
    """
    own = {victim.connection_id for victim in victims}
    for client in stage.direct.client_list():
        if int(client["id"]) in own:
            continue
        attack_once(stage, victims, service, 2, redirected(int(client["id"]), f"hunt:{service}:".encode()))


# -- at random


class Repertoire:
    """The attacker's possible next steps. Each trick returns requests."""

    def __init__(self, rng: random.Random, one: Attacker, service: str, victims: list[Victim]) -> None:
        self.rng = rng
        self.spared = {
            victim.connection_id for victim in victims
        }  # a push to one of these belongs to the victim
        self.one = one
        self.own = f"hunt:{service}:".encode()
        self.tricks: list[Callable[[], list[Argv]]] = [
            self.plant,
            self.slow,
            self.shaped,
            self.shaped,
            self.scripted,
            self.scripted,
            self.nested,
            self.large,
            self.mutated,
            self.transaction,
            self.redirected,
            self.settings,
        ]

    def pieces(self) -> list[bytes]:
        """Returns an attack: several tricks in a row, as one piece or in several."""
        calls = [call for _ in range(self.rng.randrange(1, 6)) for call in self.rng.choice(self.tricks)()]
        data = requests(calls)
        if self.rng.random() < 0.1:
            data += requests([self.mutated()[0]])[: -self.rng.randrange(1, 9)]  # a cut request
        places = sorted(self.rng.sample(range(len(data)), min(len(data), self.rng.choice([0, 0, 0, 1, 3]))))
        return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]

    def plant(self) -> list[Argv]:
        return [self._own(call) for call in PLANTED]

    def slow(self) -> list[Argv]:
        return [slow(self.own)]

    def shaped(self) -> list[Argv]:
        frames = b"\\r\\n".join(self.rng.choices(FRAMES, k=self.rng.randrange(1, 4)))
        call = shaped(frames, self.own)
        if self.rng.random() < 0.2:
            call = [b"SCRIPT", b"LOAD", call[1]]
        elif self.rng.random() < 0.1:
            call = [b"FUNCTION", b"LIST", b"x\r\n" + frames.replace(b"\\r\\n", b"\r\n")]
        elif self.rng.random() < 0.1:
            function = self.rng.choice([b"shape", b"table"])
            call = [b"FCALL", function, b"1", self.own + b"s", b"x\r\n" + frames]
        return [slow(self.own), call] if self.rng.random() < 0.5 else [call]

    def scripted(self) -> list[Argv]:
        call = self._own(mutated(self.rng, self.rng.choice(SCRIPTS)))
        if self.rng.random() < 0.5:  # with a key, so that keyfence admits it
            call = [b"EVAL", self.rng.choice([*WORDS[-26:], call[-1]]), b"1", self.own + b"s"]
        return [call]

    def nested(self) -> list[Argv]:
        return [nested(self.rng.choice([1, 9, 127, 128, 129, 200, 7000, 7900, 8100]), self.own)]

    def large(self) -> list[Argv]:
        size = self.rng.choice([1 << 10, 1 << 17, 1 << 22])
        text = b"return string.rep('x', %d)" % size
        return [[b"EVAL", text, b"1", self.own + b"s"]] * self.rng.randrange(1, 4)

    def mutated(self) -> list[Argv]:
        return [
            self._own(mutated(self.rng, self.rng.choice(CALLS))) for _ in range(self.rng.randrange(1, 20))
        ]

    def transaction(self) -> list[Argv]:
        trick = self.rng.choice([self.shaped, self.scripted, self.nested, self.mutated, self.settings])
        return [[b"MULTI"], *trick(), [self.rng.choice([b"EXEC", b"DISCARD", b"EXEC\0", b"MULTI"])]]

    def redirected(self) -> list[Argv]:
        try:
            reply = self.one.ask("CLIENT", "ID")
        except Ended:
            return []
        last = int(reply[1:]) if reply.startswith(b":") and reply[1:-2].isdigit() else 20
        numbers = set(range(1, last + 2)) - self.spared
        return redirected(self.rng.choice(sorted(numbers)), self.own)

    def settings(self) -> list[Argv]:
        choices = (
            [b"HELLO", b"3"],
            [b"HELLO", b"2"],
            [b"SELECT", b"2"],
            [b"SELECT", b"0"],
            [b"CLIENT", b"SETNAME", noise(self.rng)],
            [b"CLIENT", b"TRACKING", b"ON", b"BCAST"],
            [b"CLIENT", b"REPLY", self.rng.choice([b"ON", b"OFF", b"SKIP"])],
            [b"CLIENT", b"CACHING", b"YES"],
            [b"SUBSCRIBE", b"news"],
            [b"PUBLISH", b"news", b"x\r\n+z"],
            [b"WATCH", self.own + b"s"],
            [b"BLPOP", self.own + b"none", b"0.01"],
            [b"RESET"],
            [b"QUIT"],
            [b"AUTH", b"default", noise(self.rng)],
        )
        return [list(self.rng.choice(choices))]

    def _own(self, call: Argv) -> Argv:
        """Returns the call with the attacker's own keys, so that keyfence admits it."""
        return [self.own + word if word in KEYS else word for word in call]


def test_no_neighbour_notices_an_attack(stages: list[Stage], search: Search) -> None:
    with ExitStack() as open_ones:
        theirs = [(stage, open_ones.enter_context(neighbours(stage))) for stage in stages]
        for rng in search:
            stage, victims = rng.choice(theirs)
            service = rng.choice(ATTACKERS)
            with contextlib.closing(attacker(stage, service)) as one:
                if rng.random() < 0.5:
                    one.ask("HELLO", 3)
                if rng.random() < 0.3:
                    one.ask("AUTH", service, f"{service}-password")
                pieces = Repertoire(rng, one, service, victims).pieces()
                attack(stage, victims, one, pieces, late=rng.random() < 0.7)
