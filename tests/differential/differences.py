"""The differences between replies through keyfence and from Redis, each with its reason.

Rule: a comparison ignores nothing else, and each step names the differences that it ignores.
docs/differences.md is this list as a page (`python -m tests.differential.differences` writes it).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from keyfence.commands.addresses import ANSWERS, UNASKED, Answer, Fate
from keyfence.upstream.cluster.fan_out import ROWS, FanOut, Join, Reach
from tests.servers import PROJECT

PAGE = PROJECT / "docs" / "differences.md"


class Difference(NamedTuple):
    """A part of replies that may differ between two sessions of the same commands."""

    where: str  # the commands
    what: str
    reason: str
    mask: Callable[[bytes], bytes]


def _masked(pattern: bytes, by: bytes) -> Callable[[bytes], bytes]:
    compiled = re.compile(pattern, re.DOTALL)
    return lambda data: compiled.sub(by, data)


# The fields of CLIENT LIST that describe one connection at one moment.
_MOMENTARY = (
    b"id|addr|laddr|fd|age|idle|qbuf|qbuf-free|argv-mem|multi-mem|rbs|rbp|obl|oll|omem|tot-mem|events"
    b"|tot-net-in|tot-net-out|tot-cmds"
)


def _client_lines(data: bytes) -> bytes:
    data = re.sub(rb"\b(" + _MOMENTARY + rb")=[^ ]*", rb"\1=*", data)
    data = re.sub(rb"\bredir=\d+", b"redir=*", data)
    return re.sub(rb"(?:\$|=)\d+\r\n(?=(?:txt:)?id=\*)", b"$*\r\n", data)


def _info_values(data: bytes) -> bytes:
    data = re.sub(rb"^(?!txt:)([a-z][A-Za-z0-9_.|-]*):[^\r\n]*", rb"\1:*", data, flags=re.MULTILINE)
    data = re.sub(rb"errorstat_[^\r]*\r\n", b"", data)
    return re.sub(rb"(?:\$|=)\d+\r\n(?=(?:txt:)?# )", b"$*\r\n", data)


def _monitor_line(data: bytes) -> bytes:
    data = re.sub(rb"\+\d+\.\d+ \[(\d+) (?:unix:)?[^\]]*\]", rb"+* [\1 *]", data)
    return re.sub(rb'("(?:REDIRECT|UNBLOCK|ID)") "\d+"', rb'\1 "*"', data)


CLIENT_ID = Difference(
    "CLIENT ID, HELLO, CLIENT TRACKINGINFO, CLIENT GETREDIR",
    "a connection's id",
    "Redis numbers its connections, and there were others in between.",
    _masked(rb"(?<=\n):\d+(?=\r\n)|^:\d+(?=\r\n)", b":*"),
)
CLIENT_LIST = Difference(
    "CLIENT LIST, CLIENT INFO",
    "id, addresses, ages, buffers and their memory, sums of traffic",
    "They describe one connection at one moment. Redis sees keyfence's address in place of the client's.",
    _client_lines,
)
HELLO_ID = Difference(
    "HELLO",
    "the connection's id",
    "As for CLIENT ID.",
    _masked(rb"(?<=\$2\r\nid\r\n):\d+", b":*"),
)
CLOCK = Difference(
    "TIME, LASTSAVE, EXPIRETIME of keys with a relative time to live",
    "the time",
    "Time passes.",
    _masked(rb"\$\d+\r\n\d{1,16}(?=\r\n)|:\d{9,16}(?=\r\n)", b"<time>"),
)
TIME_LEFT = Difference(
    "TTL, PTTL",
    "the remaining time",
    "Time passes.",
    _masked(rb":\d+(?=\r\n)", b":*"),
)
STREAM_ID = Difference(
    "XADD with *",
    "the time in an id that Redis generates",
    "Time passes.",
    _masked(rb"\$\d+\r\n\d{13}-\d+(?=\r\n)", b"<id>"),
)
MONITOR_LINE = Difference(
    "MONITOR",
    "the time and the client's address in each line; ids of connections in the commands shown",
    "As for CLIENT LIST.",
    _monitor_line,
)
INFO_VALUES = Difference(
    "INFO",
    "the values; the sections and fields are compared",
    "Run ids, uptimes, memory and counters change, and Redis counts keyfence's own connections.",
    _info_values,
)
LOG_ENTRY = Difference(
    "SLOWLOG GET, LATENCY HISTORY, MEMORY STATS, MEMORY DOCTOR",
    "numbers and addresses",
    "They are measurements.",
    _masked(rb":\d+(?=\r\n)|\$\d+\r\n(?:\d+|[^\r\n]*(?::\d+|\.\d+))(?=\r\n)|,[0-9.e+-]+(?=\r\n)", b"<n>"),
)

IGNORED = (
    CLIENT_ID,
    HELLO_ID,
    CLIENT_LIST,
    CLOCK,
    TIME_LEFT,
    STREAM_ID,
    MONITOR_LINE,
    INFO_VALUES,
    LOG_ENTRY,
)


def masked(data: bytes, ignoring: Iterable[Difference]) -> bytes:
    """Returns the bytes without the parts that may differ."""
    for difference in ignoring:
        data = difference.mask(data)
    return data


def page() -> str:
    """Returns the text of docs/differences.md."""
    rows = [f"| {one.where} | {one.what} | {one.reason} |" for one in IGNORED]
    real = [f"| {where} | {direct} | {through} | {why} |" for where, direct, through, why in REAL]
    addresses = "\n".join(_of_addresses())
    cluster = "\n".join(_of_a_cluster())
    return _PAGE.format(ignored="\n".join(rows), real="\n".join(real), addresses=addresses, cluster=cluster)


def _of_addresses() -> Iterator[str]:
    """The rows of the answers that name addresses, those of one answer together."""
    commands: dict[Answer, list[str]] = {}
    for name, answer in ANSWERS.items():
        if answer.fate is not Fate.NO_ADDRESS:
            commands.setdefault(answer, []).append(f"`{name}`")
    for answer, names in commands.items():
        yield f"| {', '.join(names)} | {answer.names} | {answer.fate.value} | {answer.why} |"
    for what, answer in UNASKED.items():
        yield f"| {what} | {answer.names} | {answer.fate.value} | {answer.why} |"


def _of_a_cluster() -> Iterator[str]:
    """The rows of the commands without keys that go to a cluster, those of one kind together."""
    commands: dict[FanOut, list[str]] = {}
    for name, row in ROWS.items():
        if row not in (FanOut(Reach.ONE), FanOut(Reach.CHANNEL)) and "CLUSTER " not in name:
            shown = "CLUSTER …" if name == "CLUSTER" else name
            kind = row._replace(refusal=row.refusal.replace(f" {name} ", " … "))
            commands.setdefault(kind, []).append(f"`{shown}`")
    for row, names in sorted(commands.items(), key=lambda item: list(Reach).index(item[0].reach)):
        got = f"`-{row.refusal}`" if row.refusal else row.join.value if row.join is not Join.FIRST else ""
        yield f"| {', '.join(names)} | {row.reach.value} | {got} | {row.why} |"


# The differences that a client can notice with a policy that allows everything: (where, Redis, keyfence,
# why).
REAL: tuple[tuple[str, str, str, str], ...] = (
    (
        "a bulk string without CRLF after it (`$1\\r\\nkXX`)",
        "accepts any two bytes instead",
        "`-ERR Protocol error: expected CRLF after bulk`, and closes",
        "A server that reads the same bytes differently would run another command than the evaluated one.",
    ),
    (
        "another byte than LF after the CR of a header (`*1\\rX$4…`, `$4\\rX…`)",
        "accepts any byte instead",
        "`-ERR Protocol error: invalid multibulk length`, or `invalid bulk length`, and closes",
        "As above.",
    ),
    (
        "a control character, or a byte above 127, in place of `$`",
        "the error has the byte itself (`got '\\t'`); after a NUL byte it waits forever",
        "the error has the byte's number (`got '\\x09'`); closes after a NUL byte too",
        "Logs show the error, and a client would wait forever.",
    ),
    (
        "a NUL byte in an inline command",
        "does not find the line's end and waits forever",
        "`-ERR Protocol error: null byte in inline request`, and closes",
        "The client would wait forever.",
    ),
    (
        "a command with more than 5,000 options, such as `SET k v KEEPTTL KEEPTTL …`",
        "accepts repeated options",
        "`command.unknown`: refused in enforce, unless the service may do everything. If that is only "
        "observed, its keys at fixed positions must be readable and writable",
        "keyfence limits the cost of a request.",
    ),
    (
        "a request of more than 1,048,576 arguments",
        "accepts up to 2,147,483,647 from Redis 7.0 on",
        "`-ERR Protocol error: invalid multibulk length`, and closes, as Redis 6.2",
        "keyfence limits the cost of a request.",
    ),
    (
        "`CLIENT REPLY OFF` or `SKIP` inside MULTI",
        "EXEC's array then has fewer elements than it announces",
        "`-NOPERM [session.opaque]` in enforce; passed unread in observe",
        "keyfence could not find the end of EXEC's reply.",
    ),
    (
        "`SUBSCRIBE` and similar commands inside MULTI",
        "EXEC's array holds more elements than it announces (RESP2), or pushes (RESP3)",
        "`-NOPERM [session.opaque]` in enforce; passed unread in observe",
        "As above.",
    ),
    (
        "`SCRIPT DEBUG YES` or `SYNC`",
        "the next EVAL starts Lua's debugger, which reads the following input",
        "`-NOPERM [session.opaque]` in enforce, even if granted; passed unread in observe",
        "The debugger's input (`s`, `c`, `redis GET key`) is not Redis commands.",
    ),
    (
        "`CLIENT TRACKING … REDIRECT id` with an id that was not shown to a client of the same service",
        "redirects the messages, or answers `-ERR The client ID you want redirect to does not exist`",
        "`-NOPERM [command.forbidden]` in enforce; passes in observe",
        "The messages would reach another service's connection, or one that several clients share.",
    ),
    (
        "`CLIENT REPLY ON` inside MULTI while replies are off",
        "sends the later elements without the array's header",
        "`-NOPERM [session.opaque]` in enforce, which the client does not get; closes in observe",
        "As above.",
    ),
    (
        "in observe, a command that keyfence passes unread with all after it, sent while replies are off",
        "stays silent",
        "tells Redis `CLIENT REPLY OFF` before it; inside MULTI, or if a part of a large request "
        "was sent, it closes",
        "keyfence drops the replies that are off itself, until it follows the session no more. "
        "Inside MULTI, Redis would queue the command.",
    ),
    (
        "`QUIT`, or a protocol error, while replies are off",
        "leaves the connection open",
        "closes it",
        "Redis closes after sending the reply, which it never sends. The client asked for the end.",
    ),
    (
        "`KEYFENCE`, if the policy grants it by name",
        "`-ERR unknown command`",
        "keyfence answers ([operations](operations.md#asking-over-a-redis-connection))",
        "A service asks keyfence over its own connection.",
    ),
    (
        "`AUTH`, `HELLO`, `SELECT` inside MULTI, after a script or another command on the same connection "
        "whose reply the client's text might shape",
        "as outside MULTI",
        "`-NOPERM [session.opaque]` in enforce; passed unread in observe",
        "The text could forge their replies.",
    ),
    (
        "`AUTH` or `HELLO … AUTH` that fails inside MULTI, Redis 8.0 and Valkey 8.1",
        "EXEC's array lacks the element (redis/redis#15640)",
        "closes",
        "The next reply would take the missing element's place.",
    ),
    (
        "a replica of Valkey, after `CLIENT CAPA redirect`",
        "answers REDIRECT to commands with keys",
        "as there on the client's own connection; on a shared one, reads are answered, and writes get "
        "READONLY",
        "The command holds for one connection.",
    ),
    (
        "a command while Redis is away",
        "the connection is closed or refused",
        "the command waits, for at most `connect_timeout` since the outage began; then the connection is "
        "closed. Clients that wait for nothing are closed then, too",
        "Most outages are restarts. Clients send a command again after a closed connection, and not after "
        "an error ([operations.md](operations.md#when-redis-is-away)).",
    ),
    (
        "`SET … GET` with `IFDEQ` or `IFDNE` and a digest that is not 16 hexadecimal digits, Redis 8.4",
        "answers twice: the old value, and an error",
        "sends both and closes, or sends the second one in place of the next reply",
        "Redis answers one request twice. No other client gets the second reply, and it is not "
        "taken for the answer to a login.",
    ),
    (
        "a large request that is refused, of a client that knows its connection's id",
        "the connection and its id stay",
        "another connection with another id; closes if another client has named the id in `CLIENT "
        "TRACKING … REDIRECT`",
        "keyfence has sent the beginning of the request, and must not send its end. Hardly any "
        "client that has seen its id uses it.",
    ),
    (
        "MONITOR",
        "–",
        "also shows keyfence's own commands: PING and `HELLO 2` each second; COMMAND and a trial of each "
        "of its commands (`keyfence acl self`) when Redis comes up; PTTL, STRLEN, HLEN and similar, with "
        "SELECT, for keys whose time to live or size it checks; PING before a client's WAIT; and "
        "barriers: ECHO, a HELLO with a syntax error or PING, with a random number of 32 hexadecimal "
        "digits",
        "keyfence is a client of Redis too, and MONITOR shows all commands that Redis gets; keyfence "
        "removes no line. A barrier proves that replies and requests correspond.",
    ),
    (
        "MONITOR",
        "shows AUTH, HELLO, SELECT, `CLIENT SETNAME` and `CLIENT SETINFO` when a client sends them",
        "shows AUTH, HELLO and SELECT again for each shared connection, and all but `CLIENT SETNAME` when a "
        "client moves to a dedicated connection (HELLO sets its name); commands of several clients come "
        "from one address, and those of one client may come from two",
        "keyfence sets up a new connection as its clients have set up theirs.",
    ),
    (
        "CLIENT LIST",
        "a line for each client",
        "a line for each connection to Redis: the shared ones, up to `shared_connections` for each "
        "database, protocol and user, without name and library; one for each client that has a dedicated "
        "connection, or has been shown the id of one (HELLO shows it); and keyfence's own, for its PING "
        "and for times to live",
        "These are Redis' real connections, and operators count and close them by this list; keyfence "
        "removes no line. keyfence's metrics count its clients.",
    ),
    (
        "MULTI or WATCH while a script keeps Redis busy, with RESP2 in another database than keyfence's",
        "`+OK`",
        "an error with Redis' `BUSY`, and closes",
        "The connection that they need must select the database first, which a busy Redis refuses. If the "
        "client stayed, its next commands would run outside the transaction.",
    ),
    (
        "a refusal or a protocol error in a session that runs MONITOR",
        "sends the line for the command before it first",
        "may answer before that line",
        "keyfence makes the answer and Redis the line, and nothing shows that a line is still on its way.",
    ),
    (
        "`POST` or `Host:` after other commands in one packet",
        "closes without sending its earlier replies",
        "sends these replies first",
        "The commands have run; Redis loses their replies by closing at once.",
    ),
    (
        "`POST` or `Host:` before a password is given, Redis 6.2",
        "`-NOAUTH`, and continues",
        "closes, as Redis 7",
        "Either way it is an attack through a browser.",
    ),
)

_PAGE = """\
# Differences from Redis

