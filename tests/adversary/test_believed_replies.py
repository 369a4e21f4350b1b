"""keyfence learns a client's user and database from Redis' replies, and no client can forge such a reply.

The attacker is `audit` and knows only its own password. Whatever it sends, the keys of `stock` and `web` and
all of database 1 stay unchanged and unseen, and no command is evaluated as another service's.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
from collections.abc import Iterable, Iterator

import pytest

from tests.adversary.calls import Argv
from tests.adversary.conftest import Search
from tests.adversary.resp import requests
from tests.adversary.stage import Attacker, Ended, Stage, attacker
from tests.servers import PATIENCE_SECONDS

OWN = b"hunt:audit:"
OTHERS = ("stock", "web")
# Redis' replies to a change of user, database or mode.
BELIEVED = [
    b"+OK",
    b"+OK",
    b"+RESET",
    b"+QUEUED",
    b":1",
    b"$5\\r\\nstock",
    b"$-1",
    b"*0",
    b"*-1",
    b"*1\\r\\n+OK",
    b"%0",
    b"%1\\r\\n$6\\r\\nserver\\r\\n$5\\r\\nredis",
    b"_",
    b"-ERR no",
    b"-EXECABORT x",
    b">3\\r\\n$9\\r\\nsubscribe\\r\\n$1\\r\\nc\\r\\n:1",
    b"*3\\r\\n$9\\r\\nsubscribe\\r\\n$1\\r\\nc\\r\\n:1",
    b"*3\\r\\n$11\\r\\nunsubscribe\\r\\n$1\\r\\nc\\r\\n:0",
    b"|1\\r\\n+a\\r\\n+b\\r\\n+OK",
]
WRONG_LOGINS: list[Argv] = [
    line.split()
    for line in b"""AUTH stock wrong
        AUTH stock wrong
        HELLO 3 AUTH stock wrong
        HELLO 3 AUTH stock wrong BOGUS
        HELLO 2 AUTH audit audit-password BOGUS
        AUTH web wrong
        AUTH stock audit-password
        HELLO 2 AUTH stock wrong
        HELLO 3 AUTH stock wrong SETNAME x
        HELLO 3 SETNAME x AUTH stock wrong
        HELLO 3 AUTH audit audit-password AUTH stock wrong
        HELLO 9 AUTH stock wrong""".splitlines()
]
SETTINGS: list[Argv] = [
    line.split()
    for line in b"""AUTH audit audit-password
        HELLO 3
        HELLO 2
        SELECT 0
        SELECT 1
        SELECT 2
        RESET
        MULTI
        EXEC
        EXEC x
        DISCARD
        UNWATCH
        WATCH hunt:audit:k
        CLIENT REPLY OFF
        CLIENT REPLY SKIP
        CLIENT REPLY ON
        CLIENT ID
        CLIENT SETNAME n
        CLIENT SETINFO LIB-NAME x
        CLIENT TRACKING ON
        CLIENT TRACKING OFF
        SUBSCRIBE c
        UNSUBSCRIBE
        PSUBSCRIBE c*
        MONITOR
        PUBLISH c x
        PING
        SET hunt:audit:k v
        GET hunt:audit:k
        BLPOP hunt:audit:none 0.001
        ACL WHOAMI
        FROBNICATE x""".splitlines()
]
# Commands that only the owner may run, and commands that the attacker may run only in databases 0 and 2.
STOLEN: list[Argv] = [
    line.split()
    for line in b"""SET hunt:stock:planted stolen
        GET hunt:stock:planted
        SET hunt:stock:new stolen
        DEL hunt:web:planted
        GET hunt:web:planted
        GET hunt:audit:planted
        SET hunt:audit:planted stolen""".splitlines()
]


def shaped(frames: bytes, way: int = 0) -> Argv:
    """Returns a call whose error contains these frames on Redis 7 and later."""
    text = b'#!lua "x\\r\\n' + frames + b'"\nreturn 1'
    return [
        [b"EVAL", text, b"1", OWN + b"s"],
        [b"SCRIPT", b"LOAD", text],
        [b"EVAL_RO", text, b"1", OWN + b"s"],
    ][way]


class Vault:
    """The data at stake on one stage, and a check that it is untouched."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._log = stage.folder / "decisions.jsonl"
        self._read = 0  # bytes of it so far
        self._plant()

    def _plant(self) -> None:
        direct = self._stage.direct
        with direct.pipeline(transaction=False) as pipeline:
            for database in (1, 2, 0):
                pipeline.execute_command("SELECT", database)  # type: ignore[no-untyped-call]
                pipeline.flushdb()
                for service in (*OTHERS, "audit"):
                    if database == 1 or service != "audit":
                        pipeline.set(f"hunt:{service}:planted", f"secret-{service}-{database}")
            pipeline.execute()

    def _state(self) -> list[object]:
        """Returns all data that the attacker has no right to."""
        with self._stage.direct.pipeline(transaction=False) as pipeline:
            for database in (1, 2, 0):
                pipeline.execute_command("SELECT", database)  # type: ignore[no-untyped-call]
                pipeline.mget(
                    *(f"hunt:{service}:{name}" for service in OTHERS for name in ("planted", "new"))
                )
                if database == 1:
                    pipeline.get("hunt:audit:planted")
                    pipeline.dbsize()
            return list(pipeline.execute())

    def attack(self, pieces: Iterable[bytes], one: Attacker, patience: float = 0.01) -> None:
        """Plays the attack, and fails if it had an effect."""
        before = self._state()
        self._new_lines()
        one.play(pieces)
        heard = b"".join(one.drain(patience)) + one.unread()
        assert b"secret-" not in heard, "a secret was read"
        for service in OTHERS:
            assert b"%b may not" % service.encode() not in heard, f"a command was judged as {service}'s"
        after = self._state()
        if after != before:
            self._plant()
        assert after == before, "what the attacker may not touch was changed"
        judged_as = {json.loads(line)["service"] for line in self._new_lines()}
        assert not judged_as.intersection(OTHERS), judged_as

    def _new_lines(self) -> list[bytes]:
        """The lines of the decision log since the last call. keyfence may be writing the next one."""
        with self._log.open("rb") as log:
            log.seek(self._read)
            whole, newline, _ = log.read().rpartition(b"\n")
        self._read += len(whole + newline)
        return whole.splitlines()


