"""Kinds of keys: keys that differ only in values, found by comparing all keys part by part.

Rule: every key belongs to exactly one kind, and no two kinds match the same key with equally specific
patterns. In doubt two words make two kinds: it is safer to join two entries later than to split one.

Keys are cut at `:`, `{`, `}` and `|`. Of the texts at one place, those that look like values form one
placeholder. Words stay, unless many of them are used alike: the same parts follow, with the same types and
writers. Hash tags are there to vary: two that are words are names already if much the same follows both.
The names that are found there, such as those of tenants, are names at other places too."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from keyfence.policy.patterns.patterns import exact_pattern

from .seen import MARK, WRITES, Facts, Types, strongest
from .values import ValueClass, class_of, is_numbered_word, is_word, looks_like_ip, may_be_secret

MIN_WORDS = 8  # words at the end of keys that are used alike and so are names
# The same before other parts, where words are mostly kinds: cart:<id>, order:<id>. Then few keys follow each.
MIN_INNER_WORDS = 12
MIN_CODES = 3  # words in capital letters at the end of keys, such as currencies and airports
FEW_KEYS = 3
MANY_WORDS = 32  # before other parts, however many keys follow each
MAX_WORDS = 64  # words at one place; more are names, however they are used
MAX_FIRST_WORDS = 256  # the same at the beginning of keys
ALIKE = 0.5  # the share of kinds behind two hash tags that must be the same
# Parts of a key that are compared; the rest is one value. Words and values at each of many places can double
# the work each time, as in keys that hold JSON. If it would take too long, fewer parts are compared.
DEPTHS = (12, 6)
MAX_STEPS = 20  # how often a key is looked at, on average; but with the last of these depths
FREE_STEPS = 10_000  # of few keys, each may be looked at more often
_SEPARATORS = re.compile("([:{}|])")
_WORDS = re.compile("[A-Za-z][A-Za-z0-9_]*(?:-[A-Za-z0-9_]+)*")
_VERSION = re.compile("[vV][0-9]{1,3}")
_CODE = re.compile("[A-Z]{2,5}([_.-][A-Z]{2,5})*")
_STEM = re.compile("((?:[A-Za-z]{2,}[_.=-])+)(.*[0-9].*)")
_GLUED = re.compile(r"([A-Za-z_]*[A-Za-z]{3,})([0-9]+(?:[.][0-9]+)*)")


@dataclasses.dataclass(slots=True)
class Slot:
    """A placeholder of a kind, with the values that were seen there."""

    values: set[str]
    guessed: bool = False  # it replaces words
    name: str = ""

    @property
    def value_class(self) -> ValueClass:
        return class_of(self.values)


Part = str | Slot


@dataclasses.dataclass
class Kind:
    """A kind of keys, with everything that was seen of them."""

    parts: list[Part]
    keys: list[str]
    facts: Facts
    name: str = ""
    legacy_of: Kind | None = None
    why: str = ""  # why it is taken for a deprecated form
    # Services that get no right, because all their commands are for another type.
    strangers: frozenset[str] = frozenset()

    @property
    def slots(self) -> list[Slot]:
        return [part for part in self.parts if isinstance(part, Slot)]

    @property
    def prefix(self) -> str:
        """The literal text before the first placeholder."""
        first = self.parts[0] if self.parts else ""
        return first if isinstance(first, str) else ""

    @property
    def pattern(self) -> str:
        """The pattern as a policy has it."""
        return "".join(literal(part) if isinstance(part, str) else f"<{part.name}>" for part in self.parts)

    @property
    def text(self) -> str:
        """The literal text, with spaces for placeholders."""
        return " ".join(part if isinstance(part, str) else " " for part in self.parts)

    @property
    def words(self) -> list[str]:
        return words_of(self.text)

    @functools.cached_property
    def held(self) -> frozenset[str]:
        return frozenset(self.keys)

    @property
    def example(self) -> str:
        """A key that was seen; "" if only shapes were."""
        return next((key for key in self.keys if MARK not in key), "")

    @property
    def glob(self) -> str:
        """The glob of the keys, as waivers have it."""
        parts = (
            re.sub(r"([*?\[\]\\])", r"\\\1", part) if isinstance(part, str) else "*" for part in self.parts
        )
        return "".join(parts)

    @property
    def types(self) -> list[str]:
        return self.facts.types.found()

    @property
    def shape(self) -> str:
        """The literal text, with MARK for placeholders."""
        return "".join(part if isinstance(part, str) else MARK for part in self.parts)

    def values_in(self, key: str) -> list[str] | None:
        """Returns the values of a key's placeholders; None if the key is not of this kind."""
        values: list[str] = []
        at = 0
        for index, part in enumerate(self.parts):
            if isinstance(part, Slot):
                continue
            is_behind_slot = index > 0 and isinstance(self.parts[index - 1], Slot)
            is_last = index == len(self.parts) - 1
            if not is_behind_slot:
                found = at if key.startswith(part, at) else -1
            else:
                found = key.rfind(part) if is_last else key.find(part, at)
            if found < at:
                return None
            if is_behind_slot:
                values.append(key[at:found])
            at = found + len(part)
        if self.parts and isinstance(self.parts[-1], Slot):
            return [*values, key[at:]]
        return values if at == len(key) else None


