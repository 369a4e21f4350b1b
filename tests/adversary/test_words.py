"""Searches for a word that Redis reads differently from keyfence.

The kept part of a large argument must show everything that the whole argument shows, or keyfence refuses the
request. Whatever a client writes into AUTH, HELLO, SELECT and CLIENT, the session knows what Redis did with
it.
"""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from keyfence.commands.arguments import word
from keyfence.commands.extract import extract
from keyfence.commands.model import Content, Field, Members, Streamed, Touches
from keyfence.commands.table import COMMANDS
from keyfence.identity.resolver import make_resolver
from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine.authorizer import Authorizer, InForce
from keyfence.policy.loading.load import load_policy
from keyfence.resp import encode, requests
from keyfence.resp.limits import IDENTIFIED
from keyfence.resp.replies import ReplyFramer
from keyfence.resp.requests import HEAD, RequestReader, StreamedBulk
from keyfence.session.conversation.context import ClientOrigin, SessionContext
from keyfence.session.conversation.conversation import ROOM, Doubt
from tests.adversary.conftest import Search
from tests.servers import PATIENCE_SECONDS, RedisServer, ServerBinary, running_redis
from tests.session.sessions import RecordingObserver, Session

Argv = list[bytes]

# -- different spellings

OPTIONS = sorted(
    b"""STORE STOREDIST GET BY LIMIT ASC ALPHA STREAMS GROUP COUNT BLOCK NOACK KEYS COPY REPLACE AUTH AUTH2 EX
    PX EXAT PXAT KEEPTTL NX XX GT LT PERSIST INCR CH SET INCRBY OVERFLOW WITHDIST ANY DB LEFT MIN WEIGHTS
    AGGREGATE LCS STRINGS IDX MINMATCHLEN JUSTID MKSTREAM MAXLEN MINID NOMKSTREAM MATCH TYPE FIELDS IFEQ
    ABSTTL PREFIX BCAST ON OBJECT ~ =""".split()
)
NUMBERS = [b"0", b"1", b"2", b"3", b"-1", b"99"]
NAMES = sorted(name for name in COMMANDS if not COMMANDS[name].subcommands)
# Commands whose options decide what they touch.
FORMS = [
    line.split()
    for line in (
        b"SORT own GET other:* BY weight:* STORE other",
        b"SORT own LIMIT 0 1 ALPHA STORE own STORE other",
        b"SORT_RO own BY nosort GET #",
        b"GEORADIUS own 0 0 1 m WITHDIST STORE other",
        b"GEORADIUS own 0 0 1 m COUNT 1 ANY STOREDIST other",
        b"GEORADIUSBYMEMBER own m 1 m ASC STORE other",
        b"XREAD COUNT 1 BLOCK 0 STREAMS other own 0 0",
        b"XREADGROUP GROUP g c NOACK STREAMS other 0",
        b"MIGRATE h 1 own 0 1 COPY REPLACE AUTH2 u p",
        b"MIGRATE h 1 own 0 1 AUTH p KEYS other",
        b"COPY own own DB 1 REPLACE",
        b"SET own v EX 60 NX GET",
        b"SET own v IFEQ w KEEPTTL",
        b"GETEX own PXAT 99",
        b"GETEX own PERSIST",
        b"ZADD own NX CH INCR 1 m",
        b"GEOADD own XX CH 0 0 m",
        b"BITFIELD own OVERFLOW SAT SET u8 0 1",
        b"BITFIELD own GET u8 0",
        b"EXPIRE own 60 NX",
        b"RESTORE own 0 v REPLACE ABSTTL",
        b"XADD own NOMKSTREAM MAXLEN ~ 10 LIMIT 5 * f v",
        b"XADD own MINID = 0 * f v",
        b"XCLAIM own g c 0 0-0 JUSTID",
        b"XGROUP CREATE own g $ MKSTREAM",
        b"HSETEX own EX 60 FIELDS 1 f v",
        b"SCAN 0 MATCH own:* COUNT 9 TYPE string",
        b"CLIENT TRACKING ON BCAST PREFIX own:",
        b"STRALGO LCS KEYS own other",
        b"DEBUG OBJECT own",
        b"OBJECT FREQ own",
        b"CONFIG SET maxclients 1",
        b"EVAL return 1 own a",
        b"ZUNIONSTORE own 2 own other WEIGHTS 1 2 AGGREGATE MIN",
        b"LMPOP 2 own other LEFT COUNT 1",
        b"SELECT 1",
        b"SWAPDB 0 1",
        b"MSETEX 1 own v EX 60",
    )
]


