"""The automaton agrees with the patterns that it was built from, and has limits."""

from __future__ import annotations

import pickle
import random
from array import array
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfence.policy.patterns import automaton as automaton_module
from keyfence.policy.patterns.automaton import DEAD, Automaton, Classifier
from keyfence.policy.patterns.determinize import TooManyStates, build, byte_classes, classify
from keyfence.policy.patterns.matching import Simulation
from keyfence.policy.patterns.patterns import exact_pattern, parse_class, parse_pattern, prefix_pattern

CLASSES = {
    "id": parse_class("[A-Za-z0-9_.-]{1,128}"),
    "sha256": parse_class("[0-9a-f]{64}"),
    "port": parse_class("[0-9]{1,5}"),
    "any": parse_class(".{1,20}"),
    "ab": parse_class("[ab]+"),
    "seven": parse_class("[ab]{7}"),
    "few": parse_class("[ab]{2,9}"),
    "words": parse_class("[a-z]+(_[a-z]+)*"),
}
SMALL = {
    "x": parse_class("[ab]{1,9}"),
    "y": parse_class("a{2,10}|b"),
    "z": parse_class("[^:]{9,12}"),
    "s": parse_class(".{0,3}"),
    "o": parse_class("(ab?)*"),
}


def pattern(text: str):
    return parse_pattern(text, CLASSES)


def policy(entries: int, scopes: int = 50):
    """Entries like those of real policies, the most specific first, followed by the prefixes of their
    scopes."""
    choose = random.Random(entries)

    def word() -> str:
        return "".join(choose.choice("abcdefghijklmnopqrstuvwxyz_") for _ in range(choose.randint(3, 9)))

    words = [word() for _ in range(300)]
    prefixes = [f"{choose.choice(words)}:v1:{choose.choice(words)}:" for _ in range(scopes)]
    endings = ["<id>"] * 14 + ["<id...>", "<sha256>", "<id>:<port>", "<any>:x", "<id>:meta", "meta"]
    texts = {
        choose.choice(prefixes)
        + "".join(choose.choice(words) + ":" for _ in range(choose.randint(1, 3)))
        + choose.choice(endings)
        for _ in range(entries)
    }
    read = sorted(map(pattern, sorted(texts)), key=lambda entry: entry.specificity)
    return read + [prefix_pattern(prefix.encode()) for prefix in dict.fromkeys(prefixes)]


PARTS = st.sampled_from(
    ["a", "b:", ":", "ab", "<x>", "<y>", "<z>", "<s>", "<o>", "<x...>", "<y...>", "<s...>"]
)


@st.composite
def small_patterns(draw):
    def one():
        parts = draw(st.lists(PARTS, min_size=1, max_size=4))
        names = [part.rstrip(".>") for part in parts if part.startswith("<")]
        if len(names) != len(set(names)):
            return exact_pattern(b"ab:ab")
        return parse_pattern("".join(parts), SMALL)

    patterns = [one() for _ in range(draw(st.integers(1, 5)))]
    if draw(st.booleans()):
        patterns.append(prefix_pattern(draw(st.sampled_from([b"", b"a", b"ab:"]))))
    return patterns


KEYS = st.lists(st.text("ab:", max_size=16).map(str.encode), min_size=1, max_size=8)


@given(small_patterns(), KEYS)
@settings(max_examples=250, deadline=None)
def test_the_automaton_agrees_with_every_single_pattern(patterns, keys):
    classifier = classify(patterns)
    automaton = classifier.automaton
    simulations = [Simulation(one.relaxed) for one in patterns]
    for key in keys + [one.example() for one in patterns]:
        accept = automaton.match(key)
        relaxed = tuple(at for at, one in enumerate(simulations) if one.matches(key))
        exact = tuple(at for at, one in enumerate(patterns) if one.matches(key))
        assert (automaton.sets[accept] if accept >= 0 else ()) == relaxed
        assert classifier.every(key) == exact
        assert classifier.first(key) == (exact[0] if exact else -1)


