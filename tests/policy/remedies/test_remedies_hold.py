"""Every remedy works: each is applied, and the command is evaluated again.

Rule: a remedy with a command or with lines for the policy removes its violation. Other remedies claim
nothing.
"""

from __future__ import annotations

import copy
import functools
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from keyfence.commands.extract import extract
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.diagnostics import FileError
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import load_policy, parse_policy
from tests.commands.calls import GRAMMATICAL, NAMES, calls
from tests.policy.cases import POLICIES, steps_of
from tests.policy.remedies.test_remedies import CASES, TEXT
from tests.policy.remedies_of import remedies

# -- how a remedy is checked


def check_remedies(text: str, service: str, argv: Sequence[bytes]) -> None:
    """Applies each remedy of the command: a proposed command breaks no further rule, proposed lines remove
    violations, and other remedies claim nothing."""
    policy = parse_policy(text)
    number, touches = policy.number(service), extract(argv)
    before = Evaluator(policy).evaluate(Asker(number), argv, touches).violations
    broken = {one.rule for one in before}
    for remedy in remedies(policy, number, argv, touches, before):
        if remedy.command:
            after = {one.rule for one in Evaluator(policy).decide(number, remedy.command).violations}
            assert remedy.rule not in after, remedy
            assert after <= broken, remedy
        if remedy.add:
            changed = with_lines(text, remedy.add)
            left = violations_of(changed, service, argv, remedy.rule)
            assert left < violations_of(policy, service, argv, remedy.rule), (remedy, left)
        if not remedy.command and not remedy.add:
            assert not CLAIMS.search(remedy.text), remedy


# Wordings that only a checked remedy may use.
CLAIMS = re.compile(
    "would pass|grant it|list .* under|set the time|leave the time to live out|use the standard key"
    "|use database|let .* be of type"
)


def violations_of(policy: CompiledPolicy, service: str, argv: Sequence[bytes], rule: str) -> set[Any]:
    """Returns the violations of one rule, each as (position, key, message)."""
    found = Evaluator(policy).decide(policy.number(service), argv).violations
    return {(one.position, one.key, one.message) for one in found if one.rule == rule}


def with_lines(text: str, lines: Mapping[str, Any]) -> CompiledPolicy:
    return _parsed(yaml.safe_dump(merged(yaml.load(text, yaml.BaseLoader), lines)))


def merged(old: Any, new: Any) -> Any:
    """Merges mappings, unites lists and replaces everything else."""
    if isinstance(new, Mapping):
        kept = dict(old) if isinstance(old, Mapping) else {}
        return kept | {name: merged(kept.get(name), value) for name, value in new.items()}
    if isinstance(new, list):
        kept = [old] if isinstance(old, str) else list(old or [])
        return [*kept, *(one for one in new if str(one) not in kept)]
    return new


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> CompiledPolicy:
    return parse_policy(text)


@pytest.mark.parametrize("case", CASES, ids=[f"{case[2]}-{case[1]}" for case in CASES])
def test_the_remedies_of_each_rule_work(case: tuple[str, str, str, Any]) -> None:
    check_remedies(TEXT, case[0], [word.encode() for word in shlex.split(case[1])])


