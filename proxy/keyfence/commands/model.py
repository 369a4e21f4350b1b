"""The values that pass from `commands` to `policy`: what one command touches, and in which way.

Rule: these are plain immutable values; they hold bytes of argv and positions in it, never a judgement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Literal, NamedTuple, TypeVar, overload

# What an access needs, from the logical flags of the servers' key specs (Redis `src/acl.c`,
# ACLSelectorCheckKey: `access` needs read; `insert`, `update` and `delete` need write). No bit at all is
# existence only (`effects.EXISTENCE`): it shows that a key is there but not what it holds.
READ = 1
WRITE = 2
# These two refine READ and WRITE; they never stand alone.
DELETE = 4  # the write only removes the whole key (DEL, UNLINK, GETDEL; the source of RENAME)
GROUP = 8  # consumer-group bookkeeping of a stream (XREADGROUP, XACK, XCLAIM, XGROUP …)

# What may become of what a key holds (`Access.does`), beyond that it is written; DELETE above says the same
# of the commands that only remove the whole key.
REMOVES = 1  # elements are taken out; Redis removes a key with its last one (HDEL, LPOP, SREM, LTRIM …)
DELETES = 2  # the key goes, or its time to do so is set (MOVE)
REPLACES = 4  # the command's own value takes the place of all that was there (SET, GETSET)
OVERWRITES = 8  # another key's content or a result does (the target of RENAME, SUNIONSTORE, RESTORE)

# So many things that a command names are made at once; more are made one by one, as they are looked at.
MANY = 1000

T = TypeVar("T")


def sequence(count: int, make: Callable[[], Iterator[T]]) -> Sequence[T]:
    """The `count` things that `make` makes, each time that it is called."""
    return tuple(make()) if count <= MANY else _Many(count, make)


class _Many(Sequence[T]):
    """Very many things: a million accesses would take 200 MB, and hold up others while they are made."""

    def __init__(self, count: int, make: Callable[[], Iterator[T]]) -> None:
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        return self._make()

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        if isinstance(index, int):
            return next(islice(self, range(self._count)[index], None))
        first, end, step = index.indices(self._count)
        return tuple(islice(self, first, end, step)) if step > 0 else tuple(self)[index]


class Streamed(bytes):
    """Stands in argv for an argument too long to be at hand, and holds its beginning.

    That is longer than every word and number of a server's, so these are read from it as from the whole.

    `size` is the argument's length in bytes. What a rule asks of all of such an argument can't be checked.
    """

    size: int

    def __new__(cls, head: bytes, size: int) -> Streamed:
        streamed = super().__new__(cls, head)
        streamed.size = size
        return streamed


TtlKind = Literal[
    "keeps",  # the key's TTL stays as it was; a key that is created has none (HSET, INCR, SET … KEEPTTL)
    "sets",  # the key ends with the TTL that `milliseconds` says (SET … EX, SETEX)
    "drops",  # the key ends without a TTL (plain SET, GETSET, PERSIST)
    "expires",  # sets a TTL on a key that exists already; does nothing else (EXPIRE, GETEX … EX)
    "carries",  # the TTL comes with the value from another key or from a dump (RENAME, COPY)
]


class Ttl(NamedTuple):
    """What a command does to a key's time to live."""

    kind: TtlKind
    milliseconds: int | None = None  # for `sets` and `expires`; None where argv's value is no integer
    absolute: bool = False  # milliseconds count from the Unix epoch (EXAT, EXPIREAT), not from now
    position: int = 0  # the argument that holds the time, 0 for none
    condition: str = ""  # NX, XX, GT or LT of EXPIRE ("XX GT" where two are given); or NX/XX of SET
    creates: bool = True  # whether the command may create the key (HSET: yes; HDEL, LPOP, EXPIRE, XACK: no)
    # `drops`: no option of the command could have brought a time (SETNX, SUNIONSTORE), so one may follow.
    follows: bool = False


class Field(NamedTuple):
    """A field that a command writes into a hash, or into a stream's entry."""

    position: int
    name: bytes
    value_position: int  # 0: the command shows no final value for it (HINCRBY)
    value: bytes


class Members(NamedTuple):
    """The elements that a command puts into a set, list or sorted set; as slices, since they may be many."""

    position: int  # of the first element; they stand `step` arguments apart
    step: int
    values: Sequence[bytes]
    scores: Sequence[bytes] = ()  # each one argument before its element; empty where argv shows no final ones