PREFIXES: dict[str, list[Argv]] = {
    "watching": [[b"WATCH", OWN + b"k"]],
    "in RESP3": [[b"HELLO", b"3"], [b"WATCH", OWN + b"k"]],
    "logged in": [[b"AUTH", b"audit", b"audit-password"], [b"WATCH", OWN + b"k"]],
    "tracking": [[b"CLIENT", b"TRACKING", b"ON"]],
    "shared": [],
    "blocked": [[b"BLPOP", OWN + b"none", b"0.01"]],
}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_client_s_own_frame_is_not_taken_for_a_login(stage: Stage, prefix: str) -> None:
    vault = Vault(stage)
    for believed in (b"+OK", b"%0", b"$5\\r\\nstock", b"+OK\\r\\n+OK\\r\\n+OK", b"*0\\r\\n$5\\r\\nstock"):
        for number, login in enumerate(WRONG_LOGINS[:5]):
            calls = [*PREFIXES[prefix], shaped(believed), login, *STOLEN]
            pieces = [requests([call]) for call in calls] if number % 2 else [requests(calls)]
            with contextlib.closing(attacker(stage, "audit")) as one:
                vault.attack(pieces, one, 0.002)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_late_reply_to_a_command_that_redis_answers_twice_is_not_taken_for_a_login(
    stage: Stage, prefix: str
) -> None:
    """Since Redis 8.4, a SET with GET and a malformed digest has two replies. A large request between it and
    the login arrives at Redis later, so the login waits for the wrong replies."""
    vault = Vault(stage)
    twice = [b"SET", OWN + b"k", b"v", b"IFDEQ", b"zz", b"GET"]
    for login in WRONG_LOGINS[:5]:
        calls = [[b"SET", OWN + b"k", b"v"], twice, [b"SET", OWN + b"l", b"v" * 16_500], login, *STOLEN]
        with contextlib.closing(attacker(stage, "audit")) as one:
            vault.attack([requests([*PREFIXES[prefix], *calls])], one, 0.01)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_client_s_own_frame_is_not_taken_for_a_change_of_database(stage: Stage, prefix: str) -> None:
    vault = Vault(stage)
    selects: list[list[Argv]] = [
        [[b"SELECT", b"1"], [b"SELECT", b"0"]],
        [[b"SELECT", b"2"], [b"SELECT", b"9999"], [b"RESET"]],
        [[b"MULTI"], [b"SELECT", b"2"], [b"EXEC"]],
    ]
    for select in selects:
        with contextlib.closing(attacker(stage, "audit")) as one:
            vault.attack([requests([*PREFIXES[prefix], shaped(b"+OK"), *select, *STOLEN])], one, 0.005)


def test_no_client_becomes_another_service(stages: list[Stage], search: Search) -> None:
    vaults = [(stage, Vault(stage)) for stage in stages]
    for rng in search:
        stage, vault = rng.choice(vaults)
        with contextlib.closing(attacker(stage, "audit")) as one:
            if rng.random() < 0.3:
                one.ask("AUTH", "audit", "audit-password")
            vault.attack(cut(rng, requests(conversation(rng))), one, 0.005)