With a policy that allows everything, a client gets the bytes that Redis would send. `tests/differential` runs
the same sessions directly and through keyfence, and compares every byte except the differences listed here.

## Differences that a client can notice

| where | Redis | keyfence | why |
|---|---|---|---|
{real}

## Addresses of Redis

A client that is told an address of Redis may connect to it, past keyfence. This is what becomes of each
answer that names one where [redis.address](operations.md#redis-cluster-and-sentinel) is enforced. Elsewhere
it passes, and is a finding if it would be refused. An error in place of the answer passes. No other command
names an address. [Before a cluster](operations.md#redis-cluster), CLUSTER SLOTS, SHARDS, NODES and REPLICAS
outside MULTI, MOVED and ASK name keyfence's addresses, so they pass.

| answer | names | in enforce | why |
|---|---|---|---|
{addresses}

## A Redis Cluster behind one address

Clients that do not know clusters can have a whole cluster behind one address (`expose: single`,
[operations](operations.md#redis-cluster)). A command with keys goes to the node that has their hash slot;
with keys in several hash slots it gets Redis' own `-CROSSSLOT Keys in request don't hash to the same slot`.
For services that ask for it, MGET, DEL, UNLINK, EXISTS and TOUCH are sent
[in parts](operations.md#commands-in-parts) instead: other clients may see some parts done and others not, an
error of one part is the reply though other parts may have run, and replies of more than 16 MiB together are
an error. Inside MULTI they get CROSSSLOT. For services that ask for it, reads go
[to replicas](operations.md#reads-from-a-clusters-replicas): other connections' writes may be missing there
for up to five seconds, but never what the connection itself has read or written. What would pass unread in
observe (`session.opaque`) is an error here in every mode, since keyfence could not find the nodes of later
commands.

This is what becomes of the commands without keys. All others without keys go to one primary, whose reply
the client gets. If replies are joined, an error of one node is the answer, and so is `-CLUSTERDOWN` if a
node that should answer cannot be asked, or a hash slot has no owner: a part of the truth would look like all
of it. A client that has subscribed gets an error for the commands that several nodes answer. A
command that changes all nodes may then have changed some. Replies of more than 64 MiB together are an error
too.

| command | who answers | the client gets | why |
|---|---|---|---|
{cluster}

SCAN returns each key that exists during a whole iteration at least once, also while hash slots move, shards
split and merge, and primaries fail over; then keys may come several times. Cursors are decimal numbers
below 2⁶³. With up to a million keys at a node they are mostly below 2⁵³, which is as much as some clients
read. KEYS, DBSIZE and RANDOMKEY ask all primaries at about the same time. A key whose hash slot is on the
way may be missed then, or counted twice.

## Differences between any two sessions

The tests ignore these parts of replies, and only in the replies to these commands.

| where | what | why |
|---|---|---|
{ignored}
"""

if __name__ == "__main__":
    Path(PAGE).write_text(page())
