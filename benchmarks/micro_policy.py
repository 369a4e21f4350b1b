"""What loading a large policy costs, and what a command costs under it as the number of entries grows.

Run it from the repository's root: `python -m benchmarks.micro_policy [entries …]`. Each size is measured in
processes of its own, from the YAML text to an answer; the sizes take turns, and the medians are told. One
placeholder in four is bounded in length, one in twenty may hold the separator. With KEYFENCE_PURE=1 it measures
what runs without a compiler.
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

from proxy.commands.extract import extract
from proxy.policy import automaton as automaton_module
from proxy.policy.decide import Decider
from proxy.policy.load import parse_policy

SIZES = (12, 200, 2_000)
SERVICES = 50
TURNS = 5  # processes for each size
ROUNDS = 7  # in each process
COMMANDS = 5_000
PLACEHOLDERS = """placeholders:
  id: "[A-Za-z0-9_.-]+"
  short: "[A-Za-z0-9_.-]{1,128}"
  hash: "[0-9a-f]{64}"
  month: "[0-9]{4}-[0-9]{2}"
  path: "[A-Za-z0-9_./:-]{1,200}"
"""
# How keys end, by weight.
ENDINGS = (
    ["<id>"] * 7 + ["<id>:meta"] * 3 + ["<short>"] * 4 + ["<hash>", "<id...>", "<id>:<month>", "all", "all"]
)
ENDINGS += ["<path>:head"]
MORE = [", type: hash", ", type: string, ttl: {max: 1h, at: write}", ", ttl: none", ""]


def policy_text(entries: int) -> tuple[str, list[str]]:
    """A policy with so many entries over SERVICES scopes, one for each service; and the keys' patterns."""
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
    more_megabytes: float  # of the process' peak, by loading
    nanoseconds_a_key: float
    nanoseconds_a_byte: float
    nanoseconds_a_command: float


def measure(entries: int) -> Measured:
    text, _ = policy_text(entries)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    begin, begin_cpu = time.perf_counter(), time.process_time()
    policy = parse_policy(text)
    took, took_cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
    choose = random.Random(1)
    examples = [one.pattern.example() for one in policy.targets if one.kind == "entry"]
    commands = [[b"TYPE", choose.choice(examples)] for _ in range(COMMANDS)]
    keys = [argv[1] for argv in commands]
    decider = Decider(policy)
    for argv in commands:
        decider.judge(0, argv, extract(argv))
    per_key = _median(lambda: [policy.classifier.first(key) for key in keys])
    per_command = _median(lambda: [decider.admits(0, extract(argv)) for argv in commands])
    states = policy.classifier.automaton.states
    per_byte = per_key * COMMANDS / sum(map(len, keys))
    return Measured(took, took_cpu, states, more, per_key, per_byte, per_command)


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
        command = [sys.executable, "-m", "benchmarks.micro_policy", "--one", str(size)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        measured[size].append(Measured(*json.loads(done.stdout)))
    print(" entries   load s   CPU s   states   more MB  ns a key  ns a byte  ns a command")
    for size, turns in measured.items():
        one = Measured(*map(statistics.median, zip(*turns, strict=True)))
        print(
            f"{size:8} {one.load_seconds:8.2f} {one.cpu_seconds:7.2f} {one.states:8.0f} {one.more_megabytes:9.0f}"
            f" {one.nanoseconds_a_key:9.0f} {one.nanoseconds_a_byte:10.1f} {one.nanoseconds_a_command:13.0f}"
        )


if __name__ == "__main__":
    main()