NAMED = """
policy: p
services: [one, two]
placeholders: {any: ".+"}
keys:
  lock: {key: "a:lock:<any>", writers: one, type: string, ttl: {max: 1m, at: write}}
  list: {key: "b:<any>", writers: one, readers: two}
channels: {every: {channel: "<any>", publishers: one, subscribers: [one, two]}}
"""


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "PSUBSCRIBE *",
            ["it also reaches the channel with the empty name, where one may not", "or grant it"],
        ),
        ("PSUBSCRIBE __keyevent@*", ["it also reaches __keyevent@0__:set, where one may not listen"]),
        ("SORT b:l BY w_*", ["it needs the right to read every key that matches w_*; or grant it"]),
        ("EVAL x 0", ["register it under scripts, with keys: 0 and what it touches"]),
        ("CLIENT TRACKING ON BCAST", ["PREFIX b: would pass: CLIENT TRACKING ON BCAST PREFIX b:"]),
        ("KEYS *", ["SCAN 0 MATCH b:* would pass: SCAN 0 MATCH b:*"]),
        (
            "INCR a:lock:x",
            ["INCR cannot set a time to live; without at: write on lock an EXPIRE may follow"],
        ),
        (
            "SETNX a:lock:x v",
            ["set the time to live in the same command, 1m for example: SET a:lock:x v NX EX 60"],
        ),
        ("SET a:lock:x v EXAT 99999999999", ["a time to live of 1m, for example: SET a:lock:x v EXAT "]),
        ("CONFIG GE x", ["did you mean GET?"]),
        ("HGETAL b:x", ["did you mean HGETALL?: HGETALL b:x"]),
    ],
)
def test_no_remedy_misleads(command: str, expected: list[str]) -> None:
    argv = command.encode().split()
    check_remedies(NAMED, "one", argv)
    policy = parse_policy(NAMED)
    found = remedies(policy, 0, argv, extract(argv), Evaluator(policy).decide(0, argv).violations)
    texts = [": ".join(filter(None, (one.text, b" ".join(one.command).decode()))) for one in found]
    assert all(any(part in text for text in texts) for part in expected), texts
    assert not any(wrong in text for text in texts for wrong in ("did you mean SORT", "list one under")), (
        texts
    )


WIDE = """
policy: shop
services: [web, stock]
placeholders: {id: "[a-z0-9]+"}
scopes: {all: {prefix: "shop:", writers: stock, unregistered: allow}}
channels:
  news: {channel: "news:<id>", publishers: stock, subscribers: stock}
  jobs: {channel: "jobs:<id>", publishers: stock, subscribers: stock}
"""


@pytest.mark.parametrize(
    ("command", "add"),
    [
        ("PSUBSCRIBE news:*", {"channels": {"news": {"subscribers": ["web"]}}}),
        ("PSUBSCRIBE n*s:*", {"grants": {"web": {"commands": ["PSUBSCRIBE"], "channels": ["n*s:*"]}}}),
        ("PSUBSCRIBE new*", {"grants": {"web": {"commands": ["PSUBSCRIBE"], "channels": ["new*"]}}}),
        (
            "PUBSUB CHANNELS n*",
            {"grants": {"web": {"commands": ["PUBSUB CHANNELS"], "channels": ["n*"]}}},
        ),
        (
            "PSUBSCRIBE *",
            {"grants": {"web": {"commands": ["PSUBSCRIBE"], "keys": ["*"], "channels": ["*"]}}},
        ),
        ("PSUBSCRIBE *:x", {}),  # it also reaches keyspace notifications
        ("PSUBSCRIBE __keyspace@0__:shop:*", {}),
        ("SCAN 0 MATCH shop:c*", {"grants": {"web": {"commands": ["SCAN"], "keys": ["shop:c*"]}}}),
        ("SCAN 0 MATCH *:c*", {"grants": {"web": {"commands": ["SCAN"], "keys": ["*:c*"]}}}),
        ("SCAN 0", {"grants": {"web": {"commands": ["SCAN"], "keys": ["*"]}}}),
        ("SCAN 0 MATCH legacy", {}),  # in a grant, `legacy` has another meaning
        (
            "SORT shop:l BY w_* GET o_*->f",
            {"grants": {"web": {"commands": ["SORT"], "keys": ["w_*", "o_*"]}}},
        ),
        (
            "CLIENT TRACKING ON BCAST PREFIX shop:a PREFIX b",
            {"grants": {"web": {"commands": ["CLIENT TRACKING"], "keys": ["shop:a*", "b*"]}}},
        ),
    ],
)
def test_a_proposed_grant_is_no_wider_than_the_pattern(command: str, add: dict[str, Any]) -> None:
    argv = command.encode().split()
    check_remedies(WIDE, "web", argv)
    policy = parse_policy(WIDE)
    (violation, *_) = violations = Evaluator(policy).decide(0, argv).violations
    found = remedies(policy, 0, argv, extract(argv), violations)
    assert next((one.add for one in found if one.rule == violation.rule and one.add), {}) == add


