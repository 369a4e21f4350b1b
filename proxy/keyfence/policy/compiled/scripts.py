"""Registrations of scripts and functions: the keys and channels that a call touches.

Rule: the keys of a script are those of its registration, filled in from KEYS and ARGV of the call. If a value
is missing, that is a violation, and the keys are all that can be made with any value.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, get_args

from keyfence.commands.arguments import glob_escape
from keyfence.commands.model import READ, WRITE, Access, Script, Streamed, Ttl
from keyfence.policy.patterns.patterns import KeyPattern
from keyfence.policy.show import printable
from keyfence.policy.source.model import UnregisteredScripts
from keyfence.policy.units import duration_text, milliseconds

from .hash_slots import hash_tag
from .tenants import Values

SHA1_DIGITS = 40
# 32 bits tell honest scripts apart, but not a script that was made to have the same first digits.
LEAST_DIGITS = 8

_TTL = re.compile(r"<ARGV\.(?P<number>[1-9][0-9]{0,3})>(?P<unit>ms|s)", re.ASCII)
_SHA1 = re.compile(rb"[0-9a-f]{40}")
_SENT_SHA1 = re.compile(rb"[0-9a-fA-F]{40}")
_FUNCTION = re.compile(rb"[A-Za-z0-9_]{1,128}")
_LOOKED_AT = 4_096  # bytes of a script, for its first line
_LONGEST_LINE = 120
_LAST_RUN = re.compile(rb"[^\s()\[\],;'\"]+\Z")  # the last word of a cut line may be incomplete
_SAYS = re.compile(rb"[^\W\d_]{2}")
_INTEGER = re.compile(rb"-?[0-9]{1,18}")
_TEMPLATE_PART = re.compile(
    r"<(?P<list>KEYS|ARGV)\.(?P<number>[1-9][0-9]{0,3})>|<(?P<name>[^<>]+)>|(?P<star>\*)"
)


PREFIX = "prefix"  # in a template: the prefix of the declared keys, of those that a registration lists


Word: TypeAlias = UnregisteredScripts


def strictest(words: Iterable[Word]) -> Word:
    """Returns the strictest of several words on scripts that are not registered."""
    return max(words, key=_STRICTNESS.index)


def most_lenient(words: Iterable[Word]) -> Word:
    """Returns the most lenient of several such words."""
    return min(words, key=_STRICTNESS.index)


_STRICTNESS: tuple[Word, ...] = get_args(Word)
RUNNING = frozenset({"declared", "report"})  # the words that let a script run


class Unregistered(NamedTuple):
    """What one file says about scripts that are not registered."""

    default: Word = "load_only"
    services: tuple[tuple[int, Word], ...] = ()  # the words of single services, by number

    def of(self, service: int, scope: Word | None = None) -> Word:
        """Returns the word for a service, on keys of a scope with a word of its own, if any. The words of the
        service and of the scope replace that of the file, and the stricter one counts."""
        own = next((word for number, word in self.services if number == service), None)
        given = [word for word in (own, scope) if word is not None]
        return strictest(given) if given else self.default


LOAD_ONLY = Unregistered()


class Uncaptured(ValueError):
    """A template names a placeholder that no pattern of the declared keys has."""


class Reference(NamedTuple):
    """`<KEYS.1>`, `<ARGV.2>`, or (with list "") a placeholder in the pattern of a declared key."""

    list: str
    number: int
    name: str

    def value(self, script: Script, captured: Mapping[str, bytes]) -> bytes | None:
        """Returns the value in one call; None if the call does not show it."""
        if not self.list:
            return captured.get(self.name)
        values = self._values(script)
        value = values[self.number - 1] if self.number <= len(values) else None
        return None if isinstance(value, Streamed) else value

    def lack(self, script: Script) -> str:
        """Returns what a call lacks that does not show the value."""
        if not self.list:
            return f"a <{self.name}> of the caller's own"
        if self.number > len(self._values(script)):
            return f"{self.list}[{self.number}]"
        return f"{self.list}[{self.number}] in full: it is too long to evaluate"

    def _values(self, script: Script) -> Sequence[bytes]:
        return script.keys if self.list == "KEYS" else script.args


class Name(NamedTuple):
    """A key or channel that a script touches. `is_pattern`: a glob, for the names that it may have."""

    text: bytes
    is_pattern: bool
    lack: str  # the first value that the call does not show; it is a `*` in the glob. "": none


_UNITS = {1: "ms", 1000: "s"}  # of an argument, by their milliseconds


class TtlOf(NamedTuple):
    """The time to live that a script leaves a key with."""

    number: int  # of the argument in ARGV that gives it; 0: `milliseconds` is the time
    milliseconds: int  # the constant time, or the unit of the argument

    @property
    def text(self) -> str:
        """The time as a policy writes it."""
        if not self.number:
            return duration_text(self.milliseconds)
        return f"<ARGV.{self.number}>{_UNITS[self.milliseconds]}"

    def of(self, script: Script) -> Ttl:
        """Returns the effect of one call on the time to live."""
        if not self.number:
            return Ttl("sets", self.milliseconds)
        given = self._argument.value(script, {})
        if given is None or not _INTEGER.fullmatch(given):
            return Ttl("sets")
        return Ttl("drops") if int(given) < 0 else Ttl("sets", int(given) * self.milliseconds)

    def lack(self, script: Script) -> str:
        """Returns the argument that a call lacks; "" if it shows the time."""
        is_shown = not self.number or self._argument.value(script, {}) is not None
        return "" if is_shown else self._argument.lack(script)

    @property
    def _argument(self) -> Reference:
        return Reference("ARGV", self.number, "")


def parse_ttl(text: str) -> TtlOf:
    """Parses `60s`, `<ARGV.1>s` or `<ARGV.1>ms`. Raises ValueError."""
    match = _TTL.fullmatch(text)
    if match is not None:
        return TtlOf(int(match["number"]), 1000 if match["unit"] == "s" else 1)
    try:
        return TtlOf(0, milliseconds(text))
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time to live; write a duration such as 60s, or <ARGV.n>s or <ARGV.n>ms"
        ) from None


class Template:
    """`<KEYS.1>:cfg:<ARGV.1>`: literal text, references, and `*` for parts that a call does not show."""

    def __init__(
        self,
        text: str,
        captured: frozenset[str],
        types: Sequence[str] = (),
        ttl: TtlOf | None = None,
        runs: frozenset[str] | None = None,
    ) -> None:
        """`captured` are the placeholders in the patterns of the declared keys. Raises ValueError.

        `types` and `ttl` are the type and time to live that the script gives the key, if its registration has
        them. `runs` are the commands that the script runs on the key.
        """
        self.runs = runs
        self.text = text
        self.types = tuple(types)
        self.ttl = ttl
        self.parts: list[bytes | Reference | None] = []  # None: `*`
        at = 0
        for match in _TEMPLATE_PART.finditer(text):
            self._literal(text[at : match.start()])
            at = match.end()
            if match["star"]:
                self.parts.append(None)
            elif match["list"]:
                self.parts.append(Reference(match["list"], int(match["number"]), ""))
            elif match["name"] in captured:
                self.parts.append(Reference("", 0, match["name"]))
            else:
                raise Uncaptured(
                    f"no call shows <{match['name']}>; write <KEYS.n>, <ARGV.n>, "
                    "or a placeholder of the patterns under keys"
                )
        self._literal(text[at:])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Template) and self._meaning == other._meaning

    def __hash__(self) -> int:
        return hash(self._meaning)

    @property
    def _meaning(self) -> tuple[object, ...]:
        return self.text, tuple(self.parts), self.types, self.ttl, self.runs

    def _literal(self, text: str) -> None:
        if "<" in text or ">" in text:
            raise ValueError("a < or > outside a placeholder; write <KEYS.n> or <ARGV.n>")
        if text:
            self.parts.append(text.encode())

    def fill(self, script: Script, captured: Mapping[str, bytes]) -> Name:
        """Returns the name in one call. A value that the call does not show may be any value."""
        lack = self.ttl.lack(script) if self.ttl is not None else ""
        filled: list[bytes | None] = []
        for part in self.parts:
            value = part.value(script, captured) if isinstance(part, Reference) else part
            if value is None and isinstance(part, Reference):
                lack = lack or part.lack(script)
            if value is not None or filled[-1:] != [None]:
                filled.append(value)
        if None not in filled:
            return Name(b"".join(part for part in filled if part is not None), False, lack)
        return Name(b"".join(b"*" if part is None else glob_escape(part) for part in filled), True, lack)

    def known_part(self, script: Script, captured: Mapping[str, bytes]) -> tuple[bytes, bool]:
        """Returns the name in one call, up to the first part that the call does not show, and whether that is
        the whole name."""
        known = b""
        for part in self.parts:
            value = part.value(script, captured) if isinstance(part, Reference) else part
            if value is None:
                return known, False
            known += value
        return known, True

    def access(self, key: bytes, script: Script, position: int, right: int) -> Access:
        """Returns the access to a key that this template gave."""
        ttl = self.ttl.of(script) if self.ttl is not None and right & WRITE else None
        return Access(position, key, right, types=self.types, ttl=ttl)


@dataclasses.dataclass(frozen=True, slots=True)
class Registration:
    """A script or function that the policy registers."""

    name: str
    keys: int | None  # None: any number
    patterns: tuple[KeyPattern, ...]  # of the declared keys; empty: any key
    declared: int  # READ | WRITE: how it uses its declared keys; 0: not at all
    reads: tuple[Template, ...]
    writes: tuple[Template, ...]
    publishes: tuple[Template, ...]
    shared: bool = False  # it may run on a connection that clients share
    bound: tuple[tuple[str, int], ...] = ()  # placeholders bound to the caller, with their numbers
    runs: frozenset[str] | None = None  # the commands that it runs on its keys; None: any
    # All declared keys begin with one of these, and <prefix> stands for it. Empty: keys may begin in any way.
    prefixes: tuple[bytes, ...] = ()

    @property
    def forms(self) -> str:
        """The forms of the declared keys, for people."""
        return ", ".join(
            [one.text for one in self.patterns] or [f"{printable(one)}…" for one in self.prefixes]
        )

    def with_prefixes(self, more: Sequence[bytes]) -> Registration:
        """Returns the same registration for keys with further prefixes."""
        if set(more) <= set(self.prefixes):
            return self
        return dataclasses.replace(self, prefixes=tuple(dict.fromkeys((*self.prefixes, *more))))

    def takes(self, keys: int) -> bool:
        """Whether a call may declare this number of keys."""
        return self.keys is None or keys == self.keys

    def captured(self, script: Script) -> dict[str, bytes] | None:
        """Returns the values of the placeholders in the declared keys; None if a key does not match its
        pattern, or a placeholder has two values, or the keys have no prefix in common that is listed."""
        captured: dict[str, bytes] = {}
        if self.prefixes:
            found = [one for one in self.prefixes if all(key.startswith(one) for key in script.keys)]
            if not found or not script.keys:
                return None
            captured[PREFIX] = max(found, key=len)
        for pattern, key in zip(self.patterns, script.keys, strict=False):
            values = pattern.capture(key)
            if values is None or any(
                captured.setdefault(name, value) != value for name, value in values.items()
            ):
                return None
        return captured

    def own(self, values: Values) -> dict[str, bytes]:
        """Returns the caller's values of placeholders bound to callers, for those that no declared key
        shows."""
        found = ((name, values[number]) for name, number in self.bound if number < len(values))
        return {name: value for name, value in found if value is not None}

    def made(self, script: Script, values: Values = ()) -> Iterator[Access]:
        """Yields the keys that a call's arguments make, as far as they show the hash slot."""
        captured = self.own(values) | (self.captured(script) or {})
        for template, right in self.touches:
            known, is_whole = template.known_part(script, captured)
            # Of a part of a key, its hash slot is known only if its hash tag is.
            if is_whole or hash_tag(known) != known:
                yield Access(script.position, known, right)

    @property
    def touches(self) -> Iterator[tuple[Template, int]]:
        """Yields the templates of keys beyond the declared ones, each with READ or WRITE."""
        yield from ((template, READ) for template in self.reads)
        yield from ((template, WRITE) for template in self.writes)


