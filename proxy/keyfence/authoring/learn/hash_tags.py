"""Where hash tags belong in the keys of a policy, so that keys which are used together share a hash slot.

Rule: a key has one hash tag, so each entry gets at most one. What was seen most often decides, and everything
that stays in different hash slots is listed. Every change is tried: a policy that it breaks is not proposed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import yaml

from keyfence.policy.compiled.hash_slots import hash_slot
from keyfence.policy.compiled.hash_tags import ENOUGH, Link, Linked, links, place_of, tagged, worth
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.diagnostics import FileError
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.source.yaml_edits import EditError, add_to_mapping, find
from keyfence.policy.units import counted
from keyfence.policy.wording.command_log import Recorded

from .requirements import quoted

MAX_KEYS = 64  # of a command whose keys are compared
_TAGGED = re.compile(r"\{<([^<>]+?)(?:\.\.\.)?>\}")


class Pair:
    """Keys of two entries, used together in different hash slots."""

    def __init__(self, first: str, second: str) -> None:
        self.first, self.second = first, second
        self.times = 0
        self.links: dict[Link, Linked] = {}  # placeholders that had one value

    def add(self, times: int, found: Iterable[Linked]) -> None:
        self.times += times
        for one in found:
            self.links[one.link] = self.links.get(one.link, Linked(one.link)).joined(one)

    @property
    def name(self) -> str:
        return self.first if self.first == self.second else f"{self.first} and {self.second}"


class Pairs:
    """What was seen together. Keys of no entry count as the entry ""."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], Pair] = {}

    def add(self, first: str, second: str, times: int, found: Iterable[Linked]) -> None:
        if second < first:
            first, second = second, first
            found = [one._replace(link=one.link[::-1]) for one in found]
        self.seen.setdefault((first, second), Pair(first, second)).add(times, found)

    def add_command(self, policy: CompiledPolicy, one: Recorded) -> None:
        """Adds the pairs of a recorded command whose keys are in different hash slots."""
        keys = [access.key for access in one.touches.accesses[:MAX_KEYS]]
        if one.is_masked or one.is_cut or len(keys) < 2:
            return
        slot, first = hash_slot(keys[0]), place_of(policy, keys[0])
        for key in keys[1:]:
            if hash_slot(key) != slot:
                other = place_of(policy, key)
                self.add(first.entry, other.entry, one.times, links(first, other, one.times))


class Tag(NamedTuple):
    """A hash tag for one entry."""

    entry: str
    placeholder: str
    before: str  # the key's pattern as written
    after: str
    times: int  # how often its keys were used with others that this puts into one hash slot
    values: int = ENOUGH  # about how many the placeholder had then

    @property
    def has_few_values(self) -> bool:
        """Whether it would put many keys into few hash slots, by what was seen."""
        return self.values < min(ENOUGH, self.times)


class Proposal(NamedTuple):
    """The tags, and sentences on what stays in different hash slots."""

    tags: list[Tag]
    left: list[str]


def propose(texts: Mapping[str, str], pairs: Pairs) -> Proposal:
    """Returns the tags for entries with these patterns (as written, by name)."""
    chosen = {entry: match[1] for entry, text in texts.items() if (match := _TAGGED.search(text))}
    fixed = {entry for entry, text in texts.items() if "{" in text}
    used: dict[str, int] = {}
    values: dict[str, int] = {}
    left: list[str] = []
    candidates = [(one, pair) for pair in pairs.seen.values() for one in pair.links.values()]
    candidates.sort(key=_place)
    joined: dict[str, int] = {}
    for one, pair in candidates:
        ends = tuple(zip((pair.first, pair.second), one.link, strict=True))
        if pair.name in joined or any(entry not in texts for entry, _ in ends):
            continue
        if any(chosen.get(entry, "" if entry in fixed else hole) != hole for entry, hole in ends):
            continue
        joined[pair.name] = one.times
        for entry, hole in dict(ends).items():
            chosen[entry] = hole
            used[entry] = used.get(entry, 0) + one.times
            values[entry] = max(values.get(entry, 0), one.values)
    for pair in sorted(pairs.seen.values(), key=lambda one: (-one.times, one.name)):
        if joined.get(pair.name, 0) < pair.times:
            left.append(_why(pair, joined.get(pair.name, 0), chosen, texts))
    tags = [
        Tag(entry, hole, texts[entry], tagged(texts[entry], hole), used[entry], values[entry])
        for entry, hole in chosen.items()
        if entry in used and entry not in fixed and tagged(texts[entry], hole) != texts[entry]
    ]
    return Proposal(sorted(tags, key=lambda one: (-one.times, one.entry)), left)


