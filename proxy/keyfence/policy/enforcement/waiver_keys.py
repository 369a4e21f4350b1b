"""The `keys` of a waiver: a glob that may hold a report's placeholders, as in `user:<int>:cart`.

Rule: a placeholder matches text of its kind within one segment, so a waiver for `user:<int>` does not cover
`user:17:cart`. Only `*`, `<more>` and `<bytes>` match anything.

The placeholders are those of learned shapes (`keyfence.shapes`).
"""

from __future__ import annotations

import re
from functools import lru_cache

from keyfence.commands.arguments import glob_escape
from keyfence.policy.patterns.automaton import Automaton
from keyfence.policy.patterns.determinize import TooManyStates, build
from keyfence.policy.patterns.globs import STAR, Glob
from keyfence.policy.patterns.matching import Simulation
from keyfence.policy.patterns.patterns import ClassExpression, Hole, KeyPattern
from keyfence.policy.patterns.regular import ANY_BYTE, Bytes, Node, Repeat, concat
from keyfence.shapes.shapes import Placeholder, parsed

MAX_STATES = 20_000  # of the automaton of a service's waivers


def _mask(allowed: bytes) -> int:
    return sum(1 << byte for byte in set(allowed))


_DIGITS = b"0123456789"
_HEX = _mask(_DIGITS + b"abcdefABCDEF")
# A segment ends at the bytes where `keyfence.shapes` splits keys.
_SEGMENT = ANY_BYTE & ~_mask(b":|{}@#*?[]()<>\"'`!$%^\\ \t\n\r\v\f")
_DATE = _mask(_DIGITS + b"TZ:.,+ /_-")
_ANYTHING = Repeat(Bytes(ANY_BYTE), 0, None)


def _some(mask: int, least: int = 1) -> Node:
    return Repeat(Bytes(mask), least, None)


def _spelled(form: str) -> Node:
    """Returns the language of a form in which `h` means a hexadecimal digit."""
    return concat([Bytes(_HEX if char == "h" else 1 << ord(char)) for char in form])


# The same id may be all digits in one key and hexadecimal in the next, so wider kinds include narrower ones.
KINDS: dict[str, Node] = {
    "uuid": _spelled("hhhhhhhh-hhhh-hhhh-hhhh-hhhhhhhhhhhh"),
    "ip": _some(_HEX | _mask(b".:"), 2),
    "mac": _spelled("hh:hh:hh:hh:hh:hh"),
    "date": concat([Repeat(Bytes(_mask(_DIGITS)), 4, 4), _some(_DATE, 0)]),
    "int": concat([Bytes(_mask(_DIGITS + b"-")), _some(_mask(_DIGITS + b"."), 0)]),
    "hex": _some(_HEX, 8),
    "email": concat([_some(_SEGMENT), Bytes(1 << ord("@")), _some(_SEGMENT)]),
    "id": _some(_SEGMENT),
    "*": _some(_SEGMENT),
    "more": _ANYTHING,
    "bytes": _ANYTHING,
}
# Placeholders for parts of keys whose form is unknown. They admit more than was seen.
_WIDE = frozenset({"*", "more", "bytes"})
_TOKEN = re.compile(r"\\.|<(?P<name>[^<>]*)>", re.DOTALL)
_OPAQUE = _WIDE | {"id"}


def _language(text: str) -> Node:
    parts: list[Node] = []
    at = 0
    for token in _placeholders(text):
        if token["name"] in KINDS:
            parts += _of_glob(text[at : token.start()])
            parts.append(KINDS[token["name"]])
            at = token.end()
    return concat([*parts, *_of_glob(text[at:])])


def _of_glob(text: str) -> list[Node]:
    glob = Glob(text.encode("utf-8", "surrogateescape"))
    return [_ANYTHING if item is STAR else Bytes(item) for item in glob.items]


def _placeholders(text: str) -> list[re.Match[str]]:
    return [token for token in _TOKEN.finditer(text) if token["name"] is not None]


@lru_cache(maxsize=10_000)
def waiver_keys(text: str) -> Simulation:
    """Returns what says of a key whether a waiver's `keys` match it; cached by text."""
    return Simulation(_language(text))


@lru_cache(maxsize=1_000)
def waived_keys(texts: tuple[str, ...]) -> Automaton | None:
    """Returns the automaton of the keys that these `keys` of waivers match: keys that it accepts alike are
    matched by the same ones. None: there are none, or it would be too large."""
    if not texts:
        return None
    patterns = [KeyPattern("", (Hole("", ClassExpression("", _language(text))),)) for text in texts]
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
