# cython: annotation_typing=False
"""Chooses the connection for a client's requests: a shared one, or the client's dedicated one.

Rule: shareable commands are a positive list. Each of them gives exactly one reply of a fixed shape, leaves
nothing behind on the connection, and does not block. If a command may leave behind something that keyfence
cannot set up again, its client stays on its dedicated connection for good.

A reply has a fixed shape if no text of the client can turn it into two frames. Replies to scripts have none:
Redis puts parts of a script's text raw into error lines (`evalExtractShebangFlags` in `src/eval.c` of 7.0),
and a script words its own errors. tests/adversary searches for others.
"""

from __future__ import annotations

from collections.abc import Callable

from keyfence.commands.model import Command
from keyfence.commands.table import ASKED_SERVERS, COMMANDS

# How long a client stays on its dedicated connection after a command that needed it, in seconds.
STAY = 60.0

_DATA = {"string", "hash", "list", "set", "sortedset", "stream", "geo", "bitmap", "hyperloglog"}
_DATA_OF_ANY_TYPE = """
    COPY DEL DUMP EXISTS EXPIRE EXPIREAT EXPIRETIME KEYS MOVE OBJECT|ENCODING OBJECT|FREQ OBJECT|IDLETIME
    OBJECT|REFCOUNT PERSIST PEXPIRE PEXPIREAT PEXPIRETIME PTTL RANDOMKEY RENAME RENAMENX RESTORE SCAN TOUCH
    TTL TYPE UNLINK DBSIZE SCRIPT|EXISTS PUBLISH SPUBLISH
    PUBSUB|CHANNELS PUBSUB|NUMPAT PUBSUB|NUMSUB PUBSUB|SHARDCHANNELS PUBSUB|SHARDNUMSUB PING ECHO
    TIME MEMORY|USAGE
"""
# They run scripts. One that the policy registers with `shared: yes` may go on a shared connection.
_SCRIPTS = "EVAL EVALSHA EVALSHA_RO EVAL_RO FCALL FCALL_RO"
# They may block, and do nothing else that needs a dedicated connection.
_BLOCKING = "BLMOVE BLMPOP BLPOP BRPOP BRPOPLPUSH BZMPOP BZPOPMAX BZPOPMIN XREAD XREADGROUP"
# They leave nothing behind, but they take long, reveal something about their connection, or give a
# reply without a fixed shape.
_NEED_THEIR_OWN = """
    ACL ACL|CAT ACL|DELUSER ACL|DRYRUN ACL|GENPASS ACL|GETUSER ACL|HELP ACL|LIST ACL|LOAD ACL|LOG ACL|SAVE
    ACL|SETUSER ACL|USERS ACL|WHOAMI BGREWRITEAOF BGSAVE CLIENT|GETNAME CLIENT|GETREDIR CLIENT|HELP
    CLIENT|ID CLIENT|INFO CLIENT|KILL CLIENT|LIST CLIENT|PAUSE CLIENT|SETINFO CLIENT|SETNAME
    CLIENT|TRACKINGINFO CLIENT|UNBLOCK CLIENT|UNPAUSE CLUSTER|COUNTKEYSINSLOT CLUSTER|GETKEYSINSLOT
    CLUSTER|HELP CLUSTER|INFO CLUSTER|KEYSLOT CLUSTER|LINKS CLUSTER|MYID CLUSTER|MYSHARDID CLUSTER|NODES
    CLUSTER|SHARDS CLUSTER|SLOTS COMMAND COMMAND|COUNT COMMAND|DOCS COMMAND|GETKEYS COMMAND|GETKEYSANDFLAGS
    COMMAND|HELP COMMAND|INFO COMMAND|LIST CONFIG|GET CONFIG|HELP CONFIG|RESETSTAT CONFIG|REWRITE CONFIG|SET
    FLUSHALL FLUSHDB FUNCTION|DELETE FUNCTION|DUMP FUNCTION|FLUSH FUNCTION|HELP FUNCTION|KILL FUNCTION|LIST
    FUNCTION|LOAD FUNCTION|RESTORE FUNCTION|STATS INFO LASTSAVE LATENCY|DOCTOR LATENCY|GRAPH LATENCY|HELP
    LATENCY|HISTOGRAM LATENCY|HISTORY LATENCY|LATEST LATENCY|RESET LOLWUT MEMORY|DOCTOR MEMORY|HELP
    MEMORY|MALLOC-STATS MEMORY|PURGE MEMORY|STATS MIGRATE MODULE|HELP MODULE|LIST OBJECT|HELP PUBSUB|HELP
    ROLE SAVE SCRIPT|LOAD SCRIPT|FLUSH SCRIPT|HELP SCRIPT|KILL SLOWLOG|GET SLOWLOG|HELP SLOWLOG|LEN
    SLOWLOG|RESET SWAPDB WAIT WAITAOF
"""
# The session follows the effects of these.
_FOLLOWED = """
    AUTH CLIENT|MAINT_NOTIFICATIONS CLIENT|REPLY DISCARD EXEC HELLO MONITOR MULTI PSUBSCRIBE PUNSUBSCRIBE QUIT
    RESET SELECT SSUBSCRIBE SUBSCRIBE SUNSUBSCRIBE UNSUBSCRIBE UNWATCH WATCH
"""
# They need a dedicated connection, but the client's text cannot shape the reply.
_FIXED_SHAPE = """
    ACL|WHOAMI CLIENT|GETNAME CLIENT|ID CLIENT|INFO CLIENT|LIST CLIENT|SETINFO CLIENT|SETNAME
    CLIENT|TRACKING CLIENT|UNBLOCK CLUSTER|INFO CLUSTER|SHARDS CLUSTER|SLOTS COMMAND COMMAND|COUNT
    COMMAND|DOCS COMMAND|INFO INFO ROLE WAIT WAITAOF
"""
# What clients send when they connect, before their work begins.
_GREETINGS = """
    ACL|WHOAMI AUTH CLIENT|GETNAME CLIENT|ID CLIENT|INFO CLIENT|MAINT_NOTIFICATIONS CLIENT|SETINFO
    CLIENT|SETNAME CLUSTER|INFO CLUSTER|SLOTS CLUSTER|SHARDS COMMAND COMMAND|DOCS COMMAND|INFO CONFIG|GET
    HELLO INFO MODULE|LIST ROLE SELECT
"""


