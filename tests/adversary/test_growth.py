"""The class: a policy that a person can write and that takes keyfence minutes to load.

The search doubles random policies and counts the lines of Python that loading runs in each function, so it
needs no clock. It does not count C code.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from contextlib import suppress
from types import FrameType
from typing import Any

from keyfence.policy.diagnostics import FileError
from keyfence.policy.loading.load import parse_policy
from tests.adversary.conftest import Search

# Twice the policy may take a little over twice the work, for sorting. A nested loop would take four times.
MOST = 2.6
SIZE = 60
FEW = 50 * SIZE  # fewer lines than this are noise
# The sections that grow, with a line per member.
LINES = {
    "services": ("services:", "  - s{0}\n"),
    "writers": ("services:", "  - w{0}\n"),
    "scopes": ("scopes:", "  x{0}: {{prefix: 'x{0}:', writers: [a], deny_read: [a]}}\n"),
    "keys": ("keys:", "  k{0}: {{key: 'a:k{0}:<id>', ttl: none, fields: {{a: any}}}}\n"),
    "replaced": (
        "keys:",
        "  r{0}: {{key: 'a:r{0}:<id>'}}\n  n{0}: {{key: 'a:n{0}:<id>', replaces: r{0}}}\n",
    ),
    "placeholders": ("placeholders:", "  p{0}: '[a-c]'\n"),
    "secrets": ("placeholders:", "  q{0}: {{is: '[a-c]{{8}}', secret: true}}\n"),
    "scripts": ("scripts:", "  c{0}: {{sha1: '{0:040x}', keys: ['a:<id>'], writes: ['a:<ARGV.1>']}}\n"),
    "functions": ("functions:", "  f{0}: {{keys: 1}}\n"),
    "legacy": ("legacy:\n  allow: [read]\n  keys:", "    'old{0}:<id>': base\n"),
    "instead": ("instead:", "  'wrong{0}:<id>': base\n"),
    "channels": ("channels:", "  c{0}: {{channel: 'c{0}:<id>', publishers: [a]}}\n"),
}

TARGETS = {"scopes", "keys", "replaced", "legacy", "instead", "channels"}


def text(kinds: list[str], count: int) -> str:
    """Returns a policy whose sections of these kinds have this number of members."""
    sections = {
        "services:": ["  - a\n"],
        "placeholders:": ["  id: '[a-z]+'\n"],
        "scopes:": ["  a: {prefix: 'a:', writers: [a]}\n"],
        "keys:": ["  base: {key: 'a:base:<id>'}\n"],
    }
    if "writers" in kinds:
        names = ", ".join(f"w{number}" for number in range(count))
        sections["scopes:"] = [f"  a: {{prefix: 'a:', writers: [a, {names}]}}\n"]
    for kind in kinds:
        head, line = LINES[kind]
        sections.setdefault(head, []).extend(line.format(number) for number in range(count))
    return "policy: p\n" + "".join(f"{head}\n{''.join(lines)}" for head, lines in sections.items())


def steps(policy: str) -> Counter[str]:
    """Counts the lines that each of keyfence's own functions runs while loading a policy."""
    lines: Counter[str] = Counter()

    def trace(frame: FrameType, _event: str, _argument: Any) -> Any:
        code = frame.f_code
        if "keyfence" not in code.co_filename:
            return None
        lines[f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno} {code.co_qualname}"] += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with suppress(FileError):
            parse_policy(policy)
    finally:
        sys.settrace(before)
    return lines


def kinds_of(rng: random.Random) -> list[str]:
    """Returns some sections.

    Each service has rights on each target, so services and targets grow one at a time; `pipeline.MAX_RIGHTS`
    bounds their product.
    """
    left_out = rng.choice([TARGETS, {"services", "writers"}])
    return rng.sample([kind for kind in LINES if kind not in left_out], rng.randint(1, 3))


def test_each_generated_policy_loads() -> None:
    parse_policy(text([*LINES], 3))


def test_twice_the_policy_takes_twice_the_steps(search: Search) -> None:
    for rng in search.attempts_of_at_least(4):
        kinds = kinds_of(rng)
        small, large = steps(text(kinds, SIZE)), steps(text(kinds, 2 * SIZE))
        grown = {name: (small[name], lines) for name, lines in large.items() if lines > MOST * small[name]}
        assert {name: both for name, both in grown.items() if both[1] > FEW} == {}, kinds