@given(small_patterns(), KEYS, st.binary(max_size=3), st.binary(max_size=3))
@settings(max_examples=100, deadline=None)
def test_spans_and_walks_agree_with_whole_keys(patterns, keys, before, after):
    automaton = build(patterns)
    for key in keys:
        data = before + key + after
        assert automaton.match_span(data, len(before), len(before) + len(key)) == automaton.match(key)
        half = len(key) // 2
        state = automaton.walk(automaton.state_after(key[:half]), key[half:])
        assert automaton.accept_of(state) == automaton.match(key)


@given(small_patterns(), KEYS)
@settings(max_examples=100, deadline=None)
def test_large_and_small_automata_match_alike(patterns, keys):
    small = build(patterns)
    with mock.patch.object(automaton_module, "_SMALL", 0):
        large = pickle.loads(pickle.dumps(small))
    for key in keys + [one.example() for one in patterns]:
        assert large.match(key) == small.match(key)
        assert large.match_span(b"a" + key + b"b", 1, 1 + len(key)) == small.match(key)


def test_the_first_pattern_in_precedence_that_really_matches_is_found():
    few, many, owner = pattern("a:<few>"), pattern("a:<ab>"), prefix_pattern(b"a:")
    classifier = classify([few, many, owner])
    assert [classifier.first(b"a:" + b"a" * count) for count in (1, 2, 9, 10)] == [1, 0, 0, 1]
    assert classifier.first(b"a:c") == 2
    assert classifier.first(b"b") == -1
    assert classifier.every(b"a:aa") == (0, 1, 2)


@pytest.mark.parametrize(
    ("text", "valid", "invalid"),
    [
        ("a:<sha256>:<port>", b"a:" + b"0" * 64 + b":80", b"a:" + b"0" * 63 + b":80"),
        ("a:<id>:<port>", b"a:" + b"0" * 128 + b":80", b"a:" + b"0" * 129 + b":8"),
        ("a:<id...>", b"a:x:" + b"0" * 128, b"a:x:" + b"0" * 129),
        ("<any>:z", b":" * 20 + b":z", b":" * 21 + b":z"),
    ],
)
def test_the_pattern_confirms_lengths_if_the_length_of_the_key_does_not(text, valid, invalid):
    classifier = classify([pattern(text)])
    assert classifier.automaton.match(valid) == classifier.automaton.match(invalid) == 0
    assert (classifier.first(valid), classifier.first(invalid)) == (0, -1)


def test_tables_and_classifiers_can_be_pickled():
    classifier = classify(policy(30, 5))
    copy = pickle.loads(pickle.dumps(classifier))
    for entry in classifier.patterns:
        assert copy.first(entry.example()) == classifier.first(entry.example())
    assert copy.automaton.nodes == classifier.automaton.nodes


def test_a_key_that_begins_like_no_pattern_ends_in_the_dead_state():
    automaton = build([pattern("a:<id>")])
    assert automaton.state_after(b"b") == DEAD
    assert automaton.state_after(b"a:x:") == DEAD
    assert automaton.state_after(b"a:") != DEAD
    assert automaton.state_after(b"") == automaton.start
    assert set(automaton.successors(DEAD)) == {DEAD}


def test_no_patterns_match_nothing():
    classifier = classify([])
    assert classifier.first(b"") == -1
    assert classifier.first(b"x") == -1


def test_a_pattern_can_match_the_empty_key():
    assert classify([exact_pattern(b"a"), prefix_pattern(b"")]).first(b"") == 1


def test_an_invalid_state_or_span_is_an_error():
    automaton = build([pattern("a:<id>")])
    for state in (-1, 5, automaton.states * 4):
        with pytest.raises(IndexError):
            automaton.walk(state, b"a")
    for start, end in ((-1, 1), (2, 1), (0, 9)):
        with pytest.raises(IndexError):
            automaton.match_span(b"a:x", start, end)
    with pytest.raises(IndexError):
        Classifier(automaton, (pattern("a:<id>"),)).confirms(1, b"a:x")


DEAD_NODE = [-1, 0, 0, -1]


