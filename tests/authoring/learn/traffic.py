"""Traffic of the five conventions: what each convention's tests admit, sent for many other ids.

The ids are random ones of the same form. So a draft that is made from the traffic meets nearly all keys of
the tests for the first time.
"""

from __future__ import annotations

import base64
import datetime
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

from keyfence.authoring.testing import Step, read_cases
from keyfence.commands.extract import extract
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.loading.load import load_policy, parse_policy
from keyfence.policy.wording.command_log import as_line
from keyfence.shapes.shapes import looks_like_word
from tests.policy.cases import POLICIES

CONVENTIONS = ("cubesandbox", "card-relay", "container-registry", "cosky", "general")
TIMES = 20  # how often each command is sent, each time with other ids
# What a keyfence runs with that only looks: no entries, so the log shows keys as they are.
BLANK = parse_policy("policy: look\nservices: [nobody]\n")
_WORDS = (
    "amber",
    "birch",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "hazel",
    "iris",
    "juniper",
    "kelp",
    "larch",
)
_PIECES = re.compile("([:{}@#/])")
_ID = re.compile(b"[a-z][0-9]{1,2}")  # of the tests: s1, n1
_JOINTS = re.compile("([_.-])")


def cases_of(convention: str) -> tuple[CompiledPolicy, list[list[Step]]]:
    """Returns a convention's policy, and the steps of its tests."""
    file = read_cases(POLICIES / f"{convention}.test.yaml")
    return load_policy(file.policy), [case.steps for case in file.cases]


def commands_of(convention: str, seed: int = 1, times: int = TIMES) -> Iterator[tuple[int, str, list[bytes]]]:
    """Yields a convention's traffic: the number of the round, the service, and the command."""
    policy, cases = cases_of(convention)
    for number in range(times):
        for steps in cases:
            for step in steps:
                if step.argv and step.verdict == "allow" and step.service != "unknown":
                    yield number, step.service, _varied(policy, step.argv, number, seed)


def lines_of(convention: str, seed: int = 1) -> list[dict[str, Any]]:
    """Returns the command log of a week's traffic of a convention."""
    start = datetime.datetime(2026, 3, 2, tzinfo=datetime.UTC)
    lines = []
    for number, service, argv in commands_of(convention, seed):
        when = start + datetime.timedelta(hours=8 * number, seconds=len(lines))
        lines.append({"time": when.isoformat()} | as_line(BLANK, service, argv, extract(argv), 1))
    return lines


def _varied(policy: CompiledPolicy, argv: Sequence[bytes], number: int, seed: int) -> list[bytes]:
    """Returns a command with other ids. The same id becomes the same one in every command."""
    touches = extract(argv)
    values: dict[bytes, bytes] = {}
    keys = [access.key for access in touches.accesses]
    names = [one.name for one in touches.channels if not one.is_pattern]
    for text, target in [*((k, policy.target(k)) for k in keys), *((n, _channel(policy, n)) for n in names)]:
        for value, whole in _ids(text, target):
            values[value] = _other(value.decode(), number, seed, words=whole).encode()
    for word in argv[1:]:
        if _ID.fullmatch(word) and word not in values:
            values[word] = _other(word.decode(), number, seed, words=False).encode()
    return [_replaced(word, values, is_name=word in keys or word in names or b"*" in word) for word in argv]


def _channel(policy: CompiledPolicy, name: bytes) -> Any:
    return next((one for one in policy.channels if one.kind == "channel" and one.pattern.matches(name)), None)


def _ids(text: bytes, target: Any) -> Iterator[tuple[bytes, bool]]:
    """Yields the ids in a key; and whether one may also be a word."""
    captured = target.pattern.capture(text) if target is not None and target.kind != "scope" else None
    if captured is None:
        yield from ((piece, False) for piece in re.split(b"[:{}]", text))
        return
    for hole in target.pattern.holes:
        if hole.variadic:
            yield from ((piece, False) for piece in captured[hole.name].split(b":"))
        elif hole.name != "scope":
            yield captured[hole.name], True


def _replaced(word: bytes, values: dict[bytes, bytes], *, is_name: bool) -> bytes:
    if not is_name:
        return values.get(word, word)
    for value in sorted(values, key=len, reverse=True):
        if not value or values[value] == value:
            continue
        edge = rb"(?<![^:{}])" + re.escape(value) + rb"(?![^:{}])"
        word, times = re.subn(edge, values[value].replace(b"\\", rb"\\"), word)
        if times:
            values = {one: new for one, new in values.items() if one != value}
    return word


def _other(value: str, number: int, seed: int, *, words: bool) -> str:
    """Returns another value of the same form."""
    draw = random.Random(f"{seed} {number} {value}")
    if re.fullmatch("v[0-9]", value) or len(value) > 64:
        return value
    if re.fullmatch("(19|20)[0-9]{6}", value):
        return f"{draw.randrange(1990, 2030)}{draw.randrange(1, 13):02}{draw.randrange(1, 29):02}"
    if re.fullmatch("1[0-9]{9}([0-9]{3})?", value):
        return str(draw.randrange(15 * 10 ** (len(value) - 2), 18 * 10 ** (len(value) - 2)))
    if re.fullmatch("[0-9]+([.][0-9]+){3}", value):
        return ".".join(str(draw.randrange(1, 255)) for _ in range(4))
    if "::" in value:
        return f"2001:db8::{draw.randrange(1, 65535):x}"
    if value.endswith("="):
        return base64.b64encode(_other("10.0.0.7", number, seed, words=False).encode()[:8]).decode()
    pieces = _PIECES.split(value)
    if len(pieces) > 1:
        kept = ("http", "https")
        return "".join(one if index % 2 or one in kept else _other(one, number, seed, words=words)
                       for index, one in enumerate(pieces))  # fmt: skip
    if not any(char.isdigit() for char in value):
        if not words or not all(looks_like_word(one) for one in _JOINTS.split(value)[::2]):
            return value
        return "".join(one if index % 2 or one == "yaml" else draw.choice(_WORDS)
                       for index, one in enumerate(_JOINTS.split(value)))  # fmt: skip
    letters = (
        "abcdef" if len(value) > 6 and re.fullmatch("[0-9a-fA-F-]+", value) else "abcdefghijklmnopqrstuvwxyz"
    )
    return "".join(
        draw.choice("123456789") if char.isdigit()
        else draw.choice(letters.upper() if char.isupper() else letters) if char.isalpha()
        else char
        for char in value
    )  # fmt: skip
