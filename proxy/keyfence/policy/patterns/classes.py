"""The classes that a placeholder may have by name: dates that exist, times, hashes, addresses.

Rule: each is a regular language and exact: 29 February only in leap years, 255 the last part of an address.
Where `ipaddress`, `datetime` or `base64` know the same form, they agree (tests/policy/test_builtin_classes).

docs/policy.md names them; `values` has forms of the same names, which look into values and may be more than
regular.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from .expressions import ClassExpression, parse_class

_HEX = "[0-9a-fA-F]"
_DIGITS_64 = "[A-Za-z0-9+/]"

# YYYYMMDD of the proleptic Gregorian calendar, the years 0001 to 9999 as Python's `datetime` has them.
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
    """RFC 4291, section 2.2: eight groups, the last two perhaps as an IPv4 address; `::` once for one or more
    groups."""
    group = f"{_HEX}{{1,4}}"
    ways = [f"({group}:){{7}}{group}", f"({group}:){{6}}{_IPV4}"]
    for before in range(8):
        left = "" if not before else f"{group}(:{group}){{{before - 1}}}"
        after = 7 - before
        right = []
        if after >= 1:
            right.append(f"({group}:){{0,{after - 1}}}{group}")
        if after >= 2:
            right.append(f"({group}:){{0,{after - 2}}}{_IPV4}")
        ways.append(f"{left}::({'|'.join(right)})?" if right else f"{left}::")
    return "|".join(ways)


# name: (expression, an example that reads well)
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
    """The built-in class of this name; None where there is none."""
    known = _CLASSES.get(name)
    if known is None:
        return None
    expression, example = known
    return ClassExpression(name, parse_class(expression).node, example)


@cache
def builtin_classes() -> Mapping[str, ClassExpression]:
    """Every built-in class by its name: placeholders that no policy has to declare."""
    return {name: found for name in NAMES if (found := builtin_class(name)) is not None}


def class_named(text: str) -> ClassExpression:
    """What a placeholder may hold, by a built-in class' name or as an expression. Raises `PatternError`."""
    return builtin_class(text) or parse_class(text)