def command(rng: random.Random) -> Argv:
    """Returns a command with options, well-formed or not."""
    if rng.random() < 0.7:
        argv = list(rng.choice(FORMS))
    else:
        argv = rng.choice(NAMES).split()
    for _ in range(rng.choice((0, 0, 1, 2, 4))):
        argument = rng.choice((rng.choice(OPTIONS), rng.choice(NUMBERS), b"own", b"other", b"*"))
        argv.insert(rng.randint(1, len(argv)), argument)
    return argv


def in_any_case(rng: random.Random, argument: bytes) -> bytes:
    return bytes(byte ^ 0x20 if chr(byte).isalpha() and rng.random() < 0.5 else byte for byte in argument)


def respelled(rng: random.Random, argument: bytes) -> bytes:
    """Returns a word that is equal for strcasecmp, or one that only looks equal."""
    argument = in_any_case(rng, argument)
    tails = (b"", b"", b"", b"\0", b"\0x", b"\0" * 70, b"\0" + b"y" * rng.randint(1, 80), b" ", b"\n", b"x")
    argument += rng.choice(tails)
    if rng.random() < 0.05:
        argument = rng.choice((b" ", b"\0", b"+", b"0")) + argument
    if rng.random() < 0.05:
        argument = argument.replace(b"S", "ſ".encode()).replace(b"K", "\u212a".encode())
    return argument


def enlarged(rng: random.Random, argument: bytes) -> bytes:
    """Returns the argument as the beginning of a large one."""
    end = rng.choice((b"", b"*", b"->f", b"0", b" other"))
    return argument + rng.choice((b"\0", b"\0", b"\0", b"")) + rng.choice((b"x", b"\0", b"7")) * HEAD + end


# -- the kept part of a large argument


def unshown(touches: Touches) -> bool:
    """Returns whether the session refuses the request because a part of it is too long to evaluate."""
    named = [access.key for access in touches.accesses] + [channel.name for channel in touches.channels]
    named += [touches.pattern.glob] if touches.pattern is not None else []
    named += [touches.script.name] if touches.script is not None else []
    return any(isinstance(name, Streamed) for name in named)


def without_bytes(content: Content | None) -> object:
    """Returns the places of a content's values, without their bytes."""
    if content is None:
        return None

    def field(one: Field) -> object:
        return one.position, one.value_position

    def members(one: Members | None) -> object:
        return one and (one.position, one.step, len(one.values), len(one.scores))

    return content._replace(
        value=None,
        fields=tuple(map(field, content.fields)),  # type: ignore[arg-type]
        members=members(content.members),  # type: ignore[arg-type]
    )


def less_is_seen(whole: Touches, part: Touches) -> str:
    """Describes what the whole request shows but its shortened arguments do not; "" for nothing."""
    if unshown(part):
        return ""
    if whole.problem is not None and part.problem is None:
        return f"the problem {whole.problem}"
    if part.command != whole.command:
        return "the command"
    seen = {access.position: access for access in part.accesses}
    for access in whole.accesses:
        other = seen.get(access.position)
        if other is None or access.needs & ~other.needs:
            return f"the access {access}"
        if part.problem is None and (other.ttl != access.ttl or other.types != access.types):
            return f"what becomes of {access}"
        if part.problem is None and without_bytes(other.content) != without_bytes(access.content):
            return f"the content of {access}"
    if not set(whole.databases) <= set(part.databases):
        return f"the databases {whole.databases}"
    if not {one.position for one in whole.channels} <= {one.position for one in part.channels}:
        return f"the channels {whole.channels}"
    if (whole.pattern is None, whole.script is None) != (part.pattern is None, part.script is None):
        return "the pattern or the script"
    return ""


