#!/usr/bin/env python3
"""Guided fuzzing of key patterns: any patterns over any classes, and any keys.

Rule: the automaton of all patterns finds the same matches as each single pattern. It also does so if it
walks a key in parts, or inside a longer buffer.
"""

from __future__ import annotations

from harness import Choices, fuzz, instrumented

with instrumented(
    "keyfence.policy.patterns.determinize",
    "keyfence.policy.patterns.patterns",
    "keyfence.policy.patterns.expressions",
):
    from keyfence.policy.patterns.determinize import TooManyStates, classify
    from keyfence.policy.patterns.expressions import PatternError
    from keyfence.policy.patterns.matching import Simulation
    from keyfence.policy.patterns.patterns import parse_class, parse_pattern, prefix_pattern

MAX_STATES = 2_000


def words(choices: Choices, count: int) -> list[str]:
    """Reads `count` texts from the input, each after its length."""
    return [choices.bytes(choices.number() % 48).decode("latin-1") for _ in range(count)]


def check(data: bytes) -> None:
    """Checks the automaton of the input's patterns against the single patterns."""
    choices = Choices(data)
    classes = {"x": parse_class("[ab]{1,9}"), "y": parse_class("[^:]+")}
    for name, text in zip("zw", words(choices, 2), strict=True):
        try:
            classes[name] = parse_class(text)
        except PatternError:
            continue
    patterns = [prefix_pattern(b"a")] if choices.number() % 2 else []
    for text in words(choices, 1 + choices.number() % 4):
        try:
            patterns.append(parse_pattern(text, classes))
        except PatternError:
            continue
    try:
        classifier = classify(patterns, MAX_STATES)
    except TooManyStates:
        return
    automaton = classifier.automaton
    simulations = [Simulation(one.relaxed) for one in patterns]
    keys = [one.example() for one in patterns] + [b""]
    while choices and len(keys) < 8:
        keys.append(choices.bytes(choices.number() % 64))
    for key in keys:
        accept = automaton.match(key)
        relaxed = tuple(at for at, one in enumerate(simulations) if one.matches(key))
        exact = tuple(at for at, one in enumerate(patterns) if one.matches(key))
        assert (automaton.sets[accept] if accept >= 0 else ()) == relaxed, key
        assert classifier.every(key) == exact, key
        assert classifier.first(key) == (exact[0] if exact else -1), key
        assert automaton.match_span(b"ab" + key + b"b", 2, 2 + len(key)) == accept
        half = len(key) // 2
        assert automaton.accept_of(automaton.walk(automaton.state_after(key[:half]), key[half:])) == accept
    for at, one in enumerate(patterns):
        assert at in classifier.every(one.example()), one


if __name__ == "__main__":
    fuzz(check)
