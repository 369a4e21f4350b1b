"""What an entry asks of the value: its type, its content, its time to live.

Rule: one command is looked at, by what it shows; what only a sequence of commands would show is not guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..commands.model import Access, Content, Ttl
from .compiled import Entry, Fields
from .model import TtlModel
from .show import printable
from .units import duration_text


class Fault(NamedTuple):
    """What is wrong with a write to a catalogued key."""

    rule: str
    position: int
    message: str
    hint: str = ""


def content_faults(
    command: str, access: Access, entry: Entry, key: str, clock: Callable[[], float]
) -> Iterator[Fault]:
    """All that an access to a key of `entry` gets wrong. `key` is how messages show it."""
    if entry.types and access.types and not set(entry.types) & set(access.types):
        wanted, given = " or ".join(entry.types), " or ".join(access.types)
        yield Fault(
            "type.mismatch",
            access.position,
            f"{command} is for a {given}, but {key} is a {wanted}",
            f"use the commands of a {wanted}",
        )
    elif access.content is not None:
        yield from _value_faults(access, access.content, entry, key)
    if entry.ttl is not None and access.ttl is not None:
        position = access.ttl.position or access.position
        yield from _ttl_faults(command, access.ttl, position, entry.ttl, key, clock)


def _value_faults(access: Access, content: Content, entry: Entry, key: str) -> Iterator[Fault]:
    if entry.values is not None and content.value is not None and not entry.values.accepts(content.value):
        form = entry.values.text
        yield Fault(
            "value.invalid", content.value_position, f"the value for {key} is not {form}", f"write {form}"
        )
    if entry.fields is not None:
        yield from _field_faults(content, entry.fields, key)
    if entry.maxlen is not None and content.stream_add:
        position = content.maxlen_position or access.position
        yield from _maxlen_faults(content, position, entry.maxlen, entry.maxlen_exact, key)


def _field_faults(content: Content, fields: Fields, key: str) -> Iterator[Fault]:
    for field in content.fields:
        form = fields.form_of(field.name)
        hides = fields.hides_names and field.name not in fields.named
        name = "<masked>" if hides else printable(field.name, 64)
        if form is None:
            yield Fault(
                "field.unknown", field.position, f"{key} has no field {name}", f"its fields: {fields.text}"
            )
        elif field.value_position and not form.accepts(field.value):
            message = f"the field {name} of {key} is not {form.text}"
            yield Fault("value.invalid", field.value_position, message, f"write {form.text}")


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


def _ttl_faults(
    command: str, ttl: Ttl, position: int, rule: TtlModel, key: str, clock: Callable[[], float]
) -> Iterator[Fault]:
    sets = ttl.kind in ("sets", "expires")
    if rule.none:
        if sets:
            yield Fault("ttl.forbidden", position, f"{key} must not have a time to live", "leave it out")
    elif sets:
        yield from _range_faults(ttl, position, rule, key, clock)
    elif ttl.kind == "drops" or (ttl.kind == "keeps" and ttl.creates and rule.at == "write"):
        # Where the write itself must bring the time to live, one that can't and may create the key won't do.
        yield Fault("ttl.required", position, f"{key} must have a time to live", _ttl_hint(rule, command))


def _range_faults(
    ttl: Ttl, position: int, rule: TtlModel, key: str, clock: Callable[[], float]
) -> Iterator[Fault]:
    if ttl.milliseconds is None:
        return  # no integer: Redis refuses it itself
    remaining = ttl.milliseconds
    if ttl.absolute:
        remaining -= int(clock() * 1000)
    if rule.min is not None and remaining < rule.min:
        text, hint = "too short", f"at least {duration_text(rule.min)}"
    elif rule.max is not None and remaining > rule.max:
        text, hint = "too long", f"at most {duration_text(rule.max)}"
    else:
        return
    yield Fault("ttl.range", position, f"the time to live of {key} is {text}", hint)


def _ttl_hint(rule: TtlModel, command: str) -> str:
    milliseconds = rule.default or rule.max or 60_000
    if command in ("SET", "SETNX", "GETSET", "MSET", "MSETNX"):
        return f"SET it with EX {max(milliseconds // 1000, 1)}"
    return f"{duration_text(milliseconds)}, for example"
