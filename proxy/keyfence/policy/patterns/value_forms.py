"""The forms that a policy can require of values and field names.

Rule: a form accepts or rejects bytes in linear time, and never stores them.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

from keyfence.policy.diagnostics import did_you_mean
from keyfence.policy.units import size_text

from .classes import class_named
from .expressions import TOO_LARGE, ClassExpression, PatternError, literal_class, parse_class
from .msgpack import is_msgpack
from .patterns import Hole, KeyPattern

# Longer JSON and MessagePack values are accepted unparsed, because parsing would delay the other clients.
MAX_PARSED = 1024 * 1024

_NUMBER = re.compile(rb"[+-]?(\d{1,64}(\.\d{0,64})?|\.\d{1,64})([eE][+-]?\d{1,4})?", re.ASCII)
_INTEGER = re.compile(rb"-?\d{1,20}", re.ASCII)
_UUID = re.compile(rb"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_SHA256 = re.compile(rb"[0-9a-f]{64}")
_EPOCH = re.compile(rb"\d{10}(\d{3})?", re.ASCII)
_OCTET = rb"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = re.compile(_OCTET + rb"(?:\." + _OCTET + rb"){3}")  # most addresses; `ipaddress` parses the others
_DATE = re.compile(rb"\d{8}", re.ASCII)


class Form(NamedTuple):
    """`accepts` returns a true value if bytes have the form. `text` completes "is not …"."""

    accepts: Callable[[bytes], object]
    text: str
    # A pattern, or a class expression, whose values surely have the form, so that an automaton can find them;
    # others may have it too. "": there is none.
    regular: KeyPattern | str = ""

    @property
    def restricts(self) -> bool:
        """Whether the form rejects any bytes."""
        return self.accepts is not _is_anything

    def pattern(self) -> KeyPattern | None:
        """Returns `regular` as a pattern."""
        if isinstance(self.regular, str):
            return _built_in(self.regular) if self.regular else None
        return self.regular


def _pattern_of(expression: ClassExpression) -> KeyPattern:
    return KeyPattern(expression.text, (Hole("value", expression),))


@cache
def _built_in(text: str) -> KeyPattern:
    return _pattern_of(class_named(text))


class NumberRange(NamedTuple):
    """The numbers from `low` to `high`, for scores of a sorted set."""

    low: float
    high: float
    text: str  # completes "is not …"

    def accepts(self, number: bytes) -> bool:
        """Whether `number` is in the range. Accepts text that is not a number, because Redis refuses it."""
        value = _float(number)
        return value is None or self.low <= value <= self.high


def _is_ip(value: bytes) -> bool:
    if _IPV4.fullmatch(value):
        return True
    if b"%" in value:
        return False  # `ipaddress` takes any text for a zone
    try:
        ipaddress.ip_address(value.decode("ascii"))
    except ValueError:
        return False
    return True


def _is_json(value: bytes) -> bool:
    """RFC 8259: UTF-8, one value, no NaN. A text that is nested too deeply for the parser is rejected."""
    if len(value) > MAX_PARSED:
        return True
    try:
        _JSON.decode(value.decode("utf-8"))
    except (ValueError, RecursionError):
        return False
    return True


def _reject_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")  # Python's parser accepts NaN and Infinity


# Numbers are not converted: converting a long integer takes quadratic time.
_JSON = json.JSONDecoder(parse_constant=_reject_constant, parse_int=len, parse_float=len)


def _is_packed(value: bytes) -> bool:
    return len(value) > MAX_PARSED or is_msgpack(value)


def _is_date(value: bytes) -> bool:
    if not _DATE.fullmatch(value):
        return False
    try:
        datetime.date(int(value[:4]), int(value[4:6]), int(value[6:]))
    except ValueError:
        return False
    return True


def _is_base64(value: bytes) -> bool:
    try:
        base64.b64decode(value, validate=True)
    except binascii.Error:
        return False
    return True


def _is_anything(_value: bytes) -> bool:
    return True


# The regular parts of forms. Counters above `regular.UNROLL_POSITIONS` are written out where the automaton
# would leave more than one of them out, so that a value's length need not be confirmed.
_OCTETS = r"\.".join(["(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"] * 4)
_DIGITS = "[+-]?([0-9]{1,64}([.][0-9]{0,64})?|[.][0-9]{1,64})([eE][+-]?[0-9]{1,4})?"
_HEX = "[0-9a-fA-F]"
_GROUPS = f"{_HEX}{{8}}(-{_HEX}{{4}})(-{_HEX}{{4}})(-{_HEX}{{4}})-{_HEX}{{8}}{_HEX}{{4}}"
_BLANK = r"[ \x09\x0a\x0d]*"
_STRING = r'"([ !#-\[\]-~]|\\(["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
_SCALAR = rf"{_STRING}|-?(0|[1-9][0-9]*)([.][0-9]+)?([eE][+-]?[0-9]+)?|true|false|null"
JSON_DEPTH = 2  # objects and arrays in each other that the automaton knows


def _json_values(depth: int) -> str:
    """JSON values in ASCII, with at most `depth` objects and arrays in each other."""
    if not depth:
        return f"({_SCALAR})"
    value = _json_values(depth - 1) + _BLANK
    items, members = (
        f"{_BLANK}({one}(,{_BLANK}{one})*)?" for one in (value, f"{_STRING}{_BLANK}:{_BLANK}{value}")
    )
    return rf"({_SCALAR}|\[{items}\]|\{{{members}\}})"


BUILTIN: Mapping[str, Form] = {
    "any": Form(_is_anything, "anything"),
    "base64": Form(_is_base64, "base64 text", "base64"),
    "date": Form(_is_date, "a date YYYYMMDD", "date"),
    "epoch": Form(_EPOCH.fullmatch, "a Unix time in seconds or milliseconds", "[0-9]{8}[0-9]{2}([0-9]{3})?"),
    "integer": Form(_INTEGER.fullmatch, "an integer", "-?[0-9]{1,20}"),
    "ip": Form(_is_ip, "an IP address", _OCTETS),
    "json": Form(_is_json, "well-formed JSON", _BLANK + _json_values(JSON_DEPTH) + _BLANK),
    "msgpack": Form(_is_packed, "well-formed MessagePack"),
    "number": Form(_NUMBER.fullmatch, "a number", _DIGITS),
    "sha256": Form(_SHA256.fullmatch, "64 lowercase hex digits", "[0-9a-f]{64}"),
    "uuid": Form(_UUID.fullmatch, "a UUID", _GROUPS),
}


# Further forms, by which a command log describes values: times, and texts of one word or id.
TIME = "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?(Z|[+-][0-9]{2}:?[0-9]{2})"
TOKEN = "[A-Za-z0-9_.-]{1,128}"
_TIME = re.compile(TIME.encode())
_TOKEN = re.compile(TOKEN.encode())
_MAX_DESCRIBED = 4096  # bytes of a value that are looked at


def narrowest_form(value: bytes) -> str:
    """The narrowest form of a value: a built-in one, `time` or `token`; "" for others and for long values.

    It says of which kind a value is, and nothing of what it holds.
    """
    if not value or len(value) > _MAX_DESCRIBED:
        return ""
    for name in ("uuid", "sha256", "epoch", "integer", "number", "ip"):
        if BUILTIN[name].accepts(value):
            return name
    if _TIME.fullmatch(value):
        return "time"
    if _TOKEN.fullmatch(value):
        return "token"
    if value[:1] in b"{[" and _is_json(value):
        return "json"
    # Text of one byte or of ASCII is MessagePack by chance only.
    return "msgpack" if not value.isascii() and is_msgpack(value) else ""


def _float(number: bytes) -> float | None:
    """A number as Redis' strtod reads it, or None."""
    try:
        return float(number.decode("ascii")) if b"_" not in number else None
    except ValueError:
        pass
    try:
        return float.fromhex(number.decode("ascii")) if _HEX_NUMBER.fullmatch(number) else None
    except OverflowError:
        return None


