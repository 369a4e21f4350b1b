"""Who gets which reply of a connection that many clients share, decided with bytes alone.

The search plays random schedules: clients pipeline requests, leave and come, before the connection is open
and later; the stream of replies is cut anywhere; Redis refuses barriers; hostile clients shape replies that
look like more or fewer than one; keyfence sends requests of its own in between. All replies to a client
consist of one byte, which no other client has. So a client that gets a byte of another shows it.

`make adversary` runs the search for longer, and `KEYFENCE_ADVERSARY_SECONDS=600 pytest` does so too.
"""

from __future__ import annotations

import random
import re

import pytest

from keyfence.resp.encode import command
from keyfence.resp.limits import IDENTIFIED
from keyfence.resp.replies import ErrorPart
from keyfence.resp.requests import RequestReader
from keyfence.upstream import exchange as exchange_module
from keyfence.upstream.exchange import Exchange, Share, Sharer
from keyfence.upstream.shared import OwnReply
from tests.adversary.conftest import Search
from tests.adversary.resp import Frames, is_push

FIRST_MARK = 0x80  # no byte of RESP, of a barrier or of a forged reply is as high
MOST_CLIENTS = 100
OWN_REPLIES = [b"+OK\xff\r\n", b"-WRONGPASS \xff\r\n", b"-READONLY \xff\r\n"]  # to keyfence's own requests
LEAST_ATTEMPTS = 300
PUSH = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\nkey\r\n"
FORGED = [  # what looks like a reply; each is one frame
    b"+OK\r\n",
    b"$8\r\nINJECTED\r\n",
    b"-NOPERM x\r\n",
    b"-BUSY x\r\n",
    b"-MOVED 1 127.0.0.1:1\r\n",
    b"-ERR Syntax error in HELLO option '0123456789abcdef0123456789abcdef'\r\n",
    b"$32\r\n0123456789abcdef0123456789abcdef\r\n",
    b"*2\r\n*0\r\n$-1\r\n",
    b"%1\r\n+a\r\n|1\r\n+b\r\n+c\r\n_\r\n",
    b"*1\r\n" * 300 + b":1\r\n",
]
UNFINISHED = [  # what takes bytes of the replies after it into its frame, or is no frame
    b"",
    b"+",
    b"-NOPERM ",
    b"$38\r\n",
    b"$80\r\n",
    b"$2000\r\n",
    b"*2\r\n",
    b"*100\r\n",
    b"%1\r\n",
    b"|1\r\n+a\r\n+b\r\n",
    b">2\r\n+a\r\n",
    b">1\r\n+a\r\n",
    b"?\r\n",
]