def test_the_kept_part_of_a_large_argument_shows_what_the_whole_shows(search: Search) -> None:
    for rng in search.attempts_of_at_least(3000):
        argv = [one if not at else respelled(rng, one) for at, one in enumerate(command(rng))]
        large = {rng.randrange(len(argv)) for _ in range(rng.choice((1, 1, 2, 3)))}
        argv = [enlarged(rng, one) if at in large else one for at, one in enumerate(argv)]
        part = [Streamed(one[:HEAD], len(one)) if at in large else one for at, one in enumerate(argv)]
        assert not (less := less_is_seen(extract(argv), extract(part))), (argv, less)


def test_a_large_argument_in_any_pieces_shows_its_beginning(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "LARGE", 2 * HEAD)
    for rng in search.attempts_of_at_least(50):
        sizes = (0, 1, 9, HEAD - 1, HEAD, HEAD + 1, 2 * HEAD, 2 * HEAD + 1, 3 * HEAD)
        sent = [rng.randbytes(rng.choice(sizes)) for _ in range(rng.randint(1, 5))]
        data = encode.command(*sent)
        reader, at, argv = RequestReader(IDENTIFIED), 0, None
        while argv is None:
            step = rng.choice((1, 1, 2, 7, HEAD, 5 * HEAD))
            reader.feed(data[at : at + step])
            at += step
            argv = reader.next()
            while argv is None and reader.is_large:
                reader.take_partial()
                argv = reader.next()
                if reader.is_large:
                    break
        assert len(argv) == len(sent)
        for shown, whole in zip(argv, sent, strict=True):
            if isinstance(shown, StreamedBulk):
                assert (bytes(shown), shown.size) == (whole[:HEAD], len(whole))
            else:
                assert shown == whole


# -- the session's belief compared with Redis

USERS = {b"stock": b"s", b"audit": b"a"}
POLICY = Path(__file__).parent / "words.yaml"


class Wire:
    """A connection to Redis, read reply by reply."""

    def __init__(self, server: RedisServer) -> None:
        self._path = str(server.socket_path)
        self.connect()

    def connect(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_SECONDS)
        self.socket.connect(self._path)
        self._unread = b""

    def reply(self) -> bytes:
        framer, at = ReplyFramer(), 0
        while True:
            at = framer.advance(self._unread, at, 1, stop_after_push=True)
            if at and framer.at_boundary:
                reply, self._unread = self._unread[:at], self._unread[at:]
                return reply
            more = self.socket.recv(65536)
            assert more, "Redis has closed the connection"
            self._unread += more

    def ask(self, *words: bytes | int) -> bytes:
        self.socket.sendall(encode.command(*words))
        return self.reply()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


class Followed(Wire):
    """A session in front of a real Redis, without a client's socket."""

    def __init__(self, server: RedisServer, session: Session) -> None:
        super().__init__(server)
        self.session = session
        self.id = int(self.ask(b"CLIENT", b"ID")[1:])

    @property
    def believes_no_reply(self) -> bool:
        """Returns whether the session is inside MULTI after a reply that may be shaped (`Actor.effect`)."""
        transaction = self.session.transaction
        return transaction is not None and (self.session.talk.doubt == Doubt.OPEN or transaction.is_shapeable)

    def send(self, argv: Argv, piece: int = 0) -> bytes:
        """Sends a request, in pieces of this size or as one.

        Returns the client's replies once all have come.
        """
        session, data = self.session, encode.command(*argv)
        for at in range(0, len(data), piece or len(data)):
            session.from_client(data[at : at + (piece or len(data))])
            self._pass_on()
        heard = b"".join(session.to_client)
        session.to_client.clear()
        return heard

    def _pass_on(self) -> None:
        session = self.session
        while session.to_upstream or session.outstanding:
            if session.reopen:
                session.reopen = False
                self.socket.close()
                self.connect()
            data, session.to_upstream = b"".join(session.to_upstream), []
            self.socket.sendall(data)
            if session.is_opaque or session.closing:
                break
            if session.outstanding:
                session.from_upstream(self.reply())


@pytest.fixture(scope="module")
def server(redis_binary: ServerBinary) -> Iterator[RedisServer]:
    """A Redis with two users, whose default user may do everything."""
    acl = [f"{user.decode()} on >{password.decode()} ~* &* +@all" for user, password in USERS.items()]
    with ExitStack() as stack:
        yield stack.enter_context(running_redis(redis_binary, acl=acl))


