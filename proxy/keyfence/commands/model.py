"""The values that describe what one command touches, and how. `commands` makes them, `policy` reads them.

Rule: these are plain immutable values. They hold bytes of argv and positions in it, never a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Literal, NamedTuple, TypeVar, overload

# The rights that an access needs, from the logical flags of the servers' key specs (Redis `src/acl.c`,
# ACLSelectorCheckKey: `access` needs read; `insert`, `update` and `delete` need write). 0 means existence
# only (`facts.Facts.shows_existence`): the command shows whether the key exists, but nothing of its value.
READ = 1
WRITE = 2
# These two refine READ and WRITE, and never appear alone.
DELETE = 4  # the write only removes the whole key (DEL, UNLINK, GETDEL; the source of RENAME)
GROUP = 8  # consumer-group bookkeeping of a stream (XREADGROUP, XACK, XCLAIM, XGROUP …)

# How a write may remove what the key held (`Access.losses`). Commands that only remove the whole key have the
# bit DELETE above instead.
REMOVES = 1  # takes elements out; Redis removes a key with its last element (HDEL, LPOP, SREM, LTRIM …)
DELETES = 2  # removes the key, or sets the time when it goes (MOVE, JSON.DEL)
REPLACES = 4  # replaces the whole value by one in argv (SET, GETSET)
# replaces it by another key's content or a result (the target of RENAME, SUNIONSTORE, RESTORE)
OVERWRITES = 8

# Up to this many accesses or channels of a command are built at once. More are built one by one when read.
MANY = 1000

T = TypeVar("T")


def sequence(count: int, make: Callable[[], Iterator[T]], places: Sequence[range] = ()) -> Sequence[T]:
    """The `count` items that `make` yields, which stand at `places` of argv. `make` is called again for each
    iteration if they are many."""
    return tuple(make()) if count <= MANY else _LazySequence(count, make, places)


class _LazySequence(Sequence[T]):
    """A long sequence whose items are built on iteration.

    A million accesses would take 200 MB, and building them at once would delay other clients.
    """

    def __init__(self, count: int, make: Callable[[], Iterator[T]], places: Sequence[range]) -> None:
        self._count = count
        self._make = make
        self.places = places

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


def part_of(argv: Sequence[bytes], start: int, stop: int | None = None, step: int = 1) -> Sequence[bytes]:
    """The arguments `argv[start:stop:step]`. Of many, no copy is made: it would take 10 ms for a million, and
    be one more long list for garbage collections to look at."""
    return tuple(argv[start:stop:step]) if len(argv) <= MANY else _Part(argv, start, stop, step)


class _Part(Sequence[bytes]):
    """A part of the arguments."""

    def __init__(self, argv: Sequence[bytes], start: int, stop: int | None, step: int) -> None:
        self._argv = argv
        self._places = range(*slice(start, stop, step).indices(len(argv)))

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[bytes]:
        places = self._places
        return islice(self._argv, places.start, places.stop, places.step)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[bytes, ...]: ...
    def __getitem__(self, index: int | slice) -> bytes | tuple[bytes, ...]:
        if isinstance(index, int):
            return self._argv[self._places[index]]
        return tuple(self._argv[place] for place in self._places[index])


class Streamed(bytes):
    """Replaces an argument in argv that was streamed, and holds its first bytes.

    These are longer than any option, name or number, so such arguments are read correctly from them. `size`
    is the argument's length in bytes. Rules about the whole argument cannot be checked.
    """

    size: int

    def __new__(cls, head: bytes, size: int) -> Streamed:
        streamed = super().__new__(cls, head)
        streamed.size = size
        return streamed


TtlKind = Literal[
    "keeps",  # leaves the TTL unchanged; a key that the command creates has none (HSET, INCR, SET … KEEPTTL)
    "sets",  # leaves the key with the TTL in `milliseconds` (SET … EX, SETEX)
    "drops",  # leaves the key without a TTL (plain SET, GETSET, PERSIST)
    "expires",  # only sets a TTL on an existing key (EXPIRE, GETEX … EX)
    "carries",  # takes the TTL along with the value from another key or a dump (RENAME, COPY)
]


class Ttl(NamedTuple):
    """The effect of a command on a key's time to live."""

    kind: TtlKind
    milliseconds: int | None = None  # for `sets` and `expires`; None if the argument is not an integer
    absolute: bool = False  # milliseconds count from the Unix epoch (EXAT, EXPIREAT), not from now
    position: int = 0  # the argument that holds the time, 0 for none
    condition: str = ""  # NX, XX, GT or LT of EXPIRE ("XX GT" if two are given); or NX/XX of SET
    creates: bool = True  # whether the command may create the key (HSET: yes; HDEL, LPOP, EXPIRE, XACK: no)
    # For `drops`: the command has no option for a time (SETNX, SUNIONSTORE), so an EXPIRE may follow.
    follows: bool = False


class Field(NamedTuple):
    """A field that a command writes into a hash or a stream entry."""

    position: int
    name: bytes
    value_position: int  # 0 if argv does not hold the resulting value (HINCRBY)
    value: bytes


