from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from keyfence.commands.extract import extract
from keyfence.findings.finding import Finding, State, finding_id
from keyfence.findings.rejudge import judged_again, keeps_its_rule, resolved
from keyfence.policy.analysis.command_log import as_line
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import load_policy
from tests.findings.rows import NOON

HEAD = """
policy: shop
claims: ["shop:"]
services: [orders, billing]
placeholders: {id: "[a-z0-9]+", token: {is: "[a-f0-9]{8}", secret: yes}}
scopes: {shop: {prefix: "shop:", writers: [orders]}}
keys:
"""
OLD = HEAD + '  order: {key: "shop:order:<id>", type: string, values: number}\n'
SESSION = '  session: {key: "shop:session:<token>", type: string, ttl: {max: 2h}}\n'


Load = Callable[[str], CompiledPolicy]


@pytest.fixture
def policy_of(tmp_path: Path) -> Load:
    def load(text: str) -> CompiledPolicy:
        path = tmp_path / "policy.yaml"
        path.write_text(text)
        return load_policy(path)

    return load


def finding(
    policy: CompiledPolicy, rule: str, *commands: Sequence[bytes], service: str = "orders"
) -> Finding:
    """A finding with these commands as examples, seen under a policy."""
    examples = [
        {"at": NOON, "decision": "", "key": str(number), "client": {}, "command": line}
        for number, line in enumerate(
            as_line(policy, service, argv, extract(argv), 1) if argv else {} for argv in commands
        )
    ]
    name = commands[0][0].decode() if commands[0] else "SET"
    return Finding(
        finding_id((service, rule, name, "", "s")),
        *(service, rule, name, "", "s", "must", State.OPEN),
        *(NOON, NOON, NOON, {"observed": 1}, "", "", policy.revision, []),
        examples,  # type: ignore[arg-type]
    )


def test_a_finding_is_resolved_if_every_example_keeps_its_rule_now(
    policy_of: Load,
) -> None:
    old, new = policy_of(OLD), policy_of(OLD + SESSION)
    one = finding(old, "key.unregistered", [b"GET", b"shop:session:00ff00ff"])
    two = finding(old, "key.unregistered", [b"GET", b"shop:session:00ff00ff"], [b"GET", b"shop:other:1"])
    assert resolved(new, [one, two], NOON + 60) == [one.id]
    assert resolved(old, [one, two], NOON + 60) == []


def test_a_finding_with_more_violations_than_its_examples_show_stays(policy_of: Load) -> None:
    """The new policy allows the five examples, and still refuses 300 other violations."""
    old, new = policy_of(OLD), policy_of(OLD + SESSION)
    one = finding(old, "key.unregistered", *([b"GET", b"shop:session:0%07x" % n] for n in range(5)))
    one.counts = {"observed": 305}
    assert resolved(new, [one], NOON + 60) == []
    for example in one.examples:
        example["times"] = 61
    assert resolved(new, [one], NOON + 60) == [one.id]


def test_a_finding_of_a_shape_is_resolved_if_the_rule_has_one_answer_for_all_its_keys(
    policy_of: Load,
) -> None:
    old = policy_of(OLD)
    one = finding(old, "key.unregistered", [b"GET", b"shop:cart:1"])
    one.shape, one.counts = "shop:cart:<int>", {"observed": 305}
    assert resolved(policy_of(OLD + '  cart: {key: "shop:cart:<id>"}\n'), [one], NOON + 60) == [one.id]
    assert resolved(policy_of(OLD + '  cart: {key: "shop:cart:1"}\n'), [one], NOON + 60) == []


