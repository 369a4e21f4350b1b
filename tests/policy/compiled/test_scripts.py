"""The keys, types, times to live and hash slots that a registered script makes of a call; and its SHA-1."""

from __future__ import annotations

import hashlib
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.commands.model import Script, Streamed, Ttl
from keyfence.policy.compiled.scripts import (
    Registration,
    how_to_register,
    parse_ttl,
    script_of,
    whole_sha1_of,
)
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy

Kind = Literal["text", "sha1", "function"]
TEXT = "return redis.call('set', KEYS[1], ARGV[1])"
DIGITS = hashlib.sha1(TEXT.encode()).hexdigest()
SHAS = {name: hashlib.sha1(name.encode()).hexdigest() for name in ("put", "fixed", "slots", "members")}
POLICY = f"""
policy: p
services: [app]
cluster: true
placeholders: {{id: "[a-z]{{1,8}}"}}
scopes: {{a: {{prefix: "a:", writers: [app]}}}}
keys:
  item: {{key: "a:{{<id>}}:item", type: hash, ttl: {{max: 1h, min: 10s}}}}
  free: {{key: "a:{{<id>}}:free", type: hash, ttl: {{or_none: true, max: 1h}}}}
  fixed: {{key: "a:{{<id>}}:fixed", type: string, ttl: none}}
  members: {{key: "a:{{<id>}}:m:<id...>"}}
scripts:
  put:
    sha1: {SHAS["put"]}
    writes:
      - {{key: "a:{{<ARGV.1>}}:item", type: hash, ttl: <ARGV.2>s}}
      - {{key: "a:{{<ARGV.1>}}:free", ttl: <ARGV.3>ms}}
  fixed:
    sha1: {SHAS["fixed"]}
    writes: {{key: "a:{{<ARGV.1>}}:fixed", type: zset, ttl: 60s}}
  slots:
    sha1: {SHAS["slots"]}
    reads: ["a:{{<ARGV.1>}}:item"]
    writes: ["a:{{<ARGV.2>}}:item"]
  members:
    sha1: {SHAS["members"]}
    reads: ["a:{{<ARGV.1>}}:m:*", "a:{{<ARGV.2>}}:m:*"]
  set: {{sha1: {DIGITS[:10]}..., keys: 1}}
unregistered_scripts: forbid
""".replace("m:<id...>", "m:<rest...>").replace("placeholders: {", 'placeholders: {rest: "[a-z]+", ')


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    return Evaluator(parse_policy(POLICY))


def test_a_script_is_shared_only_if_its_registration_says_so() -> None:
    text = "return redis.call('del', KEYS[1])"
    digits = hashlib.sha1(text.encode()).hexdigest()
    policy = parse_policy(
        "policy: p\nservices: [app]\n"
        f"scripts: {{one: {{sha1: {digits}, keys: 1, shared: yes}}, other: {{sha1: {'b' * 40}, keys: 1}}}}\n"
        "functions: {f: {keys: 1, shared: yes}, g: {keys: 1, shared: no}}\n"
    )

    def shares(kind: Kind, name: str) -> bool:
        return policy.shares(Script(kind, 1, name.encode(), (), ()))

    assert shares("text", text)
    assert shares("sha1", digits.upper())
    assert shares("function", "F")
    assert not any(shares("sha1", digit * 40) for digit in "bf")
    assert not any([shares("text", text + " "), shares("function", "g")])


def test_a_text_that_is_not_at_hand_has_no_sha1() -> None:
    script = Script("text", 1, Streamed(b"return", 10_000_000), (b"k",), ())
    told = "register it under scripts by its SHA-1, and run it by EVALSHA: the text is too long to hash"
    assert how_to_register(script, "", whole_sha1_of(script)) == told


def rules(evaluator: Evaluator, *argv: str) -> list[str]:
    return [one.rule for one in evaluator.decide(0, [word.encode() for word in argv]).violations]


@pytest.mark.parametrize(
    ("name", "arguments", "broken"),
    [
        ("put", ["x", "60", "60000"], []),
        ("put", ["x", "60", "-1"], []),
        ("put", ["x", "-1", "60000"], ["ttl.required"]),
        ("put", ["x", "5", "60000"], ["ttl.range"]),
        ("put", ["x", "7200", "60000"], ["ttl.range"]),
        ("put", ["x", "60", "7200000"], ["ttl.range"]),
        ("put", ["x", "soon", "60000"], []),
        ("put", ["x", "60"], ["script.keys"]),
        ("put", ["X", "60", "60000"], ["key.format", "key.format"]),
        ("fixed", ["x"], ["type.mismatch", "ttl.forbidden"]),
        ("slots", ["x", "x"], []),
        ("slots", ["x", "y"], ["slot.cross"]),
        ("members", ["x", "x"], []),
        ("members", ["x", "y"], ["slot.cross"]),
        # script.keys may be only observed.
        ("fixed", [], ["script.keys"]),
    ],
)
def test_an_entry_s_requirements_apply_to_a_script_s_keys(
    evaluator: Evaluator, name: str, arguments: list[str], broken: list[str]
) -> None:
    assert rules(evaluator, "EVALSHA", SHAS[name], "0", *arguments) == broken


