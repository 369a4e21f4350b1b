"""Measures the cost of loading a large policy, and of a command under it, for growing numbers of entries.

Run it from the repository's root: `python -m benchmarks.large_policies [entries …]`. Each size is measured in
separate processes, from the YAML text to a verdict. The sizes take turns, and the results are medians. One
placeholder in four has a bounded length, and one in twenty may contain the separator. Keys from only twelve
entries show the cost of the steps. Keys from all entries also show the effect of the processor's caches. With
KEYFENCE_PURE=1 it measures the interpreted modules.
"""

from __future__ import annotations

import json
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from keyfence.commands.extract import extract
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.patterns import automaton as automaton_module

SIZES = (12, 200, 2_000)
SERVICES = 50
TURNS = 5  # processes for each size
ROUNDS = 7  # in each process
COMMANDS = 5_000
FEW = 12
PLACEHOLDERS = """placeholders:
  id: "[A-Za-z0-9_.-]+"
  short: "[A-Za-z0-9_.-]{1,128}"
  hash: "[0-9a-f]{64}"
  month: "[0-9]{4}-[0-9]{2}"
  path: "[A-Za-z0-9_./:-]{1,200}"
"""
# The ends of keys; a repeated one is more frequent.
ENDINGS = (
    ["<id>"] * 7 + ["<id>:meta"] * 3 + ["<short>"] * 4 + ["<hash>", "<id...>", "<id>:<month>", "all", "all"]
)
ENDINGS += ["<path>:head"]
MORE = [", type: hash", ", type: string, ttl: {max: 1h, at: write}", ", ttl: none", ""]


def policy_text(entries: int) -> tuple[str, list[str]]:
    """Returns a policy with this number of entries, one scope per service, and the keys' patterns."""
    choose = random.Random(entries)
    words = ["".join(choose.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(6)) for _ in range(400)]
    services = [f"service-{number}" for number in range(SERVICES)]
    prefixes = {name: f"team{number}:v1:" for number, name in enumerate(services)}
    claims = ", ".join(f'"{one}"' for one in prefixes.values())
    lines = ["policy: large", f"claims: [{claims}]"]
    lines += [f"services: [{', '.join(services)}]", PLACEHOLDERS + "scopes:"]
    lines += [f'  {name}: {{prefix: "{prefix}", writers: [{name}]}}' for name, prefix in prefixes.items()]
    lines.append("keys:")
    patterns: dict[str, None] = {}
    while len(patterns) < entries:
        middle = "".join(choose.choice(words) + ":" for _ in range(choose.randint(1, 3)))
        pattern = prefixes[choose.choice(services)] + middle + choose.choice(ENDINGS)
        if pattern not in patterns:
            reader = choose.choice(services)
            lines.append(
                f'  key-{len(patterns)}: {{key: "{pattern}", readers: [{reader}]{choose.choice(MORE)}}}'
            )
            patterns[pattern] = None
    return "\n".join(lines) + "\n", list(patterns)


class Measured(NamedTuple):
    load_seconds: float
    cpu_seconds: float
    states: float
    more_megabytes: float  # growth of the process' peak memory while loading
    key_of_few: float  # nanoseconds per key, with keys from FEW entries
    key_of_all: float  # nanoseconds per key, with keys from all entries
    command_of_few: float
    command_of_all: float


def measure(entries: int) -> Measured:
    text, _ = policy_text(entries)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    begin, begin_cpu = time.perf_counter(), time.process_time()
    policy = parse_policy(text)
    took, took_cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
    evaluator = Evaluator(policy)
    examples = [one.pattern.example() for one in policy.targets if one.kind == "entry"]
    choose = random.Random(1)
    choose.shuffle(examples)
    by_key, by_command = [], []
    for drawn in (examples[:FEW], examples):
        keys = [choose.choice(drawn) for _ in range(COMMANDS)]
        commands = [[b"TYPE", key] for key in keys]
        for argv in commands:
            evaluator.evaluate(Asker(0), argv, extract(argv))
        by_key.append(_median(lambda keys=keys: [policy.classifier.first(key) for key in keys]))

        def admit(commands: list[list[bytes]] = commands) -> None:
            for argv in commands:
                evaluator.checks.admits(evaluator.evaluation(Asker(0), argv, extract(argv)))

        by_command.append(_median(admit))
    return Measured(took, took_cpu, policy.classifier.automaton.states, more, *by_key, *by_command)


def _median(run: Callable[[], object]) -> float:
    rounds = []
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        run()
        rounds.append((time.perf_counter_ns() - begin) / COMMANDS)
    return statistics.median(rounds)


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(int(sys.argv[2]))))
        return
    compiled = not str(automaton_module.__file__).endswith(".py")
    print(f"automaton: {'compiled' if compiled else 'interpreted'}, {SERVICES} services")
    sizes = [int(size) for size in sys.argv[1:]] or list(SIZES)
    measured: dict[int, list[Measured]] = {size: [] for size in sizes}
    for size in sizes * TURNS:
        command = [sys.executable, "-m", "benchmarks.large_policies", "--one", str(size)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        measured[size].append(Measured(*json.loads(done.stdout)))
    print("                                              ns per key      ns per command")
    print(" entries   load s   CPU s   states  more MB  of 12  of all     of 12   of all")
    for size, turns in measured.items():
        load, cpu, states, more, *times = map(statistics.median, zip(*turns, strict=True))
        key_of_few, key_of_all, few, every = times
        print(
            f"{size:8} {load:8.2f} {cpu:7.2f} {states:8.0f} {more:8.0f}"
            f" {key_of_few:6.0f} {key_of_all:7.0f} {few:9.0f} {every:8.0f}"
        )


if __name__ == "__main__":
    main()
