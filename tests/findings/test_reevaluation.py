from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from keyfence.commands.extract import extract
from keyfence.findings.finding import Finding, State, finding_id
from keyfence.findings.reevaluation import evaluated_again, keeps_its_rule, resolved
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import load_policy
from keyfence.policy.wording.command_log import as_line
from tests.findings.rows import NOON

HEAD = """
policy: shop
claims: ["shop:"]
services: [orders, billing]
placeholders: {id: "[a-z0-9]+", hex: "[a-f0-9]{8}"}
scopes: {shop: {prefix: "shop:", writers: [orders]}}
keys:
"""
OLD = HEAD + '  order: {key: "shop:order:<id>", type: string, values: number}\n'
SESSION = '  session: {key: "shop:session:<hex>", type: string, ttl: {max: 2h}}\n'


Load = Callable[[str], CompiledPolicy]


@pytest.fixture
def policy_of(tmp_path: Path) -> Load:
    def load(text: str) -> CompiledPolicy:
        path = tmp_path / "policy.yaml"
        path.write_text(text)
        return load_policy(path)

    return load


def finding(
    policy: CompiledPolicy,
    rule: str,
    *commands: Sequence[bytes],
    service: str = "orders",
    shape: str = "s",
    entry: str = "",
    times: int = 1,
) -> Finding:
    """A finding with these commands as examples, and as many violations, seen under a policy."""
    examples = [
        {"at": NOON, "decision": "", "key": str(number), "client": {}, "command": line}
        for number, line in enumerate(
            as_line(policy, service, argv, extract(argv), 1) if argv else {} for argv in commands
        )
    ]
    command = extract(commands[0]).command if commands[0] else None
    name = command.name if command is not None else "SET"
    return Finding(
        finding_id((service, rule, name, entry, shape)),
        *(service, rule, name, entry, shape, "must", State.OPEN),
        *(NOON, NOON, NOON, {"observed": times}, "", "", policy.revision, []),
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
    one = finding(old, "key.unregistered", [b"GET", b"shop:cart:1"], shape="shop:cart:<int>", times=305)
    assert resolved(policy_of(OLD + '  cart: {key: "shop:cart:<id>"}\n'), [one], NOON + 60) == [one.id]
    assert resolved(policy_of(OLD + '  cart: {key: "shop:cart:1"}\n'), [one], NOON + 60) == []


def test_where_a_keys_length_decides_the_rule_must_be_kept_by_keys_of_every_length(policy_of: Load) -> None:
    old = policy_of(OLD)
    new = policy_of(OLD.replace("[a-z0-9]+", "[0-9]{1,20}") + '  cart: {key: "shop:cart:<id>"}\n')
    many = {"shape": "shop:cart:<int>", "times": 305}
    registered = finding(old, "key.unregistered", [b"GET", b"shop:cart:1"], **many)
    written = finding(old, "key.format", [b"SET", b"shop:cart:1", b"x"], **many)
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


def always(_entry: str, _since: float) -> bool:
    """All keys of every entry are the entry's keys now."""
    return True


SECRET = OLD.replace("hex: ", "token: {is: CLASS, secret: yes}, hex: ")
TOKENS = SECRET + '  session: {key: "shop:session:<token>", type: string}\n'


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("[0-9]{4}", "[a-z]+", b"shop:session:Ab1!"),
        ("[0-9]{4}", "[a-z]{1,8}", b"shop:session:qwertz1"),
        ("[0-9]{4}", "([0-9]{4}|masked)", b"shop:session:qwertz1"),
    ],
)
def test_keys_with_different_secrets_are_not_evaluated_by_the_text_that_replaces_them(
    policy_of: Load, old: str, new: str, key: bytes
) -> None:
    """All of them have one line, so the times of this line are the times of all of them."""
    before, after = (policy_of(TOKENS.replace("CLASS", f'"{one}"')) for one in (old, new))
    one = finding(before, "key.format", [b"GET", key], shape="", entry="session", times=20)
    one.examples[0]["times"] = 20
    assert key not in str(one.examples).encode()
    assert resolved(after, [one], NOON + 60) == []


def test_a_finding_on_secrets_is_resolved_if_the_rule_has_one_answer_for_all_keys_of_the_entry(
    policy_of: Load,
) -> None:
    text = TOKENS.replace("CLASS", '"[0-9]{4}"')
    words = [b"GET", b"shop:session:1234"]
    one = finding(policy_of(text), "scope.read", words, service="billing", shape="", entry="session")
    assert b"1234" not in str(one.examples).encode()
    new = policy_of(text.replace("writers: [orders]", "writers: [orders], readers: [billing]"))
    assert resolved(new, [one], NOON + 60) == []
    assert resolved(new, [one], NOON + 60, always) == [one.id]


