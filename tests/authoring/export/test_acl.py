"""A real Redis admits with the exported ACL rules nothing that the policy refuses, except the listed gaps.

Redis' own ACL DRYRUN answers for generated commands: every command with keys of every kind, at random.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from keyfence.authoring.export.acl import User, acl_of, user_of
from keyfence.authoring.export.acl_commands import FUNCTIONS, SCRIPTS, SERVERS
from keyfence.authoring.export.acl_gaps import ANY_RULE
from keyfence.authoring.export.acl_keys import word_of
from keyfence.commands.table import COMMANDS, lookup
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import load_policy, parse_policy
from keyfence.policy.patterns.globs import Glob
from keyfence.policy.verdict import Violation
from tests.policy.cases import POLICIES, steps_of
from tests.servers import ServerBinary, all_server_binaries, running_redis

CONVENTIONS = ["cubesandbox", "cosky", "card-relay", "container-registry", "general"]
# Its list names these: a deprecated form whose pattern would match every key, and PSUBSCRIBE.
LISTED_AS_REFUSED = {
    "cubesandbox": [("CubeMaster", b"HGETALL", b"n1"), ("CubeMaster", b"DEL", b"n1")],
    "cosky": [("cosky-app", b"PSUBSCRIBE", b"cosky-{default}:svc_itc:user-service@*")],
}
COMMANDS_EACH = 5000  # for each service
# Commands with options, one a line; K stands for a key, C for a channel.
FORMS = [line.split() for line in Path(__file__).with_name("acl_commands.txt").read_text().splitlines()]


class Target(NamedTuple):
    """A server, and the name that the export has for it."""

    binary: ServerBinary
    server: str


def targets() -> list[Target]:
    """The installed servers that have ACL DRYRUN; Redis 7.0 first, if it is there."""
    found = [
        Target(binary, server)
        for binary in all_server_binaries()
        for server in SERVERS
        if binary.id.startswith(f"{server}.")
    ]
    return sorted(found, key=lambda one: SERVERS.index(one.server))


pytestmark = pytest.mark.skipif(
    not targets(), reason="ACL DRYRUN needs Redis 7.0 or later: apt install redis-server"
)


@cache
def policy_of(name: str) -> CompiledPolicy:
    path = Path(__file__).with_name(f"{name}.yaml")
    return load_policy(path if path.exists() else POLICIES / f"{name}.yaml")


def keys_of(policy: CompiledPolicy, rng: random.Random) -> list[bytes]:
    """Keys of every target, and keys that almost are."""
    keys = [b"", b"x", b"acme:1", b"a b"]
    for target in policy.targets:
        key = target.pattern.example()
        keys += [key, key + b":more", key[:-1], key.replace(b":", b"::", 1), key + b"\n", key.upper()]
    return list(dict.fromkeys([*keys, *(rng.choice(keys) + b"x" * 200 for _ in range(5))]))


def commands_for(policy: CompiledPolicy, rng: random.Random, server: str) -> Iterator[list[bytes]]:
    """Yields commands: with the options above, and every other command with as many arguments as it takes."""
    keys = keys_of(policy, rng)
    own = [
        target.pattern.example() for target in policy.targets if target.kind in ("entry", "legacy", "scope")
    ]
    channels = [one.pattern.example() for one in policy.channels] or [b"news"]
    rows = [row.command for row in COMMANDS.values() if not row.subcommands and server in row.command.servers]

    def key() -> bytes:
        return rng.choice(own) if own and rng.random() < 0.7 else rng.choice(keys)

    while True:
        if rng.random() < 0.7:
            words = {"K": key, "C": lambda: rng.choice([*channels, key()])}
            form = rng.choice(FORMS)
            yield [
                words[word[0]]() + word[1:].encode()
                if word[0] in words and word[1:] in ("", "*")
                else word.encode()
                for word in form
            ]
            continue
        command = rng.choice(rows)
        name = command.name.encode().split()
        count = max(0, abs(command.arity) - len(name)) + rng.choice([0, 0, 1, 2])
        yield [*name, *(rng.choice([key(), b"1", b"2", b"f"]) for _ in range(count))]


def is_listed(user: User, violation: Violation, name: str) -> bool:
    return any(
        gap.rule in (violation.rule, ANY_RULE)
        and gap.entry in ("", violation.entry)
        and (not gap.commands or name in gap.commands)
        for gap in user.gaps
    )


def name_of(argv: Sequence[bytes]) -> str:
    row = lookup(argv)
    return row.command.name if row is not None else ""


def is_runnable(client: redis.Redis, argv: Sequence[bytes]) -> bool:
    """Whether Redis finds the command's keys. If not, as for a number of keys that is none, it refuses to run
    the command. For scripts, it does so without naming the fault."""
    if name_of(argv) in SCRIPTS | FUNCTIONS:
        return argv[2].isdigit() and int(argv[2]) <= len(argv) - 3
    try:
        client.execute_command("COMMAND", "GETKEYSANDFLAGS", *argv)
    except redis.ResponseError as exc:
        return "Invalid arguments" not in str(exc)
    return True


def answers(client: redis.Redis, service: str, commands: Sequence[Sequence[bytes]]) -> list[bool | None]:
    """Whether Redis would admit each command; None for one that it does not understand."""
    pipeline = client.pipeline(transaction=False)
    for argv in commands:
        pipeline.execute_command("ACL", "DRYRUN", service, *argv)
    replies = pipeline.execute(raise_on_error=False)
    return [None if isinstance(one, Exception) else one in (b"OK", "OK") for one in replies]


Place = tuple[str, str, str, str]


def unlisted_in(
    policy: CompiledPolicy, also: Sequence[str] = (), at: Target | None = None
) -> tuple[dict[Place, list[bytes]], Counter[str]]:
    """Returns what Redis admits although the policy refuses it and the list does not have it, by service,
    rule, entry and command; and how many commands were admitted and refused. `also` are further rules."""
    at = at or targets()[0]
    evaluator = Evaluator(policy)
    found: dict[Place, list[bytes]] = {}
    seen: Counter[str] = Counter()
    with running_redis(at.binary) as server, server.client() as client:
        client.response_callbacks.clear()  # replies as they are
        for service in policy.services[:-1]:
            user = user_of(policy, service, at.server)
            client.execute_command("ACL", "SETUSER", service, *user.rules, *also)
            made = commands_for(policy, random.Random(service), at.server)
            commands = [next(made) for _ in range(COMMANDS_EACH)]
            for argv, admits in zip(commands, answers(client, service, commands), strict=True):
                verdict = evaluator.decide(policy.number(service), argv)
                broken = [one for one in verdict.violations if one.severity == "must"]
                seen["admitted"] += bool(admits)
                seen["refused"] += admits is False and bool(broken)
                for one in broken if admits else ():
                    if not is_listed(user, one, name_of(argv)) and is_runnable(client, argv):
                        found[service, one.rule, one.entry, name_of(argv)] = argv
    return found, seen


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CONVENTIONS, "odd"])
def test_redis_admits_nothing_that_the_policy_refuses_except_the_listed_gaps(name: str) -> None:
    unlisted, seen = unlisted_in(policy_of(name))
    assert unlisted == {}
    assert seen["admitted"] > 500  # otherwise nothing was tested
    assert seen["refused"] > 500 or name == "general"


@pytest.mark.slow
@pytest.mark.parametrize("at", targets()[1:], ids=lambda one: one.binary.id)
def test_later_servers_admit_nothing_more(at: Target) -> None:
    for name in ("cubesandbox", "odd"):
        unlisted, seen = unlisted_in(policy_of(name), at=at)
        assert unlisted == {}
        assert seen["admitted"] > 500


@pytest.mark.parametrize(
    "rules", [["~cube:v1:api:*"], ["+flushall"], ["+select"], ["(+get +append ~cube:v1:shared:*)"]]
)
def test_a_rule_that_admits_more_is_found(rules: list[str]) -> None:
    unlisted, _ = unlisted_in(policy_of("cubesandbox"), rules)
    assert unlisted


@pytest.mark.parametrize("name", CONVENTIONS)
def test_redis_admits_what_the_policy_s_own_tests_allow_except_what_is_listed(name: str) -> None:
    policy, steps = steps_of(POLICIES / f"{name}.test.yaml")
    compiled = load_policy(policy)
    refused = []
    target = targets()[0]
    with running_redis(target.binary) as server, server.client() as client:
        for service in compiled.services[:-1]:
            rules = user_of(compiled, service, target.server).rules
            client.execute_command("ACL", "SETUSER", service, *rules)
        for step in steps:
            allowed = not Evaluator(compiled).decide(compiled.number(step.service), step.argv).violations
            if not allowed or step.service not in compiled.services[:-1]:
                continue
            if answers(client, step.service, [step.argv]) == [False]:
                refused.append((step.service, *step.argv[:5]))
    assert refused == LISTED_AS_REFUSED.get(name, [])


def test_the_lines_can_be_piped_into_redis_cli_as_they_are() -> None:
    text = acl_of(policy_of("cosky"))
    lines = [line for line in text.splitlines() if not line.startswith("#") and line]
    for one in targets():
        with running_redis(one.binary) as server, server.client() as client:
            for line in lines:
                assert client.execute_command(*line.split()) in (b"OK", "OK", True)


def test_an_unknown_service_is_an_error() -> None:
    with pytest.raises(ValueError, match="'CubeMister' is not a service"):
        acl_of(policy_of("cubesandbox"), "CubeMister")


@given(st.text("ab)[]^-*?", max_size=12))
def test_a_pattern_does_not_end_its_selector_and_matches_the_same(glob: str) -> None:
    word = word_of(f"{glob})".encode())
    assert not word.endswith(")")
    assert Glob(word.encode()).items == Glob(f"{glob})".encode()).items


def test_redis_takes_patterns_that_end_with_a_bracket_as_one_selector() -> None:
    policy = parse_policy(
        "policy: p\nservices: [app]\nkeys:\n  one: {key: 'a:(x)', type: hash, writers: app}\n"
        "  two: {key: 'b:(<id>)', type: hash, writers: app}\nplaceholders: {id: '[a-z]+'}\n"
    )
    with running_redis(targets()[0].binary) as server, server.client() as client:
        client.execute_command("ACL", "SETUSER", "app", *user_of(policy, "app").rules)
        found = answers(
            client, "app", [[b"HGET", key, b"f"] for key in (b"a:(x)", b"b:(y)", b"a:(y)", b"b:(y")]
        )
    assert found == [True, True, False, False]


def admitted(policy: str, *commands: list[bytes]) -> list[bool | None]:
    """Whether a real Redis admits commands of the service `app`."""
    with running_redis(targets()[0].binary) as server, server.client() as client:
        client.execute_command("ACL", "SETUSER", "app", *user_of(parse_policy(policy), "app").rules)
        return answers(client, "app", commands)


@pytest.mark.parametrize("key", ["é:1", "用户:1"])
def test_a_pattern_in_any_script_reaches_no_other_keys(key: str) -> None:
    prefix = key.removesuffix("1")
    commands = [[b"GET", one.encode()] for one in (key, "abc", "x" * len(prefix.encode()) + "1", "abcdef:1")]
    assert admitted(
        "policy: p\nservices: [app]\nplaceholders: {id: '[0-9]+'}\n"
        f"keys: {{one: {{key: '{prefix}<id>', type: string, writers: app}}}}\n",
        *commands,
    ) == [True, False, False, False]
    assert admitted(
        "policy: p\nservices: [app]\nkeys: {one: {key: z, writers: app}}\n"
        f"grants: {{app: {{commands: '*', keys: ['{prefix}*']}}}}\n",
        *commands,
    ) == [True, False, False, False]


def test_a_grant_of_bytes_that_no_text_shows_is_listed_with_all_that_it_reaches() -> None:
    policy = parse_policy(
        "policy: p\nservices: [app, web]\n"
        "keys: {one: {key: z, writers: app}, two: {key: y, type: hash, writers: web}}\n"
        'grants: {app: {commands: "*", keys: ["\\x01*"]}}\n'
    )
    assert any(gap.entry == "two" and gap.rule == "scope.write" for gap in user_of(policy, "app").gaps)


def test_a_grant_of_all_commands_lends_none_that_is_forbidden_by_name() -> None:
    assert admitted(
        "policy: p\nservices: [app]\nkeys: {one: {key: z, writers: app}}\n"
        "commands: {forbid: [CONFIG, SORT]}\n"
        "grants: {app: {commands: '*', keys: ['a:*'], channels: [news]}}\n",
        [b"CONFIG", b"SET", b"dir", b"/"],
        [b"SORT", b"a:1"],
        [b"SHUTDOWN"],
        [b"LPUSH", b"a:1", b"x"],
    ) == [False, False, True, True]


def test_what_granted_commands_do_is_listed() -> None:
    policy = parse_policy(
        "policy: p\nservices: [app]\nkeys: {one: {key: z, writers: app}}\nunregistered_scripts: forbid\n"
        "grants: {app: {commands: [EVAL], keys: ['a:*']}}\n"
    )
    found = {gap.rule: gap.commands for gap in user_of(policy, "app").gaps}
    assert found["script.unregistered"] == found["script.keys"] == frozenset({"EVAL"})


@pytest.mark.parametrize(
    ("rights", "command"),
    [
        ("writers: [app]", "OBJECT ENCODING a:1"),
        ("writers: [web], consumers: [app]", "XREADGROUP GROUP g c STREAMS a:1 >"),
    ],
)
def test_what_acl_shows_a_service_that_may_not_read_is_listed(rights: str, command: str) -> None:
    text = (
        "policy: p\nservices: [app, web]\nplaceholders: {id: '[0-9]+'}\n"
        f"scopes: {{a: {{prefix: 'a:', {rights}, deny_read: app}}}}\nkeys: {{one: {{key: 'a:<id>'}}}}\n"
    )
    assert admitted(text, command.encode().split()) == [True]
    gaps = user_of(parse_policy(text), "app").gaps
    assert {gap.entry for gap in gaps if gap.rule == "scope.read" and not gap.commands} == {"one", "a"}