_HEX_NUMBER = re.compile(
    rb"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?[0-9]+)?", re.ASCII
)


def parse_range(text: str) -> NumberRange:
    """Parse `0..100`, `0..`, `..1` or `-1.5..1.5`; both ends belong to the range. Raises ValueError."""
    low, dots, high = text.partition("..")
    try:
        ends = float(low or "-inf"), float(high or "inf")
    except ValueError:
        dots = ""
    if not dots or not low + high or "_" in text:
        raise ValueError(f"{text!r} is not a range; write both ends, as in 0..100, or one, as in 0..")
    if not ends[0] <= ends[1]:
        raise ValueError(f"{text!r} contains no number")
    side = f"from {low} to {high}" if low and high else f"{low} or more" if low else f"{high} or less"
    return NumberRange(*ends, f"a number {side}")


_EXPRESSION_SIGNS = frozenset("[]\\()|.*+?{}")


def class_form(expression: ClassExpression, text: str) -> Form:
    """The form of the values that a class expression matches."""
    return Form(expression.predicate(), text, _pattern_of(expression))


def words_form(words: list[str]) -> Form:
    """The form of a closed list of words."""
    known = frozenset(word.encode() for word in words)
    return Form(known.__contains__, f"one of {', '.join(words)}", _pattern_of(literal_class(sorted(known))))


def parse_form(spec: str | list[str], placeholders: Mapping[str, ClassExpression]) -> Form:
    """Parse a form from the policy. Raises ValueError that says what is wrong and what is allowed."""
    if isinstance(spec, list):
        if not spec:
            raise ValueError("an empty list allows nothing; list the words")
        return words_form(spec)
    if spec in BUILTIN:
        return BUILTIN[spec]
    if spec.startswith("<") and spec.endswith(">"):
        name = spec[1:-1]
        if name not in placeholders:
            raise ValueError(f"<{name}> is not declared under placeholders{did_you_mean(name, placeholders)}")
        expression = placeholders[name]
        return Form(expression.predicate(), f"a {name}", KeyPattern(spec, (Hole("value", expression),)))
    if not _EXPRESSION_SIGNS & set(spec):
        raise ValueError(
            f"{spec!r} is not a form; write a built-in one ({', '.join(sorted(BUILTIN))}), a <placeholder>, "
            f"a class such as [0-9]+, or a list of words{did_you_mean(spec, BUILTIN)}"
        )
    try:
        return class_form(parse_class(spec), f"of the form {spec}")
    except PatternError as exc:
        instead = f"; limit a value's length by {_max_value(spec)}" if TOO_LARGE in str(exc) else ""
        raise ValueError(f"{spec!r}: {exc}{instead}") from None


def _max_value(spec: str) -> str:
    """The setting to use in place of a large counter, such as that of `.{0,65536}`."""
    counted = re.findall(r"\{(?:[0-9]*,)?([0-9]{1,12})\}", spec)
    size = size_text(int(counted[0])).removesuffix(" bytes") if len(counted) == 1 else "64kb"
    return f"max_value: {size}, and write the form without it"
