"""Searches for a tenant that reaches another tenant's keys.

One search runs sessions over a model of Redis, and checks everything sent upstream with a reading of the
policy that shares no code with keyfence. The other runs real clients over one keyfence with few shared
connections: each value names its writer, so reads, and Redis' data at the end, reveal a breach.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from keyfence.identity.passwords import Password
from keyfence.identity.resolver import Resolver, make_resolver
from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine.authorizer import Authorizer, InForce
from keyfence.policy.loading.load import parse_policy
from keyfence.session.conversation.context import ClientOrigin, SessionContext
from tests.adversary.conftest import Search
from tests.adversary.resp import requests
from tests.adversary.stage import Client, Ended
from tests.servers import Keyfence, RedisServer, ServerBinary, running_redis
from tests.session.fake_redis import PASSWORD, FakeRedis
from tests.session.sessions import RecordingObserver, Session, passed

POLICY = Path(__file__).with_name("tenants.yaml")
LUA = POLICY.with_name("tenants.lua").read_bytes()
NAMES = [b"a", b"ab", b"b", b"A", b"a*", b"\xff", b"v"]
USERS = [*(b"tenant-" + name for name in NAMES), b"tenant-", b"tenant-a:v", b"other", b"default", b"app"]

# -- an independent reading of the policy


def tenant_of(user: bytes) -> bytes | None:
    name = user.removeprefix(b"tenant-")
    return name if name != user and 0 < len(name) <= 16 and b":" not in name else None


def is_foreign(key: bytes, tenant: bytes | None, *, writes: bool) -> bool:
    """Returns whether a key belongs to another tenant."""
    kind, _, rest = key.partition(b":")
    owner = rest.partition(b":")[0]
    if kind == b"t" and rest:
        return owner != tenant
    return kind == b"s" and writes and owner != tenant


READS = {b"GET", b"MGET", b"HGET", b"STRLEN", b"EXISTS", b"SUBSTR"}


def breaches(argv: Sequence[bytes], tenant: bytes | None) -> bool:
    """Returns whether an admitted command of a tenant touches another tenant's keys."""
    name = argv[0].upper()
    if name in (b"SCAN", b"PSUBSCRIBE"):
        globs = argv[3:4] or [b"*"] if name == b"SCAN" else argv[1:]
        return any(
            glob.startswith((b"t", b"*", b"?", b"[")) and not _is_inside(glob, tenant) for glob in globs
        )
    if name in (b"PUBLISH", b"SUBSCRIBE", b"COPY", b"RENAME", b"SET", b"SETEX", b"DEL", b"HSET", *READS):
        keys = {b"PUBLISH": argv[1:2], b"SET": argv[1:2], b"SETEX": argv[1:2], b"HSET": argv[1:2]}.get(
            name, argv[1:]
        )
        keys = argv[1:2] if name in (b"HGET", b"SUBSTR") else keys
        if name == b"COPY":
            return is_foreign(keys[0], tenant, writes=False) or is_foreign(keys[1], tenant, writes=True)
        return any(is_foreign(key, tenant, writes=name not in READS) for key in keys)
    if name == b"EVAL" and argv[1] == LUA:
        return tenant is None
    return name == b"EVAL" and any(is_foreign(key, tenant, writes=True) for key in argv[3:])


def _is_inside(glob: bytes, tenant: bytes | None) -> bool:
    """Returns whether everything that a glob matches belongs to one tenant.

    Escapes and classes of one byte mean that byte.
    """
    if tenant is None:
        return False
    glob = glob.removeprefix(b"__keyspace@0__:")
    want, at = b"t:" + tenant + b":", 0
    for byte in want:
        piece = glob[at : at + 1]
        if piece == b"\\":
            piece, at = glob[at + 1 : at + 2], at + 1
        elif piece == b"[":
            piece, at = glob[at + 1 : at + 2], at + 2
            if glob[at : at + 1] != b"]":
                return False
        elif piece in (b"*", b"?"):
            return False
        if piece != bytes([byte]):
            return False
        at += 1
    return True


