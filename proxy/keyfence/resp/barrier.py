"""Proof that replies are in step with requests: a request whose reply nobody can foresee.

Rule: a barrier is passed by one reply only, which holds a number that was drawn when the barrier was sent. If
a client's text has split an earlier reply in two, another frame stands in the barrier's place. On a client's
own connection the number may come in nothing else, either (`Sightings`).

Redis answers each of the three forms in some states only, so who sends one chooses:

- `ECHO n` costs least, but is refused by an ACL, while a script runs too long (BUSY) or while Redis loads.
- `HELLO 2 n` is a syntax error that quotes `n` and changes nothing (`networking.c`, helloCommand: the options
  are read before anything is done). No ACL can forbid it, and it is answered before AUTH, too. It counts as
  an error in Redis' own statistics.
- `PING n` is the only one that a subscribed client of RESP2 may send.
"""

from __future__ import annotations

import secrets
from enum import Enum
from typing import NamedTuple

from .encode import command

# No reply to a barrier is longer; what is longer can't be one.
LONGEST_REPLY = 512


class Form(Enum):
    """Which request is sent."""

    ECHO = (b"ECHO",)
    HELLO = (b"HELLO", b"2")
    PING = (b"PING",)


NONCE_SIZE = 32  # in hexadecimal digits


class Barrier(NamedTuple):
    """One request, and what must come back."""

    form: Form
    nonce: bytes

    @classmethod
    def draw(cls, form: Form) -> Barrier:
        """A barrier with a number of its own."""
        return cls(form, secrets.token_hex(NONCE_SIZE // 2).encode())

    @property
    def request(self) -> bytes:
        return command(*self.form.value, self.nonce)

    def is_passed(self, reply: bytes) -> bool:
        """Whether this is the reply to it, and not to something else."""
        number = b"$%d\r\n%b\r\n" % (NONCE_SIZE, self.nonce)
        if self.form is Form.ECHO:
            return reply == number
        if self.form is Form.HELLO:
            return reply.startswith(b"-") and self.nonce in reply
        return reply in (b"*2\r\n$4\r\npong\r\n" + number, number)

    def is_open(self, reply: bytes) -> bool:
        """Whether an ECHO was refused, or somebody's text looks so: only another form can tell."""
        return self.form is Form.ECHO and reply.startswith(b"-")


class Sightings:
    """How often a barrier's number has come in, in whatever frame, since the barrier was sent.

    The client's text may have the real reply pass as a part of something else, a push for example. Who sees
    it there knows the number, and may have a later push hold a reply to the barrier. Then the number comes
    twice.
    """

    def __init__(self, nonce: bytes) -> None:
        self.count = 0
        self._nonce = nonce
        self._end = b""  # of what came, where the number may begin

    def feed(self, data: bytes) -> None:
        data = self._end + data
        self.count += data.count(self._nonce)
        self._end = data[-(NONCE_SIZE - 1) :]