def test_a_finding_is_not_resolved_by_an_example_of_which_only_a_part_is_kept(policy_of: Load) -> None:
    old, new = policy_of(OLD), policy_of(OLD + SESSION)
    keys = [b"shop:session:%08x" % number for number in range(100)]
    assert resolved(new, [finding(old, "key.unregistered", [b"MGET", *keys[:60]])], NOON + 60)
    assert not resolved(new, [finding(old, "key.unregistered", [b"MGET", *keys])], NOON + 60)


def test_a_finding_that_an_earlier_policy_resolved_is_evaluated_again(policy_of: Load) -> None:
    """A policy that is taken back does not leave its findings resolved."""
    old, new = policy_of(OLD), policy_of(OLD + SESSION)
    one = finding(old, "key.unregistered", [b"GET", b"shop:session:00ff00ff"])
    one.state, one.resolved_by = State.RESOLVED, new.revision
    third = policy_of(OLD + SESSION + '  more: {key: "shop:more:<id>"}\n')
    assert evaluated_again(third, [one]) == ([one.id], [])
    assert evaluated_again(old, [one]) == ([], [one.id])


# -- channels

NEWS = '  news: {channel: "ev:news:<any>", publishers: [orders], subscribers: [orders]}\n'
ANY = OLD.replace("placeholders: {", 'placeholders: {any: "[^:]+", no: "[0-9]+", tenant: "[a-z]+", ')


@pytest.mark.parametrize(
    "command", [b"SUBSCRIBE", b"SSUBSCRIBE", b"PUBLISH", b"SPUBLISH", b"PUBSUB NUMSUB"], ids=bytes.decode
)
def test_a_finding_on_channels_is_resolved_if_all_channels_of_its_shape_are_allowed(
    policy_of: Load, command: bytes
) -> None:
    words = [*command.split(), b"ev:news:1", *([b"x"] if b"PUBL" in command else [])]
    rule = "channel.write" if b"PUBL" in command else "channel.read"
    one = finding(policy_of(OLD), rule, words, shape="ev:news:<int>", times=305)
    assert resolved(policy_of(ANY + "channels:\n" + NEWS), [one], NOON + 60) == [one.id]
    for narrower in (
        NEWS.replace("<any>", "<no>"),  # -5 is of the shape, too
        NEWS.replace("<any>", "1"),
        NEWS.replace("[orders]", "[billing]"),
        NEWS + '  mine: {channel: "ev:news:7", publishers: [billing], subscribers: [billing]}\n',
    ):
        assert resolved(policy_of(ANY + "channels:\n" + narrower), [one], NOON + 60) == []


def test_channels_that_only_scripts_may_write_stay_refused_to_others(policy_of: Load) -> None:
    words = [b"PUBLISH", b"ev:news:1", b"x"]
    one = finding(policy_of(OLD), "channel.write", words, shape="ev:news:<int>", times=305)
    text = ANY + "functions: {tell: {keys: 0}}\nchannels:\n" + NEWS.replace("}", ", written_by: [tell]}")
    assert resolved(policy_of(text), [one], NOON + 60) == []


@pytest.mark.parametrize(
    ("channel", "is_resolved"), [("ev:<tenant>:x", False), ("ev:<id>:x", True)], ids=["own", "any"]
)
def test_a_channel_that_depends_on_the_caller_is_never_guessed(
    policy_of: Load, channel: str, *, is_resolved: bool
) -> None:
    words = [b"SUBSCRIBE", b"ev:acme:x"]
    bound = ANY + "bind: {tenant: {from: user}}\nchannels:\n"
    new = policy_of(bound + f'  own: {{channel: "{channel}", publishers: [orders], subscribers: [orders]}}\n')
    for times in (1, 305):
        one = finding(policy_of(OLD), "channel.read", words, shape="ev:acme:x", times=times)
        assert resolved(new, [one], NOON + 60) == ([one.id] if is_resolved else [])


def test_a_right_that_depends_on_the_caller_is_never_guessed(policy_of: Load) -> None:
    """The key in an example may be another caller's than the one who used it."""
    words = [b"GET", b"shop:acme:x"]
    one = finding(policy_of(ANY.replace("writers: [orders]", "writers: [billing]")), "scope.read", words)
    entry = '  own: {key: "shop:<tenant>:x", writers: [orders], readers: [orders]}\n'
    bound = ANY + entry + "bind: {tenant: {from: user}}\n"
    assert resolved(policy_of(bound), [one], NOON + 60) == []
    assert resolved(policy_of(ANY + entry), [one], NOON + 60) == [one.id]


