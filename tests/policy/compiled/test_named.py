"""Names and type words are checked in the bytes of a request as the evaluator reads them."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keyfence.policy.compiled.named import KINDS, NameCheck, TypeWords
from keyfence.policy.compiled.names import Names, hash_tag_fault
from keyfence.policy.compiled.policy import types_in
from keyfence.policy.engine.content import fits
from keyfence.policy.engine.forms import NAMED, WAIVED, shows_more
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.source.model import HashTag, Length

OPEN = 'policy: p\nservices: [app]\nscopes: {all: {prefix: "", writers: [app], unregistered: allow}}\n'


def names(text: str) -> Names:
    return parse_policy(f"{OPEN}names: {text}\n").homes[0].names


ALL = [
    names("{}"),
    names("{max_length: 12}"),
    names("{max_length: 10 characters, should: {max_length: 12}}"),
    names("{max_length: 20, should: {max_length: 6 characters, lowercase: yes, avoid: {usr: user}}}"),
    names('{charset: "[a-z0-9:{}]", should: {charset: "[a-z:]", levels: {min: 2, max: 3}}}'),
    names('{levels: {min: 2}, level: "[a-z{}]*", after: {day: "[0-9]{2}"}, should: {level: "[a-z]*"}}'),
]
LIMITS = [None, Length(8), Length(5, characters=True)]
TAGS: list[HashTag] = ["any", "optional", "required"]
KEYS = st.lists(
    st.sampled_from([*"a:{}A7", "usr", "day:", "day:17", "é", "\udcff", "user:", "{a}", "x" * 9]), max_size=12
).map(lambda parts: "".join(parts).encode("utf-8", "surrogateescape"))


def told(faults: int) -> set[tuple[str, str]]:
    """(rule, severity) of each fault in the sum."""
    found = set()
    for weight, rule in ((1, "key.length"), (3, "key.charset"), (9, "key.format")):
        severity = faults // weight % 3
        if severity:
            found.add((rule, "must" if severity == 2 else "should"))
    if faults // 27 % 2:
        found.add(("key.hash_tag", "must"))
    return found


@settings(max_examples=1500)
@given(st.sampled_from(ALL), st.sampled_from(LIMITS), st.sampled_from(TAGS), KEYS)
@example(ALL[2], None, "any", "é".encode() * 12)
@example(ALL[2], LIMITS[2], "any", b"\xff" * 6)
@example(ALL[0], None, "required", b"a{b}c")
@example(ALL[0], None, "optional", b"{}")
def test_the_faults_of_a_name_are_those_that_the_evaluator_finds(
    rules: Names, limit: Length | None, tag: HashTag, key: bytes
) -> None:
    found = NameCheck(rules, limit, tag).faults(b"A:" + key + b"{A}", 2, 2 + len(key))
    expected = {(fault.rule, fault.severity) for fault in rules.faults(key, limit)}
    tag_fault = hash_tag_fault(key, tag)
    assert found < KINDS
    assert told(found) == expected | ({("key.hash_tag", "must")} if tag_fault else set())


WORDS = {b"item": ("string",), b"list": ("list",), b"any": ("hash", "string"), b"it": ("set",)}


@settings(max_examples=500)
@given(
    st.lists(st.sampled_from([b"item", b"list", b"any", b"it", b"its", b"x", b""]), max_size=5).map(
        b":".join
    ),
    st.sampled_from([("string",), ("list", "set"), ("zset",), ("hash",)]),
)
def test_the_first_type_word_in_a_key_decides(key: bytes, types: tuple[str, ...]) -> None:
    found = TypeWords(WORDS, types).faults(b"list:" + key + b":item", 5, 5 + len(key))
    assert (found == 0) == fits(types_in(key, WORDS), types)
    assert found < KINDS


@pytest.mark.parametrize(
    ("faults", "more"),
    [(0, False), (5, False), (NAMED, True), (NAMED + 5, True), (WAIVED, False), (WAIVED + 2 * NAMED, True)],
)
def test_faults_of_a_name_are_told_from_others(faults: int, more: bool) -> None:
    assert shows_more(faults) is more
