"""Searches for pipelines in which keyfence does not notice that a client may shape a reply.

The counterpart of test_neighbours without servers: it looks at the bytes for the shared connection directly.
"""

from __future__ import annotations

import random

from keyfence.session.conversation.routing import STAY
from tests.adversary.conftest import Search
from tests.session.sessions import ADMITTED, Session, cmd, replies, sent, session
from tests.session.test_doubts import OTHER, SHARED, sharing_scripts

BARRIER = b"*3\r\n$5\r\nHELLO\r\n$1\r\n2\r\n$32\r\n"
PIECES = [ADMITTED, SHARED, OTHER, cmd("PING"), cmd("MULTI"), cmd("EXEC"), cmd("BLPOP q 0"), cmd("AUTH u p")]
PIECES += [cmd("CLIENT ID"), cmd("SELECT 1"), cmd("MULTI") + SHARED + cmd("EXEC"), cmd("WATCH k")]


class Flushed:
    """Acts as the owner of a session, and checks the session after each step."""

    def __init__(self, one: Session) -> None:
        self.one = one
        self.in_doubt = False  # a shapeable reply is possible on the current dedicated connection
        self.in_multi = False  # a barrier cannot be sent inside MULTI

    def flush(self) -> list[bytes]:
        """Takes the bytes for the upstream. Returns them as requests."""
        one = self.one
        if one.reopen:
            one.reopen = False
            self.in_doubt = self.in_multi = False
        data = b"".join(one.to_upstream)
        one.to_upstream.clear()
        one.counts.clear()
        if one.is_opaque:
            return []  # the session believes no reply any more
        if one.route.is_shared:
            assert OTHER not in data
            assert SHARED not in data or one.shapeable
            one.shapeable = False
        else:
            assert not one.shapeable
            for request in replies(data):
                if request.startswith(BARRIER):
                    self.in_doubt = False
                elif request in (SHARED, OTHER):
                    self.in_doubt = True
                elif request in (cmd("MULTI"), cmd("EXEC")):
                    self.in_multi = request == cmd("MULTI")
                elif request in (cmd("AUTH u p"), cmd("SELECT 1")):
                    assert not self.in_doubt or self.in_multi
        return replies(data)


def answer(request: bytes) -> bytes:
    if request.startswith(BARRIER):
        return b"-ERR Syntax error in HELLO option '%b'\r\n" % request[len(BARRIER) : len(BARRIER) + 32]
    return b":1\r\n" if request != cmd("AUTH u p") else b"-WRONGPASS\r\n"


def attempt(rng: random.Random) -> None:
    now = [0.0]
    one = session(in_force=sharing_scripts(), sharing=True, clock=lambda: now[0])
    flushed = Flushed(one)
    due: list[bytes] = []
    for _ in range(rng.randrange(1, 12)):
        if rng.random() < 0.3:
            now[0] += STAY + 1
        one.from_client(b"".join(rng.choices(PIECES, k=rng.randrange(1, 4))))
        due += flushed.flush()
        while due and not one.closing and rng.random() < 0.9:
            reply = answer(due.pop(0))
            if one.route.is_shared:
                one.from_shared(reply, 1, True)
            else:
                one.from_upstream(reply)
            due += flushed.flush()
        sent(one)
        if one.closing:
            return


def test_the_session_knows_every_reply_that_a_client_may_shape(search: Search) -> None:
    for rng in search.attempts_of_at_least(50):
        attempt(rng)
