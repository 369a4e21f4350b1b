"""Comparison with Redis' ACLs: users with the same rights, and ACL DRYRUN for each command.

Rule: keyfence refuses every command that the ACL refuses for a key or channel. `BEYOND` lists its further
refusals by rule and command, each with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyfence.commands.arguments import word
from keyfence.commands.extract import extract
from keyfence.commands.model import READ, WRITE
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.verdict import Violation
from tests.commands.calls import ARGUMENTS, GRAMMATICAL, KEY, NAMES, TRICKY, Argv, calls, carrying, join
from tests.commands.conftest import Live
from tests.commands.test_against_servers import known_difference
from tests.servers import running_redis, server_binaries

KEYS = ["a", "b", "STREAMS", "STORE", "KEYS", "GET", "{c}", "1", "2", "store"]
CHANNELS = ["a", "STORE", "1"]
# Each service's right to each key: none, read, write or both. The first service has no rights. The last three
# have the same right to every key. The others have a mixture.
RIGHTS: list[dict[str, int]] = [
    dict.fromkeys(KEYS, 0),
    *({key: (at * step + at // 2 + step) % 4 for at, key in enumerate(KEYS)} for step in (1, 2, 3, 5)),
    dict.fromkeys(KEYS, READ),
    dict.fromkeys(KEYS, WRITE),
    dict.fromkeys(KEYS, READ | WRITE),
]
SERVICES = [f"service{number}" for number in range(len(RIGHTS))]
TALKERS = frozenset({2, 7})  # numbers of the services that may use the channels


def policy_text() -> str:
    lines = ["policy: acl", f"services: [{', '.join(SERVICES)}]", "keys:"]
    for number, key in enumerate(KEYS):
        held = {name: rights[key] for name, rights in zip(SERVICES, RIGHTS, strict=True)}
        writers = [name for name in SERVICES if held[name] & WRITE]
        readers = [name for name in SERVICES if held[name] == READ]
        blind = [name for name in SERVICES if held[name] == WRITE]  # a writer may read unless denied
        lines += [
            f"  key{number}:",
            f"    key: '{key}'",
            f"    writers: [{', '.join(writers)}]",
            f"    readers: [{', '.join(readers)}]",
            f"    deny_read: [{', '.join(blind)}]",
        ]
    talkers = ", ".join(SERVICES[number] for number in sorted(TALKERS))
    lines.append("channels:")
    lines += [
        f"  channel{number}: {{channel: '{name}', publishers: [{talkers}], subscribers: [{talkers}]}}"
        for number, name in enumerate(CHANNELS)
    ]
    return "\n".join(lines) + "\n"


def acl_rules(service: int) -> list[str]:
    signs = {READ: "%R~", WRITE: "%W~", READ | WRITE: "%RW~"}
    patterns = [signs[right] + key for key, right in RIGHTS[service].items() if right]
    channels = ["&" + name for name in CHANNELS] if service in TALKERS else []
    return ["reset", "resetchannels", "+@all", *patterns, *channels]


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    return Evaluator(parse_policy(policy_text()))


@pytest.fixture(scope="module")
def redis7() -> Iterator[Live]:
    """A Redis with key permissions and ACL DRYRUN, and a user for each service."""
    binary = next((b for b in server_binaries() if int(b.version.split(".")[0]) >= 7), None)
    if binary is None:
        pytest.skip("no redis-server 7 here")
    with running_redis(binary) as server:
        live = Live(str(server.socket_path), binary.version)
        for number, name in enumerate(SERVICES):
            assert live("ACL", "SETUSER", name, *acl_rules(number)) == b"OK"
        try:
            yield live
        finally:
            live.connection.disconnect()


class Answer(NamedTuple):
    """The reply of ACL DRYRUN, as far as it concerns keys and channels."""

    allows: bool
    refuses: bool  # neither is set if the number of arguments is wrong


def acl_answer(server: Live, service: int, argv: Argv) -> Answer:
    reply = server("ACL", "DRYRUN", SERVICES[service], *argv)
    refuses = isinstance(reply, bytes) and re.search(rb"the '.*' (key|channel)$", reply, re.S) is not None
    assert refuses or reply == b"OK" or "wrong number" in str(reply) or "unknown" in str(reply), (argv, reply)
    return Answer(reply == b"OK", refuses)


def acl_is_stricter(server: Live, argv: Argv) -> str:
    """Returns why keyfence may allow a command that the ACL refuses; empty if it may not.

    Each reason is one way in which the ACL misreads a command.
    """
    name = word(argv[0])
    if name == b"GETEX" and len(argv) == 2:
        return "without options it is a GET and writes nothing"
    difference = known_difference(server, argv)
    return difference.reason if difference is not None and not difference.is_part else ""


class Beyond(NamedTuple):
    """A rule that keyfence enforces on commands that the ACL allows."""

    rule: str
    names: str  # of commands; empty for any command
    example: str  # a command, sent by `service`
    service: int
    reason: str


NOTHING, READS, WRITES, ALL = 0, 5, 6, 7
BEYOND = [
    Beyond("command.forbidden", "", "FLUSHALL", ALL, "the user has +@all; a policy forbids it by default"),
    Beyond("scan.scope", "", "SCAN 0", READS, "an ACL does not check the key names in a reply"),
    Beyond(
        "scope.write", "XREADGROUP", "XREADGROUP GROUP g c STREAMS a >", READS, "it writes the group's state"
    ),
    Beyond(
        "scope.read", "XCLAIM, XAUTOCLAIM", "XCLAIM a g c 0 0-1", WRITES, "its reply contains the entries"
    ),
    Beyond(
        "scope.read",
        "HEXISTS, HLEN, HSTRLEN, LLEN, SCARD, SISMEMBER, STRLEN, XLEN, ZCARD",
        "STRLEN a",
        WRITES,
        "the ACL counts it as existence only, but its reply depends on the key's content",
    ),
    Beyond(
        "scope.read",
        "MEMORY USAGE, OBJECT ENCODING, OBJECT REFCOUNT",
        "OBJECT ENCODING a",
        WRITES,
        "its reply depends on the content too: small numbers have an encoding and a count of their own",
    ),
    Beyond("scope.read", "ZADD", "ZADD a INCR 1 m", WRITES, "with INCR its reply is the score"),
    Beyond("command.unknown", "SORT, SORT_RO", "SORT a BY w_*", ALL, "it reads keys that it does not name"),
    Beyond("command.unknown", "DEBUG", "DEBUG NOSUCH", ALL, "an ACL does not check DEBUG's arguments"),
    Beyond(
        "channel.read", "PSUBSCRIBE", "PSUBSCRIBE a\0b", ALL, "the ACL compares patterns up to a NUL byte"
    ),
    Beyond(
        "channel.read",
        "PUBSUB CHANNELS, PUBSUB SHARDCHANNELS, PUBSUB NUMSUB, PUBSUB SHARDNUMSUB",
        "PUBSUB CHANNELS",
        ALL,
        "an ACL does not check the channels in a reply",
    ),
    Beyond(
        "scope.read",
        ", ".join(sorted(carrying())),
        "COPY b a",
        ALL,
        "an ACL does not check who else may read content that moves from one key to another",
    ),
    Beyond("script.keys", "", "EVAL x 0", ALL, "the keys of a script that declares none are unknown"),
    Beyond("script.unregistered", "", "EVAL x 1 a", ALL, "the ACL checks a script's commands when it runs"),
]


def is_beyond(server: Live, violation: Violation, argv: Argv, name: str) -> bool:
    """Whether the violation is listed, or the command cannot run and the ACL reads it more leniently."""
    if any(
        line.rule == violation.rule and (not line.names or name in line.names.split(", ")) for line in BEYOND
    ):
        return True
    return violation.position > 0 and known_difference(server, argv) is not None


def check(server: Live, evaluator: Evaluator, service: int, argv: Argv) -> None:
    """Compares keyfence with the ACL in both directions for one command of one service."""
    answer = acl_answer(server, service, argv)
    touches = extract(argv)
    violations = evaluator.evaluate(Asker(service), argv, touches).violations
    if answer.refuses and not violations:
        assert acl_is_stricter(server, argv), (SERVICES[service], argv)
    if answer.allows:
        name = touches.command.name if touches.command is not None else ""
        for violation in violations:
            assert is_beyond(server, violation, argv, name), (SERVICES[service], argv, violation)


live = settings(
    max_examples=800,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
ANYONE = st.integers(0, len(SERVICES) - 1)
TALK = st.one_of(
    join(
        st.sampled_from([b"SUBSCRIBE", b"SSUBSCRIBE", b"PSUBSCRIBE"]),
        st.lists(ARGUMENTS, min_size=1, max_size=3),
    ),
    join(st.sampled_from([b"PUBLISH", b"SPUBLISH"]), KEY, ARGUMENTS),
)


@pytest.mark.parametrize(
    "argv_of", [GRAMMATICAL, calls(TRICKY), TALK], ids=["well-formed", "broken", "channels"]
)
def test_keyfence_refuses_every_command_that_the_acl_refuses(
    redis7: Live, evaluator: Evaluator, argv_of: Any
) -> None:
    names = redis7.names()

    @live
    @given(service=ANYONE, argv=argv_of)
    def run(service: int, argv: Argv) -> None:
        if argv[0] in names:
            check(redis7, evaluator, service, argv)

    run()


def test_keyfence_is_as_strict_for_every_command_of_the_server(redis7: Live, evaluator: Evaluator) -> None:
    for name in sorted(redis7.names() & set(NAMES)):

        @settings(live, max_examples=5)
        @given(service=ANYONE, argv=calls([name]))
        def run(service: int, argv: Argv) -> None:
            check(redis7, evaluator, service, argv)

        run()


@pytest.mark.parametrize("line", BEYOND, ids=lambda line: f"{line.rule} {line.example}")
def test_keyfence_refuses_each_listed_command_that_the_acl_allows(
    redis7: Live, evaluator: Evaluator, line: Beyond
) -> None:
    argv = line.example.encode().split()
    assert acl_answer(redis7, line.service, argv).allows
    assert line.rule in {violation.rule for violation in evaluator.decide(line.service, argv).violations}


def test_the_acl_is_stricter_only_if_it_misreads_the_command(redis7: Live, evaluator: Evaluator) -> None:
    argv = [b"GETEX", b"a"]
    assert acl_answer(redis7, READS, argv).refuses
    assert acl_is_stricter(redis7, argv)
    assert not evaluator.decide(READS, argv).violations


@pytest.mark.parametrize(
    "text", ["SUBSCRIBE a", "PUBLISH a m", "PSUBSCRIBE a*", "SSUBSCRIBE a", "SPUBLISH a m"]
)
def test_both_refuse_a_service_without_channels(redis7: Live, evaluator: Evaluator, text: str) -> None:
    argv = text.encode().split()
    assert acl_answer(redis7, READS, argv).refuses
    assert evaluator.decide(READS, argv).violations
    if text != "PSUBSCRIBE a*":
        assert acl_answer(redis7, ALL, argv).allows
        assert not evaluator.decide(ALL, argv).violations
