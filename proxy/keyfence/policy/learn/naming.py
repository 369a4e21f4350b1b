"""Names of placeholders and entries, taken from the words of the keys.

Rule: names are unique and stable: the same evidence gives the same names. Placeholders of one name have one
class.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable

from keyfence.policy.patterns.classes import NAMES

from .kinds import Kind, Slot
from .values import ValueClass, class_of

_WORDS = re.compile("[A-Za-z][A-Za-z0-9_]*(?:-[A-Za-z0-9_]+)*")
_VERSION = re.compile("[vV][0-9]{1,3}")
_VAGUE = frozenset(
    ("id", "ids", "key", "uid", "uuid", "by", "for", "of", "name", "hash", "set", "list", "zset")
)
_LENGTHS = re.compile("[{][0-9,]+[}]")
_PLURAL = re.compile("(.{3,}[^suia'])s")


def words_of(text: str) -> list[str]:
    """Returns the words of literal text, without versions."""
    return [word for word in _WORDS.findall(text) if not _VERSION.fullmatch(word)]


def unique(wanted: str, taken: Iterable[str], others: Iterable[str] = ()) -> str:
    """Returns the wanted name, one of the others, or the wanted name with a number."""
    used = set(taken)
    for name in (wanted, *others):
        if name and name not in used:
            return name
    number = 2
    while f"{wanted}-{number}" in used:
        number += 1
    return f"{wanted}-{number}"


def name_slots(kinds: Iterable[Kind]) -> dict[str, tuple[ValueClass, set[str]]]:
    """Names the placeholders of all kinds. Returns each name with its class and the values that were seen."""
    wanted: dict[int, tuple[str, Slot]] = {}
    wide: dict[int, str] = {}  # a longer name, if the wanted one has another class elsewhere
    for kind in kinds:
        for slot, name, longer in _wanted(kind):
            wanted.setdefault(id(slot), (name, slot))
            wide.setdefault(id(slot), longer)
    groups: dict[tuple[str, str], list[Slot]] = defaultdict(list)  # by name and family of classes
    for name, slot in wanted.values():
        groups[name, _family(slot.value_class)].append(slot)
    found: dict[str, tuple[ValueClass, set[str]]] = {}
    for (name, _), slots in sorted(groups.items(), key=lambda one: (-len(one[1]), one[0])):
        values = set[str]().union(*(slot.values for slot in slots))
        held = class_of(values)
        chosen = name if name not in found and (name not in NAMES or held.text == name) else ""
        longer = wide[id(slots[0])]
        final = chosen or unique(longer, {*found, *NAMES}).replace("-", "_")
        found[final] = held, values
        for slot in slots:
            slot.name = final
    _separate(kinds, found)
    return dict(sorted(found.items()))


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
                name = unique(part.name, {*found, *used} - {""}).replace("-", "_")
                kind.parts[index] = part = Slot(part.values, part.guessed, name)
                found[name] = part.value_class, part.values
            used.add(part.name)


def name_kinds(kinds: Iterable[Kind], behind: Callable[[Kind], str]) -> None:
    """Names the entries. `behind` returns the prefix of a kind's scope, whose words need not be repeated."""
    taken: set[str] = set()
    for kind in kinds:
        prefix = behind(kind)
        text = " ".join(part if isinstance(part, str) else " " for part in kind.parts)
        own = words_of(text.removeprefix(prefix)) or words_of(text) or [slot.name for slot in kind.slots[:1]]
        name = "-".join(dict.fromkeys(word.lower() for word in own[-4:])) or "key"
        scope = words_of(prefix)[-1:]
        kind.name = unique(name, taken, ["-".join([*scope, name]), "-".join(words_of(text))])
        taken.add(kind.name)
