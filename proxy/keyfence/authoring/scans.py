"""The SCAN commands that `keyfence check` prints: one for each entry, which lists the entry's keys.

Rule: pasted into redis-cli, a command finds every key of its entry. What else it finds stands behind it.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from keyfence.commands.arguments import glob_escape
from keyfence.policy.compiled.policy import CompiledPolicy, Target
from keyfence.policy.compiled.tenants import head
from keyfence.policy.compiler.prefixes import PrefixIndex, begins, behind, fixed_parts, order
from keyfence.policy.patterns.patterns import Hole, KeyPattern, Literal, Part, prefix_pattern
from keyfence.policy.reach.reach import scan_pattern
from keyfence.policy.show import printable

MAX_NAMED = 3  # entries named in one line
_PLAIN_GLOB = re.compile(r"[^\\\s\"'$`!]+")


def scan_lines(policy: CompiledPolicy) -> list[str]:
    """Returns the SCAN command that lists each entry's keys, with the other entries that it finds."""
    entries = [target for target in policy.targets if target.kind == "entry"]
    prefixes = sorted((one.pattern.literal_prefix, one.name) for one in entries)
    families = PrefixIndex((scope.pattern, scope) for scope in families_of(policy.targets))
    beginnings = {one.pattern: _beginning(one, families) for one in entries if not one.pattern.is_literal}
    behind_family: dict[KeyPattern, set[str]] = {
        one: set() for one in beginnings.values() if not one.is_prefix
    }
    index = PrefixIndex((one, one) for one in behind_family)
    for one in entries:
        for beginning in index.around(one.pattern):
            behind_family[beginning].add(one.name)
    patterns: dict[tuple[str, str, str], set[str]] = {}  # by entry, glob and a caller's own glob
    for one in entries:
        if not one.pattern.is_literal:
            beginning = beginnings[one.pattern]
            # All placeholders are filled: the caller has only this key, not all keys that begin with it.
            end = b"" if beginning.text == f"{one.pattern.text}*" else b"*"
            text, of_caller = scan_pattern(one), b""
            if not beginning.is_prefix:
                text = _glob(fixed_parts(beginning)) + end
                of_caller = _glob(fixed_parts(beginning), _bound(one)) + end
            is_own = of_caller not in (b"", text)
            shown = _argument(text), f"  (a caller's own: {_argument(of_caller)})" if is_own else ""
            also = behind_family.get(beginning) or _names_behind(one.pattern.literal_prefix, prefixes)
            patterns.setdefault((one.name, *shown), set()).update(also - {one.name})
    width = max((len(name) for name, *_ in patterns), default=0)
    return [
        f"  {name:{width}}  SCAN 0 MATCH {pattern}{_also(also)}{of_caller}"
        for (name, pattern, of_caller), also in sorted(patterns.items())
    ]


def _bound(target: Target) -> frozenset[str]:
    """Returns the placeholders of a target that are bound to the caller."""
    return (
        frozenset(place.name for place in target.tenancy.places)
        if target.tenancy is not None
        else frozenset()
    )


def _glob(parts: Sequence[Part], kept: frozenset[str] = frozenset()) -> bytes:
    """Returns the glob of some parts, with a star for each placeholder except those that are kept."""
    return b"".join(
        glob_escape(part.text)
        if isinstance(part, Literal)
        else f"<{part.name}>".encode()
        if part.name in kept
        else b"*"
        for part in parts
    )


def _argument(glob: bytes) -> str:
    """Returns a glob as an argument to redis-cli and to a shell, quoted if a backslash or another character
    needs it."""
    text = printable(glob)
    return text if _PLAIN_GLOB.fullmatch(text) else f'"{text}"'


def _names_behind(prefix: bytes, beginnings: Sequence[tuple[bytes, str]]) -> set[str]:
    """Returns the entries whose keys all begin with a prefix. `beginnings` is sorted."""
    first = bisect_left(beginnings, (prefix, ""))
    last = bisect_right(beginnings, prefix, lo=first, key=lambda row: row[0][: len(prefix)])
    return {name for _, name in beginnings[first:last]}


def _also(names: set[str]) -> str:
    """Describes what else a SCAN finds."""
    if not names:
        return ""
    rest = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"  (also finds {', '.join(sorted(names)[:MAX_NAMED])}{rest})"


def families_of(targets: Iterable[Target]) -> list[Target]:
    """Returns the scopes with a placeholder in their prefix."""
    return [target for target in targets if target.kind == "scope" and not target.pattern.is_prefix]


def _beginning(target: Target, families: PrefixIndex[Target]) -> KeyPattern:
    """Returns the beginning of an entry's keys, up to the first placeholder after their scope's prefix."""
    around = min(families.around(target.pattern), key=lambda scope: order(scope.pattern), default=None)
    own = head(target.pattern, target.tenancy)
    parts = own if around is None else max(own, behind(target.pattern, around.pattern), key=len)
    if any(isinstance(part, Hole) for part in parts):
        return begins(parts)
    return prefix_pattern(target.pattern.literal_prefix)