@pytest.mark.parametrize(
    ("classes", "nodes", "rows", "sets"),
    [
        (bytes(255), DEAD_NODE * 2, [0], ()),
        (bytes(256), DEAD_NODE, [0], ()),
        (bytes(256), DEAD_NODE * 2 + [0], [0], ()),
        (bytes(256), DEAD_NODE * 2, [], ()),
        (bytes(255) + b"\x01", DEAD_NODE * 2, [0, 0, 0], ()),
        (bytes(256), DEAD_NODE * 2, [8], ()),
        (bytes(256), DEAD_NODE * 2, [-4], ()),
        (bytes(256), DEAD_NODE * 2, [1], ()),
        (bytes(256), [*DEAD_NODE, 0, 8, 0, -1], [0], ()),
        (bytes(256), [*DEAD_NODE, 1, 4, 0, -1], [0], ()),
        (bytes(256), [*DEAD_NODE, -2, 4, 0, -1], [0], ()),
        (bytes(256), [*DEAD_NODE, -1, 0, 1, -1], [0], ()),
        (bytes(256), [*DEAD_NODE, -1, 0, -1, -1], [0], ()),
        (bytes(256), [*DEAD_NODE, -1, 0, 0, 0], [0], ()),
        (bytes(256), [*DEAD_NODE, -1, 0, 0, -2], [0], ((0,),)),
    ],
)
def test_tables_that_lead_outside_are_refused(classes, nodes, rows, sets):
    with pytest.raises(ValueError, match="automaton"):
        Automaton(classes, array("i", nodes), array("i", rows), sets)


def test_a_classifier_needs_the_patterns_of_its_automaton():
    with pytest.raises(ValueError, match="without a pattern"):
        Classifier(build([pattern("a"), pattern("b")]), (pattern("a"),))


def test_byte_classes_are_as_coarse_as_possible():
    digits, letter = sum(1 << byte for byte in b"0123456789"), 1 << ord("5")
    classes = byte_classes([digits, letter])
    assert len(set(classes)) == 3
    assert classes[ord("1")] == classes[ord("9")] != classes[ord("5")]
    assert classes[ord("a")] == classes[0]


def test_long_counters_add_no_states():
    assert build([pattern("a:<id>:<sha256>")]).states < 10


def test_a_policy_of_hundreds_of_entries_stays_small():
    patterns = policy(300)
    automaton = build(patterns)
    assert automaton.states < 40 * len(patterns)
    classifier = Classifier(automaton, tuple(patterns))
    for at, entry in enumerate(patterns):
        assert 0 <= classifier.first(entry.example()) <= at


def test_too_many_states_are_refused_with_the_names_of_the_entries():
    culprits = [f"a:<any>a<seven>{count}" for count in range(3)]
    innocent = [f"{letter}:<id>" for letter in "bcdefg"]
    patterns = [prefix_pattern(b""), *map(pattern, innocent), *map(pattern, culprits)]
    with pytest.raises(TooManyStates) as caught:
        build(patterns, max_states=100)
    assert caught.value.worst
    assert {patterns[index].text for index in caught.value.worst} <= set(culprits)
    assert "a:<any>a" in str(caught.value)


def test_states_that_hold_very_many_positions_count_against_the_limit():
    classes = {"w": parse_class("(" + "|".join(f"{n:02}*" for n in range(100)) + ")+")}
    with pytest.raises(TooManyStates):
        build([parse_pattern(f"{n}<w>", classes) for n in range(8)], max_states=20)


class CountingClasses(bytes):
    steps = 0

    def __getitem__(self, at):
        self.steps += 1
        return super().__getitem__(at)


@pytest.mark.skipif(not automaton_module.__file__.endswith(".py"), reason="counts in the interpreted module")
@pytest.mark.parametrize("entries", [3, 100])
def test_a_key_takes_one_table_step_per_byte_for_any_number_of_patterns(entries):
    patterns = policy(entries)
    automaton = build(patterns)
    key = patterns[-1].literal_prefix + b"\x00:" * 500
    counting = automaton.classes = CountingClasses(automaton.classes)
    automaton.match(key)
    assert counting.steps == len(key)
