"""The commands that a Sentinel listener answers: one row for each.

Rule: each has the arity, the texts of errors and the types of RESP2 and RESP3 that Redis' own Sentinel has.
What would change a Sentinel (FAILOVER, SET, MONITOR …) is an unknown subcommand, because there is nothing to
change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from keyfence.commands.arguments import each_option, fold, integer, word
from keyfence.net.closures import HTTP, QUIT, Reason
from keyfence.resp.encode import error
from keyfence.resp.values import lines, value

from .facts import VERSION, Primary, Sentinel
from .subscriptions import CHANNELS, PATTERNS, Subscriptions

_OK = b"+OK\r\n"
_SHOWN = 128  # bytes of a client's text in an error, as in Redis
_NO_MASTER = error("ERR No such master with that name")
_SPECIAL = "cannot contain spaces, newlines or special characters."
_ONLY_HELLO = error("ERR Only HELLO messages are accepted by Sentinel instances.")

Argv = Sequence[bytes]


class Asker:
    """A client as its commands see it."""

    def __init__(self, sentinel: Sentinel, number: int, address: str) -> None:
        """`number` is what CLIENT ID answers; `address` is where the client comes from."""
        self.sentinel = sentinel
        self.number = number
        self.address = address
        self.resp = 2
        self.name = b""
        self.subscriptions = Subscriptions()
        self.ends: Reason | None = None  # why its connection is closed after the answer


class Command(NamedTuple):
    """A row: the number of arguments with the name (negative: at least), what answers, the subcommands."""

    arity: int
    answer: Callable[[Asker, Argv], bytes]
    subcommands: Mapping[bytes, Command] = {}

    def takes(self, argv: Argv) -> bool:
        return len(argv) == self.arity or (self.arity < 0 and len(argv) >= -self.arity)


def answer(asker: Asker, argv: Argv) -> bytes:
    """The reply to one request; empty: there is none."""
    name = fold(argv[0])
    command = COMMANDS.get(name)
    if command is None:
        return _unknown(argv)
    shown = _lower(name)
    if command.subcommands and len(argv) > 1:
        subcommand = word(argv[1])
        command = command.subcommands.get(subcommand)
        if command is None:
            return error(f"ERR unknown subcommand '{_text(argv[1])}'. Try {name.decode()} HELP.")
        shown += f"|{_lower(subcommand)}"
    if not command.takes(argv):
        return error(f"ERR wrong number of arguments for '{shown}' command")
    if asker.resp == 2 and asker.subscriptions and name not in _WHILE_SUBSCRIBED:
        return error(
            f"ERR Can't execute '{shown}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are "
            "allowed in this context"
        )
    return command.answer(asker, argv)


def _unknown(argv: Argv) -> bytes:
    shown = ""
    for argument in argv[1:]:
        if len(shown) >= _SHOWN:
            break
        shown += f"'{_text(argument, _SHOWN - len(shown))}' "
    return error(f"ERR unknown command '{_text(argv[0])}', with args beginning with: {shown}")


def _text(argument: bytes, most: int = _SHOWN) -> str:
    return argument[:most].decode("utf-8", "backslashreplace")


def _lower(name: bytes) -> str:
    """The name of a row, as errors and COMMAND have it."""
    return name.decode().lower()


def _bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def _is_plain(name: bytes) -> bool:
    return all(0x21 <= byte <= 0x7E for byte in name)


# -- SENTINEL


def _of_primary(found: Callable[[Asker, Primary], bytes]) -> Command:
    """A subcommand about the primary that its argument names."""

    def about(asker: Asker, argv: Argv) -> bytes:
        primary = asker.sentinel.find(argv[2])
        return _NO_MASTER if primary is None else found(asker, primary)

    return Command(3, about)


def _get_address(asker: Asker, argv: Argv) -> bytes:
    primary = asker.sentinel.find(argv[2])
    if primary is None:
        return b"_\r\n" if asker.resp > 2 else b"*-1\r\n"
    return value([primary.host, str(primary.port)], asker.resp)


def _ckquorum(_asker: Asker, primary: Primary) -> bytes:
    usable = f"{primary.sentinels} usable Sentinels"
    return f"+OK {usable}. Quorum and failover authorization can be reached\r\n".encode()


_HELP = lines(
    (
        "SENTINEL <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "CKQUORUM <master-name>",
        "    Always OK: keyfence itself follows the primary.",
        "GET-MASTER-ADDR-BY-NAME <master-name>",
        "    Return the host and port number of keyfence.",
        "MASTER <master-name>",
        "    Show what is known of the specified master, which is keyfence.",
        "MASTERS",
        "    Show a list of the masters.",
        "MYID",
        "    Return the ID of this listener.",
        "REPLICAS <master-name>",
        "    Show an empty list.",
        "SENTINELS <master-name>",
        "    Show a list of the other keyfences that answer for this master.",
        "HELP",
        "    Print this help.",
    )
)
_REPLICAS = _of_primary(lambda asker, _: value([], asker.resp))
_SENTINEL: Mapping[bytes, Command] = {
    b"MASTERS": Command(2, lambda asker, _: value([x.row() for x in asker.sentinel.primaries], asker.resp)),
    b"MASTER": _of_primary(lambda asker, primary: value(primary.row(), asker.resp)),
    b"GET-MASTER-ADDR-BY-NAME": Command(3, _get_address),
    b"REPLICAS": _REPLICAS,
    b"SLAVES": _REPLICAS,
    b"SENTINELS": _of_primary(lambda asker, primary: value(primary.other_rows(), asker.resp)),
    b"CKQUORUM": _of_primary(_ckquorum),
    b"MYID": Command(2, lambda asker, _: value(asker.sentinel.id, asker.resp)),
    b"HELP": Command(2, lambda *_: _HELP),
}


# -- the connection


def _ping(asker: Asker, argv: Argv) -> bytes:
    if len(argv) > 2:
        return error("ERR wrong number of arguments for 'ping' command")
    text = argv[1] if len(argv) > 1 else b""
    if asker.resp == 2 and asker.subscriptions:
        return b"*2\r\n$4\r\npong\r\n" + _bulk(text)
    return _bulk(text) if len(argv) > 1 else b"+PONG\r\n"


def _hello(asker: Asker, argv: Argv) -> bytes:
    """A login is taken as AUTH takes it."""
    resp, name = asker.resp, asker.name
    if len(argv) > 1:
        version = integer(argv[1])
        if version is None:
            return error("ERR Protocol version is not an integer or out of range")
        if version not in (2, 3):
            return error("NOPROTO unsupported protocol version")
        resp = version
    for option, at in each_option(argv, 2, {b"AUTH": 2, b"SETNAME": 1}):
        if option not in (b"AUTH", b"SETNAME"):
            return error(f"ERR Syntax error in HELLO option '{_text(argv[at])}'")
        if option == b"SETNAME":
            name = argv[at + 1]
            if not _is_plain(name):
                return error(f"ERR Client names {_SPECIAL}")
    asker.resp, asker.name = resp, name
    fields = {"server": "redis", "version": VERSION, "proto": resp, "id": asker.number, "mode": "sentinel"}
    return value({**fields, "modules": []}, resp)


def _auth(_asker: Asker, argv: Argv) -> bytes:
    """Any login is right: what a client is told here is no secret, and clients that are moved from Sentinels
    with a password keep their settings."""
    return _OK if len(argv) <= 3 else error("ERR syntax error")


def _quit(asker: Asker, _argv: Argv) -> bytes:
    asker.ends = QUIT.because("QUIT")
    return _OK


def _hang_up(asker: Asker, _argv: Argv) -> bytes:
    """As Redis does, which regards such a command as an attack through a browser."""
    asker.ends = HTTP.because("HTTP sent to a Sentinel port")
    return b""


def _set_name(asker: Asker, argv: Argv) -> bytes:
    if not _is_plain(argv[2]):
        return error(f"ERR Client names {_SPECIAL}")
    asker.name = argv[2]
    return _OK


def _get_name(asker: Asker, _argv: Argv) -> bytes:
    return _bulk(asker.name) if asker.name else value(None, asker.resp)


def _set_info(_asker: Asker, argv: Argv) -> bytes:
    field = word(argv[2])
    if field not in (b"LIB-NAME", b"LIB-VER"):
        return error(f"ERR Unrecognized option '{_text(argv[2])}'")
    if not _is_plain(argv[3]):
        return error(f"ERR {_lower(field)} {_SPECIAL}")
    return _OK


def _client_info(asker: Asker, _argv: Argv) -> bytes:
    held = asker.subscriptions
    text = (
        f"id={asker.number} addr={asker.address} name={asker.name.decode()} db=0 "
        f"sub={len(held.of[CHANNELS])} psub={len(held.of[PATTERNS])} user=default resp={asker.resp}\n"
    )
    data = text.encode()
    return b"=%d\r\ntxt:%b\r\n" % (len(data) + 4, data) if asker.resp > 2 else _bulk(data)


_CLIENT: Mapping[bytes, Command] = {
    b"ID": Command(2, lambda asker, _: value(asker.number, asker.resp)),
    b"INFO": Command(2, _client_info),
    b"SETNAME": Command(3, _set_name),
    b"GETNAME": Command(2, _get_name),
    b"SETINFO": Command(4, _set_info),
    b"NO-EVICT": Command(3, lambda *_: _OK),
    b"NO-TOUCH": Command(3, lambda *_: _OK),
}


# -- what it is


def _info(asker: Asker, argv: Argv) -> bytes:
    return _bulk(asker.sentinel.info({word(one) for one in argv[1:]}).encode())


def _role(asker: Asker, _argv: Argv) -> bytes:
    return value(["sentinel", [one.name for one in asker.sentinel.primaries]], asker.resp)


def _command(asker: Asker, _argv: Argv) -> bytes:
    return value([_described(name) for name in COMMANDS], asker.resp)


def _command_info(asker: Asker, argv: Argv) -> bytes:
    names = [fold(one) for one in argv[2:]] or list(COMMANDS)
    return value([_described(name) if name in COMMANDS else None for name in names], asker.resp)


def _described(name: bytes) -> list[object]:
    """As in COMMAND: name, arity, flags, keys, categories, hints, key specs, subcommands."""
    return [_lower(name), COMMANDS[name].arity, [], 0, 0, 0, [], [], [], []]


_COMMAND: Mapping[bytes, Command] = {
    b"COUNT": Command(2, lambda asker, _: value(len(COMMANDS), asker.resp)),
    b"DOCS": Command(-2, lambda asker, _: value({}, asker.resp)),
    b"INFO": Command(-2, _command_info),
    b"LIST": Command(-2, lambda asker, _: value([_lower(x) for x in COMMANDS], asker.resp)),
}


# -- subscriptions


def _subscribe(kind: int) -> Command:
    return Command(-2, lambda asker, argv: asker.subscriptions.add(kind, argv[1:], asker.resp))


def _unsubscribe(kind: int) -> Command:
    return Command(-1, lambda asker, argv: asker.subscriptions.remove(kind, argv[1:], asker.resp))


def _no_subcommand(_asker: Asker, _argv: Argv) -> bytes:
    raise AssertionError("the arity asks for a subcommand")


COMMANDS: Mapping[bytes, Command] = {
    b"AUTH": Command(-2, _auth),
    b"CLIENT": Command(-2, _no_subcommand, _CLIENT),
    b"COMMAND": Command(-1, _command, _COMMAND),
    b"HELLO": Command(-1, _hello),
    b"HOST:": Command(-1, _hang_up),
    b"INFO": Command(-1, _info),
    b"PING": Command(-1, _ping),
    b"POST": Command(-1, _hang_up),
    b"PSUBSCRIBE": _subscribe(PATTERNS),
    b"PUBLISH": Command(3, lambda *_: _ONLY_HELLO),
    b"PUNSUBSCRIBE": _unsubscribe(PATTERNS),
    b"QUIT": Command(-1, _quit),
    b"ROLE": Command(1, _role),
    b"SENTINEL": Command(-2, _no_subcommand, _SENTINEL),
    b"SUBSCRIBE": _subscribe(CHANNELS),
    b"UNSUBSCRIBE": _unsubscribe(CHANNELS),
}
_WHILE_SUBSCRIBED = frozenset(
    {b"PING", b"PSUBSCRIBE", b"PUNSUBSCRIBE", b"QUIT", b"SUBSCRIBE", b"UNSUBSCRIBE"}
)