def test_a_pattern_stands_for_itself_only(policy_of: Load) -> None:
    new = policy_of(ANY + "channels:\n" + NEWS.replace("<any>", "<any...>"))
    words = [b"PSUBSCRIBE", b"ev:news:*"]
    one = finding(policy_of(OLD), "channel.read", words, shape="ev:news:*", times=305)
    wide = finding(policy_of(OLD), "channel.read", [b"PSUBSCRIBE", b"ev:*"], shape="ev:*", times=305)
    words = [b"PSUBSCRIBE", b"ev:news:1:*"]
    several = finding(policy_of(OLD), "channel.read", words, shape="ev:news:<int>:*", times=305)
    assert resolved(new, [one, wide, several], NOON + 60) == [one.id]


def test_a_grant_may_cover_a_part_of_a_shape(policy_of: Load) -> None:
    words = [b"SUBSCRIBE", b"ev:news:1"]
    one = finding(policy_of(OLD), "channel.read", words, shape="ev:news:<int>", times=305)
    grant = '{commands: [SUBSCRIBE], channels: ["ev:news:1"], reason: x}'
    assert resolved(policy_of(ANY + f"grants: {{orders: {grant}}}\n"), [one], NOON + 60) == []


# -- scripts

SHA1 = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"  # of "return 1"
CALLS = {"EVAL": [b"EVAL", b"return 1", b"0"], "EVALSHA": [b"EVALSHA", SHA1.encode(), b"1", b"shop:order:1"]}


@pytest.mark.parametrize("words", CALLS.values(), ids=CALLS)
def test_a_finding_of_a_script_is_resolved_if_the_policy_registers_it(
    policy_of: Load, words: list[bytes]
) -> None:
    one = finding(policy_of(OLD), "script.unregistered", words, shape=SHA1, times=305)
    two = finding(policy_of(OLD), "script.unregistered", words, shape="0" * 40, times=305)
    registered = f'{{keys: any, reads: ["shop:order:<ARGV.1>"], sha1: {SHA1}}}'
    text = OLD + f"scripts: {{one: {registered}}}\n"
    assert resolved(policy_of(text), [one, two], NOON + 60) == [one.id]
    one.examples = []  # keys are masked
    assert resolved(policy_of(text), [one], NOON + 60) == [one.id]


def test_a_finding_of_a_function_is_resolved_if_the_policy_registers_it(policy_of: Load) -> None:
    names = ("bump", "drop", "other")
    found = [
        finding(policy_of(OLD), "script.unregistered", [b"FCALL", name.encode(), b"0"], shape=name, times=305)
        for name in names
    ]
    new = policy_of(OLD + "functions: {BUMP: {keys: 0}, other: {keys: 0}}\n")
    # There may be more scripts than findings have names for. Then `other` is all of these.
    assert resolved(new, found, NOON + 60) == [found[0].id]


@pytest.mark.parametrize(
    ("word", "is_resolved"),
    [("declared", True), ("report", False), ("load_only", False), ("forbid", False)],
)
def test_what_all_unregistered_scripts_may_do_decides_about_their_findings(
    policy_of: Load, word: str, *, is_resolved: bool
) -> None:
    """A script under `report` is still a finding."""
    text = f"unregistered_scripts: {word}\n"
    words = CALLS["EVALSHA"]
    one = finding(policy_of(OLD), "script.unregistered", words, shape=SHA1, times=305)
    assert resolved(policy_of(OLD + text), [one], NOON + 60) == ([one.id] if is_resolved else [])
    scope = OLD.replace("writers: [orders]", "writers: [orders], unregistered_scripts: load_only")
    assert resolved(policy_of(scope + text), [one], NOON + 60) == []  # a call may declare such keys


def test_a_script_may_be_loaded_where_it_may_not_run(policy_of: Load) -> None:
    old = policy_of(OLD + "unregistered_scripts: forbid\n")
    words = [b"SCRIPT", b"LOAD", b"return 1"]
    one = finding(old, "script.unregistered", words, shape=SHA1, times=305)
    assert resolved(policy_of(OLD), [one], NOON + 60) == [one.id]


# -- keys of shapes