class Player(Sharer):
    """A client. It checks each byte that it gets."""

    def __init__(self, scene: Scene, number: int, *, is_hostile: bool) -> None:
        self.scene = scene
        self.mark = bytes([FIRST_MARK + number])
        self.is_hostile = is_hostile
        self.share = Share(self)
        self.due: list[bytes] = []  # a reply to each request; that to a shapeable one is not known
        self.got = bytearray()
        self.completed = 0
        self.lost = ""
        self.turn_is_due = False

    def send(self) -> None:
        """Sends some requests, in one piece or in several."""
        rng = self.scene.rng
        chunks, counts = [], []
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            count = rng.choice([1, 1, 2, 5, 200 if rng.random() < 0.05 else 1])
            replies = [self.reply() for _ in range(count)]
            chunks.append(b"".join(command(b"GET", reply) for reply in replies))
            counts.append(count)
            self.due += replies
        shapeable = rng.random() < (0.5 if self.is_hostile else 0.1)
        if shapeable:
            frames = self.scene.shaped() if self.is_hostile else self.reply()
            chunks.append(command(b"EVAL", frames))
            counts.append(1)
            self.due.append(frames)
        self.scene.exchange.send(self.share, chunks, counts, shapeable)

    def reply(self) -> bytes:
        """Returns a reply of the kinds that a client's text does not shape."""
        rng = self.scene.rng
        text = self.mark * rng.choice([0, 1, 2, 3, 4, 5, rng.randrange(2000)])
        bulk = b"$%d\r\n%b\r\n" % (len(text), text)
        if rng.random() < 0.7:
            return bulk
        short = text[:8]
        lines = [b"+%b\r\n", b"-ERR %b\r\n", b"-MOVED 1 %b\r\n", b"-READONLY %b\r\n"]
        return rng.choice([rng.choice(lines) % short, b"*3\r\n:1\r\n*0\r\n" + bulk, b"$-1\r\n", b":1\r\n"])

    def leave(self) -> None:
        """The client goes, with the replies that are due to it."""
        self.share.sharer = None

    @property
    def awaits(self) -> bool:
        """Whether replies are due, as the client sees it."""
        return self.completed < len(self.due)

    def shared_replies(self, link: Share, data: bytes, completed: int, whole: bool) -> None:
        assert link is self.share
        assert not self.lost
        assert self.share.sharer is self
        assert data
        self.got += data
        self.completed += completed
        if not self.is_hostile:  # a reply that is held is still due: the client must not leave the connection
            assert self.share.awaited == len(self.due) - self.completed
        self.turn_is_due = True
        self.check()
        if whole and not self.is_hostile:
            assert len(self.got) == sum(map(len, self.due[: self.completed]))
        if self.scene.rng.random() < 0.01:
            self.leave()

    def check(self) -> None:
        """Checks that nothing belongs to another client, or to a barrier."""
        foreign = bytes(self.got).translate(None, self.mark)
        assert max(foreign, default=0) < FIRST_MARK, "a byte of another client"
        assert not any(nonce in self.got for nonce in self.scene.nonces), "a barrier's number"
        if not self.is_hostile:
            assert b"".join(self.due).startswith(self.got)

    def shared_errors(self, link: Share, data: bytes, errors: list[ErrorPart], at: int) -> bytes:
        assert link is self.share
        for error in errors:
            assert 0 <= error.begin - at <= error.end - at <= len(data)
        return data

    def shared_turn(self, link: Share) -> None:
        assert link is self.share
        assert self.turn_is_due
        self.turn_is_due = False
        if not self.lost and self.scene.rng.random() < 0.2:
            self.send()

    def shared_lost(self, link: Share, reason: str) -> None:
        assert link is self.share
        assert not self.lost, "told twice"
        assert self.awaits
        self.lost = reason
        self.leave()


