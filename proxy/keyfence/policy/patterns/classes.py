"""The built-in placeholder classes: dates, times, hashes and addresses.

Rule: each class is a regular language and exact. It accepts 29 February only in leap years, and at most 255
as a part of an IPv4 address. If `ipaddress`, `datetime` or `base64` know the form, they agree with the class
(tests/policy/patterns/test_classes.py).

docs/policy.md lists the classes. `value_forms` has forms with the same names for values, which need not be
regular.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from .expressions import ClassExpression, parse_class

_HEX = "[0-9a-fA-F]"
_DIGITS_64 = "[A-Za-z0-9+/]"

# YYYYMMDD in the proleptic Gregorian calendar, for the years 0001 to 9999, as in Python's `datetime`.
_YEAR = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_DAY_28 = "(0[1-9]|1[0-9]|2[0-8])"
_DAY_30 = "(0[1-9]|[12][0-9]|30)"
_DAY_31 = "(0[1-9]|[12][0-9]|3[01])"
_FOURTH = "(0[48]|[2468][048]|[13579][26])"  # 04, 08 … 96
_DATE = (
    f"{_YEAR}((0[13578]|1[02]){_DAY_31}|(0[469]|11){_DAY_30}|02{_DAY_28})"
    f"|([0-9]{{2}}{_FOURTH}|{_FOURTH}00)0229"
)

_IPV4_PART = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"{_IPV4_PART}(\.{_IPV4_PART}){{3}}"


def _ipv6() -> str:
    """RFC 4291, section 2.2: eight groups, of which the last two may be an IPv4 address. `::` may replace one
    or more groups, once."""
    group = f"{_HEX}{{1,4}}"
    forms = [f"({group}:){{7}}{group}", f"({group}:){{6}}{_IPV4}"]
    for before in range(8):
        left = "" if not before else f"{group}(:{group}){{{before - 1}}}"
        after = 7 - before
        right = []
        if after >= 1:
            right.append(f"({group}:){{0,{after - 1}}}{group}")
        if after >= 2:
            right.append(f"({group}:){{0,{after - 2}}}{_IPV4}")
        forms.append(f"{left}::({'|'.join(right)})?" if right else f"{left}::")
    return "|".join(forms)


# name: (expression, a readable example)
_CLASSES: Mapping[str, tuple[str, bytes]] = {
    "base64": (
        f"({_DIGITS_64}{{4}})+({_DIGITS_64}{{2}}==|{_DIGITS_64}{{3}}=)?|{_DIGITS_64}{{2}}==|{_DIGITS_64}{{3}}=",
        b"MTAuMC4wLjc=",
    ),
    "date": (_DATE, b"20241122"),
    "epoch": ("[0-9]{10}([0-9]{3})?", b"1692806400"),
    "ip": (f"{_IPV4}|{_ipv6()}", b"10.0.0.7"),
    "ipv4": (_IPV4, b"10.0.0.7"),
    "sha256": ("[0-9a-f]{64}", b"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"),
    "uuid": (
        f"{_HEX}{{8}}-({_HEX}{{4}}-){{3}}{_HEX}{{12}}",
        b"550e8400-e29b-41d4-a716-446655440000",
    ),
}

NAMES = tuple(_CLASSES)


@cache
def builtin_class(name: str) -> ClassExpression | None:
    """The built-in class with this name, or None."""
    known = _CLASSES.get(name)
    if known is None:
        return None
    expression, example = known
    return ClassExpression(name, parse_class(expression).node, example)


@cache
def builtin_classes() -> Mapping[str, ClassExpression]:
    """All built-in classes by name. A policy can use them as placeholders without declaring them."""
    return {name: found for name in NAMES if (found := builtin_class(name)) is not None}


def class_named(text: str) -> ClassExpression:
    """The class with this built-in name, or else of this expression. Raises `PatternError`."""
    return builtin_class(text) or parse_class(text)
