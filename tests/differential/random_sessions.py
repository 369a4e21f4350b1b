"""Random sessions, made by hypothesis: two or three connections, few keys, every kind of command.

Rule: a generated session has the same effects each time. Nothing in it depends on chance or on time, and no
step is sent before the step before it has had its effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from keyfence.resp import encode
from tests.differential.differences import CLIENT_ID, CLIENT_LIST, HELLO_ID, MONITOR_LINE
from tests.differential.sides import Id, Step

Command = bytes | tuple[str | bytes | int, ...]

KEYS = ["k", "l", "h", "z", "s", "x"]
CHANNELS = ["c", "d"]
NAMES = ["a", "b", "c"]

keys = st.sampled_from(KEYS)
channels = st.sampled_from(CHANNELS)
numbers = st.integers(-3, 3)
VALUES = ["1", "v", "", "x" * 100, b"\r\n", b"\xff\x00", "subscribe", "message", b"y" * 20_000]
values = st.integers(0, len(VALUES) - 1).map(lambda number: VALUES[number])


def command(*parts: object) -> st.SearchStrategy[Command]:
    """Returns a strategy for a command. Some words are strategies themselves; text is split at its spaces."""
    drawn: list[st.SearchStrategy[object]] = []
    for part in parts:
        if isinstance(part, str):
            drawn.extend(st.just(word) for word in part.split(" "))
        else:
            drawn.append(part if isinstance(part, st.SearchStrategy) else st.just(part))
    return st.tuples(*drawn)  # type: ignore[return-value]


SIMPLE: list[st.SearchStrategy[Command]] = [
    command("GET", keys),
    command("SET", keys, values),
    command("set", keys, values, "ex 1000"),
    command("INCRBY", keys, numbers),
    command("APPEND", keys, values),
    command("STRLEN", keys),
    command("DEL", keys, keys),
    command("EXISTS", keys, keys),
    command("TYPE", keys),
    command("MGET", keys, keys),
    command("MSET", keys, values, keys, values),
    command("RPUSH", keys, values),
    command("LPOP", keys),
    command("LRANGE", keys, "0 -1"),
    command("HSET", keys, "f", values),
    command("HGETALL", keys),
    command("SADD", keys, "m"),
    command("SMEMBERS", keys),
    command("ZADD", keys, numbers, "m"),
    command("ZRANGE", keys, "0 -1 WITHSCORES"),
    command("XADD", keys, "1-1 f", values),
    command("XRANGE", keys, "- +"),
    command("RENAME", keys, keys),
    command("PUBLISH", channels, values),
    command("EVAL", "return{redis.call('GET',KEYS[1])}", 1, keys),
    command("PING"),
    command("PING", values),
    command("ECHO", values),
    command("DBSIZE"),
    command("FLUSHDB ASYNC"),  # from Redis 8 on, FLUSHDB alone holds up what is behind it for a while
    command("WAIT 0 0"),
    command("OBJECT ENCODING", keys),
]
WRONG: list[st.SearchStrategy[Command]] = [
    command("NOSUCH", values),
    command("GET"),
    command("SET", keys),
    command("OBJECT NOSUCH", keys),
    command("CLIENT NOSUCH"),
    command("INCRBY", keys, "x"),
    command("EXEC now"),
    command("MULTI now"),
    command("SELECT x"),
    command("SUBSCRIBE"),
]
SILENT: list[st.SearchStrategy[Command]] = [st.sampled_from([b"\r\n", b"*0\r\n", b"*-1\r\n"])]
INLINE: list[st.SearchStrategy[Command]] = [
    st.sampled_from(
        [b"PING\r\n", b"get k\r\n", b'SET k "a b"\n', b"MULTI\r\n", b"EXEC\r\n", b"  incr x \r\n"]
    )
]
TRANSACTION: list[st.SearchStrategy[Command]] = [
    command("MULTI"),
    command("EXEC"),
    command("DISCARD"),
    command("WATCH", keys),
    command("UNWATCH"),
]
SETTINGS: list[st.SearchStrategy[Command]] = [
    command("SELECT", st.integers(0, 2)),
    command("CLIENT SETNAME", st.sampled_from(["me", "you"])),
    command("CLIENT GETNAME"),
    command("CLIENT ID"),
    command("CLIENT NO-EVICT ON"),
    command("RESET"),
    command("HELLO", st.integers(2, 4)),
    command("HELLO 3 SETNAME", st.sampled_from(["me", "no\nspace"])),
    command("AUTH wrong"),
    command("AUTH default any"),
]
SUBSCRIPTIONS: list[st.SearchStrategy[Command]] = [
    command("SUBSCRIBE", channels),
    command("SUBSCRIBE", channels, channels),
    command("PSUBSCRIBE", st.sampled_from(["*", "c*"])),
    command("UNSUBSCRIBE"),
    command("UNSUBSCRIBE", channels),
    command("PUNSUBSCRIBE"),
]
REPLIES: list[st.SearchStrategy[Command]] = [command("CLIENT REPLY", st.sampled_from(["ON", "OFF", "SKIP"]))]
TRACKING: list[st.SearchStrategy[Command]] = [
    command("CLIENT TRACKING ON"),
    command("CLIENT TRACKING ON BCAST"),
    command("CLIENT TRACKING ON OPTIN"),
    command("CLIENT TRACKING ON NOLOOP"),
    command("CLIENT CACHING YES"),
    command("CLIENT TRACKING OFF"),
]
POPS: list[st.SearchStrategy[Command]] = [
    command("BLPOP", keys, 0),
    command("BRPOP", keys, keys, 0),
    command("BZPOPMIN", keys, 0),
    command("XREAD BLOCK 0 STREAMS", keys, "0"),
]

# The parts of a pipeline, with their weights.
PLAIN = [*SIMPLE * 2, *WRONG, *SILENT, *INLINE]
ANYTHING = [*SIMPLE, *WRONG, *SILENT, *INLINE, *TRANSACTION * 4, *SETTINGS]


def pipelines(of: Sequence[st.SearchStrategy[Command]], size: int = 12) -> st.SearchStrategy[list[Command]]:
    return st.lists(st.one_of(of), min_size=1, max_size=size)


def pieces() -> st.SearchStrategy[list[int]]:
    """Returns a strategy for the sizes of the pieces of a pipeline, mostly one piece."""
    return st.one_of(
        st.just([]), st.just([]), st.lists(st.sampled_from([1, 2, 3, 5, 11, 40, 500]), max_size=6)
    )


QUIT = encode.command("QUIT")


class Sessions(RuleBasedStateMachine):
    """Collects a session's steps, and plays them at its end."""

    play: Callable[[list[Step], int], None]

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.resp = 2
        self.silent: set[str] = set()  # connections whose replies may be switched off
        self.waiting: set[str] = set()  # … that may wait in a blocking command
        self.gone: set[str] = set()
        self.monitors: set[str] = set()

    @initialize(resp=st.sampled_from([2, 3]))
    def begin(self, resp: int) -> None:
        self.resp = resp

    def send(self, on: str, commands: Sequence[Command], sizes: Sequence[int] = ()) -> None:
        if on not in self.gone:
            self.steps.append(
                Step(
                    on,
                    tuple(commands),
                    (HELLO_ID, MONITOR_LINE, *_ignored(commands)),
                    silent=True,
                    pieces=tuple(sizes),
                )
            )

    @rule(on=st.sampled_from(NAMES), commands=pipelines(PLAIN), sizes=pieces())
    def pipeline(self, on: str, commands: list[Command], sizes: list[int]) -> None:
        self.send(on, commands, sizes)

    @rule(on=st.sampled_from(NAMES), commands=pipelines(ANYTHING), sizes=pieces())
    def any_pipeline(self, on: str, commands: list[Command], sizes: list[int]) -> None:
        self.send(on, commands, sizes)

    @rule(on=st.sampled_from(NAMES), commands=pipelines(SIMPLE, 5), sizes=pieces(), end=st.booleans())
    def transaction(self, on: str, commands: list[Command], sizes: list[int], end: bool) -> None:
        self.send(on, [("MULTI",), *commands, ("EXEC",) if end else ("DISCARD",)], sizes)

    @rule(on=st.sampled_from(NAMES), commands=pipelines([*SUBSCRIPTIONS * 3, *SIMPLE], 5), sizes=pieces())
    def subscriptions(self, on: str, commands: list[Command], sizes: list[int]) -> None:
        self.send(on, [("DISCARD",), *commands], sizes)  # not inside MULTI: docs/differences.md

    @rule(
        on=st.sampled_from(NAMES), commands=pipelines([*REPLIES * 8, *SIMPLE, *SETTINGS], 6), sizes=pieces()
    )
    def replies(self, on: str, commands: list[Command], sizes: list[int]) -> None:
        self.send(on, [("DISCARD",), *commands], sizes)  # not inside MULTI: docs/differences.md

    @rule(on=st.sampled_from(NAMES), commands=pipelines([*TRACKING * 8, *SIMPLE], 6), sizes=pieces())
    def tracking(self, on: str, commands: list[Command], sizes: list[int]) -> None:
        self.send(on, commands, sizes)

    @rule(on=st.sampled_from(NAMES), to=st.sampled_from(NAMES))
    def tracking_for_another(self, on: str, to: str) -> None:
        if to not in self.gone:
            self.send(on, [("CLIENT", "TRACKING", "ON", "REDIRECT", Id(to))])

    @rule(on=st.sampled_from(NAMES), pop=st.one_of(POPS), behind=pipelines(SIMPLE, 3))
    def waiting_for_data(self, on: str, pop: Command, behind: list[Command]) -> None:
        self.send(on, [pop, *behind])

    @rule(on=st.sampled_from(NAMES), to=st.sampled_from(NAMES), error=st.booleans())
    def unblocking(self, on: str, to: str, error: bool) -> None:
        if to not in self.gone:
            self.send(on, [("CLIENT", "UNBLOCK", Id(to), "ERROR" if error else "TIMEOUT")])

    @precondition(lambda self: len(self.steps) > 3)
    @rule(on=st.sampled_from(NAMES))
    def monitoring(self, on: str) -> None:
        self.send(on, [("MONITOR",)])
        self.monitors.add(on)

    @precondition(lambda self: len(self.steps) > 3)
    @rule(
        on=st.sampled_from(NAMES[1:]),
        end=st.sampled_from([b"*1\r\n$x\r\n", QUIT, b"*x\r\n", b"get 'k\r\n", b""]),
        before=pipelines(ANYTHING, 4),
    )
    def end(self, on: str, end: bytes, before: list[Command]) -> None:
        if on in self.gone:
            return
        if on in self.monitors and end != QUIT:
            end = b""  # among MONITOR's lines an answer made here has no place of its own (see REAL)
        self.send(on, [*before, ("DISCARD",), ("CLIENT", "REPLY", "ON"), end])
        if not end:
            self.steps.append(Step(on, (), silent=True, closes=True))
        self.gone.add(on)

    def teardown(self) -> None:
        if self.steps:
            type(self).play(self.steps, self.resp)


def _ignored(commands: Sequence[Command]) -> list[object]:
    words = [tuple(str(word).upper() for word in one[:2]) for one in commands if isinstance(one, tuple)]
    found: list[object] = []
    if ("CLIENT", "ID") in words:
        found.append(CLIENT_ID)
    if ("CLIENT", "LIST") in words:
        found.append(CLIENT_LIST)
    return found
