"""What an entry asks of the value: its type, its content, its time to live.

Rule: what the command itself shows to be wrong is a fault; what it doesn't show is no fault, but for a value
that is too long to be looked at where its form is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ..commands.model import Access, Content, Members, Streamed
from .compiled import Entry, Fields
from .show import printable
from .ttl import TtlRule, fault_of
from .values import Form


class Fault(NamedTuple):
    """What is wrong with a write to a catalogued key."""

    rule: str
    position: int
    message: str
    hint: str = ""


# -- types


def fits(wanted: Sequence[str], given: Sequence[str]) -> bool:
    """Whether a command for values of the types `given` may be used on a key of the types `wanted`."""
    return not wanted or not given or any(one in wanted for one in given)


def types_in(key: bytes, words: Mapping[bytes, tuple[str, ...]]) -> tuple[str, ...]:
    """The types that a word among the key's segments stands for: `chat:messages:list:id:1` says list."""
    for segment in key.split(b":"):
        if segment in words:
            return words[segment]
    return ()


def type_fault(command: str, access: Access, types: Sequence[str], key: str) -> Fault:
    """A command for other types than the key has."""
    wanted, given = " or ".join(types), " or ".join(access.types)
    return Fault(
        "type.mismatch",
        access.position,
        f"{command} is for a {given}, but {key} is a {wanted}",
        f"use the commands of a {wanted}",
    )


# -- values


def content_faults(access: Access, entry: Entry, key: str) -> Iterator[Fault]:
    """What a write to a key of `entry` shows to be wrong with the value. `key` is how messages show it."""
    content = access.content
    if content is None:
        return
    if entry.values is not None and content.value is not None:
        what = f"the value for {key}"
        yield from _form_fault(content.value, content.value_position, entry.values, what)
    if entry.fields is not None:
        yield from _field_faults(content, entry.fields, key)
    if content.members is not None:
        yield from _member_faults(content.members, entry, key)
    if entry.maxlen is not None and content.stream_add:
        position = content.maxlen_position or access.position
        yield from _maxlen_faults(content, position, entry.maxlen, entry.maxlen_exact, key)


def _form_fault(value: bytes, position: int, form: Form, what: str) -> Iterator[Fault]:
    if isinstance(value, Streamed):
        if form.asks:
            text = f"{what} can't be checked: it is {value.size} bytes long"
            yield Fault("value.invalid", position, text, f"{form.text} is asked for; write a shorter one")
    elif not form.accepts(value):
        yield Fault("value.invalid", position, f"{what} is not {form.text}", f"write {form.text}")


def _field_faults(content: Content, fields: Fields, key: str) -> Iterator[Fault]:
    for field in content.fields:
        form = fields.form_of(field.name)
        if isinstance(field.name, Streamed):
            form, name = None, "of that length"
        elif fields.hides_names and field.name not in fields.named:
            name = "<masked>"
        else:
            name = printable(field.name, 64)
        if form is None:
            hint = f"its fields: {fields.text}"
            yield Fault("field.unknown", field.position, f"{key} has no field {name}", hint)
        elif field.value_position:
            what = f"the field {name} of {key}"
            yield from _form_fault(field.value, field.value_position, form, what)


def _member_faults(members: Members, entry: Entry, key: str) -> Iterator[Fault]:
    """Of all elements of one command the first that is wrong is told."""
    positions = range(members.position, members.position + members.step * len(members.values), members.step)
    if entry.members is not None:
        for position, value in zip(positions, members.values, strict=True):
            fault = next(_form_fault(value, position, entry.members, f"an element for {key}"), None)
            if fault is not None:
                yield fault
                break
    if entry.scores is not None:
        for position, score in zip(positions, members.scores, strict=False):
            if isinstance(score, Streamed) or not entry.scores.accepts(score):
                text = entry.scores.text
                yield Fault("value.invalid", position - 1, f"a score for {key} is not {text}", f"give {text}")
                break


def _maxlen_faults(content: Content, position: int, maxlen: int, exact: bool, key: str) -> Iterator[Fault]:
    if content.maxlen is None:
        problem = f"XADD to {key} must trim the stream"
    elif content.maxlen > maxlen:
        problem = f"XADD to {key} keeps more than {maxlen} entries"
    elif exact and content.maxlen_approximate:
        problem = f"XADD to {key} must trim exactly"
    else:
        return
    yield Fault("stream.maxlen", position, problem, f"use MAXLEN {'' if exact else '~ '}{maxlen}")


# -- time to live


def ttl_fault(found: int, command: str, access: Access, rule: TtlRule, key: str) -> Fault:
    """The words for an outcome of `ttl.FAULTS`."""
    broken, message, hint = fault_of(found, rule, command, key)
    position = access.ttl.position if access.ttl is not None else 0
    return Fault(broken, position or access.position, message, hint)
