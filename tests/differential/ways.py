"""A Redis, and a way to it through a proxy: the comparison of a session over both.

Rule: nothing here knows the proxy. `pairs` knows keyfence, and `differences` what may differ.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import cached_property

import redis

from tests.clients.running import eventually
from tests.differential.sides import Connect, Heard, Side, Step, first_difference

UNANSWERED = "this server leaves failed logins unanswered while other replies wait to be written"


class Ways:
    """Plays sessions on both ways to one Redis, directly and through a proxy."""

    def __init__(
        self, direct: Connect, through: Connect, admin: Callable[[], redis.Redis], resp: int = 2
    ) -> None:
        """`admin`: clients that empty the Redis and look at it."""
        self.resp = resp
        self._direct = direct
        self._through = through
        self._admin = admin

    def same(self, *steps: Step, digest: bool = True) -> None:
        """Fails unless every reply is the same on both ways, and with `digest` the resulting data (the Redis
        must execute DEBUG)."""
        direct, data = self.directly(steps, digest=digest)
        through, data_through = self.through(steps, direct, digest=digest)
        report = list(first_difference(steps, direct, through))
        assert not report, "\n".join(["answered otherwise", *report])
        assert len(direct) == len(through)
        assert data == data_through, "\n".join(["the data differ after", *map(str, steps)])

    def directly(self, steps: Sequence[Step], *, digest: bool = True) -> tuple[list[Heard], bytes]:
        """Plays a session directly on Redis. Returns the replies and a digest of the resulting data."""
        return self._play(Side(self._direct, [self._direct]), steps, (), digest)

    def through(
        self, steps: Sequence[Step], expected: Sequence[Heard], *, digest: bool = True
    ) -> tuple[list[Heard], bytes]:
        """Plays the session through the proxy, up to the first step whose reply is not the expected one."""
        return self._play(Side(self._through, [self._through, self._direct]), steps, expected, digest)

    def _play(
        self, side: Side, steps: Sequence[Step], expected: Sequence[Heard], digest: bool
    ) -> tuple[list[Heard], bytes]:
        try:
            self.empty()
            heard = side.play(steps, self.resp, expected)
            side.settle()
            return heard, self._digest() if digest else b""
        finally:
            side.close()
            self._until_alone()

    def _digest(self) -> bytes:
        with self._admin() as admin:
            return bytes(admin.execute_command("DEBUG", "DIGEST"))

    def empty(self) -> None:
        """Removes everything that a session may have left in the server."""
        with self._admin() as admin:
            admin.flushall()
            admin.script_flush()
            if int(admin.info("server")["redis_version"].split(".")[0]) >= 7:
                admin.execute_command("FUNCTION", "FLUSH")
            admin.config_resetstat()
            admin.slowlog_reset()
            admin.execute_command("ACL", "LOG", "RESET")

    @cached_property
    def answers_failed_logins(self) -> bool:
        """Whether the server answers each login that fails. Redis 8.0 and 8.6, and Valkey 8.1, leave some out
        while other replies wait to be written (redis/redis#15640); keyfence answers them."""
        with contextlib.closing(self._direct()) as connection:
            connection.sendall(b"PING\r\nAUTH nosuch x\r\nPING\r\nQUIT\r\n")
            data = b""
            while more := connection.recv(4096):
                data += more
        return data.count(b"\r\n") == 4

    def _until_alone(self) -> None:
        """Waits for closed connections to go. They stay for a moment, and PUBLISH would count them."""
        with self._admin() as admin:
            admin.execute_command("CLIENT", "UNPAUSE")
            eventually(
                lambda: all(map(_is_plain, admin.client_list())), "the session's connections have ended"
            )


def _is_plain(client: dict[str, str]) -> bool:
    """Returns whether a connection keeps no state of a session, so that a proxy may hold it for others. The
    flags say whether it is in MULTI; Valkey 9 shows `multi=0` after a transaction, too."""
    return (
        client["flags"] in ("N", "U")
        and int(client["sub"]) + int(client["psub"]) + int(client.get("ssub", 0)) == 0
    )
