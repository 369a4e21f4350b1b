"""The state of compiling one policy file: what is read so far, and every fault found.

Rule: a fault is recorded with its place and compilation goes on, so that all faults of a file are reported at
once.
"""

from __future__ import annotations

import dataclasses
import re
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from keyfence.commands.model import DELETE, GROUP, READ, WRITE
from keyfence.policy.compiled.policy import Entry, Target
from keyfence.policy.compiled.tenants import Binding, Tenancy
from keyfence.policy.diagnostics import Diagnostic, FileError, did_you_mean, follows
from keyfence.policy.patterns.classes import builtin_classes, class_named
from keyfence.policy.patterns.patterns import (
    ANYTHING,
    ClassExpression,
    KeyPattern,
    PatternError,
    parse_pattern,
)
from keyfence.policy.patterns.value_forms import Form, parse_form
from keyfence.policy.source.model import (
    EntryModel,
    HashTag,
    PolicyModel,
    Rights,
    ScopeModel,
    UnregisteredScripts,
)
from keyfence.policy.source.yaml import PathKey, Source

from .prefixes import PrefixIndex, parse_prefix

MAX_FAULTS = 1_000  # of a file; each takes a search for similar names
SCOPE_HOLE = "scope"  # <scope> in an entry's key expands over the policy's scopes


Values = tuple[tuple[str, bytes], ...]  # (placeholder, value)
# The rights of the services that a field names.
READING = {"readers": READ, "consumers": READ | GROUP}
HELD = {"writers": READ | WRITE | DELETE | GROUP, **READING}
DENIED = {"deny_write": WRITE | DELETE | GROUP, "deny_read": READ}


@lru_cache(maxsize=10_000)
def one_of(names: frozenset[str]) -> frozenset[str]:
    """Returns one object for all equal sets. Targets have few different ones, and who unpacks the policy need
    not make the same set thousands of times."""
    return names


@dataclasses.dataclass(slots=True)
class Scope:
    """A scope with its rights by service number. A prefix with bound placeholders makes a scope for each
    value."""

    name: str
    prefix: str  # as in the policy, with bound values filled in
    pattern: KeyPattern  # of all keys with this prefix
    rights: tuple[int, ...]
    reading: tuple[int, ...]  # the part of them that comes from `readers` and `consumers`
    denied: tuple[int, ...]
    bound: tuple[tuple[str, bytes], ...] = ()  # the values of bound placeholders in the prefix
    tenancy: Tenancy | None = None
    written_by: frozenset[str] = frozenset()
    hash_tag: HashTag = "any"
    should: frozenset[str] = frozenset()
    asked: Entry | None = None  # requirements on keys whose entry does not set its own
    unregistered_scripts: UnregisteredScripts | None = None  # what unregistered scripts may do with its keys