def sha1_of(script: Script) -> bytes:
    """Returns the SHA-1 of a script in lower case: computed from its text, or as the client sent it. Empty if
    only the beginning of the text is held."""
    if isinstance(script.name, Streamed):
        return b""
    if script.kind == "text":
        return hashlib.sha1(script.name, usedforsecurity=False).hexdigest().encode()
    return script.name.lower()


def registered_as(script: Script) -> tuple[str, str] | None:
    """Returns a policy's section, and the function's name or the script's SHA-1 for it. None if only the
    beginning of the text is held, or the client sent no valid SHA-1."""
    if isinstance(script.name, Streamed):
        return None
    if script.kind == "function":
        return "functions", script.name.decode("utf-8", "surrogateescape")
    sha1 = whole_sha1_of(script)
    return ("scripts", sha1) if sha1 else None


def is_sha1(name: str) -> bool:
    """Whether a script's name in reports is a SHA-1; otherwise it is a function's."""
    return name.isascii() and _SHA1.fullmatch(name.encode()) is not None


def whole_sha1_of(script: Script) -> str:
    """Returns the SHA-1 of a script; "" if it is not known or not valid."""
    sha1 = sha1_of(script)
    return sha1.decode() if _SHA1.fullmatch(sha1) else ""


def is_named(script: Script) -> bool:
    """Returns whether a client named a script in a way in which servers name them: by a SHA-1, or a function
    by letters, digits and underscores. Any other text in this place may be a value."""
    if isinstance(script.name, Streamed):
        return False
    form = _FUNCTION if script.kind == "function" else _SENT_SHA1
    return script.kind == "text" or form.fullmatch(script.name) is not None