class Scene:
    """Clients, an exchange, and a model of Redis that sends what the requests ask for."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.exchange = Exchange(lambda _kind: None, lambda _word: None)
        self.players: list[Player] = []
        self.nonces: list[bytes] = []
        self.is_shifted = False  # whether a reply was sent that is not exactly one
        self.is_unproven = False  # whether an ECHO was refused that followed a reply that may be shaped
        self.doubt = ""
        self.own_asked: list[bytes] = []  # the replies that keyfence's own requests will get …
        self.own_replies: list[bytes] = []  # … and have got
        self._reader = RequestReader(IDENTIFIED)
        self._stream = b""  # sent by Redis, not yet received
        self._refuses_echo = rng.random() < 0.3
        self._is_attacked = rng.random() < 0.7
        for _ in range(rng.randrange(2, 6)):
            self.join()

    def join(self) -> None:
        number = len(self.players)
        is_hostile = self._is_attacked and (number == 0 or self.rng.random() < 0.2)
        self.players.append(Player(self, number, is_hostile=is_hostile))

    @property
    def present(self) -> list[Player]:
        return [player for player in self.players if player.share.sharer is not None]

    def shaped(self) -> bytes:
        """Returns what a hostile client's text makes of a reply."""
        frames = self.rng.choices(FORGED, k=self.rng.choice([0, 1, 1, 1, 2, 3]))
        if self.rng.random() < 0.3:
            frames.append(self.rng.choice(UNFINISHED))
        return b"".join(frames)

    # -- Redis

    def take_output(self) -> None:
        """Redis gets what is to be written, and replies."""
        written, self.exchange.output = self.exchange.output, []
        self._reader.feed(b"".join(written))
        last = b""
        while argv := self._reader.next():
            if self.rng.random() < 0.03:
                self._stream += PUSH
            self._stream += self._answer(argv, last)
            last = argv[0]

    def _answer(self, argv: list[bytes], last: bytes) -> bytes:
        if argv[0] == b"ECHO":
            self.nonces.append(argv[1])
            refused = self._refuses_echo or self.rng.random() < 0.1
            self.is_unproven = self.is_unproven or (refused and last == b"EVAL")
            return b"-BUSY x\r\n" if refused else b"$%d\r\n%b\r\n" % (len(argv[1]), argv[1])
        if argv[0] == b"HELLO":
            self.nonces.append(argv[2])
            return b"-ERR Syntax error in HELLO option '%b'\r\n" % argv[2]
        if argv[0] == b"EVAL":
            self.is_shifted = self.is_shifted or not is_one_reply(argv[1])
        return argv[1]

    # -- the schedule

    def before_it_is_open(self) -> None:
        """Clients send and go in an outage. What those have sent is not written."""
        gone = set()
        for _ in range(self.rng.randrange(4)):
            self.rng.choice(self.present).send()
            if self.rng.random() < 0.2 and len(self.present) > 1:
                player = self.rng.choice(self.present)
                player.leave()
                if player.share.awaited and self.rng.random() < 0.7:
                    self.exchange.withdraw(player.share)
                    gone.add(player.mark)
        self.exchange.open()
        written = b"".join(self.exchange.output)
        assert not any(mark in written for mark in gone)

    def ask(self) -> None:
        """keyfence sends a request of its own between those of the clients."""
        reply = self.rng.choice(OWN_REPLIES)
        self.own_asked.append(reply)
        own = Share(OwnReply(self.own_replies.append))
        self.exchange.send(own, [command(b"AUTH", reply)], [1], False)

    def step(self) -> None:
        kind = self.rng.random()
        if kind < 0.05:
            self.ask()
        elif kind < 0.5:
            self.rng.choice(self.present).send()
        elif kind < 0.6:
            self.exchange.prove()
        elif kind < 0.65 and len(self.players) < MOST_CLIENTS:
            self.join()
        elif kind < 0.7 and len(self.present) > 1:
            self.rng.choice(self.present).leave()
        elif kind < 0.85:
            self.take_output()
        else:
            self.receive(self.rng.randrange(len(self._stream) + 1))

    def receive(self, size: int) -> None:
        """Hands on that many bytes, in pieces of any size."""
        data, self._stream = self._stream[:size], self._stream[size:]
        at = 0
        while at < len(data) and not self.doubt:
            end = at + self.rng.choice([1, 2, 7, 40, 1000, len(data)])
            self.doubt = self.exchange.receive(data[at:end])
            if self.doubt:
                self.fail()
            self.exchange.end_turn()
            at = end
        if not self.present:
            self.join()

    def fail(self) -> None:
        """The order is in doubt: exactly those clients that wait are told."""
        waiting = [player for player in self.present if player.awaits]
        told = [share for share in self.exchange.fail() if isinstance(share.sharer, Player)]
        assert {id(share) for share in told} == {id(player.share) for player in waiting}
        assert len(told) == len(waiting)
        for player in waiting:
            player.shared_lost(player.share, self.doubt)

    def finish(self) -> None:
        """Everything that was sent is answered."""
        for _ in range(1000):
            self.take_output()
            if self.doubt or not self._stream:
                break
            self.receive(len(self._stream))

    def check(self) -> None:
        """Checks what came of it: with an attack, nothing worse than an end; without one, all replies."""
        for player in self.players:
            player.check()
        if not self.is_shifted:
            assert bool(self.doubt) is self.is_unproven
            assert self.doubt or self.exchange.due is None
        if not self.doubt and self.exchange.due is None:
            assert not any(player.awaits for player in self.present)
            honest = [player for player in self.present if not player.is_hostile]
            assert all(bytes(player.got) == b"".join(player.due) for player in honest)
            assert len(self.own_replies) == len(self.own_asked)
        if not self.is_shifted:
            assert self.own_asked[: len(self.own_replies)] == self.own_replies


def is_one_reply(data: bytes) -> bool:
    """Whether this is one reply, and pushes at most."""
    frames = Frames()
    found = [frame for frame in frames.feed(data) if not is_push(frame)]
    return len(found) == 1 and not frames.rest and frames.broken is None


def play(rng: random.Random) -> Scene:
    """Makes one attempt."""
    scene = Scene(rng)
    scene.before_it_is_open()
    for _ in range(rng.choice([5, 20, 60])):
        scene.step()
        if scene.doubt:
            break
    scene.finish()
    scene.check()
    return scene