# -- random commands


def key(rng: random.Random) -> bytes:
    tenant = rng.choice([*NAMES, b"", b"c"])
    kind = rng.choice(
        [b"t:%b:v:1", b"t:%b:v:1", b"t:%b:v:2", b"t:%b:w:1", b"t:%b:h:1", b"t:%b:v:B", b"s:%b:1"]
    )
    odd = [b"t:%b", b"t:%b:", b"t:%b:other", b"t::%b:v:1", b"t:%b:v:1:v:1", b"s:%b"]
    return (rng.choice(odd) if rng.random() < 0.15 else kind) % tenant


def glob(rng: random.Random) -> bytes:
    tenant = rng.choice([*NAMES, b"a\\*", b"[a]", b"[ab]", b"?", b"*", b"a[b]"])
    return rng.choice([b"t:%b:*", b"t:%b:v:*", b"t:%b*", b"t:%b:v:1", b"*%b*", b"s:%b:*"]) % tenant


def call(rng: random.Random, value: bytes) -> list[bytes]:
    """Returns a command that touches keys. Forms repeat often, so that the decision cache holds them."""
    one = key(rng)
    return rng.choice(
        [
            [b"GET", one],
            [b"GET", one],
            [b"SET", one, value],
            [b"SET", one, value],
            [b"SETEX", one, b"60", value],
            [b"SET", one, value, b"EX", b"60"],
            [b"DEL", one],
            [b"EXISTS", one],
            [b"HSET", one, b"f", value],
            [b"HGET", one, b"f"],
            [b"MGET", one, key(rng)],
            [b"DEL", one, key(rng), key(rng)],
            [b"COPY", one, key(rng)],
            [b"SCAN", b"0", b"MATCH", glob(rng)],
            [b"EVAL", LUA, b"0", b"1", value],
            [b"PUBLISH", one, value],
        ]
    )


def login(rng: random.Random) -> list[list[bytes]]:
    user = rng.choice(USERS)
    right = rng.random() < 0.8
    password = PASSWORD if right else b"wrong"
    return rng.choice(
        [
            [[b"AUTH", user, password]],
            [[b"AUTH", user, password]],
            [[b"HELLO", rng.choice([b"2", b"3"]), b"AUTH", user, password]],
            [[b"RESET"]],
            [[b"HELLO", b"2"]],
        ]
    )


def packet(rng: random.Random, value: bytes) -> list[list[bytes]]:
    """Returns requests that arrive at once: logins, transactions whole and in part, and others."""
    calls: list[list[bytes]] = []
    for _ in range(rng.randrange(1, 7)):
        what = rng.random()
        if what < 0.2:
            calls += login(rng)
        elif what < 0.35:
            calls += [[b"MULTI"], *(call(rng, value) for _ in range(rng.randrange(3))), [b"EXEC"]]
        elif what < 0.4:
            calls.append([rng.choice([b"MULTI", b"EXEC", b"DISCARD"])])
        else:
            calls.append(call(rng, value))
    return calls


# -- sessions over a model


class Model(FakeRedis):
    """Remembers the user of each command that ran or was queued."""

    def __init__(self) -> None:
        super().__init__()
        self.by: list[tuple[bytes, tuple[bytes, ...]]] = []

    def _answer(self, words: tuple[bytes, ...]) -> bytes:
        self.by.append((self.user, words))
        if words[0] == b"ACL":
            return b"$%d\r\n%b\r\n" % (len(self.user), self.user)
        return super()._answer(words)


def authorizers(mode: str) -> list[Authorizer]:
    """Returns authorizers of two policies that give each user the same tenant in different notations."""
    text = POLICY.read_text().replace("source: tenants.lua", f"source: {POLICY.with_name('tenants.lua')}")
    other = text.replace('pattern: "tenant-(.*)"', 'pattern: "(?:tenant)-([^:]+)"')
    modes = [ModeRule("observe", "key.unregistered"), ModeRule(mode)]  # type: ignore[arg-type]
    found = []
    for one in (text, other):
        loaded = parse_policy(one)
        found.append(Authorizer(loaded, Modes(modes, loaded.services)))
    return found


