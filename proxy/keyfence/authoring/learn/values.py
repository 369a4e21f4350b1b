"""Classes: the narrowest plain class of the values that were seen at one place of the keys.

Rule: a class admits every value that was seen. What else it admits is put into words, for people to judge.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection
from typing import NamedTuple

from keyfence.policy.patterns.classes import class_named
from keyfence.shapes.shapes import looks_like_word

from .seen import MARK

_SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_UUID = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_HEX = re.compile("(?=.*[0-9])[0-9a-f]{7,}|(?=.*[0-9])[0-9A-F]{7,}")
_ISO_DATE = re.compile("[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])")
_IPV4 = re.compile(r"[0-9]{1,3}([.][0-9]{1,3}){3}")
_IPV6 = re.compile("(?=.*:.*:)[0-9a-fA-F:]{2,39}([.][0-9.]{5,14})?")
_JOINTS = re.compile("([@#=,;~+])")
_MOST_PIECES = 16  # between joints; a longer list, such as 1,2,3,4, would make a class that is too large
_VERSION = re.compile("[vV][0-9]{1,3}")
_NUMBERED = re.compile("[A-Za-z]{2,12}[0-9]{1,2}")  # oauth2
_WORDS_WITH_DIGITS = re.compile(
    "base64|ec2|http[23]|ipv[46]|k8s|log4j|md5|mp[34]|oauth2|p2p|s3|sha(1|256|384|512)|utf8|x509",
    re.IGNORECASE,
)
# Words that a secret often follows.
_SECRETS = re.compile(
    "(?i)(.*[._-])?(sess|sessions?|sids?|.*tokens?|tok|jwts?|.*secrets?|passw(or)?ds?|pwd|auth|api[._-]?keys?|[cx]srf|"
    "otps?|totp|mfa|2fa|reset|resets|verif(y|ication)s?|confirm(ation)?s?|magic(link)?s?|invites?|invitations?|"
    "nonces?|bearers?|refresh|cookies?|credentials?|signatures?|logins?|tickets?|recover(y|ies)|activations?|pins?|"
    "signup|remember(me)?|private|sk|key|keys)([._-]ids?)?"
)
_PLAIN_WORD = re.compile("[a-z]{1,12}([._-][a-z]{1,12})*")
_UNSPEAKABLE = re.compile("[bcdfghjklmnpqrstvwxz]{4}|[aeiouy]{4}")
_SHOWN_PIECE = re.compile("[0-9]{0,13}")
_LONGEST_SHOWN = 40
_ESCAPED = frozenset("\\]^[")
# The classes of a shape's placeholders.
_OF_SHAPES = {
    "int": "[0-9]{1,20}",
    "hex": "[0-9a-fA-F]{8,128}",
    "uuid": "uuid",
    "date": "[0-9][0-9./_-]{7,24}",
    "ip": "ip",
    "mac": "([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}",
    "email": "[A-Za-z0-9_.+-]{1,64}@[A-Za-z0-9.-]{1,190}",
    "id": "[^:{}]{1,128}",
    "*": "[^:{}]{1,128}",
    "bytes": "[^:{}]{1,512}",
}


class ValueClass(NamedTuple):
    """A class of values."""

    text: str  # a built-in class or an expression
    words: str  # what it admits: "1 to 32 of a-z 0-9"
    is_exact: bool = False  # a built-in form: nothing of another form is admitted

    def matches(self, value: str) -> bool:
        return class_named(self.text).matches(value.encode("utf-8", "surrogateescape"))


def is_word(text: str) -> bool:
    """Returns whether a part of a key looks like a word of a convention, and not like a value."""
    if not text or _VERSION.fullmatch(text) or _WORDS_WITH_DIGITS.fullmatch(text):
        return True
    if MARK in text:
        return False
    return looks_like_word(text) or all(looks_like_word(one) or not one for one in re.split("[_.-]", text))


def leads_to_secret(word: str) -> bool:
    """Returns whether a secret often follows a part of a key, such as `session`."""
    return _SECRETS.fullmatch(word) is not None


def may_be_secret(text: str, before: str) -> bool:
    """Returns whether a part of a key may be a secret although it looks like a word. `before` is the part
    before it."""
    if not text or not leads_to_secret(before):
        return False
    return _PLAIN_WORD.fullmatch(text) is None or _UNSPEAKABLE.search(text) is not None


def is_harmless(value: str) -> bool:
    """Returns whether a value may be shown: a number, a date, an address, or short pieces of the kind that
    people write. Long ids may be secrets."""
    if len(value) > _LONGEST_SHOWN or not value:
        return False
    if _IPV4.fullmatch(value):
        return True
    return all(
        _SHOWN_PIECE.fullmatch(one) or (len(one) <= 12 and is_word(one)) for one in re.split("[_.-]", value)
    )


def is_numbered_word(text: str) -> bool:
    """Returns whether a text may be a word that ends in a digit, such as oauth2."""
    return _NUMBERED.fullmatch(text) is not None


def looks_like_ip(text: str) -> bool:
    """Returns whether a text is an IPv6 address, which has the colons of a key's parts."""
    return _IPV6.fullmatch(text) is not None and class_named("ip").matches(text.encode())


def class_of(values: Collection[str]) -> ValueClass:
    """Returns the class of the values that were seen at one place."""
    marked = [value for value in values if MARK in value]
    if marked:
        return _of_shapes(marked, [value for value in values if MARK not in value])
    known = _built_in(values)
    if known is not None:
        return known
    parts = [_JOINTS.split(value) for value in values]
    if (
        1 < len(parts[0]) < 2 * _MOST_PIECES
        and len({tuple(one[1::2]) for one in parts}) == 1
        and all(map(all, parts))
    ):
        return _template(parts)
    return _of_characters(values)