def how_to_register(script: Script, function: str, sha1: str, *, is_run: bool = True) -> str:
    """Returns how to register a script, or this function, in the policy. A script that is only loaded does
    not show its number of keys."""
    keys = len(script.keys) if is_run else "…"
    if script.kind == "function":
        name = function or "NAME"
        return f"register it under functions: {{{name}: {{keys: {keys}}}}}"
    if isinstance(script.name, Streamed):
        return "register it under scripts by its SHA-1, and run it by EVALSHA: the text is too long to hash"
    if not sha1:
        return "register it under scripts by its SHA-1"
    return f"register it under scripts: {{NAME: {{sha1: {sha1}, keys: {keys}}}}}"


def first_line(text: bytes) -> bytes:
    """Returns the line by which people recognise a script: the first one with a word, except a shebang."""
    for line in text[:_LOOKED_AT].splitlines():
        if _SAYS.search(line) and not line.startswith(b"#!"):
            line = line.strip()
            return line if len(line) <= _LONGEST_LINE else _LAST_RUN.sub(b"", line[:_LONGEST_LINE])
    return b""


def script_of(scripts: Mapping[bytes, Registration], sha1: bytes) -> Registration | None:
    """Returns the registration of a script by its SHA-1; the policy may have only the first digits of it."""
    if len(sha1) != SHA1_DIGITS:
        return None
    known = (scripts.get(sha1[:digits]) for digits in range(SHA1_DIGITS, LEAST_DIGITS - 1, -1))
    return next((one for one in known if one is not None), None)