def words_of(text: str) -> list[str]:
    """Returns the words of literal text, without versions."""
    return [word.rstrip("_") for word in _WORDS.findall(text) if not _VERSION.fullmatch(word)]


def literal(text: str) -> str:
    """Returns literal text as a pattern has it."""
    return exact_pattern(text.encode("utf-8", "surrogateescape")).text if text else ""


class Ways(NamedTuple):
    """How to find kinds."""

    stems: bool = True  # values at one place may begin with a word: user_<user>
    coarse: bool = False  # a word beside values is a value: then no key can be of two kinds
    names: frozenset[str] = frozenset()  # hash tags that are words and names


FINE = Ways()


class _TooLong(Exception):
    """Comparing the keys to this depth would take too long."""


@dataclasses.dataclass
class _Search:
    """One search for kinds."""

    ways: Ways
    depth: int  # parts that are compared
    steps: float  # how often a key may still be looked at
    known: dict[tuple[int, tuple[str, ...]], list[_Found]] = dataclasses.field(default_factory=dict)

    def below(self, items: list[_Item], separator: str, depth: int) -> list[_Found]:
        """Resolves what follows the part at hand; what is known already is not resolved again."""
        if not separator:
            return [_Found([], items)]
        name = depth, tuple(item.key for item in items)
        if name not in self.known:
            self.steps -= len(items)
            if self.steps < 0:
                raise _TooLong
            self.known[name] = _resolve(items, depth + 1, self)
        return self.known[name]


class _Item(NamedTuple):
    key: str
    texts: tuple[str, ...]  # parts and separators of the key, alternately
    facts: Facts

    def at(self, depth: int) -> str:
        return self.texts[2 * depth]

    def separator(self, depth: int) -> str:
        """The separator after a part; "" after the last one."""
        return self.texts[2 * depth + 1] if len(self.texts) > 2 * depth + 1 else ""

    def before(self, depth: int) -> str:
        """The text before a part, without empty parts."""
        return next((text for text in reversed(self.texts[: 2 * depth : 2]) if text), "")

    def is_tag(self, depth: int) -> bool:
        """Whether a part is a whole hash tag."""
        return depth > 0 and self.texts[2 * depth - 1] == "{" and self.separator(depth) == "}"

    def rest(self, depth: int) -> str:
        return "".join(self.texts[2 * depth :])


@dataclasses.dataclass(slots=True)
class _Found:
    parts: list[Part]
    items: list[_Item]


# How keys of a sub-kind are used: what follows, their types and their writers.
_Usage = dict[str, tuple[frozenset[str], frozenset[str]]]


def kinds_of(keys: Mapping[str, Facts], ways: Ways = FINE) -> list[Kind]:
    """Returns the kinds of these keys."""
    items = [_Item(key, tuple(_SEPARATORS.split(key)), facts) for key, facts in sorted(keys.items())]
    resolved = _resolved(items, ways)
    tags = {value for one in resolved for slot in _tag_slots(one.parts) for value in slot.values}
    if tags:
        resolved = _resolved(items, ways._replace(names=frozenset(tags)))
    found = []
    for one in resolved:
        facts = Facts()
        for item in one.items:
            facts.take(item.facts)
        found.append(Kind(_joined(one.parts), [item.key for item in one.items], facts))
    return sorted(found, key=lambda kind: [part if isinstance(part, str) else "\x7f" for part in kind.parts])


def _resolved(items: list[_Item], ways: Ways) -> list[_Found]:
    """Resolves keys, to the greatest depth that does not take too long."""
    for depth in DEPTHS[:-1]:
        with contextlib.suppress(_TooLong):
            return _resolve(items, 0, _Search(ways, depth, FREE_STEPS + MAX_STEPS * len(items)))
    return _resolve(items, 0, _Search(ways, DEPTHS[-1], math.inf))


