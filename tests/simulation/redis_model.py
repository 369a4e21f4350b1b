"""A model of one Redis server, and of its connections.

It answers the commands that keyfence and the clients of the simulation send. Its errors end with the
request's last argument, so that a client sees whether an error is the answer to its own request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import hiredis

from tests.simulation.dataset import NIL, OK, ON_DATA, WRITES, Dataset, array, bulk

if TYPE_CHECKING:
    from tests.simulation.network import End
    from tests.simulation.replication import Group

PORT = 6379
Argv = list[bytes]
_OF_SUBSCRIBERS = frozenset({b"SUBSCRIBE", b"UNSUBSCRIBE", b"PING", b"QUIT"})


class Entry(NamedTuple):
    """A write in a node's log."""

    database: int
    argv: tuple[bytes, ...]
    carries: frozenset[bytes] = frozenset()  # what was ever written to a key that comes from another node


def written_in(log: Sequence[Entry]) -> set[bytes]:
    """All values that were written by this log. What was written to a key goes with it to another node."""
    found: dict[bytes, set[bytes]] = {}
    for entry in log:
        name, key, *rest = entry.argv
        if name == b"MIGRATED":
            found.pop(key, None)
        elif name == b"RESTORE":
            found[key] = set(entry.carries)
        else:
            found.setdefault(key, set()).update(rest[::2] if name == b"MSET" else rest)
    return set().union(*found.values())


class Node:
    """A Redis server: its role, its data, and the log of writes that led there."""

    mode = b"standalone"

    def __init__(self, name: str, group: Group, address: str) -> None:
        self.name = name
        self.group = group
        self.host = group.network.host(name, address)
        self.is_primary = False
        self.is_linked = True  # whether a replica has a link to its primary
        self.is_loading = False
        self.is_paused = False  # writes wait, as by FAILOVER
        self.drops = False  # new connections are ended at once
        self.data = Dataset()
        self.log: list[Entry] = []
        self.connections: dict[Connection, None] = {}
        self.listen()

    def listen(self) -> None:
        self.group.network.listen(self.host.address, PORT, self.accept)

    def accept(self) -> Connection:
        """The protocol of a new connection."""
        return Connection(self)

    # -- commands

    def refusal(self, name: bytes) -> bytes:
        """Why a command on data is not run now; empty: it is."""
        if self.is_loading:
            return b"-LOADING Redis is loading the dataset in memory"
        if self.is_primary:
            return b""
        if name in WRITES:
            return b"-READONLY You can't write against a read only replica."
        if not self.is_linked and not self.group.serves_stale:
            return b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."
        return b""

    def run(self, database: int, argv: Argv, carries: frozenset[bytes] = frozenset()) -> bytes:
        """Run a command on data that is not refused."""
        reply = self.data.run(database, argv)
        if argv[0] in WRITES and reply != NIL:
            self.log.append(Entry(database, tuple(argv), carries))
            self.group.executed(self, database, argv)
        return reply

    def publish(self, channel: bytes, text: bytes) -> None:
        for one in list(self.connections):
            one.published(channel, text)

    # -- changes of its state

    def promote(self) -> None:
        self.is_primary, self.is_linked = True, True

    def demote(self, *, kills: bool) -> None:
        """It is a replica from now on. `kills`: as Sentinel has it, it closes its clients."""
        self.is_primary = False
        self.resume_writes()
        for one in list(self.connections):
            if kills:
                one.end.abort()
            else:
                one.unblock()

    def pause_writes(self) -> None:
        self.is_paused = True

    def resume_writes(self) -> None:
        self.is_paused = False
        for one in list(self.connections):
            one.go_on()

    def kill(self, *, with_machine: bool) -> None:
        self.is_primary = self.is_paused = False
        self.connections.clear()
        network = self.group.network
        (network.silence if with_machine else network.kill)(self.host)

    def wakes(self, database: int, key: bytes) -> None:
        """There is a list now that a client may wait for."""
        for one in list(self.connections):
            one.may_pop(database, key)