def new_session(mode: str) -> Session:
    policy = load_policy(POLICY)
    authorizer = Authorizer(policy, Modes((ModeRule(mode),), policy.services))  # type: ignore[arg-type]
    identities = make_resolver(frozenset(policy.services))
    context = SessionContext(InForce(authorizer), identities, RecordingObserver())
    return Session(context, ClientOrigin("stock", "10.0.0.9:5"))


SESSION_FORMS = [
    line.split()
    for line in (
        b"AUTH audit a",
        b"AUTH audit wrong",
        b"AUTH stock s",
        b"HELLO 2 AUTH audit a",
        b"HELLO 3 AUTH audit a SETNAME me",
        b"HELLO 3 SETNAME you AUTH stock s",
        b"HELLO 2 SETNAME AUTH AUTH audit a",
        b"HELLO 2 AUTH audit wrong AUTH stock s",
        b"HELLO 3",
        b"HELLO 2",
        b"SELECT 1",
        b"SELECT 0",
        b"CLIENT SETNAME me",
        b"CLIENT SETNAME SETNAME",
        b"CLIENT REPLY ON",
        b"CLIENT REPLY OFF",
        b"CLIENT REPLY SKIP",
        b"CLIENT GETNAME",
        b"MULTI",
        b"EXEC",
        b"DISCARD",
        b"RESET",
        b"PING",
    )
]
_NOT_WORDS = {b"audit", b"stock", b"a", b"s", b"wrong", b"me", b"you"}


def session_command(rng: random.Random) -> Argv:
    """Returns a command that changes the session, with some words spelled differently."""
    argv = rng.choice(SESSION_FORMS)
    rate = rng.choice((0.0, 0.2, 0.5, 1.0))
    return [respelled(rng, one) if one not in _NOT_WORDS and rng.random() < rate else one for one in argv]


def client_line(watch: Wire, number: int) -> dict[str, str]:
    """Returns CLIENT LIST's line about a connection."""
    listing = watch.ask(b"CLIENT", b"LIST").decode()
    line = next(one for one in listing.splitlines() if f"id={number} " in one)
    return dict(re.findall(r"(\S+?)=(\S*)", line))


def believed(session: Session) -> dict[str, str]:
    profile = session.profile
    return {
        "user": (profile.user or b"default").decode(),
        "db": str(profile.database),
        "name": profile.name.decode(),
        "resp": str(session.replies.resp),
        "in MULTI": str(session.transaction is not None),
    }


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_a_session_s_belief_equals_redis_state(search: Search, server: RedisServer, mode: str) -> None:
    with Wire(server) as watch:
        for rng in search.attempts_of_at_least(100):
            one = Followed(server, new_session(mode))
            said: list[Argv] = []
            unknown = set()
            with one:
                for _ in range(rng.randint(1, 5)):
                    said.append(session_command(rng))
                    believes_nothing = one.believes_no_reply
                    heard = one.send(said[-1])
                    if believes_nothing and list(map(word, said[-1][:2])) == [b"CLIENT", b"SETNAME"]:
                        unknown = {"name"}
                    if word(said[-1][0]) == b"HELLO" and not heard.startswith((b"*", b"%")):
                        unknown = {"name"}  # it may have failed after its SETNAME
                    if one.session.is_opaque or one.session.closing:
                        break
                else:
                    answer = client_line(watch, one.id)
                    answer["in MULTI"] = str(answer["multi"] != "-1")
                    ours = {
                        name: value for name, value in believed(one.session).items() if name not in unknown
                    }
                    answer.setdefault("resp", ours["resp"])  # Redis 6.2 does not say
                    assert ours == {name: answer[name] for name in ours}, said
                    assert one.session.service in ("stock", answer["user"]), said


def test_a_session_gets_as_many_replies_as_a_client_of_redis(search: Search, server: RedisServer) -> None:
    """In observe, replies are switched on or off as in Redis, after any commands."""
    forms = [one for one in SESSION_FORMS if one[0] in (b"CLIENT", b"PING")]
    for rng in search.attempts_of_at_least(100):
        with Followed(server, new_session("observe")) as client, Wire(server) as direct:
            said: list[Argv] = []
            for _ in range(rng.randint(1, 4)):
                argv = rng.choice(forms)
                said.append([argv[0], *(respelled(rng, one) for one in argv[1:])])
                if argv[1:2] == [b"REPLY"] and server.version_info >= (7,):
                    said[-1][1] = in_any_case(rng, argv[1])  # with a NUL, Redis knows it only by chance
            end = [[b"ECHO", b"heard"], [b"CLIENT", b"REPLY", b"ON"], [b"ECHO", b"end"]]
            for argv in (*said, *end):
                direct.socket.sendall(encode.command(*argv))
            expected = [direct.reply()]
            while b"end" not in expected[-1]:
                expected.append(direct.reply())
            heard = b"".join(client.send(argv) for argv in (*said, *end))
            assert heard == b"".join(expected), said


