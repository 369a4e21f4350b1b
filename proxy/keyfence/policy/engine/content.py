"""Faults of written values: type, content, time to live.

Rule: there is a fault only if the command itself shows it. One exception: if the entry requires a form, a
value that is too long to be examined is a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from keyfence.commands.model import Access, Content, Field, Members, Streamed
from keyfence.policy.budget import Budget, cost
from keyfence.policy.compiled.policy import Entry, Fields
from keyfence.policy.compiled.sizes import at_most_bytes, length
from keyfence.policy.compiled.ttl import REQUIRED, TtlRule, fault_of, rule_of
from keyfence.policy.patterns.value_forms import Form
from keyfence.policy.show import printable
from keyfence.policy.units import size_text

Shown = Callable[[], str]  # returns the key as messages show it


class Fault(NamedTuple):
    """One fault of a write to an entry's key. `words` returns the message and the hint."""

    rule: str
    position: int
    words: Callable[[], tuple[str, str]]
    is_must: bool = False  # True: even if the policy says `should` for its rule


# -- types


def fits(wanted: Sequence[str], given: Sequence[str]) -> bool:
    """Whether a command for values of the types `given` may be used on a key of the types `wanted`."""
    return not wanted or not given or any(map(wanted.__contains__, given))


def type_fault(command: str, access: Access, types: Sequence[str], shown: Shown) -> Fault:
    """Returns the fault of a command that is for other types than the key has."""

    def words() -> tuple[str, str]:
        wanted, given = " or ".join(types), " or ".join(access.types)
        return f"{command} is for a {given}, but {shown()} is a {wanted}", f"use the commands of a {wanted}"

    return Fault("type.mismatch", access.position, words)


# -- values


def content_faults(access: Access, entry: Entry, shown: Shown, budget: Budget) -> Iterator[Fault | None]:
    """Yields the faults that a write to a key of `entry` shows in the value, and None whenever a turn is
    over.

    A fault is put in words before the search for the next one, or never.
    """
    if access.content is None:
        return
    written = Written(access.content, access, shown, budget)
    for item in entry.on_content:
        yield from FINDERS[item](written, entry)


def breaks(items: Iterable[str], access: Access, entry: Entry) -> bool:
    """Whether a write to a key of `entry` breaks one of these requirements."""
    if access.content is None:
        return False
    written = Written(access.content, access, str, Budget())
    found = chain.from_iterable(FINDERS[item](written, entry) for item in items)
    return any(fault is not None for fault in found)


class Written(NamedTuple):
    """What one access writes to a key."""

    content: Content
    access: Access
    shown: Shown  # the key
    budget: Budget


def _value_faults(written: Written, entry: Entry) -> Iterator[Fault]:
    content, shown = written.content, written.shown
    if entry.values is not None and content.value is not None:
        yield from _form_fault(
            content.value, content.value_position, entry.values, lambda: f"the value for {shown()}"
        )


def _form_fault(value: bytes, position: int, form: Form, what: Shown) -> Iterator[Fault]:
    if isinstance(value, Streamed):
        size = value.size
        if form.restricts:
            yield Fault(
                "value.invalid",
                position,
                lambda: (
                    f"{what()} cannot be checked: it is {size} bytes long",
                    f"the policy requires {form.text}; write a shorter one",
                ),
            )
    elif not form.accepts(value):
        yield Fault("value.invalid", position, lambda: (f"{what()} is not {form.text}", f"write {form.text}"))


def _field_faults(written: Written, entry: Entry) -> Iterator[Fault | None]:
    fields, shown = entry.fields, written.shown
    if fields is None:
        return
    for field in written.content.fields:
        if written.budget.works(cost(field.name) + cost(field.value)):
            yield None
        form = None if isinstance(field.name, Streamed) else fields.form_of(field.name)
        if form is None:
            yield _unknown_field(field, fields, shown)
        elif field.value_position:
            yield from _form_fault(
                field.value,
                field.value_position,
                form,
                lambda name=field.name: f"the field {_field_name(name, fields)} of {shown()}",  # type: ignore[misc]
            )


def _unknown_field(field: Field, fields: Fields, shown: Shown) -> Fault:
    meant = None if isinstance(field.name, Streamed) else fields.meant(field.name)

    def words() -> tuple[str, str]:
        message = f"{shown()} has no field {_field_name(field.name, fields)}"
        if meant is None:
            return message, f"its fields: {fields.text}"
        listed = printable(meant, 64)
        return f"{message}, which differs from {listed} only in case", f"write {listed}"

    return Fault("field.unknown", field.position, words, is_must=fields.exact and meant is not None)


def _field_name(name: bytes, fields: Fields) -> str:
    """Returns a field's name as messages show it."""
    if isinstance(name, Streamed):
        return "of that length"
    return "<masked>" if fields.hides_names and name not in fields.named else printable(name, 64)


def _member_faults(written: Written, entry: Entry) -> Iterator[Fault | None]:
    """Yields the fault of the first wrong element of a command."""
    members, shown = written.content.members, written.shown
    if members is None or entry.members is None:
        return
    for position, value in zip(_positions(members), members.values, strict=True):
        if written.budget.works(cost(value)):
            yield None
        fault = next(_form_fault(value, position, entry.members, lambda: f"an element for {shown()}"), None)
        if fault is not None:
            yield fault
            return


