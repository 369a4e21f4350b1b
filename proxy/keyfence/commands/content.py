"""The content that a command writes to a key, as far as argv shows it.

Rule: a function returns positions and bytes of argv, and computes no value. Of content that comes from
another key or a dump, argv shows only where it comes from. APPEND, SETRANGE and SETBIT show the value's
minimum length. BITFIELD and INCR show nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from .cache_forms import ELEMENTS, FIELDS, ONE_OPTION, VALUE, Layout
from .facts import Argv, ContentOf
from .key_runs import numkeys
from .model import Carried, Content, Field, Members, part_of, sequence

Kind = Literal["value", "elements", "result"]  # as in `model.Carried`


def value_at(offset: int) -> ContentOf:
    """The whole value, `offset` arguments after its key."""

    def content(argv: Argv, position: int) -> Content | None:
        at = position + offset
        return Content(argv[at], at) if at < len(argv) else None

    return content


def pairs(argv: Argv, start: int, stop: int | None = None) -> Sequence[Field]:
    """Fields, each before its value."""
    places = range(start, min(len(argv), len(argv) if stop is None else stop) - 1, 2)
    return sequence(len(places), lambda: (Field(i, argv[i], i + 1, argv[i + 1]) for i in places))


def fields_from(offset: int) -> ContentOf:
    """HSET key field value …"""
    return lambda argv, position: Content(fields=pairs(argv, position + offset))


def field_at(offset: int) -> ContentOf:
    """HINCRBY key field increment: argv does not hold the resulting value."""

    def content(argv: Argv, position: int) -> Content | None:
        at = position + offset
        return Content(fields=(Field(at, argv[at], 0, b""),)) if at < len(argv) else None

    return content


def members_from(offset: int) -> ContentOf:
    """SADD key member …: all arguments, starting `offset` after the key."""

    def content(argv: Argv, position: int) -> Content | None:
        start = position + offset
        return Content(members=Members(start, 1, part_of(argv, start)))

    return content


def member_at(offset: int) -> ContentOf:
    """One element, `offset` arguments after the key."""

    def content(argv: Argv, position: int) -> Content | None:
        at = position + offset
        return Content(members=Members(at, 1, argv[at : at + 1]))

    return content


# By what a layout says that is written, and whether there is only one.
_SHOWN = {
    (VALUE, True): value_at,
    (FIELDS, False): fields_from,
    (FIELDS, True): field_at,
    (ELEMENTS, False): members_from,
    (ELEMENTS, True): member_at,
}


def shown_by(layout: Layout) -> ContentOf | None:
    """The content of a command whose layout says all about it: of its one key, at position 1, or of each."""
    shown = _SHOWN.get((layout.content, layout.is_single))
    at = layout.content_at or layout.options_at + (layout.options == ONE_OPTION)
    return shown(at - 1) if shown is not None else None


# -- content from other keys


def of_key(kind: Kind, source: int) -> ContentOf:
    """RENAME key newkey, LMOVE source destination …: content of the key at this argument."""
    return lambda argv, _position: Content(carried=Carried(kind, source, argv[source : source + 1]))


def of_keys_from(kind: Kind, first: int) -> ContentOf:
    """SUNIONSTORE destination key …: content of all keys from this argument on."""
    return lambda argv, _position: Content(carried=Carried(kind, first, argv[first:]))


def of_counted_keys(kind: Kind) -> ContentOf:
    """ZUNIONSTORE destination numkeys key …: content of these keys."""

    def content(argv: Argv, _position: int) -> Content | None:
        sources = numkeys(argv, 2, 3)
        return Content(carried=Carried(kind, sources.start, argv[sources.start : sources.stop]))

    return content
