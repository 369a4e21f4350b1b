"""The data of a model of Redis, and the commands on it.

Rule: a command changes the data only in `run`, and equal commands in equal order make equal data. So replicas
have the primary's data once they have run the same log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Value = bytes | list[bytes]
Key = tuple[int, bytes]  # its database and name
NIL, OK = b"$-1\r\n", b"+OK\r\n"
WRONG_TYPE = b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"
BIG = b"sim:big"  # a key of each database whose value fills buffers
BIG_SIZE = 20_000


def bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def array(parts: Sequence[bytes]) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(parts)


class Dataset:
    """Keys and values."""

    def __init__(self) -> None:
        self.values: dict[Key, Value] = {}

    def run(self, database: int, argv: Sequence[bytes]) -> bytes:
        """Run a command and return its reply, in RESP2."""
        return _COMMANDS[argv[0]](self, database, argv)

    def list_at(self, database: int, name: bytes) -> list[bytes]:
        found = self.values.get((database, name), [])
        return found if isinstance(found, list) else []

    def _get(self, database: int, argv: Sequence[bytes]) -> bytes:
        if argv[1] == BIG:
            return bulk(b"x" * BIG_SIZE)
        value = self.values.get((database, argv[1]))
        return NIL if value is None else WRONG_TYPE if isinstance(value, list) else bulk(value)

    def _set(self, database: int, argv: Sequence[bytes]) -> bytes:
        self.values[database, argv[1]] = argv[2]
        return OK

    def _incr(self, database: int, argv: Sequence[bytes]) -> bytes:
        value = self.values.get((database, argv[1]), b"0")
        if isinstance(value, list):
            return WRONG_TYPE
        self.values[database, argv[1]] = b"%d" % (int(value) + 1)
        return b":%d\r\n" % (int(value) + 1)

    def _rpush(self, database: int, argv: Sequence[bytes]) -> bytes:
        found = self.values.setdefault((database, argv[1]), [])
        if not isinstance(found, list):
            return WRONG_TYPE
        found.extend(argv[2:])
        return b":%d\r\n" % len(found)

    def _lrange(self, database: int, argv: Sequence[bytes]) -> bytes:
        return array([bulk(one) for one in self.list_at(database, argv[1])[int(argv[2]) :]])

    def _lpop(self, database: int, argv: Sequence[bytes]) -> bytes:
        found = self.list_at(database, argv[1])
        if not found:
            return NIL
        first = found.pop(0)
        if not found:
            del self.values[database, argv[1]]
        return bulk(first)

    def _mget(self, database: int, argv: Sequence[bytes]) -> bytes:
        return array([self._get(database, [b"GET", key]) for key in argv[1:]])

    def _mset(self, database: int, argv: Sequence[bytes]) -> bytes:
        for key, value in zip(argv[1::2], argv[2::2], strict=True):
            self.values[database, key] = value
        return OK

    def _migrated(self, database: int, argv: Sequence[bytes]) -> bytes:
        """The key is at another node now."""
        del self.values[database, argv[1]]
        return OK

    def _restore(self, database: int, argv: Sequence[bytes]) -> bytes:
        """The key comes from another node. Its type and elements follow."""
        self.values[database, argv[1]] = list(argv[3:]) if argv[2] == b"list" else argv[3]
        return OK


_Command = Callable[[Dataset, int, Sequence[bytes]], bytes]
_BETWEEN_NODES = frozenset({b"MIGRATED", b"RESTORE"})  # no client sends them
WRITES = frozenset({b"SET", b"MSET", b"INCR", b"RPUSH", b"LPOP", b"BLPOP", *_BETWEEN_NODES})
_COMMANDS: dict[bytes, _Command] = {
    b"GET": Dataset._get,
    b"SET": Dataset._set,
    b"INCR": Dataset._incr,
    b"RPUSH": Dataset._rpush,
    b"LRANGE": Dataset._lrange,
    b"LPOP": Dataset._lpop,
    b"MGET": Dataset._mget,
    b"MSET": Dataset._mset,
    b"MIGRATED": Dataset._migrated,
    b"RESTORE": Dataset._restore,
}
ON_DATA = frozenset({*_COMMANDS, b"BLPOP"}) - _BETWEEN_NODES