def _score_faults(written: Written, entry: Entry) -> Iterator[Fault | None]:
    """Yields the fault of the first wrong score of a command."""
    members, scores = written.content.members, entry.scores
    if members is None or scores is None:
        return
    for position, score in zip(_positions(members), members.scores, strict=False):
        if written.budget.works(cost(score)):
            yield None
        if isinstance(score, Streamed) or not scores.accepts(score):
            yield _score_fault(position - 1, scores.text, written.shown)
            return


def _score_fault(position: int, text: str, shown: Shown) -> Fault:
    return Fault("value.invalid", position, lambda: (f"a score for {shown()} is not {text}", f"give {text}"))


def _positions(members: Members) -> range:
    return range(members.position, members.position + members.step * len(members.values), members.step)


def _field_count_faults(written: Written, entry: Entry) -> Iterator[Fault | None]:
    most, fields = entry.max_fields, written.content.fields
    if most is None or len(fields) <= most:
        return
    for at in _beyond(fields, most, written.budget):
        yield None if at is None else _too_many("fields", fields[at].position, most, written.shown)


def _member_count_faults(written: Written, entry: Entry) -> Iterator[Fault | None]:
    access, shown = written.access, written.shown
    members, most = written.content.members, entry.max_members
    may_add_nothing = access.ttl is not None and not access.ttl.creates  # ZADD XX, LPUSHX
    if most is None or members is None or len(members.values) <= most or may_add_nothing:
        return
    if "list" in access.types:
        yield _too_many("elements", members.position + most * members.step, most, shown)
        return
    for at in _beyond(members.values, most, written.budget):
        position = 0 if at is None else members.position + at * members.step
        yield None if at is None else _too_many("elements", position, most, shown)


def _beyond(given: Iterable[bytes | Field], most: int, budget: Budget) -> Iterator[int | None]:
    """Yields the index of the first item beyond the limit; equal items count once."""
    seen = set()
    for at, one in enumerate(given):
        if budget.works(1):
            yield None
        seen.add(one.name if isinstance(one, Field) else one)
        if len(seen) > most:
            yield at
            return


def _too_many(what: str, position: int, most: int, shown: Shown) -> Fault:
    return Fault("key.members", position, lambda: (f"too many {what} for {shown()}", f"at most {most}"))


def _long_values(written: Written, entry: Entry) -> Iterator[Fault | None]:
    """Yields the fault of the first value that is too long."""
    content, most, budget, shown = written.content, entry.max_value, written.budget, written.shown
    if most is None:
        return
    position, what = 0, "the value for"
    if content.least > most or (content.value is not None and length(content.value) > most):
        position = content.value_position
    for field in content.fields:
        if position:
            break
        if budget.works(1):
            yield None
        if field.value_position and length(field.value) > most:
            position, what = field.value_position, "a field's value for"
    members = content.members
    for index, value in enumerate(members.values if members is not None else ()):
        if position or members is None:
            break
        if budget.works(1):
            yield None
        if length(value) > most:
            position, what = members.position + index * members.step, "an element for"
    if position:
        told = f"longer than {size_text(most)}"
        yield Fault("value.size", position, lambda: (f"{what} {shown()} is {told}", at_most_bytes(most)))


def _maxlen_faults(written: Written, entry: Entry) -> Iterator[Fault]:
    content, maxlen, exact, shown = written.content, entry.maxlen, entry.maxlen_exact, written.shown
    if maxlen is None or not content.stream_add:
        return
    if content.maxlen is None:
        problem = "must trim the stream"
    elif content.maxlen > maxlen:
        problem = f"keeps more than {maxlen} entries"
    elif exact and content.maxlen_approximate:
        problem = "must trim exactly"
    else:
        return
    position = content.maxlen_position or written.access.position
    hint = f"use MAXLEN {'' if exact else '~ '}{maxlen}"
    yield Fault("stream.maxlen", position, lambda: (f"XADD to {shown()} {problem}", hint))


# By requirement: the faults that a write shows, and None whenever a turn is over.
FINDERS: Mapping[str, Callable[[Written, Entry], Iterator[Fault | None]]] = {
    "values": _value_faults,
    "fields": _field_faults,
    "members": _member_faults,
    "scores": _score_faults,
    "max_value": _long_values,
    "max_fields": _field_count_faults,
    "max_members": _member_count_faults,
    "maxlen": _maxlen_faults,
}


# -- time to live


def ttl_fault(found: int, command: str, access: Access, rule: TtlRule, shown: Shown) -> Fault:
    """Returns the fault for an outcome of `ttl.FAULTS`."""
    position = access.ttl.position if access.ttl is not None else 0

    def words() -> tuple[str, str]:
        _, message, hint = fault_of(found, rule, command, shown())
        if found == REQUIRED and access.ttl is not None and access.ttl.kind == "keeps" and command != "SET":
            hint = f"{command} cannot bring one"
        return message, hint

    return Fault(rule_of(found), position or access.position, words)