class Connection:
    """One connection to a node (an `asyncio.Protocol`)."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.end: End
        self._reader = hiredis.Reader()
        self._waiting: list[Argv] = []  # requests that have come and are not run yet
        self._resp = 2
        self._database = 0
        self._queue: list[Argv] | None = None  # of MULTI
        self._is_spoilt = False
        self._watched: dict[tuple[int, bytes], Any] = {}
        self._channels: dict[bytes, None] = {}
        self._blocked: Argv | None = None
        self._timer: Any = None
        self._id = 0

    # -- the transport's side

    def connection_made(self, end: End) -> None:
        self.end = end
        self._id = self.node.group.next_id()
        self.node.connections[self] = None
        if self.node.drops:
            end.abort()

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (argv := self._reader.gets()) is not False:
            self._waiting.append(argv)
        self.go_on()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, _exc: Exception | None) -> None:
        self.node.connections.pop(self, None)
        self._waiting.clear()
        self._blocked = None
        if self._timer is not None:
            self._timer.cancel()

    def pause_writing(self) -> None:
        """Redis lets its output grow."""

    def resume_writing(self) -> None:
        """Redis lets its output grow."""

    # -- commands

    def go_on(self) -> None:
        """Run what waits, as far as that is possible now."""
        out = []
        while self._waiting and self._blocked is None:
            argv = self._waiting[0]
            argv[0] = argv[0].upper()
            if self.node.is_paused and self._writes(argv):
                break
            out.append(self._answer(self._waiting.pop(0)))
        if out and not self.end.is_closing():
            self.end.write(b"".join(out))

    def _writes(self, argv: Argv) -> bool:
        if argv[0] == b"EXEC":
            return any(one[0] in WRITES for one in self._queue or ())
        return argv[0] in WRITES

    def _answer(self, argv: Argv) -> bytes:
        name = argv[0]
        if self._channels and self._resp == 2 and name not in _OF_SUBSCRIBERS:
            return b"-ERR Can't execute '%b': only (P|S)SUBSCRIBE are allowed in this context\r\n" % name
        if self._queue is not None and name not in (b"EXEC", b"DISCARD", b"MULTI"):
            return self._queued(argv)
        if name in ON_DATA:
            return self._on_data(argv)
        known = _CONNECTION_COMMANDS.get(name)
        return known(self, argv) if known is not None else _error(b"-ERR unknown command", argv)

    def _queued(self, argv: Argv) -> bytes:
        assert self._queue is not None
        refusal = self.node.refusal(argv[0]) if argv[0] in ON_DATA else b""
        if refusal or argv == [b"ECHO"]:
            self._is_spoilt = True
            return _error(refusal or b"-ERR wrong number of arguments for 'echo' command", argv)
        self._queue.append(argv)
        return b"+QUEUED\r\n"

    def _on_data(self, argv: Argv) -> bytes:
        refusal = self.node.refusal(argv[0])
        if refusal:
            return _error(refusal, argv)
        if argv[0] == b"BLPOP":
            return self._blpop(argv)
        reply = self.node.run(self._database, argv)
        if argv[0] == b"RPUSH":
            self.end.network.loop.call_soon(self.node.wakes, self._database, argv[1])
        return self._in_resp(reply)

    def _in_resp(self, reply: bytes) -> bytes:
        return b"_\r\n" if reply == NIL and self._resp == 3 else reply

    def _blpop(self, argv: Argv) -> bytes:
        popped = self.node.run(self._database, [b"LPOP", argv[1]])
        if popped != NIL:
            return array([bulk(argv[1]), popped])
        self._blocked = argv
        self._timer = self.end.network.loop.call_later(float(argv[2]), self._gave_up)
        return b""

    def _answer_blocked(self, reply: bytes) -> None:
        self._blocked = None
        self._timer.cancel()
        self.end.write(reply)
        self.go_on()

    def _gave_up(self) -> None:
        if self._blocked is not None and not self.end.is_closing():
            self._answer_blocked(b"_\r\n" if self._resp == 3 else b"*-1\r\n")

    def may_pop(self, database: int, key: bytes) -> None:
        if self._blocked is None or database != self._database or self._blocked[1] != key:
            return
        if self.node.is_primary and not self.end.is_closing():
            popped = self.node.run(database, [b"LPOP", key])
            if popped != NIL:
                self._answer_blocked(array([bulk(key), popped]))

    def unblock(self) -> None:
        """The node is no primary any more."""
        if self._blocked is not None and not self.end.is_closing():
            self._answer_blocked(b"-UNBLOCKED force unblock from blocking operation\r\n")

    # -- commands about the connection

    def _hello(self, argv: Argv) -> bytes:
        if len(argv) > 2 and argv[2].upper() not in (b"SETNAME", b"AUTH"):
            return b"-ERR Syntax error in HELLO option '%b'\r\n" % argv[2]
        if len(argv) > 1:
            self._resp = int(argv[1])
        role = b"master" if self.node.is_primary else b"replica"
        fields = [b"server", b"redis", b"mode", self.node.mode, b"role", role]
        parts = [bulk(one) for one in fields] + [bulk(b"id"), b":%d\r\n" % self._id]
        return b"%%%d\r\n" % (len(parts) // 2) + b"".join(parts) if self._resp == 3 else array(parts)

    def _ping(self, argv: Argv) -> bytes:
        said = argv[1] if len(argv) > 1 else b""
        if self._channels and self._resp == 2:
            return array([bulk(b"pong"), bulk(said)])
        return bulk(said) if said else b"+PONG\r\n"

    def _echo(self, argv: Argv) -> bytes:
        if self.node.is_loading:
            return _error(self.node.refusal(b"ECHO"), argv)
        return bulk(argv[1])

    def _select(self, argv: Argv) -> bytes:
        self._database = int(argv[1])
        return OK

    def _client(self, argv: Argv) -> bytes:
        return b":%d\r\n" % self._id if argv[1].upper() == b"ID" else OK

    def _acl(self, _argv: Argv) -> bytes:
        return bulk(b"default")

    def _fine(self, _argv: Argv) -> bytes:
        return OK

    def _quit(self, _argv: Argv) -> bytes:
        self.end.network.loop.call_soon(self.end.close)
        return OK

    # -- transactions

    def _multi(self, argv: Argv) -> bytes:
        if self._queue is not None:
            return _error(b"-ERR MULTI calls can not be nested", argv)
        self._queue, self._is_spoilt = [], False
        return OK

    def _discard(self, _argv: Argv) -> bytes:
        self._queue = None
        self._watched.clear()
        return OK

    def _exec(self, argv: Argv) -> bytes:
        if self._queue is None:
            return _error(b"-ERR EXEC without MULTI", argv)
        queue, self._queue = self._queue, None
        watched, self._watched = self._watched, {}
        if self._is_spoilt:
            return b"-EXECABORT Transaction discarded because of previous errors.\r\n"
        if any(self._state_of(key) != state for key, state in watched.items()):
            return b"_\r\n" if self._resp == 3 else b"*-1\r\n"
        if not self.node.is_primary and any(one[0] in WRITES for one in queue):
            return b"-EXECABORT Transaction discarded because of: READONLY\r\n"
        return array([self._answer(one) for one in queue])

    def _watch(self, argv: Argv) -> bytes:
        for name in argv[1:]:
            key = self._database, name
            self._watched[key] = self._state_of(key)
        return OK

    def _state_of(self, key: tuple[int, bytes]) -> Any:
        value = self.node.data.values.get(key)
        return list(value) if isinstance(value, list) else value

    # -- subscriptions

    def _subscribe(self, argv: Argv) -> bytes:
        out = b""
        for channel in argv[1:]:
            self._channels[channel] = None
            out += self._push([bulk(b"subscribe"), bulk(channel), b":%d\r\n" % len(self._channels)])
        return out

    def _unsubscribe(self, argv: Argv) -> bytes:
        out = b""
        for channel in argv[1:]:
            self._channels.pop(channel, None)
            out += self._push([bulk(b"unsubscribe"), bulk(channel), b":%d\r\n" % len(self._channels)])
        return out

    def _push(self, parts: Sequence[bytes]) -> bytes:
        return (b">%d\r\n" if self._resp == 3 else b"*%d\r\n") % len(parts) + b"".join(parts)

    def published(self, channel: bytes, text: bytes) -> None:
        if channel in self._channels and not self.end.is_closing():
            self.end.write(self._push([bulk(b"message"), bulk(channel), bulk(text)]))


def _error(text: bytes, argv: Argv) -> bytes:
    """An error that shows which request it answers."""
    return text + b" " + argv[-1] + b"\r\n"


_CONNECTION_COMMANDS: dict[bytes, Callable[[Connection, Argv], bytes]] = {
    b"HELLO": Connection._hello,
    b"PING": Connection._ping,
    b"ECHO": Connection._echo,
    b"SELECT": Connection._select,
    b"CLIENT": Connection._client,
    b"ACL": Connection._acl,
    b"AUTH": Connection._fine,
    b"UNWATCH": Connection._fine,
    b"WATCH": Connection._watch,
    b"MULTI": Connection._multi,
    b"EXEC": Connection._exec,
    b"DISCARD": Connection._discard,
    b"SUBSCRIBE": Connection._subscribe,
    b"UNSUBSCRIBE": Connection._unsubscribe,
    b"QUIT": Connection._quit,
}
