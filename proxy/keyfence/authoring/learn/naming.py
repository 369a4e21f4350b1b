"""Names of placeholders and entries, taken from the words of the keys.

Rule: names are unique and stable: the same evidence gives the same names. Placeholders of one name have one
class.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from keyfence.policy.patterns.classes import NAMES

from .kinds import Kind, Slot, words_of
from .values import ValueClass, class_of

_VAGUE = frozenset(
    ("id", "ids", "key", "uid", "uuid", "by", "for", "of", "name", "hash", "set", "list", "zset")
)
_MIN_COMMON = 5  # values that two places have in common if they hold the same ids
TAG = "tag"  # the placeholder for hash tags that are names
_LENGTHS = re.compile("[{][0-9,]+[}]")
_PLURAL = re.compile("(.{3,}[^suia'])s")


def unique(wanted: str, taken: Iterable[str], others: Iterable[str] = (), joint: str = "-") -> str:
    """Returns the wanted name, one of the others, or the wanted name with a number."""
    used = set(taken)
    for name in (wanted, *others):
        if name and name not in used:
            return name
    number = 2
    while f"{wanted}{joint}{number}" in used:
        number += 1
    return f"{wanted}{joint}{number}"


def name_slots(
    kinds: Iterable[Kind], behind: Callable[[Kind], str]
) -> dict[str, tuple[ValueClass, set[str]]]:
    """Names the placeholders of all kinds. Returns each name with its class and the values that were seen.

    Placeholders that hold the same ids get the same name. `behind` is as for `name_kinds`.
    """
    wanted: dict[int, _Wanted] = {}
    for kind in kinds:
        for slot, name, longer in _wanted(kind):
            known = wanted.setdefault(id(slot), _Wanted(slot, name, longer, {}))
            own = words_of(kind.text.removeprefix(behind(kind)))
            pieces = [piece for word in own for piece in word.split("_")]
            known.words.update((piece, len(pieces) - at) for at, piece in enumerate(pieces))
    spread = Counter(word for one in wanted.values() for word in one.words)
    groups: dict[tuple[str, str], list[_Wanted]] = defaultdict(list)  # by name and family of classes
    for together in _of_same_ids(list(wanted.values())):
        name = _name_of(together, spread, len(wanted))
        for one in together:
            groups[name, _family(one.slot.value_class)].append(one)
    found: dict[str, tuple[ValueClass, set[str]]] = {}
    for (name, _), members in sorted(groups.items(), key=lambda one: (-len(one[1]), one[0])):
        values = set[str]().union(*(one.slot.values for one in members))
        held = class_of(values)
        is_free = name not in found and (name not in NAMES or held.text == name)
        final = name if is_free else unique(members[0].longer, {*found, *NAMES}, joint="_")
        found[final] = held, values
        for one in members:
            one.slot.name = final
    _separate(kinds, found)
    return dict(sorted(found.items()))


class _Wanted(NamedTuple):
    slot: Slot
    name: str
    longer: str  # another name, if the first one has another class elsewhere
    words: dict[str, int]  # of the kinds that have it, with their places, the last one first


def _of_same_ids(slots: list[_Wanted]) -> Iterable[list[_Wanted]]:
    """Puts together the placeholders that hold the same ids. Numbers are the same everywhere by chance."""
    groups: dict[str, list[list[_Wanted]]] = defaultdict(list)  # by family of classes
    for one in slots:
        family = _family(one.slot.value_class)
        alike = (group for group in groups[family] if _share_ids(one.slot, group[0].slot))
        is_number = family in ("[0-9]", "date", "epoch")
        group = None if is_number else next(alike, None)
        if group is None:
            groups[family].append([one])
        else:
            group.append(one)
    return [group for of_family in groups.values() for group in of_family]


def _share_ids(one: Slot, other: Slot) -> bool:
    common = len(one.values & other.values)
    if one.guessed and other.guessed:
        return common > 1 and common == min(len(one.values), len(other.values))
    return common >= _MIN_COMMON and common * 2 >= min(len(one.values), len(other.values))


def _name_of(together: list[_Wanted], spread: Counter[str], total: int) -> str:
    """Returns the name that most of them want; or a word that all have in common and few others have."""
    names = Counter(one.name for one in together)
    if len(names) == 1 or TAG in names:
        return TAG if TAG in names else together[0].name
    common = Counter(word for one in together for word in one.words)
    fitting = [
        word
        for word, times in common.items()
        if times >= len(together) * 0.7 and spread[word] <= max(times * 1.5, total / 2) and len(word) > 2
    ]
    places = {word: sum(one.words.get(word, 0) for one in together) / common[word] for word in fitting}
    best = min(fitting, key=lambda word: (-common[word], places[word], word), default="")
    return _plain(_singular(best)) if best else names.most_common(1)[0][0]


def _family(value_class: ValueClass) -> str:
    text = value_class.text
    if value_class.is_exact:
        return text
    return _LENGTHS.sub("", text)


def _wanted(kind: Kind) -> Iterable[tuple[Slot, str, str]]:
    """Yields the placeholders of a kind with the names that the words before them suggest."""
    before: list[str] = []
    last = ""
    for part in kind.parts:
        if isinstance(part, str):
            before += words_of(part)
            last = part
            continue
        words = words_of(last) if last else []
        if part.guessed and last.endswith("{"):
            yield part, TAG, "_".join([*words[-1:], TAG])
            last = ""
            continue
        name = _singular(words[-1]) if words else ""
        if name.lower() in _VAGUE and len(before) > 1:
            name = f"{_singular(before[-2])}_{name}"
        if not name:
            exact = part.value_class
            name = exact.text if exact.is_exact and exact.text.isalnum() else "id"
        longer = "_".join([*(_singular(word) for word in before[-2:]), *([] if words else [name])]) or name
        yield part, _plain(name), _plain(longer)
        last = ""


def _singular(word: str) -> str:
    match = _PLURAL.fullmatch(word)
    return match[1] if match is not None and "_" not in word else word


def _plain(name: str) -> str:
    return re.sub("[^A-Za-z0-9_]", "_", name)


def _separate(kinds: Iterable[Kind], found: dict[str, tuple[ValueClass, set[str]]]) -> None:
    """Gives the second placeholder of one name in a pattern a name of its own."""
    for kind in kinds:
        used: set[str] = set()
        for index, part in enumerate(kind.parts):
            if not isinstance(part, Slot):
                continue
            if part.name in used:
                name = unique(part.name, {*found, *used}, joint="_")
                kind.parts[index] = part = Slot(part.values, part.guessed, name)
                found[name] = part.value_class, part.values
            used.add(part.name)


def name_kinds(kinds: Iterable[Kind], behind: Callable[[Kind], str]) -> None:
    """Names the entries. `behind` returns the prefix of a kind's scope, whose words need not be repeated."""
    taken: set[str] = set()
    for kind in kinds:
        prefix = behind(kind)
        own = words_of(kind.text.removeprefix(prefix)) or kind.words or [slot.name for slot in kind.slots[:1]]
        name = "-".join(dict.fromkeys(word.lower() for word in own[-4:])) or "key"
        scope = words_of(prefix)[-1:]
        kind.name = unique(name, taken, ["-".join([*scope, name]), "-".join(kind.words)])
        taken.add(kind.name)