def _names(text: str) -> frozenset[str]:
    return frozenset(name.replace("|", " ") for name in text.split())


def _data_commands() -> frozenset[str]:
    """Returns the commands that read or write a data type and never block, from the tables of real servers.

    HIMPORT is not among them, because it depends on what HIMPORT PREPARE has left behind on the connection.
    """
    return frozenset(
        row.command.name
        for row in COMMANDS.values()
        if row.command.categories & _DATA
        and ASKED_SERVERS.intersection(row.command.servers)
        and not row.command.name.startswith("HIMPORT")
        and not row.command.flags & {"blocking", "admin"}
        and not row.subcommands
    )


SHAREABLE = _data_commands() | _names(_DATA_OF_ANY_TYPE)
SCRIPTS = _names(_SCRIPTS)
BLOCKING = _names(_BLOCKING)
HARMLESS = _names(_NEED_THEIR_OWN) | _names(_FOLLOWED) | SCRIPTS | BLOCKING
FIXED_SHAPE = SHAREABLE | _names(_FOLLOWED) | _names(_FIXED_SHAPE) | BLOCKING
GREETINGS = _names(_GREETINGS)


class Route:
    """The current route of one client's requests, and the conditions under which it may change."""

    def __init__(self, sharing: bool, clock: Callable[[], float]) -> None:
        """`sharing` False: the client uses a dedicated connection from its first request on."""
        self.sharing = sharing
        self.is_shared = sharing
        self.pinned = ""  # the command that keeps the client on its dedicated connection for good
        self.knows_id = False  # the client knows its connection's id, so that connection is kept
        self.watching = False
        # A command has come that is not shareable, and may block. The client's owner sets it to False.
        self.took_others = False
        self._clock = clock
        self._until = 0.0
        self._greets = True  # the client still sets up its connection

    def takes(self, command: Command | None, is_trusted: bool = False) -> bool:
        """Whether a command may take the connection that the client uses now; otherwise it needs the
        dedicated one.

        Call this once for each command, because it notes what the command leaves behind. `is_trusted`: the
        command runs a script that the policy allows on shared connections.
        """
        if command is not None and (command.name in SHAREABLE or is_trusted):
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
        if name in ("CLIENT ID", "CLIENT INFO", "CLIENT LIST"):
            self.knows_id = True
        elif name == "WATCH":
            self.watching = True  # until Redis denies it

    def stay(self) -> None:
        """Stay on the dedicated connection for a while, because more such commands are likely."""
        self._until = self._clock() + STAY

    def may_share(self) -> bool:
        """Whether the client may leave its dedicated connection, as far as this object knows."""
        return (
            self.sharing
            and not self.is_shared
            and not self.pinned
            and not self.watching
            and self._clock() >= self._until
        )