def test_where_a_keys_length_decides_the_rule_must_be_kept_by_keys_of_every_length(policy_of: Load) -> None:
    old = policy_of(OLD)
    new = policy_of(OLD.replace("[a-z0-9]+", "[0-9]{1,20}") + '  cart: {key: "shop:cart:<id>"}\n')
    registered = finding(old, "key.unregistered", [b"GET", b"shop:cart:1"])
    written = finding(old, "key.format", [b"SET", b"shop:cart:1", b"x"])
    for one in (registered, written):
        one.shape, one.counts = "shop:cart:<int>", {"observed": 305}
    assert resolved(new, [registered, written], NOON + 60) == [registered.id]


def test_what_was_seen_after_the_policy_was_put_in_force_stays(
    policy_of: Load,
) -> None:
    old, new = policy_of(OLD), policy_of(OLD + SESSION)
    one = finding(old, "key.unregistered", [b"GET", b"shop:session:00ff00ff"])
    assert resolved(new, [one], NOON - 60) == []


def test_only_the_rule_of_the_finding_counts(policy_of: Load) -> None:
    """The new policy registers the key, and the command breaks another rule then: that is another finding."""
    old, new = policy_of(OLD), policy_of(OLD + SESSION)
    one = finding(old, "key.unregistered", [b"SET", b"shop:session:00ff00ff", b"x"])
    assert resolved(new, [one], NOON + 60) == [one.id]


@pytest.mark.parametrize("rule", ["value.invalid", "value.size", "key.members", "session.opaque"])
def test_what_examples_leave_out_is_never_guessed(policy_of: Load, rule: str) -> None:
    old, new = policy_of(OLD), policy_of(OLD + SESSION)
    assert resolved(new, [finding(old, rule, [b"SET", b"shop:order:1", b"x"])], NOON + 60) == []


def test_a_finding_without_examples_or_with_a_masked_one_is_not_resolved(
    policy_of: Load,
) -> None:
    old, new = policy_of(OLD), policy_of(OLD + SESSION)
    masked = finding(old, "key.unregistered", [b"GET", b"shop:session:00ff00ff"], [])
    assert resolved(new, [masked], NOON + 60) == []
    masked.examples = []
    assert resolved(new, [masked], NOON + 60) == []


def test_a_finding_of_a_service_that_is_gone_is_not_resolved(
    policy_of: Load,
) -> None:
    old, new = policy_of(OLD), policy_of(OLD.replace(", billing", "") + SESSION)
    one = finding(old, "scope.read", [b"GET", b"shop:order:1"], service="billing")
    assert not keeps_its_rule(Evaluator(new), one)


def test_a_secret_is_judged_by_an_example_of_its_class(policy_of: Load) -> None:
    old = policy_of(OLD + SESSION)
    one = finding(old, "scope.read", [b"GET", b"shop:session:00ff00ff"], service="billing")
    assert b"00ff00ff" not in str(one.examples).encode()
    new = policy_of(OLD.replace("writers: [orders]", "writers: [orders], readers: [billing]") + SESSION)
    assert resolved(new, [one], NOON + 60) == [one.id]


def test_a_finding_is_not_resolved_by_an_example_of_which_only_a_part_is_kept(policy_of: Load) -> None:
    old, new = policy_of(OLD), policy_of(OLD + SESSION)
    keys = [b"shop:session:%08x" % number for number in range(100)]
    assert resolved(new, [finding(old, "key.unregistered", [b"MGET", *keys[:60]])], NOON + 60)
    assert not resolved(new, [finding(old, "key.unregistered", [b"MGET", *keys])], NOON + 60)


def test_a_finding_that_an_earlier_policy_resolved_is_judged_again(policy_of: Load) -> None:
    """A policy that is taken back does not leave its findings resolved."""
    old, new = policy_of(OLD), policy_of(OLD + SESSION)
    one = finding(old, "key.unregistered", [b"GET", b"shop:session:00ff00ff"])
    one.state, one.resolved_by = State.RESOLVED, new.revision
    third = policy_of(OLD + SESSION + '  more: {key: "shop:more:<id>"}\n')
    assert judged_again(third, [one]) == ([one.id], [])
    assert judged_again(old, [one]) == ([], [one.id])
