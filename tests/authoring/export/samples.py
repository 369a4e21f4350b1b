"""Values to build keys of: words of a placeholder's class at random, near misses, and hostile texts."""

from __future__ import annotations

import random
from collections.abc import Iterator

from keyfence.authoring.export.builders import Builder
from keyfence.policy.patterns.regular import Bytes, Concat, Either, Joined, Node, Repeat, bytes_of

# Most texts of a class with bytes beyond ASCII are not UTF-8, so a sampled word may have to be drawn again.
_TRIES = 50
HOSTILE = [
    "",
    ":",
    "a:b",
    "a b",
    "x\n",
    "\n",
    "a\r\nDEL x",
    "a\0b",
    "é",
    "a" * 5000,
    "*",
    "{a}",
    "<id>",
    "%41",
    "a/../b",
]


def sampled(node: Node, rng: random.Random) -> bytes:
    """Returns a word of the language."""
    match node:
        case Bytes(mask):
            known = list(bytes_of(mask))
            plain = [byte for byte in known if 32 < byte < 127]
            return bytes([rng.choice(plain or known)])
        case Concat(parts):
            return b"".join(sampled(part, rng) for part in parts)
        case Either(options):
            return sampled(rng.choice(options), rng)
        case Joined(inner):
            return b":".join(sampled(inner, rng) for _ in range(rng.randint(1, 3)))
        case Repeat(inner, least, most):
            top = least + 6 if most is None else most
            count = rng.choice([least, min(least + 3, top), top, rng.randint(least, top)])
            return b"".join(sampled(inner, rng) for _ in range(count))


def texts_of(node: Node, rng: random.Random) -> Iterator[str]:
    """Yields words of the language, texts that almost are words, and hostile ones."""
    words = [sampled(node, rng).decode("utf-8", "replace") for _ in range(8)]
    yield from words
    yield from HOSTILE
    for word in words[:4]:
        yield word + rng.choice([":", "x", "!", " ", "\n", "0"])
        yield word[:-1]
        yield word[1:]
        yield rng.choice(["x", ":", "-", "\t"]) + word


def calls_of(builder: Builder, rng: random.Random) -> list[list[str]]:
    """Returns lists of arguments for a builder: good ones, and those with one value of any kind."""
    if not builder.parameters:
        return [[]]
    good = [
        [sampled(one.form.node, rng).decode("utf-8", "replace") for one in builder.parameters]
        for _ in range(5)
    ]
    calls = list(good)
    for at, one in enumerate(builder.parameters):
        for text in texts_of(one.form.node, rng):
            call = list(rng.choice(good))
            call[at] = text
            calls.append(call)
    return calls
