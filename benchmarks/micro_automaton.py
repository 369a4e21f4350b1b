"""What a key costs as the number of entries grows, and what building the automaton costs.

Run it from the repository's root: `python -m benchmarks.micro_automaton [entries …]`. It says whether the
compiled automaton was measured; with KEYFENCE_PURE=1 it measures the interpreted one.
"""

from __future__ import annotations

import pickle
import random
import resource
import statistics
import sys
import time

from proxy.policy import automaton as automaton_module
from proxy.policy.automaton import Classifier
from proxy.policy.build_automaton import build
from proxy.policy.patterns import KeyPattern, parse_class, parse_pattern, prefix_pattern

SIZES = (12, 200, 2_000)
SCOPES = 50
ROUNDS = 7
KEYS = 20_000
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."
CLASSES = {
    "id": parse_class("[A-Za-z0-9_.-]{1,128}"),
    "sha256": parse_class("[0-9a-f]{64}"),
    "month": parse_class("[0-9]{4}-[0-9]{2}"),
    "path": parse_class("[A-Za-z0-9_./:-]{1,200}"),
}
# How entries end, by weight: one in twenty admits the separator.
ENDINGS = ["<id>"] * 13 + [
    "<sha256>",
    "<sha256>",
    "<id...>",
    "<id>:<month>",
    "<id>:meta",
    "all",
    "<path>:head",
]


def policy(entries: int) -> list[KeyPattern]:
    """Entries over SCOPES scopes in the order of precedence, then the scopes' prefixes."""
    choose = random.Random(entries)

    def word() -> str:
        return "".join(choose.choice(LETTERS) for _ in range(choose.randint(3, 10)))

    words = [word() for _ in range(400)]
    scopes = [f"{choose.choice(words)}:v1:{word()}:" for _ in range(SCOPES)]
    texts: set[str] = set()
    while len(texts) < entries:
        middle = "".join(choose.choice(words) + ":" for _ in range(choose.randint(1, 3)))
        texts.add(choose.choice(scopes) + middle + choose.choice(ENDINGS))
    read = sorted((parse_pattern(text, CLASSES) for text in sorted(texts)), key=lambda one: one.specificity)
    return read + [prefix_pattern(scope.encode()) for scope in scopes]


def keys_of(patterns: list[KeyPattern]) -> list[bytes]:
    """Keys of all entries in random order, with ids of 32 hexadecimal digits; one in ten is under no
    scope."""
    choose = random.Random(len(patterns))
    entries = [pattern for pattern in patterns if not pattern.is_prefix]
    keys = []
    for _ in range(KEYS):
        entry = choose.choice(entries)
        key = entry.example().replace(b"x1", b"%032x" % choose.getrandbits(128))
        keys.append(key if choose.random() < 0.9 else b"?" + key)
    return keys


def nanoseconds(classifier: Classifier, keys: list[bytes]) -> float:
    """The median time of one `first`, the loop around it taken off."""
    rounds = []
    first = classifier.first
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        for key in keys:
            first(key)
        middle = time.perf_counter_ns()
        for _key in keys:
            pass
        rounds.append((middle - begin - (time.perf_counter_ns() - middle)) / len(keys))
    return statistics.median(rounds)


def main() -> None:
    compiled = not str(automaton_module.__file__).endswith(".py")
    print(f"automaton: {'compiled' if compiled else 'interpreted'}, {SCOPES} scopes")
    print(" entries  build s   CPU s   states  tables MB  peak MB  ns a key")
    for entries in map(int, sys.argv[1:] or SIZES):
        patterns = policy(entries)
        begin, begin_cpu = time.perf_counter(), time.process_time()
        automaton = build(patterns)
        took, took_cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
        classifier = Classifier(automaton, tuple(patterns))
        megabytes = len(pickle.dumps(automaton)) / 1e6
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        cost = nanoseconds(classifier, keys_of(patterns))
        numbers = f"{entries:8} {took:8.2f} {took_cpu:7.2f} {automaton.states:8} {megabytes:10.2f}"
        print(f"{numbers} {peak:8.0f} {cost:9.0f}")


if __name__ == "__main__":
    main()
