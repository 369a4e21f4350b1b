"""Overlap, cover and difference of patterns."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfence.policy.patterns.determinize import build
from keyfence.policy.patterns.patterns import exact_pattern, parse_class, parse_pattern, prefix_pattern
from keyfence.policy.patterns.set_operations import (
    TooLarge,
    covered,
    joint_samples,
    overlap,
    overlapping_pairs,
    uncovered,
)

CLASSES = {
    "id": parse_class("[A-Za-z0-9_.-]{1,128}"),
    "sha256": parse_class("[0-9a-f]{64}"),
    "uuid": parse_class("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{12}"),
    "lower": parse_class("[a-z]+"),
    "digits": parse_class("[0-9]+"),
    "alnum": parse_class("[a-z0-9]+"),
    "long": parse_class("[a-z]{10,20}"),
    "short": parse_class("[a-z]{1,9}"),
    "any": parse_class(".*"),
    "x": parse_class("a{1,2}|b"),
    "y": parse_class("[ab]{2}"),
    "z": parse_class("[ab:]?"),
}


def pattern(text: str):
    return parse_pattern(text, CLASSES)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("a:<id>", "a:<lower>"),
        ("a:<id...>", "a:<lower>:b"),
        ("<id>", "bypass_host_proxy"),
        ("a:<id>:<lower>", "a:x:<id>"),
        ("a:<any>", "a:b:c:<digits>"),
        ("a:<lower>", "a:<long>"),
        ("<sha256>", "<id>"),
        ("<digits><lower>", "<id>"),
    ],
)
def test_overlapping_patterns_share_a_key(left, right):
    key = overlap(pattern(left), pattern(right))
    assert key is not None
    assert pattern(left).matches(key)
    assert pattern(right).matches(key)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("a:<id>", "b:<id>"),
        ("a:<lower>", "a:<digits>"),
        ("a:<id>", "a:<id>:b"),
        ("a:<short>", "a:<long>"),
        ("<sha256>", "<uuid>"),
        ("a:<sha256>", "a:<sha256>0"),
    ],
)
def test_disjoint_patterns_share_none(left, right):
    assert overlap(pattern(left), pattern(right)) is None


def test_beyond_the_limit_overlap_ignores_lengths():
    assert overlap(pattern("a:<short>"), pattern("a:<long>"), max_states=10) is not None


@pytest.mark.parametrize(
    ("text", "others", "expected"),
    [
        ("a:<lower>", ["a:<id>"], False),  # longer than 128
        ("a:<short>", ["a:<id>"], True),
        ("a:<alnum>", ["a:<lower>", "a:<digits>"], False),
        ("a:x", ["b", "a:<id...>"], True),
        ("a:<lower>:<digits>", ["a:<any>"], True),
        ("a:<short>", [], False),
        ("a:<short>", ["a:<long>"], False),
        ("a:<lower>", ["a:<short>", "a:<long>"], False),
        ("a:<sha256>", ["<any>"], True),
    ],
)
def test_a_pattern_is_covered_if_others_match_all_its_keys(text, others, expected):
    assert covered(pattern(text), [pattern(other) for other in others]) is expected
    key = uncovered(pattern(text), [pattern(other) for other in others])
    assert (key is None) is expected
    if key is not None:
        assert pattern(text).matches(key)
        assert not any(pattern(other).matches(key) for other in others)


def test_a_prefix_covers_the_patterns_under_it():
    assert covered(pattern("a:b:<id>"), [prefix_pattern(b"a:")])
    assert covered(prefix_pattern(b"a:b"), [prefix_pattern(b"a:")])
    assert not covered(prefix_pattern(b"a:"), [prefix_pattern(b"a:b")])


def test_beyond_the_limit_nothing_counts_as_covered():
    with pytest.raises(TooLarge):
        uncovered(pattern("a:<short>"), [pattern("a:<id>")], max_states=5)
    assert not covered(pattern("a:<short>"), [pattern("a:<id>")], max_states=5)


def test_the_automaton_shows_overlapping_pairs():
    patterns = [exact_pattern(b"a:b"), pattern("a:<id>"), pattern("c:<id>"), prefix_pattern(b"a:")]
    assert set(overlapping_pairs(build(patterns))) == {(0, 1), (0, 3), (1, 3)}


def test_two_revisions_differ_in_the_sampled_keys():
    before = build([pattern("a:<lower>"), exact_pattern(b"b")])
    after = build([pattern("a:<alnum>"), exact_pattern(b"b")])
    found = joint_samples(before, after)
    names = {
        (before.sets[left][0] if left >= 0 else -1, after.sets[right][0] if right >= 0 else -1): key
        for (left, right), key in found.items()
    }
    assert set(names) == {(-1, -1), (0, 0), (-1, 0), (1, 1)}
    assert names[1, 1] == b"b"
    assert names[-1, 0].startswith(b"a:")
    assert not pattern("a:<lower>").matches(names[-1, 0])


def test_a_difference_beyond_the_limit_is_refused():
    with pytest.raises(TooLarge):
        joint_samples(build([pattern("abc")]), build([pattern("abd")]), max_states=2)


def test_every_accept_set_has_a_sample():
    automaton = build([pattern("a:<lower>"), pattern("a:<alnum>"), prefix_pattern(b"a:")])
    found = joint_samples(automaton, automaton)
    assert {left for left, _ in found} == {-1, *range(len(automaton.sets))}
    assert all(automaton.match(key) == left == right for (left, right), key in found.items())


TEXTS = st.lists(
    st.sampled_from(["a", "b", ":", "<x>", "<y>", "<z>"]), min_size=1, max_size=4, unique=True
).map("".join)
STRINGS = [bytes(key) for length in range(6) for key in itertools.product(b"ab:", repeat=length)]


@given(TEXTS, st.lists(TEXTS, max_size=3))
@settings(max_examples=150, deadline=None)
def test_overlap_and_cover_agree_with_brute_force(text, others):
    one, rest = pattern(text), [pattern(other) for other in others]
    keys = [key for key in STRINGS if one.matches(key)]
    for other in rest:
        shared = overlap(one, other)
        if shared is None:
            assert not any(other.matches(key) for key in keys)
        else:
            assert one.matches(shared)
            assert other.matches(shared)
    escape = uncovered(one, rest)
    if escape is None:
        assert all(any(other.matches(key) for other in rest) for key in keys)
    else:
        assert one.matches(escape)
        assert not any(other.matches(escape) for other in rest)
