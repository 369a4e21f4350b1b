"""What an entry may require of commands on its keys, beside rights and names: one table.

Rule: a requirement exists only by its row here. The evaluator, the decision cache, evidence, coverage and the
gaps of ACL rules take it from the row. What a part of keyfence has not been told about a requirement, it does
not know: the cache then leaves the command to the evaluator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from keyfence.commands.model import Access
from keyfence.policy.patterns.value_forms import Form
from keyfence.policy.rules import Part

if TYPE_CHECKING:
    from .policy import Entry

MOST_IN_A_TEST: Final = 64  # elements of one command in a policy test


class Requirement(NamedTuple):
    """One thing that an entry may require."""

    item: str  # the setting in the policy, and the attribute of `Entry`
    rules: Callable[[Entry], Iterator[str]]  # those that a command can break, if the entry has the item
    is_asked: Callable[[Access], bool]  # whether such an access to a key is asked for the requirement
    types: tuple[str, ...] = ()  # of the keys that can have it; none: any
    carried: str = ""  # the rule that content breaks if a command moves it there from another key
    # The rules that one command of a policy test can break; None: all of `rules`.
    testable: Callable[[Entry], Iterator[str]] | None = None
    part: Part = "content"  # of the policy, if it changes: evidence of the part's rules begins again
    also: tuple[str, ...] = ()  # further attributes of `Entry` that decide about it


def _always(*rules: str) -> Callable[[Entry], Iterator[str]]:
    return lambda _entry: iter(rules)


def _writes(access: Access) -> bool:
    return access.content is not None


def _writes_fields(access: Access) -> bool:
    return access.content is not None and bool(access.content.fields)


def _adds_to_a_stream(access: Access) -> bool:
    return access.content is not None and access.content.stream_add


def _has_types(access: Access) -> bool:
    return bool(access.types)


def _concerns_lifetime(access: Access) -> bool:
    return access.ttl is not None


def _any(_access: Access) -> bool:
    return True


def _is_restricting(form: Form | None) -> bool:
    return form is not None and form.restricts


def _rules_of_fields(entry: Entry) -> Iterator[str]:
    """The rules that a test can break: not every name is allowed, or not every value."""
    fields = entry.fields
    if fields is None:
        return
    if fields.exact or all(form.restricts for form, _ in fields.patterned):
        yield "field.unknown"
    if any(map(_is_restricting, [*fields.named.values(), *(form for _, form in fields.patterned)])):
        yield "value.invalid"


def _rules_of_values(entry: Entry) -> Iterator[str]:
    if _is_restricting(entry.values):
        yield "value.invalid"


def _rules_of_members(entry: Entry) -> Iterator[str]:
    if _is_restricting(entry.members):
        yield "value.invalid"


def _rules_of_max_value(entry: Entry) -> Iterator[str]:
    """SETRANGE makes a string of any length; no other type can be made so large in a test."""
    if not entry.types or "string" in entry.types:
        yield "value.size"


def _rules_of_counts(entry: Entry) -> Iterator[str]:
    counts = [most for most in (entry.max_fields, entry.max_members) if most is not None]
    if min(counts, default=MOST_IN_A_TEST + 1) <= MOST_IN_A_TEST:
        yield "key.members"


def _rules_of_ttl(entry: Entry) -> Iterator[str]:
    rule = entry.ttl
    if rule is None:
        return
    if rule.none:
        yield "ttl.forbidden"
        return
    if rule.required:
        yield "ttl.required"
    if rule.min is not None or rule.max is not None:
        yield "ttl.range"


_HASHES, _SETS = ("hash", "stream"), ("set", "list", "zset")
_INVALID, _TOO_MANY = "value.invalid", "key.members"
_ALL: Final = (
    Requirement("commands", _always("command.forbidden"), _any, part="commands"),
    Requirement("types", _always("type.mismatch"), _has_types, carried="type.mismatch", part="type"),
    Requirement("max_length", _always("key.length"), _any, part="name"),
    # On written content, in the order in which its faults are listed.
    Requirement("values", _always(_INVALID), _writes, ("string",), _INVALID, _rules_of_values),
    Requirement(
        "fields",
        _always("field.unknown", _INVALID),
        _writes_fields,
        _HASHES,
        _INVALID,
        _rules_of_fields,
        also=("field_case",),
    ),
    Requirement("members", _always(_INVALID), _writes, _SETS, _INVALID, _rules_of_members),
    Requirement("scores", _always(_INVALID), _writes, ("zset",), _INVALID),
    Requirement(
        "max_value",
        _always("value.size"),
        _writes,
        ("string", "hash", "list", "set", "zset", "stream"),
        testable=_rules_of_max_value,
        part="size",
    ),
    Requirement("max_fields", _always(_TOO_MANY), _writes, _HASHES, testable=_rules_of_counts, part="size"),
    Requirement(
        "max_members",
        _always(_TOO_MANY),
        _writes,
        ("list", "set", "zset", "stream"),
        testable=_rules_of_counts,
        part="size",
    ),
    Requirement(
        "maxlen",
        _always("stream.maxlen"),
        _adds_to_a_stream,
        ("stream",),
        part="size",
        also=("maxlen_exact",),
    ),
    Requirement("ttl", _rules_of_ttl, _concerns_lifetime, part="ttl"),
)
REQUIREMENTS: Final[Mapping[str, Requirement]] = {one.item: one for one in _ALL}
# Those on what a command writes.
ON_CONTENT: Final = tuple(one.item for one in _ALL if one.types)


def requirements_of(entry: Entry, access: Access | None = None) -> Iterator[Requirement]:
    """Yields what an entry requires; of an access, if there is one."""
    for one in _ALL:
        held = getattr(entry, one.item)
        if held is not None and held != () and (access is None or one.is_asked(access)):
            yield one


def rules_of(entry: Entry, access: Access | None = None) -> tuple[str, ...]:
    """Returns the rules that an entry asks; of an access, if there is one."""
    asked = [one.rules(entry) for one in requirements_of(entry, access)]
    if access is not None and access.content is not None and access.content.carried is not None:
        asked += [iter((one.carried,)) for one in requirements_of(entry) if one.carried]
    return _once(asked)


def rules_to_test(entry: Entry) -> tuple[str, ...]:
    """Returns the rules of an entry's requirements that the commands of a policy test can break."""
    return _once((one.testable or one.rules)(entry) for one in requirements_of(entry))


def _once(rules: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(rules)))