def _place(candidate: tuple[Linked, Pair]) -> tuple[bool, int, int, bool, str, Link]:
    """The place of a link among all, the best one first."""
    one, pair = candidate
    is_enough, times, values = worth(one.times, one.values)
    return not is_enough, -times, -values, one.link[0] != one.link[1], pair.name, one.link


def _why(pair: Pair, joined: int, chosen: Mapping[str, str], texts: Mapping[str, str]) -> str:
    """Why keys stay in different hash slots."""
    times = counted(pair.times - joined, "use")
    if pair.first not in texts or pair.second not in texts:
        known = f"{pair.second} with " if pair.second in texts else ""
        return f"{times} of {known}keys of no entry stay: register these first"
    if joined:
        return f"{times} of {pair.name} stay: their values differ there"
    if not pair.links:
        what = "send a command for each key" if pair.first == pair.second else "split these commands"
        return f"{times} of {pair.name} stay: no placeholder has the same value in both; {what}"
    held = " and ".join(f"{one} at <{chosen[one]}>" for one in (pair.first, pair.second) if one in chosen)
    return f"{times} of {pair.name} stay: a key has one hash tag, and {held} has it elsewhere"


def written(text: str, tags: Iterable[Tag]) -> tuple[str, list[Tag], list[str]]:
    """Returns a policy's text with the tags, those that are in it, and why the others are not. The old form
    of each key becomes a legacy form that keeps all rights."""
    taken: list[Tag] = []
    dropped: list[str] = []
    for tag in tags:
        try:
            after = _with_tag(text, tag)
            change = _other_rights(parse_policy(text), parse_policy(after), tag)
        except (EditError, yaml.YAMLError) as exc:
            dropped.append(f"{tag.entry} is not changed: {exc}")
        except FileError as exc:
            dropped.append(f"{tag.entry} is not changed: {exc.diagnostics[0].message}")
        else:
            if change:
                dropped.append(f"{tag.entry} is not changed: {change}")
                continue
            text = after
            taken.append(tag)
    return text, taken, dropped


def _other_rights(before: CompiledPolicy, after: CompiledPolicy, tag: Tag) -> str:
    """Why a tag would change who has rights on an entry's keys, in words; "" if it does not. A scope whose
    prefix has the placeholder too does not cover the new form."""
    was, now = _rights(before, tag.entry), _rights(after, tag.entry)
    if was == now:
        return ""
    scopes = [next((scope for scope, *_ in one if scope), "") for one in (was, now)]
    rights = "other services would have rights on its keys"
    if scopes[0] == scopes[1]:
        return f"with {tag.after}, {rights}"
    goes_to = f"in {scopes[1]}" if scopes[1] else "in no scope"
    remedy = f"so {rights}; give that scope the braces too"
    return f"{tag.after} is not in the scope {scopes[0]} but {goes_to}, {remedy}"


def _rights(policy: CompiledPolicy, entry: str) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """The scope that gives an entry its rights, the rights and the denials, of each form of its keys."""
    return [
        (one.rights_of, one.rights, one.denied)
        for one in policy.targets
        if one.kind == "entry" and one.name == entry
    ]


def _with_tag(text: str, tag: Tag) -> str:
    path: tuple[str, ...] = ("keys", tag.entry, "key")
    node = find(text, path)
    if node is None:
        path = path[:2]
        node = find(text, path)
    if not isinstance(node, yaml.ScalarNode) or node.value != tag.before:
        raise EditError("its key is written in a way that is only changed by hand")
    text = text[: node.start_mark.index] + quoted(tag.after) + text[node.end_mark.index :]
    old = [f"{{entry: {tag.entry}, allow: [read, write, delete]}}"]
    after = add_to_mapping(text, ("legacy", "keys"), quoted(tag.before), old)
    return "".join(line if line.strip() else "\n" for line in after.splitlines(keepends=True)).rstrip() + "\n"