@pytest.mark.parametrize("checked_here", [False, True])
def test_no_session_sends_a_command_that_touches_another_tenant(search: Search, checked_here: bool) -> None:
    right = Password([hashlib.sha256(PASSWORD).digest()], "app")
    users = [user.decode("utf-8", "surrogateescape") for user in USERS if checked_here]
    passwords = dict.fromkeys(users, right)
    known = make_resolver(frozenset({"app"}), passwords=passwords)
    both = authorizers("enforce")
    in_force = InForce(both[0])
    admitted = 0
    for rng in search.attempts_of_at_least(60):
        sessions = [_Play(in_force, known) for _ in range(3)]
        for _ in range(30):
            if rng.random() < 0.05:
                in_force.authorizer = rng.choice(both)
            one = rng.choice(sessions)
            admitted += one.send(packet(rng, b"v"))
    assert admitted > 100


class _Play:
    """A session with a model behind it. If keyfence checks passwords, the model follows by itself."""

    def __init__(self, in_force: InForce, known: Resolver) -> None:
        self.observer = RecordingObserver()
        self.known = known
        self.session = Session(
            SessionContext(in_force, known, self.observer), ClientOrigin("app", "10.0.0.1")
        )
        self.redis = Model()
        self.user = b""  # the client's user, if keyfence checks passwords

    def send(self, calls: list[list[bytes]]) -> int:
        """Sends a packet. Returns how many commands that touch keys passed."""
        if not self.known.passwords:
            return self._play(requests(calls))
        passed_on = 0
        for one in calls:  # one by one, so that the user of each is known
            passed_on += self._play(requests([one]), as_user=self.user)
            if not self.session.closing:
                self._follow(one)
        # And all at once, if no login is among them.
        if not any(one[0] in (b"AUTH", b"HELLO", b"RESET") for one in calls):
            passed_on += self._play(requests(calls), as_user=self.user)
        return passed_on

    def _follow(self, argv: list[bytes]) -> None:
        """Checks that the session's user is the one that has logged in."""
        believed = self.session.caller.user or b""
        if argv[0] == b"RESET":
            self.user = b""
        elif argv[0] == b"AUTH" and argv[-1] == PASSWORD:
            self.user = argv[-2]
        elif argv[0] == b"HELLO" and argv[-1] == PASSWORD and believed == argv[-2]:
            self.user = argv[-2]  # a login inside MULTI has no effect yet
        elif argv[0] == b"EXEC":
            self.user = believed
        assert believed == self.user, argv

    def _play(self, data: bytes, as_user: bytes | None = None) -> int:
        if self.session.closing:
            return 0
        self.session.from_client(data)
        count = 0
        while not self.session.closing and (request := passed(self.session)):
            start = len(self.redis.by)
            replies = b"".join(self.redis.feed(request))
            for user, argv in self.redis.by[start:]:
                tenant = tenant_of(user if as_user is None else as_user)
                assert not breaches(argv, tenant), (tenant, argv)
                count += argv[0] in (b"GET", b"SET", b"DEL", b"MGET", b"HSET", b"SCAN", b"EVAL", b"COPY")
            self.session.from_upstream(replies)
        self.session.to_client.clear()
        return count


# -- over real servers

PEOPLE = [b"a", b"ab", b"b", b"A", b"v"]
ACL = [f"tenant-{name.decode()} on >{PASSWORD.decode()} ~* &* +@all" for name in PEOPLE]