def _built_in(values: Collection[str]) -> ValueClass | None:
    if all(map(_UUID.fullmatch, values)):
        return ValueClass("uuid", "any UUID", True)
    if all(value.isascii() and value.isdigit() for value in values):
        return _digits(values)
    if all(map(_ISO_DATE.fullmatch, values)):
        return ValueClass(_ISO_DATE.pattern.replace("-(", "-("), "any date YYYY-MM-DD", True)
    for name, words in (("ipv4", "any IPv4 address"), ("ip", "any IP address")):
        matches = class_named(name).matches
        if all(matches(value.encode("utf-8", "surrogateescape")) for value in values):
            return ValueClass(name, words, True)
    if all(map(_HEX.fullmatch, values)) and len({value.upper() == value for value in values}) == 1:
        return _hex(values)
    base64 = class_named("base64").matches
    if all(base64(value.encode("utf-8", "surrogateescape")) for value in values) and any(
        value.endswith("=") for value in values
    ):
        return ValueClass("base64", "any base64 text", True)
    return None


def _digits(values: Collection[str]) -> ValueClass:
    lengths = {len(value) for value in values}
    if lengths == {8} and all(map(_is_day, values)):
        return ValueClass("date", "any date YYYYMMDD", True)
    if lengths <= {10, 13} and all(value.startswith("1") for value in values):
        return ValueClass("epoch", "any Unix time", True)
    most = 20 if max(lengths) <= 20 else _bound(max(lengths))
    return ValueClass(f"[0-9]{{1,{most}}}", f"any number of up to {most} digits")


def _is_day(text: str) -> bool:
    try:
        return 1970 <= datetime.date(int(text[:4]), int(text[4:6]), int(text[6:])).year <= 2100
    except ValueError:
        return False


def _hex(values: Collection[str]) -> ValueClass:
    letters = "A-F" if any(value.upper() == value and not value.isdigit() for value in values) else "a-f"
    lengths = sorted({len(value) for value in values})
    if lengths == [64] and letters == "a-f":
        return ValueClass("sha256", "any 64 hex digits", True)
    if len(lengths) == 1:
        return ValueClass(f"[0-9{letters}]{{{lengths[0]}}}", f"any {lengths[0]} hex digits", True)
    most = _bound(lengths[-1])
    return ValueClass(f"[0-9{letters}]{{1,{most}}}", f"up to {most} hex digits")


def _template(parts: list[list[str]]) -> ValueClass:
    """Returns the class of values whose parts are joined in the same way, such as `name@http#10.0.0.7#80`."""
    text, words = "", []
    for index, column in enumerate(zip(*parts, strict=True)):
        if index % 2:
            text += "\\" * (column[0] == "+") + column[0]  # bare, it is a counter
            words.append(column[0])
            continue
        found = class_of(set(column))
        expression = found.text if found.text.startswith("[") else _of_characters(set(column)).text
        text += expression
        words.append(f"<{found.words}>")
    return ValueClass(text, "".join(words))


def _of_characters(values: Collection[str]) -> ValueClass:
    seen = set("".join(values))
    if not all(char.isascii() and char.isprintable() for char in seen):
        most = _bound(max(len(value.encode("utf-8", "surrogateescape")) for value in values))
        if seen & set(":{}"):  # the rest of a key with very many parts
            return ValueClass(f".{{1,{most}}}", f"1 to {most} bytes of any kind")
        return ValueClass(f"[^:{{}}]{{1,{most}}}", f"1 to {most} bytes of any kind but : {{ }}")
    ranges = [
        name
        for name, held in (("A-Z", str.isupper), ("a-z", str.islower), ("0-9", str.isdigit))
        if any(map(held, seen)) or (name == "0-9" and not all(map(is_word, values)))
    ]
    if len(ranges) == 3 and max(map(len, values)) >= 16 and seen & {"-", "_"}:
        seen |= {"-", "_"}  # base64 for URLs
    others = sorted((char for char in seen if not char.isalnum()), key=lambda char: (char == "-", char))
    inside = "".join(ranges) + "".join(f"\\{char}" if char in _ESCAPED else char for char in others)
    lengths = sorted({len(value) for value in values})
    if len(lengths) == 1 and lengths[0] >= 12 and len(values) > 2:
        return ValueClass(f"[{inside}]{{{lengths[0]}}}", f"{lengths[0]} of {' '.join([*ranges, *others])}")
    most = _bound(lengths[-1])
    return ValueClass(f"[{inside}]{{1,{most}}}", f"1 to {most} of {' '.join([*ranges, *others])}")


def _of_shapes(marked: list[str], values: list[str]) -> ValueClass:
    """Returns the class of places of shapes, which show no values."""
    kinds = sorted({text.strip(MARK) for text in marked})
    text = _OF_SHAPES.get(kinds[0], "") if len(kinds) == 1 else ""
    if not text or not all(ValueClass(text, "").matches(value) for value in values):
        return ValueClass("[^:{}]{1,128}", "1 to 128 bytes of any kind but : { }")
    return ValueClass(text, f"any <{kinds[0]}> of a report's shapes")


def _bound(longest: int) -> int:
    """Returns a round length with room for longer values than those seen."""
    return next((size for size in _SIZES if size >= longest * 1.5), longest * 2)
