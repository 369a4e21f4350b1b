"""Words that look mistyped: one edit from a word that is used far more often in the same place, or in other
case, or without its braces.

Rule: a key with such a word is no evidence for a policy unless somebody says that the word is right. What
is left out is always said."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from keyfence.policy.units import counted as count

from .kinds import Kind, Part, Slot
from .seen import MARK, Facts
from .text import HIDDEN, masked, spoken
from .values import is_word

# How much more often the right word is used, at least. A wrong beginning of keys is the worse mistake,
# because it would become a claim or a scope, so less is enough to doubt it.
_FIRST_RATIO = 4
_RATIO = 10
_SHORTEST = 4  # letters of a word behind the first part; shorter ones are too often one edit apart
_SEPARATORS = re.compile("([:{}|])")
_DIGITS = re.compile("[0-9]")
_SAMPLES = 3  # keys of a kind that are tried
_BRACES = str.maketrans("", "", "{}")


@dataclasses.dataclass(frozen=True)
class Typo:
    """A word that looks mistyped, and the keys and channels that have it."""

    word: str
    nearest: str  # the word that was probably meant
    names: Mapping[str, Kind]  # of keys and channels, each with its kind
    times: int
    services: tuple[str, ...]

    def sentence(self) -> str:
        """Returns what is left out, and why."""
        is_alike = _plain(self.word) == _plain(self.nearest)
        how = f"one edit from {self.nearest}"
        how = f"differs from {self.nearest} only in case or braces" if is_alike else how
        why = f"it is rare and {how}, so it looks like a typo ({self.use()})"
        return (
            f"Keys with {self.word} are left out: {why}. "
            "If it is right, say so: keyfence draft --interactive asks."
        )

    def use(self) -> str:
        """Returns how often the word was used."""
        who = f" by {spoken(self.services)}" if self.services else ""
        return f"{count(self.times, 'use')} of {count(len(self.names), 'key')}{who}"


def typos_of(kinds: Sequence[Kind]) -> list[Typo]:
    """Returns the words of these kinds that look mistyped."""
    found: list[Typo] = []
    taken: set[int] = set()
    for word, nearest, mistyped in (*_first_words(kinds), *_other_words(kinds), *_without_braces(kinds)):
        left = [kind for kind in mistyped if id(kind) not in taken]
        if not left:
            continue
        taken |= {id(kind) for kind in left}
        names = {name: kind for kind in left for name in kind.keys}
        services = {service for kind in left for service in kind.facts.uses}
        found.append(Typo(word, nearest, names, sum(map(_weight, left)), tuple(sorted(services))))
    return found


def mistyped_for(word: str, known: Iterable[str]) -> str:
    """Returns the known beginning of keys that this one was probably meant to be; "" if there is none."""
    return next((one for one in known if word != one and _is_typo(word, one)), "")


def _weight(kind: Kind) -> int:
    return kind.facts.times + kind.facts.there


def _first_words(kinds: Iterable[Kind]) -> Iterator[tuple[str, str, list[Kind]]]:
    """Yields the beginnings of keys that look mistyped, each with the right one and its kinds."""
    by_head: dict[str, list[Kind]] = defaultdict(list)
    for kind in kinds:
        word, *rest = _SEPARATORS.split(kind.prefix, maxsplit=1)
        if word and rest:
            by_head[word + rest[0]].append(kind)
    often = sorted(by_head, key=lambda head: (-sum(map(_weight, by_head[head])), head))
    for at, head in enumerate(often):
        nearest = mistyped_for(head, often[:at])
        if nearest and _is_rare(by_head[head], by_head[nearest], len(head), len(nearest)):
            yield head, nearest, by_head[head]


def _is_rare(rare: list[Kind], often: list[Kind], *lengths: int) -> bool:
    """Whether some kinds are rare beside others, and used by the same services or in the same way."""
    if sum(map(_weight, rare)) * _FIRST_RATIO > sum(map(_weight, often)):
        return False
    used, users = ({service for kind in some for service in kind.facts.uses} for some in (rare, often))
    rests = {kind.shape[lengths[0] :].lstrip("{:") for kind in rare}
    return used <= users or rests <= {kind.shape[lengths[1] :].lstrip("{:") for kind in often}


def _other_words(kinds: Sequence[Kind]) -> Iterator[tuple[str, str, list[Kind]]]:
    """Yields the words behind the first part that look mistyped, each with the right one and its kinds."""
    vocabulary = {word for kind in kinds for word in _words(kind)}
    near: dict[str, set[str]] = defaultdict(set)
    for word in vocabulary:
        for one in _without_a_letter(_plain(word)):
            near[one].add(word)
    for kind in kinds:
        for word in _words(kind):
            others = {one for text in _without_a_letter(_plain(word)) for one in near[text]} - {word}
            meant = next(
                (one for one in sorted(others) if _is_typo(word, one) and _meets(kind, word, one, kinds)), ""
            )
            if meant:
                yield word, meant, [kind]


def _meets(kind: Kind, word: str, meant: str, kinds: Iterable[Kind]) -> bool:
    """Whether the keys of a kind would be those of a kind that is used far more often, had they another
    word."""
    changed = [re.sub(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", meant, key)
               for key in kind.keys[:_SAMPLES]]  # fmt: skip
    return any(
        one is not kind
        and _weight(kind) * _RATIO <= _weight(one)
        and kind.facts.uses.keys() <= one.facts.uses.keys()
        and (not kind.types or not one.types or set(kind.types) <= set(one.types))
        and all(_is_of(one, key) for key in changed)
        for one in kinds
    )


def _without_braces(kinds: Sequence[Kind]) -> Iterator[tuple[str, str, list[Kind]]]:
    """Yields the kinds whose keys would be those of a kind that is used far more often, had they its braces:
    hb:acme:cart:1 beside hb:{acme}:cart:1."""
    for meant in (kind for kind in kinds if "{" in kind.shape):
        bare = Kind([_bare(part) for part in meant.parts], [], Facts())
        alike = [
            kind
            for kind in kinds
            if kind is not meant
            and _weight(kind) * _FIRST_RATIO <= _weight(meant)
            and all(_lacks_braces(key, meant, bare) for key in kind.keys[:_SAMPLES])
        ]
        # What is only read or deleted may also be an older name, so it must be rarer.
        ratio = _FIRST_RATIO if any(kind.facts.changed for kind in alike) else _RATIO
        if alike and sum(map(_weight, alike)) * ratio <= _weight(meant):
            yield _shown(bare), _shown(meant), alike


def _lacks_braces(key: str, meant: Kind, bare: Kind) -> bool:
    """Whether a key would be one of a kind if it had braces. `bare` is this kind without braces."""
    values = bare.values_in(key)
    if values is None or any(map(_SEPARATORS.search, values)):
        return False
    tags = [
        slot
        for before, slot in itertools.pairwise(meant.parts)
        if isinstance(slot, Slot) and isinstance(before, str) and before.endswith("{")
    ]
    return bool(tags) and all(
        value in slot.values or (not is_word(value) and slot.value_class.matches(value))
        for value, slot in zip(values, bare.slots, strict=True)
        if any(slot is one for one in tags)
    )


def _shown(kind: Kind) -> str:
    return masked(kind.shape.replace(MARK, HIDDEN))


def _bare(part: Part) -> Part:
    return part.translate(_BRACES) if isinstance(part, str) else part


def _is_of(kind: Kind, key: str) -> bool:
    values = kind.values_in(key)
    return values is not None and not any(_SEPARATORS.search(value) for value in values)


def _words(kind: Kind) -> list[str]:
    return [word for word in kind.words if len(word) >= _SHORTEST]


def _without_a_letter(word: str) -> set[str]:
    return {word, *(word[:at] + word[at + 1 :] for at in range(len(word)))}


def _plain(word: str) -> str:
    return word.translate(_BRACES).lower()


def _is_typo(word: str, meant: str) -> bool:
    """Whether two words differ only in case and braces, or are one edit apart that is no other number: a
    letter more, less, changed or swapped."""
    word, meant = _plain(word), _plain(meant)
    if word == meant:
        return True
    if len(meant) < 2 or len(word) < 2 or abs(len(word) - len(meant)) > 1:
        return False
    if _DIGITS.sub("", word) == _DIGITS.sub("", meant):
        return False
    at = next((at for at, (one, other) in enumerate(zip(word, meant, strict=False)) if one != other), -1)
    if at < 0:
        return True  # one is the beginning of the other
    return (
        word[at + 1 :] == meant[at + 1 :]
        or word[at + 1 :] == meant[at:]
        or word[at:] == meant[at + 1 :]
        or (word[at : at + 2] == meant[at : at + 2][::-1] and word[at + 2 :] == meant[at + 2 :])
    )