def _tag_slots(parts: Sequence[Part]) -> Iterable[Slot]:
    """Yields the placeholders for hash tags that replace words."""
    for before, part in itertools.pairwise(parts):
        if isinstance(part, Slot) and part.guessed and isinstance(before, str) and before.endswith("{"):
            yield part


def _joined(parts: Sequence[Part]) -> list[Part]:
    """Returns the parts with neighbouring texts joined."""
    joined: list[Part] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        elif part != "":
            joined.append(part)
    return joined


def _resolve(items: list[_Item], depth: int, search: _Search) -> list[_Found]:
    if depth >= search.depth:
        return _rests(items, depth)
    found: list[_Found] = []
    addresses = [item for item in items if item.separator(depth) and looks_like_ip(item.rest(depth))]
    if addresses:
        addresses += [item for item in items if not item.separator(depth) and _is_ip(item.at(depth))]
        taken = {item.key for item in addresses}
        found.append(_Found([Slot({item.rest(depth) for item in addresses})], addresses))
        items = [item for item in items if item.key not in taken]
    by_separator: dict[str, list[_Item]] = defaultdict(list)
    for item in items:
        by_separator[item.separator(depth)].append(item)
    for separator, group in sorted(by_separator.items()):
        found += _resolve_group(group, separator, depth, search)
    return found


def _rests(items: list[_Item], depth: int) -> list[_Found]:
    """Returns what is left of keys behind the last part that is compared: one value, or nothing."""
    ended = [item for item in items if not item.rest(depth)]
    others = [item for item in items if item.rest(depth)]
    found = [_Found([Slot({item.rest(depth) for item in others})], others)] if others else []
    return [*found, *([_Found([], ended)] if ended else [])]


def _is_ip(text: str) -> bool:
    return class_of({text}).text == "ipv4"


def _resolve_group(items: list[_Item], separator: str, depth: int, search: _Search) -> list[_Found]:
    """Resolves keys that have the same separator after the part at hand."""
    ways = search.ways
    by_text: dict[str, list[_Item]] = defaultdict(list)
    for item in items:
        by_text[item.at(depth)].append(item)
    before = items[0].before(depth)
    words = {text for text in by_text if is_word(text) and not may_be_secret(text, before)}
    values = by_text.keys() - words
    if len(values) >= 3:  # beside other values, v6 is no version
        versions = {text for text in words if text and text[-1].isdigit()}
        words, values = words - versions, values | versions
    numbered = {text for text in values if is_numbered_word(text)}
    if (
        len(numbered) <= (3 if depth == 0 else 1)
        and not values - numbered
        and all(len(by_text[text]) > 1 for text in numbered)
    ):
        words |= numbered
        values = set()
    if len(words & ways.names) > 1 and words <= ways.names:
        words, values = set(), words | values
    below = {text: search.below(by_text[text], separator, depth) for text in words}
    usages = {text: _usage(found) for text, found in below.items()}
    if items[0].is_tag(depth):
        of_values = [item for text in sorted(values) for item in by_text[text]]
        taken = _tag_names(usages, _usage(search.below(of_values, separator, depth)))
    else:
        taken = _names(usages, values, by_text, separator, depth, search)
    found: list[_Found] = []
    for stem, texts in _by_stem(values, ways.stems and not taken):
        group = [item for text in sorted(texts | (set() if stem else taken)) for item in by_text[text]]
        is_guess = bool(taken) or not texts.isdisjoint(ways.names)
        slot = Slot({text.removeprefix(stem) for text in texts} | (set() if stem else taken), is_guess)
        below_slot = search.below(group, separator, depth)
        found += [_Found([stem, slot, separator, *one.parts], one.items) for one in below_slot]
    if taken and not values:
        group = [item for text in sorted(taken) for item in by_text[text]]
        slot = Slot(set(taken), True)
        below_slot = search.below(group, separator, depth)
        found += [_Found([slot, separator, *one.parts], one.items) for one in below_slot]
    for text in sorted(words - taken):
        found += [_Found([text, separator, *one.parts], one.items) for one in below[text]]
    return found


def _by_stem(values: Iterable[str], stems: bool) -> list[tuple[str, set[str]]]:
    """Returns the values by the word with which they begin; all together if few share one."""
    found: dict[str, set[str]] = defaultdict(set)
    for value in values:
        found[_stem_of(value) if stems else ""].add(value)
    if len(found) > 2 or (found and min(map(len, found.values())) < 3):
        found = {"": set(values)} if values else {}
    return sorted(found.items())


