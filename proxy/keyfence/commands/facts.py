"""One row for a command: what is known of it beyond the servers' own `COMMAND` replies.

Rule: a fact about a command stands in its row and nowhere else. `families` holds the rows, one module a
family; `table.Row.facts` joins each to the servers' facts. Every default means that nothing is special: then
the key specs' flags and the command's categories decide.

The facts come from the commands' documentation (https://redis.io/docs/latest/commands/), or from the source
file named next to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from .cache_forms import PLAIN, Layout
from .key_runs import Keys
from .model import Content, Ttl
from .resources import Resources

Argv = Sequence[bytes]
TtlOf = Callable[[Argv], Ttl | None]
ContentOf = Callable[[Argv, int], Content | None]  # of argv and the key's position


class KeyFinder(NamedTuple):
    """The keys of a command, where options decide which arguments are keys."""

    find: Callable[[Argv], Keys]
    where: str  # the keys in words, for `keyfence commands`
    access: str  # the access to each of them in words


class Rights(NamedTuple):
    """The rights that a command needs on its key, where options decide it."""

    needs: Callable[[Argv], int]
    access: str  # in words, for `keyfence commands`


class Named(NamedTuple):
    """What a command names besides keys."""

    find: Callable[[Argv], Resources]
    kind: str  # in words: channels, database, key pattern or script
    where: str  # the arguments in words; empty if they are clear


class OnKey(NamedTuple):
    """What a command does to the keys of one *role*: those that one of its key specs finds.

    The role is the index of the key spec; it separates sources from destinations.
    """

    # None: the effect on the time to live that the spec's flags show
    ttl: Ttl | TtlOf | None = None
    content: ContentOf | None = None  # None: what the command's layout shows
    losses: int | None = None  # REMOVES | DELETES | REPLACES | OVERWRITES; None: by the spec's flags
    types: tuple[str, ...] | None = None  # None: by the command's categories
    removes_key: bool = False  # the write only removes the whole key


class Connection(Enum):
    """The connection that a command needs, and what it leaves behind there."""

    # Any, if it is a command on data that never blocks, by its categories and flags. Otherwise as STAYS.
    BY_CATEGORY = 0
    ANY = 1  # one reply of a fixed shape, leaves nothing behind, never blocks
    # It may block, and does nothing else that needs a dedicated connection.
    BLOCKS = 2
    # It runs a script. One that the policy registers with `shared: yes` may go on a shared connection.
    RUNS_SCRIPT = 3
    # It leaves nothing behind, but it takes long, reveals something about its connection, or gives a reply
    # without a fixed shape.
    OWN = 4
    FOLLOWED = 5  # the session follows what it leaves behind
    STAYS = 6  # it leaves behind something that keyfence cannot set up again


KEYS_ONLY: Final = (0, 0)


class Facts(NamedTuple):
    """The row of one command, or of one subcommand of a container such as XGROUP."""

    on_keys: tuple[OnKey, ...] = ()  # by role; roles that are left out have nothing special
    found: KeyFinder | None = None
    rights: Rights | None = None
    named: Named | None = None
    # Its reply shows nothing of the value: only whether the key exists, its type, or when it was used.
    # Servers flag more commands as not accessing the value (SISMEMBER, STRLEN, MEMORY USAGE), but their
    # replies depend on it. So do those of OBJECT ENCODING and OBJECT REFCOUNT, which differ for small
    # numbers.
    shows_existence: bool = False
    # It changes a consumer group's bookkeeping. XPENDING and XINFO only read; XSETID and XACKDEL change the
    # stream itself.
    keeps_group: bool = False
    # Whether it may leave the key larger than argv shows. None: if it can create the key.
    grows: bool | None = None
    leaves_integer: bool = False  # as the value
    # -- for the decision cache: all commands with more than one key need `decides`
    layout: Layout = PLAIN
    # The arguments besides keys and channels that decide, from the first to before the last; KEYS_ONLY: none.
    # 0 as the second one: to the end. All others are values, cursors, messages, members, times, weights, or
    # options that change nothing of what is touched. None: the cache does not know the command.
    decides: tuple[int, int] | None = None
    channel_at: int = 0  # 0: it names none
    # -- for the session
    # Whether some server answers a call with these arguments twice. It decides for all calls that have the
    # same arguments behind the content, so the decision cache asks once for each form. None: it never does.
    answers_twice: Callable[[Argv], bool] | None = None
    connection: Connection = Connection.BY_CATEGORY
    # The client's text cannot shape its reply. Only said of commands that need a dedicated connection.
    has_fixed_shape: bool = False
    greets: bool = False  # clients send it when they connect, before their work begins


NOTHING_SPECIAL: Final = Facts()
PLAIN_KEY: Final = OnKey()
T = TypeVar("T")  # Facts, or another row of a command


def each(names: str, row: T) -> dict[str, T]:
    """The same row for several commands. A `|` stands between a container and its subcommand."""
    return dict.fromkeys((name.replace("|", " ") for name in names.split()), row)


def together(*parts: Mapping[str, T]) -> dict[str, T]:
    """All rows by name. Raises ValueError if a command has two."""
    rows: dict[str, T] = {}
    for part in parts:
        if twice := rows.keys() & part.keys():
            raise ValueError(f"two rows for {', '.join(sorted(twice))}")
        rows |= part
    return rows
