"""Faults of written values: type, content, time to live.

Rule: there is a fault only if the command itself shows it. One exception: if the entry requires a form, a
value that is too long to be examined is a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
    return not wanted or not given or any(one in wanted for one in given)


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
    content = access.content
    if content is None:
        return
    if entry.values is not None and content.value is not None:
        yield from _form_fault(
            content.value, content.value_position, entry.values, lambda: f"the value for {shown()}"
        )
    if entry.fields is not None:
        yield from _field_faults(content, entry.fields, shown, budget)
    if content.members is not None:
        yield from _member_faults(content.members, entry, shown, budget)
    if entry.is_sized:
        yield from _size_faults(content, access, entry, shown, budget)
    if entry.maxlen is not None and content.stream_add:
        position = content.maxlen_position or access.position
        yield from _maxlen_faults(content, position, entry.maxlen, entry.maxlen_exact, shown)


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


def _field_faults(content: Content, fields: Fields, shown: Shown, budget: Budget) -> Iterator[Fault | None]:
    for field in content.fields:
        if budget.works(cost(field.name) + cost(field.value)):
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


def _member_faults(members: Members, entry: Entry, shown: Shown, budget: Budget) -> Iterator[Fault | None]:
    """Yields the fault of the first wrong element of a command."""
    positions = range(members.position, members.position + members.step * len(members.values), members.step)
    if entry.members is not None:
        for position, value in zip(positions, members.values, strict=True):
            if budget.works(cost(value)):
                yield None
            fault = next(
                _form_fault(value, position, entry.members, lambda: f"an element for {shown()}"), None
            )
            if fault is not None:
                yield fault
                break
    if entry.scores is not None:
        text = entry.scores.text
        for position, score in zip(positions, members.scores, strict=False):
            if budget.works(cost(score)):
                yield None
            if isinstance(score, Streamed) or not entry.scores.accepts(score):
                words = (f"a score for {shown()} is not {text}", f"give {text}")
                yield Fault("value.invalid", position - 1, lambda: words)  # noqa: B023 - the loop ends here
                break


def _size_faults(
    content: Content, access: Access, entry: Entry, shown: Shown, budget: Budget
) -> Iterator[Fault | None]:
    """Yields the fault of the first value that is too long, and that of too many fields or elements."""
    if entry.max_value is not None:
        yield from _long_values(content, entry.max_value, shown, budget)
    if entry.max_fields is not None:
        names = content.fields
        for at in _beyond([] if len(names) <= entry.max_fields else names, entry.max_fields, budget):
            yield None if at is None else _too_many("fields", names[at].position, entry.max_fields, shown)
    members, most = content.members, entry.max_members
    may_add_nothing = access.ttl is not None and not access.ttl.creates  # ZADD XX, LPUSHX
    if most is None or members is None or len(members.values) <= most or may_add_nothing:
        return
    if "list" in access.types:
        yield _too_many("elements", members.position + most * members.step, most, shown)
        return
    for at in _beyond(members.values, most, budget):
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


def _long_values(content: Content, most: int, shown: Shown, budget: Budget) -> Iterator[Fault | None]:
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


def _maxlen_faults(
    content: Content, position: int, maxlen: int, exact: bool, shown: Shown
) -> Iterator[Fault]:
    if content.maxlen is None:
        problem = "must trim the stream"
    elif content.maxlen > maxlen:
        problem = f"keeps more than {maxlen} entries"
    elif exact and content.maxlen_approximate:
        problem = "must trim exactly"
    else:
        return
    hint = f"use MAXLEN {'' if exact else '~ '}{maxlen}"
    yield Fault("stream.maxlen", position, lambda: (f"XADD to {shown()} {problem}", hint))


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