@pytest.mark.parametrize(
    ("argv", "broken"),
    [
        (["EVALSHA", DIGITS, "1", "a:{x}:fixed", "1"], []),
        (["EVALSHA", DIGITS.upper(), "1", "a:{x}:fixed", "1"], []),
        (["EVALSHA", DIGITS[:10] + "0" * 30, "1", "a:{x}:fixed", "1"], []),
        (["EVALSHA", DIGITS[:9] + "g" + "0" * 30, "1", "a:{x}:fixed", "1"], ["script.unregistered"]),
        (["EVALSHA", DIGITS[:10], "1", "a:{x}:fixed", "1"], ["script.unregistered"]),
        (["EVAL", TEXT, "1", "a:{x}:fixed", "1"], []),
        (["EVAL", TEXT + " ", "1", "a:{x}:fixed", "1"], ["script.unregistered"]),
        (["SCRIPT", "LOAD", TEXT], []),
    ],
)
def test_a_script_may_be_registered_by_its_first_digits(
    evaluator: Evaluator, argv: list[str], broken: list[str]
) -> None:
    assert rules(evaluator, *argv) == broken


@given(st.dictionaries(st.text("ab", min_size=8, max_size=40), st.integers(), max_size=20), st.data())
def test_the_longest_registered_beginning_counts(known: dict[str, int], data: st.DataObject) -> None:
    scripts = {
        digits.encode(): Registration(str(number), 0, (), 0, (), (), ()) for digits, number in known.items()
    }
    sha1 = data.draw(st.text("ab", min_size=40, max_size=40))
    fitting = [digits for digits in known if sha1.startswith(digits)]
    found = script_of(scripts, sha1.encode())
    assert (found.name if found else None) == (str(known[max(fitting, key=len)]) if fitting else None)


def call(*arguments: bytes) -> Script:
    return Script("sha1", 1, b"", (), arguments)


@pytest.mark.parametrize(
    ("text", "argument", "ttl"),
    [
        ("60s", b"", Ttl("sets", 60_000)),
        ("<ARGV.1>s", b"5", Ttl("sets", 5_000)),
        ("<ARGV.1>ms", b"5", Ttl("sets", 5)),
        ("<ARGV.1>s", b"-1", Ttl("drops")),
        ("<ARGV.1>s", b"5.5", Ttl("sets")),
        ("<ARGV.1>s", b"9" * 30, Ttl("sets")),
    ],
)
def test_the_time_that_a_script_leaves_a_key_with(text: str, argument: bytes, ttl: Ttl) -> None:
    assert parse_ttl(text).of(call(argument)) == ttl


def test_a_call_that_lacks_the_argument_of_a_time_may_set_any_time() -> None:
    missing = parse_ttl("<ARGV.2>s")
    assert (missing.of(call(b"1")), missing.lack(call(b"1"))) == (Ttl("sets"), "ARGV[2]")
    assert missing.lack(call(b"1", b"2")) == parse_ttl("60s").lack(call()) == ""


@pytest.mark.parametrize("text", ["soon", "60", "<ARGV.1>", "<ARGV.0>s", "<ARGV.1>h", "<KEYS.1>s"])
def test_an_invalid_time_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time to live; write a duration"):
        parse_ttl(text)


def test_a_script_may_declare_any_number_of_keys() -> None:
    policy = parse_policy(
        f"""
        policy: p
        services: [app]
        placeholders: {{id: "[a-z]+"}}
        keys: {{k: {{key: "k:<id>", writers: [app]}}}}
        scripts: {{send: {{sha1: {"a" * 40}, keys: any}}}}
        """
    )
    evaluator = Evaluator(policy)
    for keys in ([], ["k:a"], ["k:a", "k:b", "k:c"]):
        argv = [b"EVALSHA", b"a" * 40, b"%d" % len(keys), *(key.encode() for key in keys), b"1"]
        assert evaluator.decide(policy.number("app"), argv).allowed
    verdict = evaluator.decide(policy.number("app"), [b"EVALSHA", b"a" * 40, b"2", b"k:a", b"other", b"1"])
    assert [one.rule for one in verdict.violations] == ["key.unregistered"]
