"""What the keys of a kind were seen to hold, and for how long, as settings of an entry.

Rule: a setting admits everything that was seen. It is left out if the evidence shows nothing about it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from keyfence.policy.patterns.value_forms import TIME, TOKEN
from keyfence.policy.units import counted as count
from keyfence.policy.units import duration_text

from .kinds import Slot, literal
from .seen import HIDDEN_FIELD, MARK, Facts
from .values import ValueClass, is_word, may_be_secret

MAX_LISTED = 40  # fields; more become a pattern
_FEW = 5  # different fields, up to which each is listed however rarely it was written
_RARELY = 0.05  # the share of writes with an EXPIRE, below which keys may have no time to live
_ROUND = [
    *(one * 1000 for one in (1, 2, 5, 10, 15, 20, 30, 45)),
    *(one * 60_000 for one in (1, 2, 3, 5, 10, 15, 20, 30, 45)),
    *(one * 3_600_000 for one in (1, 2, 3, 4, 6, 8, 12)),
    *(one * 86_400_000 for one in (1, 2, 3, 5, 7, 10, 14, 30, 60, 90, 180, 365)),
]
_EXPRESSIONS = {"time": TIME, "token": TOKEN}  # forms that are no built-in ones
_ENOUGH = 10  # writes, before all values are expected to be such texts
_WIDER = ("epoch", "integer", "number")  # each is also of the forms behind it


class Setting(NamedTuple):
    """A line of an entry."""

    name: str
    text: str  # YAML
    why: str  # its evidence, for the comment
    is_guess: bool = False


def setting_of_ttl(facts: Facts, types: Collection[str]) -> Setting | None:
    seen = facts.lifetimes
    given, later = seen.given.total(), seen.expires.total()
    if not given and not later and not seen.unreadable:
        if seen.expiring:
            return _setting_of_those_there(facts)
        plain = seen.without + seen.silent
        if seen.staying and not plain and not seen.carried:
            return Setting("ttl", "none", f"{count(seen.staying, 'key')} there now, and none expires", True)
        if not plain or seen.carried or facts.by_script:
            return None
        why = f"no command gave one a time to live, and {count(plain, 'write')} could have created a key"
        return Setting("ttl", "none", why, True)
    durations = seen.given + seen.expires
    parts = []
    if seen.without or seen.staying or (seen.silent and (given + later) < _RARELY * seen.silent):
        parts.append("or_none: true")
    if durations and not seen.unreadable:
        longest = max(*durations, seen.longest)
        if len(durations) == 1 and longest % 1000 == 0:
            parts += [f"default: {duration_text(longest)}", f"max: {duration_text(longest)}"]
        else:
            parts.append(f"max: {duration_text(_rounded(longest))}")
    if "or_none: true" not in parts:
        at_write = bool(given) and not seen.silent and (not types or "string" in types)
        parts.append("at: write" if at_write else "at: refresh")
    return Setting("ttl", f"{{{', '.join(parts)}}}", _ttl_words(facts), len(durations) > 1 or len(parts) > 3)


def _setting_of_those_there(facts: Facts) -> Setting:
    """The time to live if it is only known from keys that are there: they had a longer one at first."""
    seen = facts.lifetimes
    rule = "or_none: true" if seen.staying or seen.without or seen.silent else "at: refresh"
    why = f"of the keys there now, {seen.expiring:,} expire within {duration_text(_rounded(seen.longest))}"
    why += f", and {seen.staying:,} do not" if seen.staying else ""
    return Setting("ttl", f"{{max: {duration_text(_rounded(seen.longest))}, {rule}}}", why, True)


def _ttl_words(facts: Facts) -> str:
    seen = facts.lifetimes
    durations = seen.given + seen.expires
    words = []
    if durations:
        least, most = duration_text(min(durations)), duration_text(max(durations))
        words.append(f"seen: {least}" if least == most else f"seen: {least} to {most}")
    if seen.given:
        words.append(f"{seen.given.total()} with the write")
    if seen.expires:
        words.append(f"{seen.expires.total()} by EXPIRE or the like")
    if seen.without:
        words.append(f"{count(seen.without, 'write')} without one")
    if seen.staying:
        words.append(f"{count(seen.staying, 'key')} there now that do not expire")
    return ", ".join(words)


def _rounded(milliseconds: int) -> int:
    day = 86_400_000
    return next((one for one in _ROUND if one >= milliseconds), -(-milliseconds // day) * day)


class Fields(NamedTuple):
    """The fields of a kind: those to list, and the values that a placeholder stands for."""

    listed: list[str]
    values: set[str]


def fields_of(facts: Facts, before: str = "") -> Fields:
    """Splits the fields that were written into names and values. `before` is the last word of the keys."""
    names = {name for name in facts.fields if name != HIDDEN_FIELD}
    listed = {name for name in names if name and is_word(name) and not may_be_secret(name, before)}
    seen = facts.written + facts.holders
    rare = len(listed) > _FEW and seen > _FEW and facts.fields.total() < 2 * len(names)
    if len(listed) > MAX_LISTED or rare:
        listed = set()
    return Fields(sorted(listed), names - listed)


def setting_of_fields(facts: Facts, found: Fields, slot: Slot | None) -> Setting | None:
    """Returns the setting `fields`. `slot` is the placeholder for fields that are values."""
    if not facts.fields or HIDDEN_FIELD in facts.fields or (found.values and slot is None):
        return None
    items = [f"{_key(literal(name))}: {form_of(facts.field_forms.get(name))}" for name in found.listed]
    if slot is not None and found.values:
        forms: Counter[str] = Counter()
        for name in found.values:
            forms.update(facts.field_forms.get(name, {"": 1}))
        items.append(f'"<{slot.name}>": {form_of(forms)}')
    where = [count(facts.written, "write")] if facts.written or not facts.holders else []
    if facts.holders:
        where.append(f"{count(facts.holders, 'hash', 'hashes')} there now")
    why = f"{' and '.join(where)} of {count(len(facts.fields), 'different field')}"
    return Setting("fields", f"{{{', '.join(items)}}}", why, bool(found.values))


def _key(text: str) -> str:
    plain = (
        text and all(char.isalnum() or char in "_-" for char in text) and text[0].isalpha() and text.isascii()
    )
    return text if plain else quoted(text)


def setting_of_values(facts: Facts, types: Collection[str]) -> Setting | None:
    """Returns the form of a string's values or of the elements of a list or set."""
    form = form_of(facts.forms)
    if form == "any" or not types:
        return None
    if set(types) == {"string"}:
        return Setting("values", form, "the form of every value that was written", True)
    if set(types) <= {"list", "set", "zset"}:
        return Setting("members", form, "the form of every element that was written", True)
    return None