def test_no_client_gets_a_byte_of_another_s_reply_whatever_the_schedule(search: Search) -> None:
    ended = shifted = answered = 0
    for rng in search.attempts_of_at_least(LEAST_ATTEMPTS):
        scene = play(rng)
        ended += bool(scene.doubt)
        shifted += scene.is_shifted
        answered += sum(player.completed for player in scene.players)
    # Both happened: attacks that ended the connection, and replies that reached their clients.
    assert ended
    assert shifted < search.attempts + 1
    assert answered


def test_with_too_many_held_replies_only_the_client_with_most_of_them_is_told(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange_module, "MAX_KEPT", 300)
    lost = 0
    for rng in search.attempts_of_at_least(LEAST_ATTEMPTS):
        scene = play(rng)
        lost += sum("too large" in player.lost for player in scene.players)
    assert lost


# -- single schedules


class Recorder(Sharer):
    """A client that records what it gets."""

    def __init__(self) -> None:
        self.got = b""

    def shared_replies(self, _link: Share, data: bytes, _completed: int, _whole: bool) -> None:
        self.got += data

    def shared_turn(self, _link: Share) -> None:
        """Nothing is deferred to the end of the turn."""


def opened() -> tuple[Exchange, list[Share], list[Recorder]]:
    """An exchange with two clients, on which Redis has answered an ECHO."""
    exchange, clients = Exchange(lambda _kind: None, lambda _word: None), [Recorder(), Recorder()]
    shares = [Share(client) for client in clients]
    exchange.open()
    exchange.send(shares[0], [b"get"], [1], False)
    exchange.prove()
    assert exchange.receive(b"+OK\r\n" + echoes(exchange)[0]) == ""
    clients[0].got = b""
    return exchange, shares, clients


def echoes(exchange: Exchange) -> list[bytes]:
    """Redis' replies to the barriers that have to be written."""
    written, exchange.output = b"".join(exchange.output), []
    return [b"$32\r\n%b\r\n" % nonce for nonce in re.findall(rb"ECHO\r\n\$32\r\n(\w{32})", written)]


def test_a_client_that_makes_up_for_a_swallowed_barrier_gets_no_reply_of_another() -> None:
    """Its first text takes the barrier in, its error stands in the barrier's place, and its second text has a
    frame too many, so that the second barrier is in step again."""
    exchange, (attacker, victim), clients = opened()
    exchange.send(attacker, [b"eval"], [1], True)
    exchange.send(attacker, [b"get"], [1], False)
    exchange.send(victim, [b"get"], [1], False)
    exchange.send(attacker, [b"eval"], [1], True)
    first, second = echoes(exchange)
    swallowed = b"$%d\r\n" % (len(first) - 2) + first
    doubt = exchange.receive(swallowed + b"-WRONGTYPE x\r\n$6\r\nsecret\r\n:1\r\n:2\r\n" + second)
    assert "out of step" in doubt
    assert [client.got for client in clients] == [b"", b""]
    assert exchange.fail() == [attacker, victim]


def test_what_was_withdrawn_before_the_connection_is_open_is_not_written() -> None:
    exchange = Exchange(lambda _kind: None, lambda _word: None)
    shares = [Share(Recorder()), Share(Recorder())]
    exchange.send(shares[0], [b"<a>", b"<b>"], [1, 1], False)
    exchange.send(shares[1], [b"<c>"], [1], False)
    assert exchange.held == 9
    exchange.withdraw(shares[0])
    exchange.open()
    assert exchange.output == [b"<c>"]
    assert exchange.fail() == [shares[1]]


def test_an_error_for_a_client_that_has_gone_still_tells_of_the_connection() -> None:
    """Its commands were written after it had gone, to a primary that has become a replica meanwhile."""
    told: list[str] = []
    exchange, share = Exchange(lambda _kind: None, told.append), Share(Recorder())
    exchange.open()
    exchange.send(share, [b"set", b"set"], [1, 1], False)
    share.sharer = None
    assert exchange.receive(b"-READ") == exchange.receive(b"ONLY You can't write\r\n+OK\r\n") == ""
    assert told == ["READONLY"]
