"""Policies that ask much of a key: hash slots, type words, naming rules, bound placeholders, waivers.

Rule: each command has the findings that it has if it is evaluated alone, after the commands before it in its
transaction. Once they are known, none of them is evaluated again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfence.commands.extract import extract
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.enforcement.changes import changes
from keyfence.policy.enforcement.modes import ModeRule, Modes, Waiver
from keyfence.policy.engine.asker import Asker, Transaction
from keyfence.policy.engine.authorizer import Authorizer, InForce
from keyfence.policy.loading.load import parse_policy
from tests.session.fake_redis import FakeRedis
from tests.session.sessions import RecordingObserver, Session, cmd, passed, replies, sent, session
from tests.session.test_comparison import pair

HEAD = """policy: shop
claims: ["shop:"]
services: [app, other]
placeholders: {id: "[^:{}]{0,60}", kind: "[a-z]{1,8}"}
bind: {part: {app: [a, b], other: c}}
scopes: {part: {prefix: "shop:<part>:", writers: [app, other], unregistered: allow}}
keys:
  cart: {key: "shop:<part>:cart:{<id>}", type: hash, fields: {size: integer}, max_length: 30}
  any: {key: "shop:<part>:<kind>:{<id>}"}
legacy: {keys: {"shop_old:<id>": cart}}
"""
SLOTS = "cluster: true\n"
WORDS = "type_words: {item: string, list: list, bag: [set, hash]}\n"
NAMES = """names:
  max_length: 36
  hash_tag: optional
  levels: {min: 3, max: 5}
  should: {max_length: 24 characters, charset: "[A-Za-z0-9:_{}.-]", lowercase: yes, avoid: {itm: item}}