def disturbed(rng: random.Random, stage: Stage, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the pieces; in between, closes keyfence's connections to Redis and reloads its policy."""
    for piece in pieces:
        yield piece
        if rng.random() < 0.5:
            stage.direct.client_kill_filter(_type=rng.choice(["normal", "pubsub"]), skipme=True)
        if rng.random() < 0.05:
            stage.keyfence.process.send_signal(signal.SIGHUP)


def test_no_client_becomes_another_service_while_connections_end(stages: list[Stage], search: Search) -> None:
    vaults = [(stage, Vault(stage)) for stage in stages]
    for rng in search:
        stage, vault = rng.choice(vaults)
        data = requests(conversation(rng))
        at = rng.randrange(len(data))
        with contextlib.closing(attacker(stage, "audit")) as one:
            vault.attack(disturbed(rng, stage, [data[:at], data[at:]]), one, 0.005)


@pytest.mark.parametrize(
    "login", ["AUTH stock wrong", "HELLO 3 AUTH stock wrong", "HELLO 2 AUTH stock wrong SETNAME x"]
)
def test_a_failed_login_after_other_commands_is_answered(stage: Stage, login: str) -> None:
    """Servers with the fix for CVE-2025-21605 (Redis 8.0.2, Valkey 8.1.1) may omit a reply.

    They do not answer a login that fails while other replies wait to be written (redis/redis#15640).
    """
    with contextlib.closing(attacker(stage, "audit")) as one:
        one.socket.settimeout(PATIENCE_SECONDS)
        one.ask("WATCH", OWN + b"k")
        one.send(requests([[b"GET", OWN + b"k"], login.encode().split(), [b"GET", OWN + b"k"]]))
        before, refusal, behind = one.frames(3)
        assert refusal.startswith(b"-WRONGPASS")
        assert before == behind


def answers_or_ends(one: Attacker) -> bool:
    try:
        one.ask("PING")
    except Ended as exc:
        return "timed out" not in str(exc)
    return True


def test_a_failed_login_in_a_transaction_delays_no_client(stage: Stage) -> None:
    """The same servers omit such a reply within the reply to EXEC, too.

    No later reply may take its place: the client gets its replies, or is closed.
    """
    calls: list[Argv] = [
        [b"MULTI"],
        [b"AUTH", b"stock", b"wrong"],
        [b"SET", OWN + b"k", b"v"],
        [b"EXEC"],
        [b"SET", b"hunt:stock:new", b"stolen"],
    ]
    vault = Vault(stage)
    with contextlib.closing(attacker(stage, "audit")) as one:
        one.socket.settimeout(PATIENCE_SECONDS)
        vault.attack([requests(calls)], one)
        assert answers_or_ends(one)


def conversation(rng: random.Random) -> list[Argv]:
    """Returns logins that must fail, among frames of the attacker's own, and then the theft."""
    calls = list(rng.choice(list(PREFIXES.values()))) if rng.random() < 0.7 else []
    for _ in range(rng.randrange(1, 10)):
        kind = rng.random()
        if kind < 0.35:
            frames = b"\\r\\n".join(rng.choices(BELIEVED, k=rng.choice([1, 1, 1, 2, 3])))
            calls.append(shaped(frames, rng.choice([0, 0, 0, 1, 2])))
        elif kind < 0.65:
            calls.append(list(rng.choice(WRONG_LOGINS)))
        elif kind < 0.95:
            calls.append(list(rng.choice(SETTINGS)))
        else:
            calls.append(list(rng.choice(STOLEN)))
    return calls + [list(call) for call in rng.sample(STOLEN, len(STOLEN))]


def cut(rng: random.Random, data: bytes) -> list[bytes]:
    """Returns the bytes as one packet, most of the time, or in pieces."""
    places = sorted(rng.sample(range(len(data)), rng.choice([0, 0, 0, 1, 2, 8])))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def bulks(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(one), one) for one in words)


def test_a_message_cannot_replace_a_barrier(stage: Stage) -> None:
    """A forged bulk string swallows the reply to the barrier and the first half of a message.

    The other half of the message then claims that the login succeeded.
    """
    confirmed = b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"
    payload = b"x\r\n+OK\r\n$5\r\nstock\r\n$999"
    before = bulks(b"message", b"c", payload).partition(payload)[0]
    swallow = b"$%d" % len(confirmed + bulks(b"pong", b"n" * 32) + before + b"x")
    text = (confirmed + swallow).replace(b"\r\n", b"\\r\\n")
    calls: list[Argv] = [shaped(text), [b"SUBSCRIBE", b"c"], [b"AUTH", b"stock", b"wrong"]]
    with contextlib.closing(attacker(stage, "audit")) as one:
        one.ask("WATCH", OWN + b"k")
        one.play([requests(calls)])
        heard = one.drain(0.1)
        stage.direct.publish("c", payload)
        assert b"+OK\r\n" not in heard + one.drain(0.05)


def test_a_script_cannot_forge_other_replies_of_its_transaction(stage: Stage) -> None:
    """The script's text claims that a SELECT failed, and swallows the real replies. Nothing shows this."""
    vault = Vault(stage)
    script = shaped(b"-ERR no\\r\\n$8")
    calls: list[Argv] = [[b"MULTI"], script, [b"SELECT", b"2"], [b"SET", OWN + b"k", b"v"], [b"EXEC"]]
    with contextlib.closing(attacker(stage, "audit")) as one:
        one.ask("WATCH", OWN + b"k")
        vault.attack([requests(calls)], one)
    with stage.direct.pipeline(transaction=False) as pipeline:
        for database in (2, 0):
            pipeline.execute_command("SELECT", database)  # type: ignore[no-untyped-call]
            pipeline.exists(OWN + b"k")
        there = pipeline.execute()[1]
    assert not there, "a command ran in a database that keyfence does not know of"