class CompilerContext:
    """One policy file, the services and placeholders that it may name, and its faults."""

    def __init__(self, model: PolicyModel, source: Source, services: tuple[str, ...], home: int = 0) -> None:
        self.model = model
        self.home = home  # the number of the file
        self.source = source
        self.siblings: Sequence[CompilerContext] = ()  # all files of the policy
        self.services = services  # by number
        self._numbers = {name: number for number, name in enumerate(services)}
        self.faults: list[Diagnostic] = []
        self.declared: dict[str, ClassExpression] = {}  # the file's own placeholders, the bound ones too
        self.classes = ChainMap(self.declared, dict(builtin_classes()))
        self.secrets: dict[str, int] = {}  # by placeholder: the shortest value, in bytes, that is masked
        self.texts: list[bytes] = []  # of scripts that have their own files
        self.bound: dict[str, dict[str, set[int]]] = {}  # bound placeholder: {value: its services}
        self.write_only: set[str] = set()  # bound placeholders, of both kinds, that bind writing only
        self.callers: dict[str, int] = {}  # placeholders bound to the caller, with their numbers
        self.bindings: list[Binding] = []  # the same, in the order of their numbers,
        self.first_binding = 0  # and the first of these numbers
        self.claims = frozenset(model.claims)
        self.scopes: list[Scope] = []
        self.by_prefix: dict[str, Scope] = {}  # the scopes with a literal prefix
        self.families: PrefixIndex[Scope] = PrefixIndex()  # the others
        self.restricting: PrefixIndex[Scope] = PrefixIndex()  # those that deny, or restrict commands
        # By entry: the values of bound placeholders and of <scope>, and the index among the entries.
        self.members: dict[str, list[tuple[Values, int]]] = {}
        self.standards: dict[tuple[str, Values], Any] = {}  # found by `families`
        self.homes: list[Scope | None] = []  # of the entries, in their order
        self.entries: list[Target] = []
        self.legacy: list[Target] = []
        self.strays: list[Target] = []
        self.type_words: dict[bytes, tuple[str, ...]] = {}
        self._placeholders()

    def error(
        self,
        path: Sequence[str | int],
        message: str,
        *,
        of_key: bool = False,
        relies_on: Sequence[PathKey] = (),
    ) -> None:
        """Records a fault. Raises FileError with all faults if there are MAX_FAULTS.

        `relies_on` are the parts of the file that could have prevented it. If one of these is faulty itself,
        the fault may only follow from that, and is not recorded.
        """
        found = self.source.error(path, message, of_key=of_key, relies_on=relies_on)
        if any(follows(found, fault.path) for fault in self.faults):
            return
        self.faults.append(found)
        if len(self.faults) >= MAX_FAULTS:
            raise FileError(self.faults)

    def numbers(self, names: Iterable[str], path: tuple[str | int, ...]) -> set[int]:
        """Returns the numbers of services; a name that is not a service is a fault."""
        found = (self.number(name, (*path, index)) for index, name in enumerate(names))
        return {number for number in found if number is not None}

    def number(self, name: str, path: tuple[str | int, ...], *, of_key: bool = False) -> int | None:
        """Returns the number of a service, or None after recording a fault."""
        number = self._numbers.get(name)
        if number is not None:
            return number
        known = did_you_mean(name, self.services)
        self.error(path, f"{name!r} is not listed under services{known}", of_key=of_key)
        return None

    def rights(self, rights: Rights, path: tuple[str | int, ...]) -> tuple[list[int], list[int]]:
        """Returns the rights that each service holds, and those that it is denied, by its number."""
        return self.given(rights, HELD, path), self.given(rights, DENIED, path)

    def reading(self, rights: Rights) -> list[int]:
        """Returns the rights of each service as a reader or consumer, by its number."""
        held = [0] * len(self.services)
        for field, bits in READING.items():
            for name in getattr(rights, field):
                if name in self._numbers:  # otherwise `rights` has recorded a fault
                    held[self._numbers[name]] |= bits
        return held

    def given(self, model: Any, fields: Mapping[str, int], path: tuple[str | int, ...]) -> list[int]:
        """Returns the rights of each service, by its number: those of each field that names it."""
        held = [0] * len(self.services)
        for field, bits in fields.items():
            for number in self.numbers(getattr(model, field), (*path, field)):
                held[number] |= bits
        return held

    def asked(
        self, own: EntryModel | ScopeModel | None = None, home: Scope | None = None
    ) -> tuple[HashTag, frozenset[str]]:
        """Returns the hash tag that a key needs, and the rules that never refuse it. The hash tag is that of
        its entry, or else of its scope, or else of the naming rules."""
        names = self.model.names
        should = one_of(frozenset(own.should if own is not None else ()))
        if home is not None:
            should = one_of(should | home.should)
        if own is not None and own.hash_tag is not None:
            return own.hash_tag, should
        if home is not None:
            return home.hash_tag, should
        if names.hash_tag is None and names.should.hash_tag is not None:
            return names.should.hash_tag, one_of(should | {"key.hash_tag"})
        return names.hash_tag or "any", should

    def secrets_in(self, pattern: KeyPattern) -> frozenset[str]:
        """Returns the secret placeholders of a pattern."""
        return one_of(frozenset(self.secrets.keys() & {hole.name for hole in pattern.holes}))

    def pattern(self, text: str, path: tuple[str | int, ...]) -> KeyPattern | None:
        """Returns the pattern, or None after recording a fault."""
        try:
            return parse_pattern(text, self.classes)
        except PatternError as exc:
            known = self.undeclared(exc.name) if exc.name and exc.name not in self.classes else ""
            self.error(path, f"{text!r}: {exc}{known}", of_key=path[0] in ("legacy", "instead"))
            return None

    def undeclared(self, name: str) -> str:
        """Returns the remedy for an undeclared placeholder: the file that declares it, or a similar name."""
        return self._declared_elsewhere(name) or did_you_mean(name, self.classes)

    def _declared_elsewhere(self, name: str) -> str:
        """Returns which other file declares a placeholder that this one does not; "" if none does."""
        for other in self.siblings if name not in self.classes else ():
            declared = next((names for names in other.model.placeholders if name in names.split("|")), None)
            path = ("placeholders", declared) if declared is not None else ("bind", name)
            if other is not self and (declared is not None or name in other.model.bind):
                place = other.source.place(path, of_key=True)
                where = f"{place.file}:{place.line}"
                return f"; {where} declares it, but only for itself: declare it in this file too"
        return ""

    def placeholder_in(self, text: str) -> str:
        """Returns a placeholder in a text that is not a pattern; "" if there is none."""
        found = (name for name in re.findall("<([^<>]+)>", text) if name.removesuffix("...") in self.classes)
        return next((f"<{name}>" for name in found), "")

    def prefix(self, text: str, path: tuple[str, ...]) -> KeyPattern | None:
        """Returns the pattern of all keys with a scope's prefix, or None after recording a fault."""
        try:
            return parse_prefix(text, self.classes, self.secrets)
        except PatternError as exc:
            remedy = ""
            if exc.name and exc.name not in self.classes:
                remedy = "; declare it under placeholders, or its values under bind"
                remedy += self.undeclared(exc.name)
            self.error(path, f"{text!r}: {exc}{remedy}")
            return None

    def form(self, spec: str | list[str], path: tuple[str, ...], *, of_key: bool = False) -> Form | None:
        """Returns the form of a value, or None after recording a fault."""
        try:
            return parse_form(spec, self.classes)
        except ValueError as exc:
            name = spec[1:-1] if isinstance(spec, str) and spec.startswith("<") and spec.endswith(">") else ""
            elsewhere = self._declared_elsewhere(name)
            self.error(
                path, f"<{name}> is not declared here{elsewhere}" if elsewhere else str(exc), of_key=of_key
            )
            return None

    def _placeholders(self) -> None:
        for names, model in self.model.placeholders.items():
            path = ("placeholders", names)
            try:
                expression = class_named(model.is_)
            except PatternError as exc:
                self.error(path, f"{model.is_!r}: {exc}")
                expression = ANYTHING  # the file is not used, but its keys are still checked
            for name in names.split("|"):
                if not name.replace("_", "").replace("-", "").isalnum():
                    self.error(
                        path, f"{name!r} is not a placeholder name; use letters, digits, _ and -", of_key=True
                    )
                elif name in self.declared:
                    self.error(path, f"the placeholder {name} is declared twice", of_key=True)
                elif name == SCOPE_HOLE:
                    self.error(
                        path, "<scope> stands for the policy's scopes; choose another name", of_key=True
                    )
                else:
                    self.declared[name] = expression
                    if model.secret:
                        self.secrets[name] = model.secret_from
