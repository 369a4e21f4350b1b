"""Names of the policy as identifiers of other languages: `sandbox-route` is `sandbox_route`, `SandboxRoute`.

Rule: an identifier has ASCII letters, digits and _ only, is no word of the language, and is unique in its
module.
"""

from __future__ import annotations

import re

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def words(name: str) -> list[str]:
    """Returns the words in a name: `sandboxID` has sandbox and ID. At least one, beginning with a letter."""
    found = _WORDS.findall(name)
    return found if found and found[0][0].isalpha() else ["key", *found]


def snake(name: str) -> str:
    """Returns a name as `sandbox_id`."""
    return "_".join(words(name)).lower()


def screaming(name: str) -> str:
    """Returns a name as `SANDBOX_ID`."""
    return snake(name).upper()


def pascal(name: str) -> str:
    """Returns a name as `SandboxId`."""
    return "".join(word.capitalize() for word in words(name))


def camel(name: str) -> str:
    """Returns a name as `sandboxId`."""
    text = pascal(name)
    return text[0].lower() + text[1:]


def go_pascal(name: str) -> str:
    """Returns a name as `SandboxID`, as Go writes initialisms."""
    return "".join(
        word.upper() if word.lower() in _INITIALISMS else word.capitalize() for word in words(name)
    )


def go_camel(name: str) -> str:
    """Returns a name as `sandboxID`."""
    first, *_ = words(name)
    return first.lower() + go_pascal(name)[len(first) :]


_INITIALISMS = frozenset({"api", "db", "http", "id", "ip", "json", "jwt", "ttl", "url", "uuid"})


class Taken:
    """The identifiers that a module has used."""

    def __init__(self, reserved: frozenset[str]) -> None:
        self._taken = set(reserved)

    def take(self, wanted: str) -> str:
        """Returns the identifier, with a number after it if there is one of this name already."""
        name, number = wanted, 2
        while name in self._taken:
            name, number = f"{wanted}_{number}", number + 1
        self._taken.add(name)
        return name
