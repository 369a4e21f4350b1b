"""keyfence never takes a client for another user than Redis does, whatever the client does to its replies.

A model of Redis is behind a session. Its EVAL answers with the frames in the client's text, which is more
than any known server allows. It also sends pushes whose text the client chooses after seeing everything
before. The search mixes these with all commands that change the user, the database or the protocol, in random
packets, and compares the session's belief with the model's state.
"""

from __future__ import annotations

import random
import re

import pytest

from keyfence.policy.enforcement.modes import ModeRule
from tests.adversary.conftest import Search
from tests.session.fake_redis import PASSWORD, FakeRedis
from tests.session.sessions import ROUTE, USERS, Session, cmd, passed, sent, session

HGET = cmd("HGET", ROUTE, "f")
FORGED = [
    b"+OK\r\n",
    b"+QUEUED\r\n",
    b"+RESET\r\n",
    b":1\r\n",
    b"$6\r\nmaster\r\n",
    b"$-1\r\n",
    b"*1\r\n+OK\r\n",
    b"*0\r\n",
    b"-ERR x\r\n",
    b"-NOPERM x\r\n",
    b"%1\r\n+proto\r\n:3\r\n",
    b"-EXECABORT x\r\n",
]


# Lengths of Redis' replies. A forged header of a bulk string can swallow some of them as its text.
BARRIER = len(b"-ERR Syntax error in HELLO option ''\r\n") + 32
WRONGPASS = len(b"-WRONGPASS invalid username-password pair or user is disabled.\r\n")
PUSH_HEAD = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$%d\r\n"
PUSHED = 300  # bytes of each push


def swallowing(rng: random.Random, *replies: int) -> bytes:
    """Returns the header of a bulk string that swallows replies of these lengths, or of others."""
    if not replies or rng.random() < 0.2:
        replies = tuple(rng.choices([5, 9, WRONGPASS], k=rng.randrange(1, 4)))
    return b"$%d\r\n" % (sum(replies) - 2)


def swallowed_transaction(rng: random.Random) -> bytes:
    """Returns a script's text that forges replies for queued commands and swallows the real ones."""
    known = [(cmd("SELECT", "0"), 5), (cmd("SELECT", "1"), 5), (cmd("AUTH", "master", "wrong"), WRONGPASS)]
    queued = rng.choices(known, k=rng.randrange(1, 4))
    forged = rng.choices(FORGED, k=len(queued))
    forged.append(swallowing(rng, *(length for _, length in queued)))
    parts = [cmd("MULTI"), script(b"".join(forged)), *(request for request, _ in queued), cmd("EXEC")]
    if rng.random() < 0.5:  # outside MULTI, so that it also forges the replies to MULTI and EXEC
        forged[:0] = [b"-ERR x\r\n", b"+OK\r\n", *[b"+QUEUED\r\n"] * len(queued)]
        forged[-1] = swallowing(rng)
        parts[:2] = [script(b"".join(forged)), cmd("MULTI")]
    return b"".join(parts)


def swallowed_barrier(rng: random.Random) -> bytes:
    """Returns a script's text that makes the reply to a barrier end within a push."""
    within = swallowing(rng, BARRIER, len(PUSH_HEAD % PUSHED) + 3)
    frames = rng.choice(FORGED) + rng.choice([b">2\r\n+a\r\n", b"*2\r\n+a\r\n", b""]) + within
    return script(frames) + cmd("AUTH", "master", "wrong")


def push(rng: random.Random, nonce: bytes) -> bytes:
    """Returns a push with the client's text; `nonce` is a barrier's number that the client has seen."""
    head = PUSH_HEAD % PUSHED
    if (
        not nonce or rng.random() < 0.2
    ):  # the rest belongs to another push, as does the beginning of the next one
        text = b"x\r\n>2\r\n+a\r\n$%d\r\n" % (PUSHED - 17 + len(b"\r\n") + len(head) + 1)
    else:
        frames = [b"+OK\r\n", b"$6\r\nmaster\r\n"] if rng.random() < 0.5 else rng.choices(FORGED, k=2)
        text = b"x\r\n-ERR %b\r\n%b$9999\r\n" % (nonce, b"".join(frames))
    return head + text.ljust(PUSHED, b"x") + b"\r\n"


class ShapedRedis(FakeRedis):
    """A model that answers EVAL with the script's raw text, and has databases."""

    def __init__(self) -> None:
        super().__init__()
        self.database = 0
        self.seen: list[tuple[bytes, int]] = []  # user and database of each HGET that ran outside MULTI

    def _run(self, words: tuple[bytes, ...]) -> bytes:
        name = words[0].upper()
        if name == b"EVAL":
            return words[1]
        if name == b"SELECT":
            self.database = int(words[1])
            return b"+OK\r\n"
        if name == b"ACL":
            return b"$%d\r\n%b\r\n" % (len(self.user), self.user)
        if name == b"HGET":
            self.seen.append((self.user, self.database))
        return super()._run(words)

    def _answer(self, words: tuple[bytes, ...]) -> bytes:
        if words[0].upper() == b"RESET":
            self.database = 0
        return super()._answer(words)


