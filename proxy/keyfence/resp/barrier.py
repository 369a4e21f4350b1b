"""Barriers: requests with a random number, whose replies prove that replies are in step with requests.

Rule: only the reply that holds the barrier's random number passes the barrier. If a client's text has split
an earlier reply in two, another frame arrives in the barrier's place. On a dedicated connection the number
must also appear nowhere else (`Sightings`).

Redis answers each of the three forms only in some states, so the sender chooses:

- `ECHO n` costs least. Redis refuses it if an ACL forbids it, while a script runs too long (BUSY), and while
  it loads its data.
- `HELLO 2 n` is a syntax error that quotes `n` and changes nothing (`networking.c`, helloCommand reads all
  options before it acts). No ACL can forbid it, and Redis answers it before AUTH too. Redis counts it as an
  error in its statistics.
- `PING n` is the only form that a subscribed RESP2 client may send.
"""

from __future__ import annotations

import secrets
from enum import Enum
from typing import NamedTuple

from .encode import command

# A longer reply cannot be the reply to a barrier.
LONGEST_REPLY = 512


class Form(Enum):
    """The request that a barrier sends, without its number."""

    ECHO = (b"ECHO",)
    HELLO = (b"HELLO", b"2")
    PING = (b"PING",)


NONCE_SIZE = 32  # in hexadecimal digits


class Barrier(NamedTuple):
    """One request, and the number that its reply must hold."""

    form: Form
    nonce: bytes

    @classmethod
    def draw(cls, form: Form) -> Barrier:
        """Return a barrier with a new random number."""
        return cls(form, secrets.token_hex(NONCE_SIZE // 2).encode())

    @property
    def request(self) -> bytes:
        return command(*self.form.value, self.nonce)

    def is_passed(self, reply: bytes) -> bool:
        """Whether `reply` is the reply to this barrier."""
        number = b"$%d\r\n%b\r\n" % (NONCE_SIZE, self.nonce)
        if self.form is Form.ECHO:
            return reply == number
        if self.form is Form.HELLO:
            return reply.startswith(b"-") and self.nonce in reply
        return reply in (b"*2\r\n$4\r\npong\r\n" + number, number)

    def is_undecided(self, reply: bytes) -> bool:
        """Whether an ECHO was refused, or some text only looks like a refusal. Another form has to decide."""
        return self.form is Form.ECHO and reply.startswith(b"-")


class Sightings:
    """Counts how often a barrier's number has come in, in any frame, since the barrier was sent.

    The client's text can turn the real reply into a part of another frame, such as a push. A client that sees
    the number there can forge a reply to the barrier in a later push. Then the number comes in twice.
    """

    def __init__(self, nonce: bytes) -> None:
        self.count = 0
        self._nonce = nonce
        self._end = b""  # the last bytes received, which may hold the beginning of the number

    def feed(self, data: bytes) -> None:
        data = self._end + data
        self.count += data.count(self._nonce)
        self._end = data[-(NONCE_SIZE - 1) :]
