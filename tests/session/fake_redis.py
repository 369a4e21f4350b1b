"""A small model of Redis: each of its replies shows which command it answers.

It knows what the relay must know of: MULTI, AUTH, HELLO, RESET, QUIT, MONITOR (but for the lines that it
shows), CLIENT REPLY, subscriptions (without messages), and that a wrong arity spoils a transaction. What it
answers otherwise is made from the command and a serial number, in all shapes that RESP has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from keyfence.resp.limits import IDENTIFIED
from keyfence.resp.requests import RequestReader

PASSWORD = b"right"
# command → (whether it adds names, the kind of its names)
SUBSCRIPTIONS = {
    b"SUBSCRIBE": (True, b"channel"),
    b"UNSUBSCRIBE": (False, b"channel"),
    b"PSUBSCRIBE": (True, b"pattern"),
    b"PUNSUBSCRIBE": (False, b"pattern"),
}
OF_SUBSCRIBERS = {*SUBSCRIPTIONS, b"PING", b"RESET", b"QUIT"}  # what RESP2 admits of them


class FakeRedis:
    """Bytes in, replies out. `ran` has the commands that it carried out, `received` all that came."""

    def __init__(self) -> None:
        self.ran: list[tuple[bytes, ...]] = []
        self.received: list[tuple[bytes, ...]] = []
        self.user = b"default"
        self.version = 2
        self.closed = False
        self.monitors = False
        self.reply = b"ON"
        self.is_unread = False  # keyfence passes all bytes on
        self._subscribed: set[tuple[bytes, bytes]] = set()  # kind and name
        self._queue: list[tuple[bytes, ...]] | None = None
        self._spoilt = False
        self._reader = RequestReader(IDENTIFIED)

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes from keyfence, and return the replies that they make due."""
        self._reader.feed(data)
        due = []
        while not self.closed and (argv := self._reader.next()) is not None:
            if not argv:
                assert self.is_unread, "a request that gets no reply must not be forwarded"
                self.hears()
                continue
            due.append(self.answer(argv))
        return [reply for reply in due if reply]

    def answer(self, argv: Sequence[bytes]) -> bytes:
        """The reply to a command; none where CLIENT REPLY says so."""
        before, reply = self.reply, self._answer(tuple(argv))
        if self.reply == b"SKIP" and (before != b"SKIP" or argv[-1].upper() == b"SKIP"):
            return b""  # a second SKIP is about the request that follows it
        return reply if self.hears() else b""

    def hears(self) -> bool:
        """Whether the client gets the next answer."""
        before = self.reply
        if before == b"SKIP":
            self.reply = b"ON"
        return before == b"ON"

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing that came so far changes the fate of the next request, whoever sends it."""
        return (
            self._queue is None and self.reply == b"ON" and not self.monitors and not self._reader.pending()
        )

    def spoil(self) -> None:
        """A command was refused inside of a transaction."""
        self._answer((b"ECHO",))

    def _answer(self, words: tuple[bytes, ...]) -> bytes:
        name = words[0].upper()
        if self._subscribed and self.version == 2 and name == b"PING":  # a barrier too
            said = words[1] if len(words) > 1 else b""
            return b"*2\r\n$4\r\npong\r\n$%d\r\n%b\r\n" % (len(said), said)
        if self._subscribed and self.version == 2 and name not in OF_SUBSCRIBERS:
            self.received.append(words)
            return self._reject(b"-ERR Can't execute it: only (P|S)SUBSCRIBE are allowed in this context\r\n")
        if name == b"HELLO" and len(words) == 3 and self._queue is None:  # a barrier
            return b"-ERR Syntax error in HELLO option '%b'\r\n" % words[2]
        if words == (b"ACL", b"WHOAMI") and self._queue is None:  # keyfence's own, to be sure of a login
            return b"$%d\r\n%b\r\n" % (len(self.user), self.user)
        self.received.append(words)
        if name in (b"MULTI", b"EXEC", b"DISCARD", b"RESET", b"QUIT") and len(words) != 1:
            return self._reject(b"-ERR wrong number of arguments\r\n")
        if name == b"ECHO" and len(words) != 2:
            return self._reject(b"-ERR wrong number of arguments for 'echo' command\r\n")
        if name == b"MULTI":
            return self._multi()
        if name == b"DISCARD":
            return self._discard()
        if name == b"EXEC":
            return self._exec()
        if name == b"RESET":
            self._queue, self._spoilt, self.user, self.version = None, False, b"default", 2
            self.monitors = False
            self._subscribed.clear()
            if self.reply == b"OFF":
                self.reply = b"ON"  # a SKIP, though, is about this very answer
            return b"+RESET\r\n"
        if name == b"QUIT":
            self.closed = True
            return b"+OK\r\n"
        if name == b"WATCH" and self._queue is not None:
            return b"-ERR WATCH inside MULTI is not allowed\r\n"
        if self._queue is not None:
            self._queue.append(words)
            return b"+QUEUED\r\n"
        return self._run(words)

    def _reject(self, reply: bytes) -> bytes:
        self._spoilt = self._queue is not None
        return reply

    def _multi(self) -> bytes:
        if self._queue is not None:
            return b"-ERR MULTI calls can not be nested\r\n"
        self._queue = []
        return b"+OK\r\n"

    def _discard(self) -> bytes:
        if self._queue is None:
            return b"-ERR DISCARD without MULTI\r\n"
        self._queue, self._spoilt = None, False
        return b"+OK\r\n"

    def _exec(self) -> bytes:
        if self._queue is None:
            return b"-ERR EXEC without MULTI\r\n"
        queue, spoilt = self._queue, self._spoilt
        self._queue, self._spoilt = None, False
        if spoilt:
            return b"-EXECABORT Transaction discarded because of previous errors.\r\n"
        return b"*%d\r\n" % len(queue) + b"".join(map(self._run_queued, queue))

    def _run_queued(self, words: tuple[bytes, ...]) -> bytes:
        if words[0].upper() == b"MONITOR":
            return b"-ERR MONITOR isn't allowed for DENY BLOCKING client\r\n"
        return self._run(words)

    def _run(self, words: tuple[bytes, ...]) -> bytes:
        name = words[0].upper()
        if name == b"CLIENT" and len(words) == 3 and words[1].upper() == b"REPLY":
            return self._client_reply(words[2].upper())
        self.ran.append(words)
        if name in SUBSCRIPTIONS:
            return self._subscribe(name, words[1:])
        if name == b"MONITOR":
            again, self.monitors = self.monitors, True
            return b"" if again else b"+OK\r\n"
        if name == b"AUTH":
            return self._auth(words[1] if len(words) == 3 else b"default", words[-1])
        if name == b"HELLO":
            return self._hello(words)
        return some_reply(b" ".join([str(len(self.ran)).encode(), *words]), self.version)

    def _subscribe(self, command: bytes, names: Sequence[bytes]) -> bytes:
        adds, kind = SUBSCRIPTIONS[command]
        if adds and not names:
            return b"-ERR wrong number of arguments\r\n"
        due = b""
        for name in names or sorted(name for of, name in self._subscribed if of == kind) or [None]:
            if name is not None:
                (self._subscribed.add if adds else self._subscribed.discard)((kind, name))
            shown = b"$-1\r\n" if name is None else b"$%d\r\n%b\r\n" % (len(name), name)
            word = b"$%d\r\n%b\r\n" % (len(command), command.lower())
            due += b"%b3\r\n%b%b:%d\r\n" % (
                b"*" if self.version == 2 else b">",
                word,
                shown,
                len(self._subscribed),
            )
        return due

    def _client_reply(self, mode: bytes) -> bytes:
        if mode == b"OFF":
            self.reply = mode
            return b""
        if mode == b"SKIP":
            self.reply = b"OFF" if self.reply == b"OFF" else b"SKIP"
            return b""
        self.reply = b"ON"
        return b"+OK\r\n"

    def _auth(self, user: bytes, password: bytes) -> bytes:
        if password != PASSWORD:
            return b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
        self.user = user
        return b"+OK\r\n"

    def _hello(self, words: tuple[bytes, ...]) -> bytes:
        version = int(words[1]) if len(words) > 1 else self.version
        if b"AUTH" in words and not self._auth(words[3], words[4]).startswith(b"+"):
            return b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
        self.version = version
        return b"%1\r\n+proto\r\n:3\r\n" if version == 3 else b"*2\r\n+proto\r\n:2\r\n"


def some_reply(text: bytes, version: int) -> bytes:
    """A reply that holds `text`, and whose shape depends on it."""
    digest = hashlib.sha256(text).digest()
    bulk = b"$%d\r\n%b\r\n" % (len(text), text)
    line = b"+" + text.replace(b"\r", b".").replace(b"\n", b".") + b"\r\n"
    null = b"_\r\n" if version == 3 else b"$-1\r\n"
    shapes = [
        bulk,
        line,
        b"-ERR " + line[1:],
        b"*2\r\n" + bulk + null,
        b"*3\r\n*1\r\n" + bulk + b"*0\r\n:-7\r\n",
        b"$%d\r\n%b\r\n" % (len(text) + 2000, text + b"\r\n+OK" * 400),
    ]
    if version == 3:
        shapes += [
            b"%1\r\n" + bulk + b"~2\r\n#t\r\n,1.5\r\n",
            b"|1\r\n+ttl\r\n:9\r\n" + bulk,
            b"=%d\r\ntxt:%b\r\n" % (4 + len(text), text),
            b"*2\r\n|1\r\n+a\r\n:1\r\n" + bulk + b"(123456789012345678901234567890\r\n",
        ]
    return shapes[digest[0] % len(shapes)]