def setting_of_maxlen(facts: Facts) -> Setting | None:
    if not facts.adds or any(length is None for length, _ in facts.lengths):
        return None
    most = max(length for length, _ in facts.lengths if length is not None)
    mark = "~" if any(approximate for _, approximate in facts.lengths) else ""
    return Setting("maxlen", f'"{mark}{most}"', f"by each of {count(facts.adds, 'XADD')}")


def form_of(forms: Mapping[str, int] | None) -> str:
    """Returns the form that all values have, as YAML."""
    found = set(forms or {""})
    name = found.pop() if len(found) == 1 else max(found, key=_WIDER.index) if found <= set(_WIDER) else ""
    if found <= {"uuid", "sha256", "epoch", "integer", "token"} and "token" in found:
        name = "token"  # ids of several forms
    if name in _EXPRESSIONS:
        return quoted(_EXPRESSIONS[name]) if sum((forms or {}).values()) >= _ENOUGH else "any"
    return name or "any"


def admits(value_class: ValueClass, values: Collection[str]) -> bool:
    return all(MARK in value or value_class.matches(value) for value in values)


def known_slot(values: set[str], slots: Mapping[str, tuple[ValueClass, set[str]]]) -> str:
    """Returns the placeholder whose values also stand as fields; "" if there is none."""
    best = max(slots, key=lambda name: len(values & slots[name][1]), default="")
    if not best or len(values & slots[best][1]) < max(1, len(values) // 5):
        return ""
    return best if admits(slots[best][0], values) else ""


def quoted(text: str) -> str:
    """Returns text as a double-quoted scalar of YAML."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