@pytest.mark.parametrize(
    "words",
    [
        [b"EVALSHA", SHA1.encode(), b"1", b"shop:cart:1"],
        [b"COPY", b"shop:cart:1", b"shop:cart:2"],
        [b"SUBSCRIBE", b"__keyspace@0__:shop:cart:1"],
    ],
    ids=["script", "copy", "notifications"],
)
def test_the_form_of_a_key_is_evaluated_whatever_the_command_does_with_it(
    policy_of: Load, words: list[bytes]
) -> None:
    old = policy_of(OLD)
    one = finding(old, "key.unregistered", words, shape="shop:cart:<int>", times=305)
    assert resolved(policy_of(OLD + '  cart: {key: "shop:cart:<id>"}\n'), [one], NOON + 60) == [one.id]
    assert resolved(policy_of(OLD + '  cart: {key: "shop:cart:1"}\n'), [one], NOON + 60) == []


@pytest.mark.parametrize("shape", ["shop:cart:<more>", "shop:cart:<bytes>"])
def test_a_shape_of_keys_of_any_length_is_not_evaluated_as_a_whole(policy_of: Load, shape: str) -> None:
    """Of a very long key, only the beginning is known."""
    one = finding(policy_of(OLD), "key.unregistered", [b"GET", b"shop:cart:1"], shape=shape, times=305)
    assert resolved(policy_of(OLD + '  cart: {key: "shop:cart:<id>"}\n'), [one], NOON + 60) == []


# -- types and other requirements of an entry

ON_A_LIST = [b"LPUSH", b"shop:order:1", b"x"]


@pytest.mark.parametrize(
    ("words", "types", "is_resolved"),
    [
        (ON_A_LIST, "[string, list]", True),
        (ON_A_LIST, "list", True),
        (ON_A_LIST, "hash", False),
        ([b"SORT", b"shop:order:1"], "[string, list]", True),
        # Others of these commands may have a STORE, which makes a list.
        ([b"SORT", b"shop:order:1"], "[string, set]", False),
        ([b"ZUNIONSTORE", b"shop:order:1", b"1", b"shop:order:2"], "zset", False),  # carries elements
    ],
)
def test_a_finding_of_a_type_is_resolved_if_the_entry_has_all_types_that_its_command_is_for(
    policy_of: Load, words: list[bytes], types: str, *, is_resolved: bool
) -> None:
    plain = OLD.replace(", values: number", "")
    one = finding(policy_of(plain), "type.mismatch", words, shape="", entry="order", times=305)
    new = policy_of(plain.replace("type: string", f"type: {types}"))
    assert resolved(new, [one], NOON + 60) == []
    assert resolved(new, [one], NOON + 60, always) == ([one.id] if is_resolved else [])


@pytest.mark.parametrize(
    ("rule", "asked", "words"),
    [
        ("value.invalid", "values: number", [b"SET", b"shop:order:1", b"x"]),
        ("value.size", "max_value: 2b", [b"SET", b"shop:order:1", b"x"]),
        ("ttl.required", "ttl: {max: 2h}", [b"SET", b"shop:order:1", b"x"]),
        ("type.mismatch", "type: list", [b"SET", b"shop:order:1", b"x"]),
        ("field.unknown", "type: hash, fields: {a: any}", [b"HSET", b"shop:order:1", b"x", b"y"]),
    ],
)
def test_a_finding_is_resolved_if_its_entry_does_not_require_it_any_more(
    policy_of: Load, rule: str, asked: str, words: list[bytes]
) -> None:
    before, after = (OLD.replace("type: string, values: number", what) for what in (asked, "max_length: 99"))
    one = finding(policy_of(before), rule, words, shape="", entry="order", times=305)
    assert resolved(policy_of(after), [one], NOON + 60, always) == [one.id]
    assert resolved(policy_of(before + '  more: {key: "shop:more:1"}\n'), [one], NOON + 60, always) == []
    one.counts = {"late": 305}
    assert resolved(policy_of(after), [one], NOON + 60, always) == []


def test_where_words_of_a_key_say_its_type_an_entry_without_one_is_not_evaluated(policy_of: Load) -> None:
    old = OLD.replace("type: string, values: number", "type: string")
    one = finding(policy_of(old), "type.mismatch", ON_A_LIST, shape="", entry="order", times=305)
    words = "type_words: {queue: list}\n"
    new = old.replace(", type: string", "")
    assert resolved(policy_of(new), [one], NOON + 60, always) == [one.id]
    assert resolved(policy_of(words + new), [one], NOON + 60, always) == []