def _stem_of(value: str) -> str:
    if class_of({value}).is_exact:
        return ""
    match = _STEM.fullmatch(value) or _GLUED.fullmatch(value)
    return match[1] if match is not None and is_word(match[1].rstrip("_.=-")) else ""


def _usage(found: list[_Found]) -> _Usage:
    usage: _Usage = {}
    for one in found:
        shape = "".join(part if isinstance(part, str) else MARK for part in one.parts)
        seen = Types()
        for item in one.items:
            seen.take(item.facts.types)
        types = frozenset(seen.found())
        writers = frozenset(
            service
            for item in one.items
            for service, use in item.facts.uses.items()
            if strongest(use) == WRITES
        )
        usage[shape] = (types, writers)
    return usage


def _agree(one: _Usage, other: _Usage) -> bool:
    """Whether two words are used alike. What was not seen of one of them does not count."""
    if not (one.keys() <= other.keys() or other.keys() <= one.keys()):
        return False
    common = one.keys() & other.keys()
    return all(
        not one[shape][0] or not other[shape][0] or one[shape][0] == other[shape][0] for shape in common
    ) and all(not one[shape][1] or not other[shape][1] or one[shape][1] & other[shape][1] for shape in common)


def _tag_names(usages: Mapping[str, _Usage], of_values: _Usage) -> set[str]:
    """Returns the hash tags that are words and names: much the same follows them as follows others."""
    groups: list[tuple[set[str], set[str]]] = [(set(of_values), set())] if of_values else []
    for text, usage in sorted(usages.items(), key=lambda one: (-len(one[1]), one[0])):
        shapes = set(usage)
        for known, words in groups if text else ():
            if len(known & shapes) >= ALIKE * min(len(known), len(shapes)):
                known |= shapes
                words.add(text)
                break
        else:
            groups.append((shapes, {text}))
    first = groups[:1] if of_values else []
    return {text for one in groups if one in first or len(one[1]) > 1 for text in one[1]}


def _names(
    usages: Mapping[str, _Usage],
    values: set[str],
    by_text: Mapping[str, list[_Item]],
    separator: str,
    depth: int,
    search: _Search,
) -> set[str]:
    """Returns the words that are names, and so values."""
    is_many = len(usages) > (MAX_FIRST_WORDS if depth == 0 else MAX_WORDS)
    if is_many or (search.ways.coarse and values):
        return set(usages) - {""}
    groups: list[tuple[_Usage, set[str]]] = []
    if values and depth:
        of_values = [item for text in sorted(values) for item in by_text[text]]
        groups.append((_usage(search.below(of_values, separator, depth)), set()))
    for text, usage in sorted(usages.items(), key=lambda one: (-len(one[1]), one[0])):
        group = next((one for one in groups if _agree(one[0], usage) and text), None)
        if group is None:
            group = ({}, set())
            groups.append(group)
        group[1].add(text)
        for shape, (types, writers) in usage.items():
            known = group[0].get(shape, (frozenset(), frozenset()))
            group[0][shape] = (known[0] or types, known[1] | writers)
    if values and depth:
        joined = groups[0][1]
        return (
            joined
            if len(joined) >= MIN_WORDS or len(joined) <= len(values) / 4 or _same_form(values, joined)
            else set()
        )
    if depth == 0:
        return set()
    largest = max(groups, key=lambda one: len(one[1]), default=({}, set()))[1]
    return largest if "" not in largest and _are_names(largest, by_text, separator) else set()


def _are_names(words: set[str], by_text: Mapping[str, list[_Item]], separator: str) -> bool:
    """Whether words that are used alike are so many that they are names, such as those of users or files."""
    if not separator and all(map(_CODE.fullmatch, words)):
        return len(words) >= MIN_CODES
    if not separator or all("." in word for word in words):
        return len(words) >= MIN_WORDS
    shapes = {item.key.count(":") for word in words for item in by_text[word]}
    keys = sum(len(by_text[word]) for word in words) / len(words) / len(shapes)
    return len(words) >= (MIN_INNER_WORDS if keys <= FEW_KEYS else MANY_WORDS)


def _same_form(values: set[str], words: set[str]) -> bool:
    """Whether words among values are values by chance, such as `cafe` among hex digits."""
    return all(len(word) <= max(map(len, values)) for word in words) and len(values) >= 3