"""
EACH = {"slots": SLOTS, "words": WORDS, "names": NAMES, "all": SLOTS + WORDS + NAMES}
POLICIES = {name: parse_policy(HEAD + text) for name, text in EACH.items()}
WAIVERS = (
    Waiver("app", "scope.write", keys="shop:c:*"),
    Waiver("app", "scope.write", entry="cart", command="HSET"),
    Waiver("app", "type.mismatch", keys="shop:a:item:*"),
    Waiver("app", "key.unregistered", keys="user:<int>"),
    Waiver("app", "key.length", keys="shop:<*>:any:*"),
)
MODES: dict[str, tuple[ModeRule, ...]] = {
    "observe": (ModeRule("observe"),),
    "enforce": (ModeRule("enforce"),),
    "some": (ModeRule("enforce", "slot.cross"), ModeRule("disabled", "key.format"), ModeRule("observe")),
}
KEYS = st.builds(
    "{}:{}:{}".format,
    st.sampled_from(["shop:a", "shop:a", "shop:b", "shop:c"]),
    st.sampled_from(["cart", "item", "list", "bag", "any", "itm", "Item"]),
    st.sampled_from(["{1}", "{1}", "{2}", "{1}:x", "1", f"{{{'y' * 14}}}", f"{{{'z' * 40}}}", "{é}", "{}"]),
) | st.sampled_from(["user:17", "user:x", "shop:d:{1}", "shop_old:7", "shop"])
WAYS = ["GET {}", "SET {} v", "SET {} v EX 30", "HSET {} size 3", "HSET {} size big", "LPUSH {} a", "DEL {}"]
SEVERAL = ["MGET {} {}", "DEL {} {}", "MSET {} v {} w", "EXISTS {} {}", "BLPOP {} {} 1", "COPY {} {}"]
COMMAND = (
    st.builds(str.format, st.sampled_from(WAYS), KEYS)
    | st.builds(str.format, st.sampled_from(SEVERAL), KEYS, KEYS)
    | st.sampled_from(
        ["PING", "MGET shop:a:item:{1} shop:b:item:{1}", "MGET shop:a:item:{1} shop:b:item:{2}"]
    )
)


class Batch(NamedTuple):
    """Requests in one read."""

    in_multi: bool
    commands: list[str]

    def sent(self) -> bytes:
        data = b"".join(map(cmd, self.commands))
        return cmd("MULTI") + data + cmd("EXEC") if self.in_multi else data


BATCHES = st.lists(st.builds(Batch, st.booleans(), st.lists(COMMAND, min_size=1, max_size=6)), max_size=8)


def authorizer(policy: CompiledPolicy, modes: Sequence[ModeRule]) -> Authorizer:
    return Authorizer(policy, Modes(modes, policy.services, WAIVERS), clock=lambda: 1e9)


def serve(one: Session, redis: FakeRedis, data: bytes) -> None:
    """Feeds a read, and answers what it makes due."""
    one.from_client(data)
    while True:
        while one.wants_turn:
            one.take_turn()
        if one.route.is_shared and one.counts:
            counts = list(one.counts)
            one.counts.clear()
            passed(one)
            for count in counts:
                one.from_shared(b"+OK\r\n" * count, count, True)
        elif due := redis.feed(passed(one)):
            one.from_upstream(b"".join(due))
        else:
            return


@settings(max_examples=400)
@given(
    st.sampled_from(sorted(POLICIES)),
    st.sampled_from(sorted(MODES)),
    st.sampled_from(["app", "app", "other"]),
    st.booleans(),
    BATCHES,
)
def test_each_command_has_the_findings_of_evaluating_it_alone(
    policy: str, modes: str, service: str, sharing: bool, batches: list[Batch]
) -> None:
    observer = RecordingObserver()
    held = InForce(authorizer(POLICIES[policy], MODES[modes]))
    one, redis = session(service, in_force=held, observer=observer, sharing=sharing), FakeRedis()
    alone = authorizer(POLICIES[policy], MODES[modes])
    expected: Counter[tuple[str, str, str, str]] = Counter()
    for batch in batches * 2:
        serve(one, redis, batch.sent())
        transaction = Transaction() if batch.in_multi else None
        for command in batch.commands:
            argv = command.encode().split()
            asker = Asker(alone.number(service), transaction=transaction)
            ruling, evaluation = alone.authorize(asker, argv)
            expected.update(
                (service, evaluation.name, found.rule, action) for found, action in ruling.findings
            )
    assert Counter(observer.found) == expected


@settings(max_examples=150)
@given(st.sampled_from(sorted(POLICIES)), st.sampled_from(sorted(POLICIES)), BATCHES)
def test_a_candidate_sees_what_it_would_see_alone(
    in_force: str, candidate: str, batches: list[Batch]
) -> None:
    old, new = POLICIES[in_force], POLICIES[candidate]
    one = pair(new, policy=old, service="app", waivers=WAIVERS)
    before, after = (authorizer(policy, MODES["observe"]) for policy in (old, new))
    expected: Counter[tuple[str, str, str, str, str]] = Counter()
    for batch in batches * 2:
        one.serve(batch.sent())
        transactions = (Transaction(), Transaction()) if batch.in_multi else (None, None)
        for command in batch.commands:
            argv = command.encode().split()
            name = extract(argv).command
            assert name is not None
            rulings = [
                held.authorize(Asker(held.number("app"), transaction=transaction), argv)[0]
                for held, transaction in zip((before, after), transactions, strict=True)
            ]
            for change, (found, action) in changes(*rulings):
                expected[change, found.rule, name.name, found.entry, action] += 1 + found.more
    assert one.found() == expected


# What is decided without an evaluation, once it is known: the policy, the service's mode, the command.
KNOWN = {
    "a hash slot": ("slots", "enforce", "SET shop:a:item:{{{}}} v"),
    "a type word": ("words", "enforce", "SET shop:a:item:{{{}}} v"),
    "the wrong type word": ("words", "observe", "LPUSH shop:a:item:{{{}}} v"),
    "a name": ("names", "enforce", "SET shop:a:item:{{{}}} v"),
    "a name in a scope": ("names", "enforce", "SET shop:a:other:{} v"),
    "a name that breaks a should": ("names", "enforce", "SET shop:a:Item:{{{}}} v"),
    "a long name": ("names", "enforce", "SET shop:a:item:{{xxxxxxxxxxxxxx-{}}} v"),
    "a name that breaks a must, observed": ("names", "observe", "SET shop:a:other:more:much:{} v"),
    "a bound placeholder": ("all", "enforce", "HSET shop:b:cart:{{{}}} size 3"),
    "no own key, waived": ("all", "enforce", "SET shop:c:item:{{{}}} v"),
    "a waived entry": ("all", "enforce", "HSET shop:c:cart:{{{}}} size 3"),
    "an unknown key, waived": ("words", "enforce", "GET user:{}"),
    "several keys in one slot": ("slots", "enforce", "MGET shop:a:item:{{{0}}} shop:a:bag:{{{0}}}"),
    "one of several keys": ("slots", "enforce", "DEL shop:a:item:{{{}}}"),
    "a list to wait for, and slots": ("slots", "enforce", "BLPOP shop:a:list:{{{0}}} shop:a:item:{{{0}}} 1"),
    "wrong content, waived rights": ("all", "observe", "HSET shop:c:cart:{{{}}} size big"),
}


@pytest.mark.parametrize("in_multi", [False, True])
@pytest.mark.parametrize("name", KNOWN)
def test_what_a_policy_asks_is_decided_without_an_evaluation(name: str, in_multi: bool) -> None:
    policy, modes, command = KNOWN[name]
    observer = RecordingObserver()
    held = InForce(authorizer(POLICIES[policy], MODES[modes]))
    one, redis = session("app", in_force=held, observer=observer, sharing=True), FakeRedis()
    for number in range(10, 14):
        serve(one, redis, cmd(command.format(number)))
    evaluated, found = len(observer.at_length), Counter(observer.found)
    assert evaluated <= 1  # the first one, if it has findings
    for number in range(14, 54):
        serve(one, redis, Batch(in_multi, [command.format(number)] * 3).sent())
    assert len(observer.at_length) == evaluated
    assert Counter(observer.found) == {key: times + 30 * times for key, times in found.items()}


def test_the_slot_of_a_transaction_is_that_of_its_first_key_even_if_this_is_refused() -> None:
    observer = RecordingObserver()
    held = InForce(authorizer(POLICIES["slots"], MODES["enforce"]))
    one, redis = session("other", in_force=held, observer=observer), FakeRedis()
    refused, same, elsewhere = "SET shop:a:item:{1} v", "SET shop:c:item:{1} v", "SET shop:c:item:{2} v"
    for _ in range(3):
        serve(one, redis, Batch(True, [refused, same, elsewhere]).sent())
    rules = Counter(rule for _, _, rule, _ in observer.found)
    assert rules == {"scope.write": 3, "slot.cross": 3}


@pytest.mark.parametrize("first", ["SET shop:a:item:{1} v", "MGET shop:a:item:{1} shop:a:list:{1}"])
@pytest.mark.parametrize("second", ["SET shop:a:item:{2} v", "MGET shop:a:item:{2} shop:a:list:{2}"])
def test_several_keys_share_the_slot_of_their_transaction(first: str, second: str) -> None:
    observer = RecordingObserver()
    held = InForce(authorizer(POLICIES["slots"], MODES["enforce"]))
    one, redis = session("app", in_force=held, observer=observer), FakeRedis()
    for command in (first, second) * 2:  # each is known, and fine on its own
        serve(one, redis, cmd(command))
    assert observer.found == []
    for count in range(1, 4):
        serve(one, redis, Batch(True, [first, first, second]).sent())
        assert Counter(rule for _, _, rule, _ in observer.found) == {"slot.cross": count}


def test_several_keys_of_different_slots_do_not_keep_those_of_one_slot_from_being_known() -> None:
    observer = RecordingObserver()
    held = InForce(authorizer(POLICIES["slots"], MODES["enforce"]))
    one, redis = session("app", in_force=held, observer=observer, sharing=True), FakeRedis()
    crossing, fine = "MGET shop:a:item:{1} shop:a:item:{2}", "MGET shop:a:item:{1} shop:a:list:{1}"
    serve(one, redis, cmd(crossing) + cmd(fine))
    known = len(observer.at_length)
    for _ in range(3):
        serve(one, redis, cmd(fine))
    assert len(observer.at_length) == known
    serve(one, redis, cmd(crossing))
    assert Counter(observer.found) == {("app", "MGET", "slot.cross", "refused"): 2}


def test_a_refusal_that_quotes_a_names_length_is_worded_for_each_key() -> None:
    held = InForce(authorizer(POLICIES["names"], MODES["enforce"]))
    one = session("app", in_force=held)
    for length in (40, 41, 40, 45):
        one.from_client(cmd("SET", f"shop:a:other:{'x' * (length - 13)}", "v"))
        (answer,) = replies(sent(one))
        assert answer.startswith(b"-NOPERM [key.length] ")
        assert b"is %d bytes long" % length in answer


def test_waivers_whose_keys_are_too_many_are_looked_up_for_each_command() -> None:
    waivers = [
        Waiver("app", "scope.write", keys=f"*{letter}?????????*{letter}??????????*") for letter in "abcdefgh"
    ]
    modes = Modes([ModeRule("enforce")], POLICIES["all"].services, waivers)
    assert modes.waived_keys(0) is None
    assert not modes.tells_waived(0, "scope.write")
    assert modes.tells_waived(0, "key.length")
    observer = RecordingObserver()
    one = session("app", in_force=InForce(Authorizer(POLICIES["all"], modes)), observer=observer)
    for key in ("shop:c:item:{1}", "shop:c:item:{axxxxxxxxxxxxxxxxxxxxxaxxxxxxxxxxxxxxxxxxxxxx}") * 3:
        one.from_client(cmd("SET", key, "v"))
    assert Counter(observer.found)["app", "SET", "scope.write", "refused"] == 3
    assert Counter(observer.found)["app", "SET", "scope.write", "waived"] == 3
