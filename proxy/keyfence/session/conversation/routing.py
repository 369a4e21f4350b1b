# cython: annotation_typing=False
"""Chooses the connection for a client's requests: a shared one, or the client's dedicated one.

Rule: shareable commands are a positive list. Each of them gives exactly one reply of a fixed shape, leaves
nothing behind on the connection, and does not block. If a command may leave behind something that keyfence
cannot set up again, its client stays on its dedicated connection for good. `commands.facts.Connection` says
which connection a command needs.

A reply has a fixed shape if no text of the client can turn it into two frames. Replies to scripts have none:
Redis puts parts of a script's text raw into error lines (`evalExtractShebangFlags` in `src/eval.c` of 7.0),
and a script words its own errors. Some calls are even answered twice (`Facts.answers_twice`). tests/adversary
searches for others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from keyfence.commands.facts import Connection
from keyfence.commands.model import Command
from keyfence.commands.table import ASKED_SERVERS, COMMANDS, Row

# How long a client stays on its dedicated connection after a command that needed it, in seconds.
STAY = 60.0

_DATA = {"string", "hash", "list", "set", "sortedset", "stream", "geo", "bitmap", "hyperloglog"}


def _may_share(row: Row) -> bool:
    """Whether a command may take any connection. If its row does not say, only commands that read or write a
    data type and never block may, from the tables of real servers."""
    command, connection = row.command, row.facts.connection
    if connection is not Connection.BY_CATEGORY:
        return connection is Connection.ANY
    is_data = not _DATA.isdisjoint(command.categories) and not ASKED_SERVERS.isdisjoint(command.servers)
    return is_data and not command.flags & {"blocking", "admin"} and not row.subcommands


def _named(applies: Callable[[Row], bool]) -> frozenset[str]:
    return frozenset(row.command.name for row in COMMANDS.values() if applies(row))


SHAREABLE = _named(_may_share)
SCRIPTS = _named(lambda row: row.facts.connection is Connection.RUNS_SCRIPT)
BLOCKING = _named(lambda row: row.facts.connection is Connection.BLOCKS)
# Those of them that concern all nodes of a cluster, if it is behind one address.
_OF_ANY_NODE = {"PING", "ECHO", "TIME", "PUBLISH", "SPUBLISH"}
OF_ALL_NODES = _named(lambda row: not row.command.names_keys) & SHAREABLE - _OF_ANY_NODE
_FOLLOWED = _named(lambda row: row.facts.connection is Connection.FOLLOWED)
HARMLESS = _named(lambda row: row.facts.connection is Connection.OWN) | _FOLLOWED | SCRIPTS | BLOCKING
FIXED_SHAPE = SHAREABLE | _FOLLOWED | BLOCKING | _named(lambda row: row.facts.has_fixed_shape)
# They show the connection's id. After CLIENT CAPA its replies may differ from those of another connection.
_KEEPS_OWN = {"CLIENT CAPA", "CLIENT ID", "CLIENT INFO", "CLIENT LIST"}
GREETINGS = _named(lambda row: row.facts.greets)
_ANSWERED_TWICE = {
    row.command.name: row.facts.answers_twice
    for row in COMMANDS.values()
    if row.facts.answers_twice is not None
}


def has_one_reply(command: Command | None, argv: Sequence[bytes]) -> bool:
    """Whether a call surely has exactly one reply of a fixed shape."""
    if command is None or command.name not in FIXED_SHAPE:
        return False
    answers_twice = _ANSWERED_TWICE.get(command.name)
    return answers_twice is None or not answers_twice(argv)


class Route:
    """The current route of one client's requests, and the conditions under which it may change."""

    def __init__(self, sharing: bool, clock: Callable[[], float], roams: bool = False) -> None:
        """`sharing` False: the client uses a dedicated connection from its first request on. `roams`: its
        dedicated connections lead to several nodes, so it returns to shared ones as soon as it can."""
        self.sharing = sharing
        self.roams = roams
        self.is_shared = sharing
        self.pinned = ""  # the command that keeps the client on its dedicated connection for good
        self.knows_id = False  # the client knows its connection's id, so that connection is kept
        self.is_named = False  # another client has Redis send messages there
        self.watching = False
        self.marks_next = False  # Redis does something special with the next command that it gets
        self.reopen = False  # the dedicated connection must be replaced before anything is sent on it
        self.is_behind = False  # nothing was sent on it since the last request on a shared one
        # A command has come that is not shareable, and may block. The client's owner sets it to False.
        self.took_others = False
        self._clock = clock
        self._until = 0.0
        self._greets = True  # the client still sets up its connection

    def takes(self, command: Command | None, is_trusted: bool = False, has_one_reply: bool = True) -> bool:
        """Whether a command may take the connection that the client uses now; otherwise it needs the
        dedicated one.

        Call this once for each command, because it notes what the command leaves behind. `is_trusted`: the
        command runs a script that the policy allows on shared connections.
        """
        is_shareable = command is not None and command.name in SHAREABLE
        if is_shareable and not has_one_reply:
            self._greets = False
            self.needs_own()
            return not self.is_shared
        if is_shareable and self.roams and command is not None and command.name in OF_ALL_NODES:
            self.took_others = True
            return not self.is_shared
        if command is not None and (is_shareable or is_trusted):
            if command.names_keys:
                self._greets = False
            return True
        self._note(command.name if command is not None else "an unknown command")
        return not self.is_shared

    def needs_own(self) -> None:
        """A command has come that needs the dedicated connection, and leaves nothing behind: it may block, or
        runs a script. `takes` says the same."""
        self.took_others = True
        self.stay()

    def begins_work(self) -> None:
        """A shareable command with keys has arrived."""
        self._greets = False

    def _note(self, name: str) -> None:
        self.took_others = True
        if name not in HARMLESS:
            self.pinned = self.pinned or name
        elif not (self._greets and name in GREETINGS):
            self.stay()
        if name in _KEEPS_OWN:
            self.knows_id = True
        elif name == "WATCH":
            self.watching = True  # until Redis denies it
        elif name in ("ASKING", "CLIENT CACHING"):
            self.marks_next = True

    def stay(self) -> None:
        """Stay on the dedicated connection for a while, because more such commands are likely."""
        if not self.roams:
            self._until = self._clock() + STAY

    @property
    def keeps_own(self) -> bool:
        """Whether the dedicated connection is kept while the client shares another one."""
        return self.knows_id and not self.roams

    @property
    def leaves_nothing(self) -> bool:
        """Whether another dedicated connection could take the place of the client's, as far as this object
        knows."""
        return not self.pinned and not self.watching and not self.knows_id

    def is_bound(self, *, in_transaction: bool) -> bool:
        """Whether the client, or another one, needs just this dedicated connection. A refusal within a
        transaction has ended its watches."""
        return bool(self.pinned) or self.is_named or (self.watching and not in_transaction)

    def may_share(self) -> bool:
        """Whether the client may leave its dedicated connection, as far as this object knows."""
        return (
            self.sharing
            and not self.is_shared
            and not self.pinned
            and not self.watching
            and self._clock() >= self._until
        )