# -- keys that a spelling reaches

SECRET = b"the-secret"
OWN = [
    b"SET own:string v",
    b"RPUSH own:list 1 2",
    b"SADD own:set 1",
    b"ZADD own:zset 1 1",
    b"GEOADD own:geo 0 0 m",
    b"XADD own:stream 1-1 f v",
    b"HSET own:hash f v",
]
FOREIGN = [
    b"SET other:string " + SECRET,
    b"SET other:1 " + SECRET,
    b"RPUSH other:list " + SECRET,
    b"XADD other:stream 1-1 f " + SECRET,
    b"HSET other:hash f " + SECRET,
]
REACHING = [
    line.split()
    for line in (
        b"SORT own:list BY nosort GET other:* GET #",
        b"SORT own:list BY other:* ALPHA STORE own:new",
        b"SORT own:list LIMIT 0 1 STORE other:new",
        b"SORT own:list GET other:hash->f DESC",
        b"GEORADIUS own:geo 0 0 1 m WITHDIST ASC",
        b"GEORADIUS own:geo 0 0 1 m COUNT 1 STORE other:new",
        b"GEORADIUSBYMEMBER own:geo m 1 m STOREDIST other:new",
        b"XREAD COUNT 1 STREAMS other:stream own:stream 0 0",
        b"XREAD STREAMS own:stream 0",
        b"COPY own:string own:new DB 1 REPLACE",
        b"COPY own:string other:new REPLACE",
        b"OBJECT ENCODING other:string",
        b"XGROUP CREATE other:new g $ MKSTREAM",
        b"XINFO STREAM other:stream",
        b"MEMORY USAGE other:string",
        b"ZUNIONSTORE own:new 2 own:zset other:hash WEIGHTS 1 2 AGGREGATE MIN",
        b"SELECT 1",
        b"MOVE own:string 1",
        b"SET own:new v GET",
        b"GET other:string",
        b"HELLO 2 SETNAME other:string",
        b"MULTI",
        b"EXEC",
    )
]


def plant(watch: Wire) -> None:
    for line in (b"FLUSHALL", *OWN, *FOREIGN):
        watch.ask(*line.split())


def foreign(watch: Wire) -> list[bytes]:
    """Returns everything that is not stock's: the other keys of database 0, and all of database 1."""
    keys = [b"other:string", b"other:1", b"other:list", b"other:stream", b"other:hash", b"other:new"]
    there = [watch.ask(b"DUMP", key) for key in keys]
    assert watch.ask(b"SELECT", 1) == b"+OK\r\n"
    there.append(watch.ask(b"DBSIZE"))
    assert watch.ask(b"SELECT", 0) == b"+OK\r\n"
    return there


def test_no_spelling_of_a_word_reaches_a_foreign_key(
    search: Search, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "LARGE", 2 * HEAD)
    monkeypatch.setattr(ROOM, "shared_request", 2 * HEAD)
    with Wire(server) as watch:
        plant(watch)
        before = foreign(watch)
        for rng in search.attempts_of_at_least(100):
            with Followed(server, new_session("enforce")) as one:
                said: list[Argv] = []
                for _ in range(rng.randint(1, 4)):
                    argv = rng.choice(REACHING)
                    said.append([word if b":" in word else respelled(rng, word) for word in argv])
                    if rng.random() < 0.5:
                        at = rng.randrange(len(argv))
                        said[-1][at] = argv[at] + b"\0" + b"x" * 3 * HEAD
                    heard = one.send(said[-1], piece=rng.choice((100, HEAD, 4 * HEAD)))
                    assert SECRET not in heard, said
                    if one.session.closing:
                        break
            assert foreign(watch) == before, said