@pytest.fixture(scope="module", params=["Redis", "keyfence"])
def tenants(
    request: pytest.FixtureRequest, each_binary: ServerBinary, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[_Tenants]:
    """A keyfence in front of Redis, where either one checks passwords.

    If keyfence checks them, all tenants share one connection.
    """
    folder = tmp_path_factory.mktemp("tenants")
    digest = hashlib.sha256(PASSWORD).hexdigest()
    users = [f"tenant-{name.decode()}: {{sha256: [{digest}], service: app}}" for name in PEOPLE]
    with running_redis(each_binary, acl=ACL) as server:
        lines = [
            f"policy: {POLICY}",
            f"upstream: {{url: {server.url}, shared_connections: 1}}",
            "admin: none",
            "drain: 500ms",
            'listeners: [{listen: "127.0.0.1:0", service: app}]',
            "modes: [{rule: key.unregistered, mode: observe}, {mode: enforce}]",
            f"identify: {{passwords: {{{', '.join(users)}}}}}" if request.param == "keyfence" else "",
        ]
        (folder / "keyfence.yaml").write_text("\n".join(lines) + "\n")
        with Keyfence("--config", folder / "keyfence.yaml") as keyfence:
            yield _Tenants(server, keyfence)


class _Tenants:
    def __init__(self, server: RedisServer, keyfence: Keyfence) -> None:
        self.server = server
        self.keyfence = keyfence


def test_no_client_reads_or_writes_another_tenant_s_keys(search: Search, tenants: _Tenants) -> None:
    stage = tenants
    written = 0
    with contextlib.closing(stage.server.client()) as direct:
        for rng in search.attempts_of_at_least(5):
            direct.flushall()
            for name in PEOPLE:  # a value of each tenant, to be read
                for kind in (b"t:%b:v:1", b"t:%b:v:2", b"t:%b:other"):
                    direct.set(kind % name, b"<" + name + b">")
            clients = [_Person(stage, rng.choice(PEOPLE)) for _ in range(4)]
            try:
                for _ in range(40):
                    one = rng.choice(clients)
                    one.send(rng)
                    if rng.random() < 0.5:
                        one.check()
                for one in clients:
                    one.check()
            finally:
                for one in clients:
                    one.close()
            for name in direct.scan_iter(b"*"):
                if direct.type(name) != b"string":
                    continue
                value = direct.get(name)
                owner = name.split(b":")[1]
                assert value == b"<" + owner + b">", (name, value)
                written += 1
    assert written


class _Person:
    """A client that acts as one tenant after the other, and writes the tenant's name into all its values."""

    def __init__(self, stage: _Tenants, name: bytes) -> None:
        self.client = Client(stage.keyfence.connect("app"))
        self.name = name
        self.may_read = {name}  # all tenants that it was since the last check of its replies
        self.client.send(requests([[b"AUTH", b"tenant-" + name, PASSWORD]]))

    def send(self, rng: random.Random) -> None:
        calls: list[list[bytes]] = []
        for _ in range(rng.randrange(1, 8)):
            if rng.random() < 0.15:
                self.name = rng.choice(PEOPLE)
                self.may_read.add(self.name)
                calls.append([b"AUTH", b"tenant-" + self.name, PASSWORD])
            value = b"<" + self.name + b">"
            some = [call(rng, value) for _ in range(rng.randrange(1, 4))]
            # COPY keeps the original writer's name. All tenants may read keys under s:.
            some = [one for one in some if one[0] != b"COPY" and not any(w.startswith(b"s:") for w in one)]
            calls += [[b"MULTI"], *some, [b"EXEC"]] if rng.random() < 0.25 else some
        with contextlib.suppress(Ended):
            self.client.send(requests(calls))

    def check(self) -> None:
        """Checks that no reply holds another tenant's value."""
        with contextlib.suppress(Ended):
            self.client.send(requests([[b"ECHO", b"that was all"]]))
            while b"that was all" not in (frame := self.client.frames(1)[0]):
                for other in PEOPLE:
                    assert b"<" + other + b">" not in frame or other in self.may_read, (self.may_read, frame)
        self.may_read = {self.name}

    def close(self) -> None:
        self.client.close()