def script(frames: bytes) -> bytes:
    return cmd("EVAL", frames, "1", ROUTE)


def step(rng: random.Random) -> bytes:
    """Returns one random request."""
    wrong = [cmd("AUTH", "master", "wrong"), cmd("HELLO", "3", "AUTH", "master", "wrong")]
    right = [cmd("AUTH", "proxy", PASSWORD), cmd("HELLO", "2", "AUTH", "proxy", PASSWORD), cmd("RESET")]
    state = [cmd("MULTI"), cmd("EXEC"), cmd("DISCARD"), cmd("SELECT", rng.choice("01")), cmd("WATCH", ROUTE)]
    state += [cmd("UNWATCH"), cmd("HELLO", rng.choice("23")), cmd("CLIENT", "SETNAME", "x")]
    shaped = script(b"".join(rng.choices(FORGED, k=rng.randrange(1, 4))))
    tricks = [shaped, shaped, shaped, swallowed_transaction(rng), swallowed_barrier(rng)]
    return rng.choice([HGET, HGET, *tricks, *wrong, *wrong, rng.choice(right), *state])


class Play:
    """A session with the model behind it."""

    def __init__(self) -> None:
        # Only commands that would make the session unreadable are refused, so that the session follows
        # everything.
        rules = [ModeRule("enforce", "session.opaque"), ModeRule("observe")]
        self.session: Session = session("CubeProxy", rules=rules)
        self.redis = ShapedRedis()
        self.nonce = b""  # of a barrier, once the client has seen it

    def send(self, packet: bytes, rng: random.Random) -> None:
        """Sends a packet from the client, and plays all its effects."""
        self.session.from_client(packet)
        while not self.session.closing:
            request = passed(self.session)
            if not request:
                if not self._is_pushed_to(rng):
                    break
                continue
            believed = self.session.service, self.session.profile.database
            before = len(self.redis.seen)
            replies = b"".join(self.redis.feed(request))
            if self.session.transaction is None and b"EXEC" not in request:
                for user, database in self.redis.seen[before:]:
                    assert (service_of(user), database) == believed
            cut = rng.randrange(len(replies) + 1)
            self.session.from_upstream(replies[:cut])
            if not self.session.closing and cut < len(replies):
                self.session.from_upstream(replies[cut:])
        sent(self.session)

    def _is_pushed_to(self, rng: random.Random) -> bool:
        """Sends a push at a moment when nothing else happens, perhaps. Returns whether it did."""
        heard = re.findall(rb"option '([0-9a-f]{32})'", sent(self.session))
        self.nonce = heard[-1] if heard else self.nonce
        if rng.random() < 0.5:
            return False
        self.session.from_upstream(push(rng, self.nonce))
        return True


def service_of(user: bytes) -> str:
    return USERS.get(user.decode(), "CubeProxy")


def test_a_session_never_believes_in_a_user_that_redis_denies(search: Search) -> None:
    for rng in search.attempts_of_at_least(300):
        play = Play()
        for _ in range(rng.randrange(1, 6)):
            play.send(b"".join(step(rng) for _ in range(rng.randrange(1, 8))), rng)
            if play.session.closing:
                break


@pytest.mark.parametrize("login", ["AUTH master wrong", "HELLO 3 AUTH master wrong"])
def test_a_script_s_own_ok_is_not_a_login(login: str) -> None:
    play = Play()
    packet = cmd(f"WATCH {ROUTE.decode()}") + script(b"-ERR x\r\n+OK\r\n") + cmd(login) + HGET
    play.send(packet, random.Random(1))
    assert play.session.service == "CubeProxy"
    assert play.session.closing.startswith("identity")
    assert play.redis.seen == []


def test_a_login_after_an_honest_script_is_believed() -> None:
    play = Play()
    play.send(script(b"-ERR x\r\n") + cmd("AUTH", "master", PASSWORD) + HGET, random.Random(1))
    assert not play.session.closing
    assert play.session.service == "CubeMaster"
    assert play.redis.seen == [(b"master", 0)]


def test_a_script_s_reply_within_exec_changes_no_user() -> None:
    play = Play()
    queued = cmd("MULTI") + script(b"-ERR x\r\n+OK\r\n") + cmd("AUTH", "master", "wrong") + cmd("EXEC")
    play.send(queued + HGET, random.Random(1))
    assert play.session.service == "CubeProxy"
    assert all(user == b"default" for user, _ in play.redis.seen)


def test_a_login_costs_no_barrier_if_the_client_begins_with_it() -> None:
    one = session("CubeProxy")
    one.from_client(cmd("AUTH", "master", PASSWORD) + HGET)
    assert passed(one) == cmd("AUTH", "master", PASSWORD)
    one.from_upstream(b"+OK\r\n")
    assert passed(one) == HGET