class Carried(NamedTuple):
    """Content that a command takes from other keys, or from a dump; argv shows nothing of it."""

    # The value as it is; elements of it; or what is made of it.
    kind: Literal["value", "elements", "result"]
    position: int = 0  # of the first key that it comes from; the others stand behind it
    keys: Sequence[bytes] = ()  # none: from a dump
    types: tuple[str, ...] = ()  # of what a dump holds; empty: any


class Content(NamedTuple):
    """What a command shows of the value that it writes."""

    value: bytes | None = None  # the whole string value (SET, SETEX, MSET …)
    value_position: int = 0
    fields: Sequence[Field] = ()
    stream_add: bool = False  # XADD: `maxlen` below says whether and how it trims
    maxlen: int | None = None  # XADD … MAXLEN [=|~] n
    maxlen_approximate: bool = False
    maxlen_position: int = 0
    members: Members | None = None
    carried: Carried | None = None
    # Where only part of a string value is shown (APPEND, SETRANGE): it is at least so long afterwards.
    least: int = 0


class Access(NamedTuple):
    """One key that one command touches."""

    position: int  # of the key in argv; the command's name is at 0
    key: bytes
    needs: int  # READ | WRITE | DELETE | GROUP
    types: tuple[str, ...] = ()  # string, hash, list, set, zset, stream; empty: any
    # None: the command does not write to this key, only removes it (DELETE), or hands it to a script.
    ttl: Ttl | None = None
    content: Content | None = None
    does: int = 0  # REMOVES | DELETES | REPLACES | OVERWRITES


class Channel(NamedTuple):
    """A Pub/Sub channel, or a pattern of channels, that a command names."""

    position: int
    name: bytes
    publish: bool
    is_pattern: bool


class Pattern(NamedTuple):
    """A glob over key names (SCAN … MATCH, KEYS). `position` 0: none was given, all names are reached."""

    position: int
    glob: bytes


class Script(NamedTuple):
    """A script or function that a command runs, with its KEYS and ARGV; or that it loads (SCRIPT LOAD)."""

    kind: Literal["text", "sha1", "function"]
    position: int
    name: bytes  # the text, the SHA-1 as sent, or the function's name
    keys: tuple[bytes, ...]
    args: tuple[bytes, ...]


class Unseen(NamedTuple):
    """Keys that a command may touch and doesn't name: any that the glob matches."""

    glob: bytes
    needs: int  # READ | WRITE


# What nothing limits.
ANY_KEY = (Unseen(b"*", READ | WRITE),)


class Problem(NamedTuple):
    """Why the accesses of a command can't be known in full. `rule` is the policy rule that it breaks, unless
    the service may touch all that it might."""

    rule: str  # command.unknown, script.keys, …
    position: int
    reason: str  # completes "can't be judged: …"
    unseen: tuple[Unseen, ...] = ()  # all that it might touch besides; empty: nobody knows what it does


class Command(NamedTuple):
    """A row of the command table, for a command or for one subcommand of a container."""

    name: str  # upper case, "XGROUP CREATE" for a subcommand
    arity: int  # as in COMMAND: positive is exact, negative is at least; the widest of all servers
    flags: frozenset[str]
    categories: frozenset[str]  # without the @
    servers: tuple[str, ...]  # whose COMMAND reply had it: "redis-6.2", "redis-7.0", …
    names_keys: bool  # whether its arguments may name keys, as the table says; one call of it may name none


class Touches(NamedTuple):
    """All that a command touches."""

    command: Command | None  # None: not in the table
    accesses: Sequence[Access] = ()
    channels: Sequence[Channel] = ()
    pattern: Pattern | None = None
    script: Script | None = None
    databases: tuple[
        tuple[int, int], ...
    ] = ()  # (position, number) that SELECT, MOVE, COPY … DB, SWAPDB name
    problem: Problem | None = None

    @property
    def name_a_streamed(self) -> bool:
        """Whether what decides about the request is in an argument that was handed on.

        A command that does something to the session never goes with one: its beginning is upstream already,
        so all that may follow is its end.
        """
        names = [access.key for access in self.accesses] + [channel.name for channel in self.channels]
        if self.pattern is not None:
            names.append(self.pattern.glob)
        if self.script is not None:
            names.append(self.script.name)
        return any(isinstance(name, Streamed) for name in names)
