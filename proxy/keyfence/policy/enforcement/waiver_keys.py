"""The `keys` of a waiver: a glob that may hold a report's placeholders, as in `user:<int>:cart`.

Rule: a placeholder matches text of its kind within one segment, so a waiver for `user:<int>` does not cover
`user:17:cart`. Only `*`, `<more>` and `<bytes>` match anything.

The placeholders are those of learned shapes (`keyfence.shapes`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from keyfence.commands.arguments import glob_escape
from keyfence.policy.patterns.automaton import Automaton
from keyfence.policy.patterns.determinize import TooManyStates, build
from keyfence.policy.patterns.globs import STAR, Glob
from keyfence.policy.patterns.patterns import ClassExpression, Hole, KeyPattern
from keyfence.policy.patterns.regular import ANY_BYTE, Bytes, Repeat, concat
from keyfence.shapes.shapes import Placeholder, parsed

MAX_STATES = 20_000  # of the automaton of a service's waivers


class _Item(NamedTuple):
    """Matches one byte of a set of bytes (bit n of the mask stands for byte n), or any number of them."""

    mask: int
    many: bool = False


def _mask(allowed: bytes) -> int:
    return sum(1 << byte for byte in set(allowed))


_DIGITS = b"0123456789"
_HEX = _mask(_DIGITS + b"abcdefABCDEF")
# A segment ends at the bytes where `keyfence.shapes` splits keys.
_SEGMENT = ANY_BYTE & ~_mask(b":|{}@#*?[]()<>\"'`!$%^\\ \t\n\r\v\f")
_DATE = _mask(_DIGITS + b"TZ:.,+ /_-")
_ANYTHING = (_Item(ANY_BYTE, many=True),)


def _some(mask: int, least: int = 1) -> tuple[_Item, ...]:
    return (*[_Item(mask)] * least, _Item(mask, many=True))


def _spelled(form: str) -> tuple[_Item, ...]:
    """Returns the items for a form in which `h` means a hexadecimal digit."""
    return tuple(_Item(_HEX if char == "h" else 1 << ord(char)) for char in form)


# The same id may be all digits in one key and hexadecimal in the next, so wider kinds include narrower ones.
KINDS: dict[str, tuple[_Item, ...]] = {
    "uuid": _spelled("hhhhhhhh-hhhh-hhhh-hhhh-hhhhhhhhhhhh"),
    "ip": _some(_HEX | _mask(b".:"), 2),
    "mac": _spelled("hh:hh:hh:hh:hh:hh"),
    "date": (*[_Item(_mask(_DIGITS))] * 4, _Item(_DATE, many=True)),
    "int": (_Item(_mask(_DIGITS + b"-")), _Item(_mask(_DIGITS + b"."), many=True)),
    "hex": _some(_HEX, 8),
    "email": (*_some(_SEGMENT), _Item(1 << ord("@")), *_some(_SEGMENT)),
    "id": _some(_SEGMENT),
    "*": _some(_SEGMENT),
    "more": _ANYTHING,
    "bytes": _ANYTHING,
}
# Placeholders for parts of keys whose form is unknown. They admit more than was seen.
_WIDE = frozenset({"*", "more", "bytes"})
_TOKEN = re.compile(r"\\.|<(?P<name>\*|[a-z]{2,12})>", re.DOTALL)
_OPAQUE = _WIDE | {"id"}


class WaiverKeys:
    """A waiver's `keys`, compiled: an automaton whose set of states is the bits of one integer."""

    __slots__ = ("_accepts", "_loops", "_size", "beginning")

    def __init__(self, text: str) -> None:
        items = _items(text)
        self._size = len(items)
        # Bit n of an integer stands for item n. For each byte: the items that accept it.
        self._accepts = [0] * 256
        self._loops = 0
        for number, item in enumerate(items):
            self._loops |= item.many << number
            for byte in range(256):
                if item.mask >> byte & 1:
                    self._accepts[byte] |= 1 << number
        prefix = bytearray()
        for item in items:
            if item.many or item.mask.bit_count() != 1:
                break
            prefix.append(item.mask.bit_length() - 1)
        self.beginning = bytes(prefix)  # every matching key begins with it

    def matches(self, key: bytes) -> bool:
        """Returns whether the whole key matches. The time is linear in the key's length."""
        if not key.startswith(self.beginning):
            return False
        accepts, loops = self._accepts, self._loops
        at = self._skipped(1)
        for byte in key:
            accepted = at & accepts[byte]
            if not accepted:
                return False
            at = self._skipped((accepted & loops) | (accepted & ~loops) << 1)
        return bool(at >> self._size & 1)

    def _skipped(self, at: int) -> int:
        """Returns the states, with those reached by skipping items that may match nothing."""
        while True:
            more = at | (at & self._loops) << 1
            if more == at:
                return at
            at = more


def _items(text: str) -> list[_Item]:
    items: list[_Item] = []
    at = 0
    for token in _placeholders(text):
        if token["name"] in KINDS:
            items += _of_glob(text[at : token.start()])
            items += KINDS[token["name"]]
            at = token.end()
    return items + _of_glob(text[at:])


def _of_glob(text: str) -> list[_Item]:
    glob = Glob(text.encode("utf-8", "surrogateescape"))
    return [_Item(ANY_BYTE, many=True) if item is STAR else _Item(item) for item in glob.items]


def _placeholders(text: str) -> list[re.Match[str]]:
    return [token for token in _TOKEN.finditer(text) if token["name"]]


@lru_cache(maxsize=10_000)
def waiver_keys(text: str) -> WaiverKeys:
    """Returns a waiver's `keys`, compiled; cached by text."""
    return WaiverKeys(text)


@lru_cache(maxsize=1_000)
def waived_keys(texts: tuple[str, ...]) -> Automaton | None:
    """Returns the automaton of the keys that these `keys` of waivers match: keys that it accepts alike are
    matched by the same ones. None: there are none, or it would be too large."""
    if not texts:
        return None
    languages = [
        concat([Repeat(Bytes(one.mask), 0, None) if one.many else Bytes(one.mask) for one in _items(text)])
        for text in texts
    ]
    patterns = [KeyPattern("", (Hole("", ClassExpression("", language)),)) for language in languages]
    try:
        return build(patterns, MAX_STATES)
    except TooManyStates:
        return None


def unknown_placeholders(text: str) -> list[str]:
    """Returns the placeholders of `keys` that have no meaning."""
    return [token[0] for token in _placeholders(text) if token["name"] not in KINDS]


def keys_of_shape(shape: str) -> str:
    """Returns the `keys` that match the keys of a learned shape; "" if that could be any key."""
    keys, says_something = "", False
    for part in parsed(shape):
        if isinstance(part, Placeholder) and part.kind in KINDS:
            keys += f"<{part.kind}>"
            says_something |= part.kind not in _OPAQUE
        else:
            text = f"<{part.kind}>" if isinstance(part, Placeholder) else part
            keys += exactly(text)
            says_something |= bool(text.strip(":"))
    return keys if says_something and shape != "other" else ""


def exactly(key: str) -> str:
    """Returns the `keys` that match only this key."""
    glob = glob_escape(key.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")
    return glob.replace("<", "\\<")


def is_wide(keys: str) -> bool:
    """Returns whether `keys` holds a placeholder for text of unknown form."""
    return any(token["name"] in _WIDE for token in _placeholders(keys))
