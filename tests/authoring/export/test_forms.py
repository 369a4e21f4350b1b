"""A class as a regular expression, whole or with split counters, and as a tree: all match the same values."""

from __future__ import annotations

import random
import re

import pytest

from keyfence.authoring.export.forms import MOST_REPEATS, Tree, ranges, regex, tree
from keyfence.policy.patterns.classes import NAMES, class_named
from keyfence.policy.patterns.expressions import ClassExpression

from .samples import HOSTILE, sampled

CLASSES = [
    *NAMES,
    "[A-Za-z0-9_.-]{1,128}",
    "(a|bc)?d*",
    "[^:]+",
    ".{0,3}",
    "x{2,}y{3}",
    "[a-z]{2,1500}",
    "((a|bc){1,40}-){1,30}",
    "([ab]{0,1200}c){0,3}",
    "(ab*){1000,1500}",
    "[-^\\]\\[\\\\/'\"`$&|~#]+",
    "é+",
    "[\\x00-\\x1f]?\\xff",
]


def ends(form: Tree, text: bytes, starts: set[int]) -> set[int]:
    """Where a part of the tree can end: what the matchers in Rust and Lua compute."""
    if form.kind == "text":
        return {at + len(form.text) for at in starts if text.startswith(form.text, at)}
    if form.kind == "seq":
        for part in form.parts:
            starts = ends(part, text, starts)
        return starts
    if form.kind == "any":
        return {end for part in form.parts for end in ends(part, text, starts)}
    step = form.parts[0] if form.kind == "rep" else form._replace(least=1, most=1)
    found: set[int] = set()
    for count in range(len(text) + form.least + 2):
        if count >= form.least:
            if starts <= found:
                break
            found |= starts
        if count == form.most:
            break
        if form.kind == "set":
            starts = {
                at + 1 for at in starts if at < len(text) and any(a <= text[at] <= b for a, b in form.ranges)
            }
        else:
            starts = ends(step, text, starts)
    return found


def values(expression: ClassExpression) -> list[bytes]:
    rng = random.Random(expression.text)
    words = [sampled(expression.node, rng) for _ in range(12)]
    near = [word[:-1] for word in words] + [word + b"a" for word in words] + [b"-" + word for word in words]
    short = [one.encode() for one in HOSTILE if len(one) < 100]
    return [*words, *near, *short, b"\xff", b"\x00"]


@pytest.mark.parametrize("text", CLASSES)
def test_all_ways_to_write_a_class_match_the_same_values(text: str) -> None:
    expression = class_named(text)
    whole, split = regex(expression.node), regex(expression.node, splits=True)
    form = tree(expression.node)
    for value in values(expression):
        wanted = expression.matches(value)
        as_text = value.decode("latin-1")
        assert bool(re.fullmatch(whole.encode(), value)) == wanted, value
        assert bool(re.fullmatch(split, as_text)) == wanted, value
        assert (len(value) in ends(form, value, {0})) == wanted, value


def test_split_counters_are_as_small_as_go_takes_them() -> None:
    for text in CLASSES:
        written = regex(class_named(text).node, splits=True)
        counters = re.findall(r"\{(\d+)(?:,(\d*))?\}", written)
        assert all(int(one) <= MOST_REPEATS for both in counters for one in both if one)


def test_a_form_has_no_quotes_slashes_or_line_breaks_that_could_end_a_literal() -> None:
    written = regex(class_named(".{0,2}[-^\\]\\[\\\\/'\"`$&|~#\\x0a\\x0d]+").node)
    assert not set(written) & set("/'\"`$&~#\n\r")


def test_neighbouring_bytes_are_ranges_and_literals_are_one_text() -> None:
    assert ranges(0b1110_1101) == [(0, 0), (2, 3), (5, 7)]
    assert tree(class_named("abc[0-9]de").node) == Tree(
        "seq", parts=(Tree("text", b"abc"), Tree("set", ranges=((48, 57),)), Tree("text", b"de"))
    )