def test_no_remedy_contains_a_pattern_that_may_show_a_secret() -> None:
    more = 'placeholders: {t: {is: "[a-z]{4,}", secret: true}, '
    text = WIDE.replace("placeholders: {", more) + 'keys: {session: {key: "shop:session:<t>"}}\n'
    policy = parse_policy(text)
    argv = b"SCAN 0 MATCH shop:session:hunter*".split()
    found = remedies(policy, 0, argv, extract(argv), Evaluator(policy).decide(0, argv).violations)
    assert found
    assert not any(one.add or "hunter" in one.text for one in found)


def test_a_granted_pattern_passes_only_if_every_file_grants_it(tmp_path: Path) -> None:
    grant = "grants: {web: {commands: [SCAN, PSUBSCRIBE], keys: ['*:c*'], channels: ['*:c']}}\n"
    (tmp_path / "one.yaml").write_text(f"policy: a\nservices: [web]\nclaims: ['a:']\n{grant}")
    other = tmp_path / "two.yaml"
    for more, broken in ((grant, []), ("", ["scan.scope"])):
        other.write_text(f"policy: b\nservices: [web]\nclaims: ['b:']\n{more}")
        found = Evaluator(load_policy(tmp_path)).decide(0, b"SCAN 0 MATCH *:c*".split()).violations
        assert [one.rule for one in found] == broken
        assert Evaluator(load_policy(tmp_path)).decide(0, b"SCAN 0 MATCH *:cc*".split()).violations


# -- any policy, any command

BASE = """
policy: p
services: [one, two]
placeholders: {id: "[a-z]{1,3}", any: ".+", t: {is: "[a-z]{4,}", secret: true}}
keys: {plain: {key: "a:p:<id>", writers: [one]}}
"""
HERE = Path(__file__).parent
PARTS: list[dict[str, Any]] = yaml.load((HERE / "remedy_policies.txt").read_text(), yaml.BaseLoader)
KEYS = [
    *b"a:p:x a:p:lock:x a:p:flag:x a:p:log a:s:cart:x a:s:x a:b:x a:t:hunter a:p:{x} a:p:old:x a:x:m".split(),
    *b"cart:x x crt:x b:s:cart:x a:p:X a:p:old:A a:p:x:y a:p:lock a:s:cart:abcd a: a:s: z:x n:x n:q".split(),
    *b"a:s:m:x a:s:n:x st:x cart:bare news a:\\ \xff<id>".split(),
    b"",
    b"a:p:" + b"x" * 9000,
]
SHAPES = (HERE / "remedy_commands.txt").read_text().splitlines()[1:]


@st.composite
def policies(draw: st.DrawFn) -> str:
    parts = draw(st.lists(st.sampled_from(PARTS), min_size=1, max_size=7))
    model: Any = yaml.load(BASE, yaml.BaseLoader)
    for part in parts:
        model = merged(model, copy.deepcopy(part))
    return yaml.safe_dump(model)


@st.composite
def commands(draw: st.DrawFn) -> list[bytes]:
    if draw(st.integers(0, 9)) == 0:
        return draw(GRAMMATICAL | calls(NAMES))
    words = draw(st.sampled_from(SHAPES)).encode().split(b" ")
    return [_with_key(draw, word) if at else word for at, word in enumerate(words)]


def _with_key(draw: st.DrawFn, word: bytes) -> bytes:
    """Replaces each `K` that has no capital beside it with a key."""
    return _KEY.sub(lambda _: draw(st.sampled_from(KEYS)), word)


_KEY = re.compile(rb"(?<![A-Z])K(?![A-Z])")


@settings(max_examples=300)
@given(policies(), st.sampled_from(["one", "two", "unknown"]), st.lists(commands(), min_size=1, max_size=6))
def test_every_remedy_works_for_any_policy_and_command(
    text: str, service: str, argvs: list[list[bytes]]
) -> None:
    try:
        _parsed(text)
    except FileError:
        assume(False)
    for argv in argvs:
        if argv:
            check_remedies(text, service, argv)


@pytest.mark.parametrize("file", sorted(POLICIES.glob("*.test.yaml")), ids=lambda file: file.name)
def test_remedies_work_for_the_shipped_policies(file: Any) -> None:
    path, steps = steps_of(file)
    text = path.read_text()
    if "source:" in text:
        pytest.skip("the policy needs the script files beside it")
    for step in {(one.service, one.argv[0]): one for one in steps}.values():
        check_remedies(text, step.service, list(step.argv))