class Members(NamedTuple):
    """The elements that a command adds to a set, list or sorted set."""

    position: int  # of the first element; each next one is `step` arguments further
    step: int
    values: Sequence[bytes]
    # each is one argument before its element; empty if argv shows no final scores
    scores: Sequence[bytes] = ()


class Carried(NamedTuple):
    """Content that a command takes from other keys or from a dump. argv does not show it."""

    # The unchanged value, some of its elements, or a value computed from it.
    kind: Literal["value", "elements", "result"]
    position: int = 0  # of the first source key; the others follow it
    keys: Sequence[bytes] = ()  # the source keys; empty for a dump
    types: tuple[str, ...] = ()  # the possible types of a dump; empty: any


class Content(NamedTuple):
    """What argv shows of the value that a command writes."""

    value: bytes | None = None  # the whole string value (SET, SETEX, MSET …)
    value_position: int = 0
    fields: Sequence[Field] = ()
    stream_add: bool = False  # whether this is an XADD, which `maxlen` below may trim
    maxlen: int | None = None  # XADD … MAXLEN [=|~] n
    maxlen_approximate: bool = False
    maxlen_position: int = 0
    members: Members | None = None
    carried: Carried | None = None
    # The minimum length of the string afterwards, if argv shows only a part of it (APPEND, SETRANGE).
    least: int = 0


class Access(NamedTuple):
    """One key that one command touches."""

    position: int  # of the key in argv; the command's name is at 0
    key: bytes
    needs: int  # READ | WRITE | DELETE | GROUP
    types: tuple[str, ...] = ()  # string, hash, list, set, zset, stream; empty: any
    # None if the command does not write to the key, only removes it (DELETE), or passes it to a script.
    ttl: Ttl | None = None
    content: Content | None = None
    losses: int = 0  # REMOVES | DELETES | REPLACES | OVERWRITES


class Channel(NamedTuple):
    """A Pub/Sub channel or channel pattern that a command names."""

    position: int
    name: bytes
    publish: bool
    is_pattern: bool


class Pattern(NamedTuple):
    """A glob over key names (SCAN … MATCH, KEYS). `position` is 0 if argv has none, and the glob `*`."""

    position: int
    glob: bytes


class Script(NamedTuple):
    """A script or function that a command runs, with its KEYS and ARGV, or loads (SCRIPT LOAD)."""

    kind: Literal["text", "sha1", "function"]
    position: int
    name: bytes  # the text, the SHA-1 as sent, or the function's name
    keys: Sequence[bytes]
    args: Sequence[bytes]


class Unseen(NamedTuple):
    """Keys that a command may touch without naming them: all keys that the glob matches."""

    glob: bytes
    needs: int  # READ | WRITE


# The command may touch any key.
ANY_KEY = (Unseen(b"*", READ | WRITE),)


class Problem(NamedTuple):
    """Why not all accesses of a command are known. The command breaks the policy rule `rule`, unless the
    service may touch every key that the command might touch."""

    rule: str  # command.unknown, script.keys, …
    position: int
    reason: str  # completes "cannot be evaluated: …"
    unseen: tuple[Unseen, ...] = ()  # the keys it might also touch; empty: its effects are unknown


class Command(NamedTuple):
    """A row of the command table, for a command or for one subcommand of a container."""

    name: str  # upper case, "XGROUP CREATE" for a subcommand
    arity: int  # as in COMMAND: positive is exact, negative is at least; the widest of all servers
    flags: frozenset[str]
    categories: frozenset[str]  # without the @
    servers: tuple[str, ...]  # the servers that have it: "redis-6.2", "redis-7.0", …
    names_keys: bool  # whether its arguments may be keys; a single call may still name none

    def takes(self, arguments: int) -> bool:
        """Whether it accepts this number of arguments, its name included."""
        return arguments == self.arity if self.arity > 0 else arguments >= -self.arity


class Touches(NamedTuple):
    """Everything that a command touches."""

    command: Command | None  # None if no known server has it
    accesses: Sequence[Access] = ()
    channels: Sequence[Channel] = ()
    pattern: Pattern | None = None
    script: Script | None = None
    databases: tuple[
        tuple[int, int], ...
    ] = ()  # (position, number) that SELECT, MOVE, COPY … DB, SWAPDB name
    problem: Problem | None = None

    def has_streamed_name(self, argv: Sequence[bytes]) -> bool:
        """Whether a key, channel, pattern or script name that decides about the request was streamed.

        A command that changes the session never runs with one: its beginning is already upstream, so only its
        end may follow.
        """
        others = [one for one in (self.pattern, self.script) if one is not None]
        places = [*_places(self.accesses), *_places(self.channels), *_places(others)]
        streamed = (at for at, kind in enumerate(map(type, argv)) if kind is Streamed)
        return any(at in place for at in streamed for place in places)


def _places(items: Sequence[Access] | Sequence[Channel] | Sequence[Pattern | Script]) -> Sequence[range]:
    """Where in argv the names stand. Very many are not built for it."""
    if isinstance(items, _LazySequence):
        return items.places
    return [range(one.position, one.position + 1) for one in items]
