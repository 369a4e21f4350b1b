"""A compiled policy: the values that `compile` makes and that `decide` runs on.

Rule: immutable once made, and free of the file it came from; a reload makes a new one.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from keyfence.commands.arguments import function_name
from keyfence.commands.model import Script, Streamed
from keyfence.policy.patterns.automaton import Classifier
from keyfence.policy.patterns.globs import Glob
from keyfence.policy.patterns.patterns import KeyPattern
from keyfence.policy.patterns.value_forms import Form, NumberRange
from keyfence.policy.source.model import HashTag, Length, UnregisteredScripts
from keyfence.shapes.secrecy import Secrecy

from .key_commands import KeyCommands
from .names import Names
from .scripts import Registration, script_of, sha1_of
from .tenants import Binding, Caller, Tenancy, Values, owners_values, value_in, values_of
from .ttl import TtlRule

TOP = "the policy's top"  # stands for a scope's name where rights are said for all entries in none
# Counting the lengths within a key takes up to 1.5 µs a byte, so a key of more bytes than this counts as one
# whose lengths are wrong.
MAX_CONFIRMED = 8192
_GLOB_SIGNS = frozenset(b"*?[\\")


class Fields(NamedTuple):
    """The fields that a hash or stream may hold: by name, then by the first pattern that matches."""

    named: dict[bytes, Form]
    patterned: tuple[tuple[Form, Form], ...]  # (form of the name, form of the value)
    text: str
    hides_names: bool  # a secret placeholder stands for some of them
    folded: dict[bytes, bytes]  # those with a name, by that in lower case
    exact: bool = False  # one that differs from a listed one in case is none, and must not be written

    def form_of(self, name: bytes) -> Form | None:
        """The form that the field's value must have; None for a field that isn't listed."""
        form = self.named.get(name)
        if form is not None:
            return form
        if self.exact and name.lower() in self.folded:
            return None
        return next((value for of_name, value in self.patterned if of_name.accepts(name)), None)

    def meant(self, name: bytes) -> bytes | None:
        """The listed field from which one that isn't differs only in case; None where there is none."""
        listed = self.folded.get(name.lower())
        if listed is not None or self.hides_names:
            return listed
        spelled = (other for other in (name.lower(), name.upper()) if other != name)
        return next((one for one in spelled if any(form.accepts(one) for form, _ in self.patterned)), None)


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A row of the catalogue, ready to be held against an access. Families share one name."""

    name: str
    text: str  # the pattern as written, expanded
    types: tuple[str, ...]
    ttl: TtlRule | None
    fields: Fields | None
    field_case: str  # "exact": see Fields.exact; "": nothing is said
    values: Form | None  # of a string
    members: Form | None  # of the elements of a set, list or sorted set
    scores: NumberRange | None
    maxlen: int | None
    maxlen_exact: bool  # the policy admits no approximate trimming
    max_length: Length | None
    commands: KeyCommands | None  # which ones may be used on its keys
    is_plain: bool  # nothing but rights and the key's form is asked of it
    looks_into_values: bool  # something is asked of what a command writes into it
    max_value: int | None = None  # bytes, of a string, a field's value or an element
    max_fields: int | None = None
    max_members: int | None = None

    @property
    def is_sized(self) -> bool:
        """Whether there is a limit on how large its keys may get."""
        return not (self.max_value is None and self.max_fields is None and self.max_members is None)


TargetKind = Literal[
    "entry", "legacy", "stray", "malformed", "scope", "claim", "channel", "keyspace", "keyevent"
]


@dataclasses.dataclass(frozen=True, slots=True)
class Home:
    """The policy file that a target comes from: who answers for its keys, and what holds for all of them."""

    policy: str
    file: str
    contact: str
    claims: tuple[str, ...]  # none: it speaks for what no other file claims
    should: frozenset[str]
    cluster: bool
    names: Names = dataclasses.field(default_factory=Names)
    type_words: dict[bytes, tuple[str, ...]] = dataclasses.field(default_factory=dict)  # segment: types


def types_in(key: bytes, words: Mapping[bytes, tuple[str, ...]]) -> tuple[str, ...]:
    """The types that a word among the key's segments stands for: `chat:messages:list:id:1` says list."""
    for segment in key.split(b":"):
        if segment in words:
            return words[segment]
    return ()


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """What a key turns out to be. The first target whose pattern matches decides."""

    kind: TargetKind
    name: str  # of the entry, legacy key or scope
    pattern: KeyPattern
    rights: tuple[int, ...]  # READ | WRITE | DELETE | GROUP by service number; the last is `unknown`
    denied: tuple[int, ...]  # what is taken away whatever else says, by service number
    entry: Entry | None  # of an entry or scope; of the entry that a malformed or legacy key belongs to
    text: str  # the pattern for people
    secrets: frozenset[str]  # placeholders whose content is masked
    standard: KeyPattern | None = None  # of a legacy or malformed key: the form to use instead
    # By service number, where `standard` or `successor` is a family: the caller's own member of it.
    own_forms: tuple[KeyPattern | None, ...] = ()
    unclear: frozenset[int] = frozenset()  # of a legacy form: services that have several such members
    is_open: bool = False  # of a scope: it admits keys that no entry covers
    successor: KeyPattern | None = None  # of an entry that another one replaces: the form to come to
    denied_before: tuple[int, ...] = ()  # of such an entry: `denied` without what its replacement takes
    bound: tuple[tuple[str, bytes], ...] = ()  # the values of bound placeholders: (placeholder, value)
    alike: tuple[tuple[str, bytes], ...] = ()  # those of them that all keys of one command share
    tenancy: Tenancy | None = None  # what of the rights depends on the caller
    written_by: frozenset[str] = frozenset()  # where not empty, only these scripts and functions write here
    should: frozenset[str] = frozenset()  # rules whose breach is told here, and never refused
    hash_tag: HashTag = "any"
    # Lower case is asked of its own text alone, and not of what its placeholders hold: an entry of which the
    # text is in lower case.
    is_lower: bool = False
    names_sure: bool = False  # every key that matches keeps all naming rules
    ends: float | None = None  # of a legacy form that is refused then: Unix seconds
    has_lapsed: bool = False
    home: int = 0  # the number of its file
    rights_of: str = ""  # of an entry without rights of its own: the scope whose rights it has

    def is_written_by(self, script: str) -> bool:
        """Whether this script may write here; "" is a plain command."""
        return not self.written_by or script in self.written_by

    def held(self, service: int, key: bytes, values: Values) -> int:
        """The rights of a service, denials aside, on a key of this target that a caller with these values
        sends."""
        tenancy = self.tenancy
        if tenancy is None:
            return self.rights[service]
        return tenancy.held(service, self.rights, tenancy.own_places(key, self.pattern, values))

    def own_form(self, service: int) -> KeyPattern | None:
        """The form that this service is to use in place of this one; None where it is the same for all, or no
        single one is its own."""
        return self.own_forms[service] if self.own_forms else None

    def is_others(self, service: int) -> bool:
        """Whether this is one member of a family, with values that belong to other services."""
        return bool(self.bound) and not self.rights[service]

    def names_with(self, right: int, services: Sequence[str]) -> list[str]:
        """The services that hold `right` here."""
        return [
            name
            for name, held, gone in zip(services, self.rights, self.denied, strict=False)
            if held & right & ~gone
        ]


@dataclasses.dataclass(frozen=True, slots=True)
class Grant:
    """What one service may do beyond the default."""

    selectors: frozenset[str]  # upper-case command names, @categories
    globs: tuple[Glob, ...]
    legacy: bool
    texts: tuple[bytes, ...] = ()
    ends: float | None = None  # Unix seconds; nothing is granted any more then
    home: int = 0  # the number of its file, which can grant nothing on keys of another
    channels: tuple[bytes, ...] = ()  # globs

    def includes(self, target: Target) -> bool:
        """Whether the grant covers every key of a target, as far as its globs' beginnings show."""
        if target.home != self.home:
            return False
        if self.legacy and target.kind == "legacy":
            return True
        beginning = target.pattern.literal_prefix
        return any(
            glob.endswith(b"*") and not _GLOB_SIGNS & set(glob[:-1]) and beginning.startswith(glob[:-1])
            for glob in self.texts
        )

    def covers(self, key: bytes, target: Target | None) -> bool:
        """Whether the grant covers a key, of which `target` is what the policy makes of it."""
        if target is not None and target.home != self.home:
            return False
        if self.legacy and target is not None and target.kind == "legacy":
            return True
        return b"*" in self.texts or any(glob.matches(key) for glob in self.globs)

    def covers_channel(self, name: bytes) -> bool:
        """Whether the grant covers a channel."""
        return any(text == b"*" or Glob(text).matches(name) for text in self.channels)

    def covers_channels(self, pattern: bytes) -> bool:
        """Whether it covers all channels that a pattern can match: it has that pattern itself, or one whose
        beginning shows it."""
        beginning = beginning_of(pattern)
        return pattern in self.channels or any(
            beginning_of(text) == text[:-1] and text.endswith(b"*") and beginning.startswith(text[:-1])
            for text in self.channels
        )


def beginning_of(glob: bytes) -> bytes:
    """What of a glob stands before its first sign."""
    return next((glob[:at] for at, byte in enumerate(glob) if byte in _GLOB_SIGNS), glob)


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledPolicy:
    """A policy, ready to decide. Immutable: a reload makes a new one."""

    name: str
    revision: str  # the beginning of a SHA-256 over all files
    contact: str
    services: tuple[str, ...]  # a service's number is its index; `unknown` is the last
    targets: tuple[Target, ...]
    classifier: Classifier
    claims: tuple[str, ...]
    should: frozenset[str]
    databases: frozenset[int] | None
    forbid: frozenset[str]
    allow: frozenset[str]
    grants: dict[int, tuple[Grant, ...]]
    channels: tuple[Target, ...]  # rights: READ is to subscribe, WRITE to publish
    channel_classifier: Classifier
    scripts: dict[bytes, Registration]  # by SHA-1 in lower case, or by its first digits
    functions: dict[bytes, Registration]  # by `words.function_name`
    unregistered_scripts: UnregisteredScripts
    cluster: bool
    homes: tuple[Home, ...]
    common: Home  # of keys that are no file's
    # What the forms with secrets begin with: a name of no form that begins so may hold one.
    secret_beginnings: tuple[bytes, ...] = ()
    secrecy: Secrecy | None = None  # None: it has no secrets
    bindings: tuple[Binding, ...] = ()  # placeholders that are bound to the caller
    exceptions: tuple[tuple[str, datetime.date], ...] = ()  # (legacy or grants, end date)
    name_services: bool = True  # whether hints may name other services

    def next_lapse(self) -> float | None:
        """When the first of what `on_expiry: refuse` speaks of ends, in Unix seconds; None where nothing
        does."""
        ends = [one.ends for one in self.targets]
        ends += [one.ends for grants in self.grants.values() for one in grants]
        return min((end for end in ends if end is not None), default=None)

    def without_lapsed(self, now: float) -> CompiledPolicy:
        """The policy at a time, in Unix seconds: without the rights on legacy forms and the grants that have
        ended and are refused then."""
        first = self.next_lapse()
        if first is None or now < first:
            return self
        nothing = (0,) * len(self.services)
        targets = tuple(
            dataclasses.replace(one, rights=nothing, tenancy=None, ends=None, has_lapsed=True)
            if one.ends is not None and one.ends <= now
            else one
            for one in self.targets
        )
        grants = {
            service: tuple(one for one in held if one.ends is None or now < one.ends)
            for service, held in self.grants.items()
        }
        return dataclasses.replace(self, targets=targets, grants=grants)

    def home(self, target: Target | None) -> Home:
        """Whose file a key is in, by what the policy makes of it."""
        if target is None or target.kind in ("keyspace", "keyevent"):
            return self.common
        return self.homes[target.home]

    def names(self, target: Target | None) -> Names:
        """The naming rules for the keys of a target."""
        names = self.home(target).names
        return names.of_forms if target is not None and target.is_lower else names

    def number(self, service: str) -> int:
        """The number of a service; that of `unknown` for a name that the policy doesn't have."""
        try:
            return self.services.index(service)
        except ValueError:
            return len(self.services) - 1

    def values(self, caller: Caller) -> Values:
        """The caller's values of the placeholders that are bound to it."""
        return values_of(self.bindings, caller) if self.bindings else ()

    def own_values(self, service: int, target: Target, values: Values) -> dict[str, bytes]:
        """What a hint for a caller with these values fills into the placeholders that its file binds to
        callers: `<name>` for a value that the caller lacks, or that no text shows."""
        own = {}
        for number, one in enumerate(self.bindings):
            if one.home == target.home and service not in one.across:
                value = None if one.is_secret else value_in(values, number)
                own[one.name] = f"<{one.name}>".encode() if value is None else value
        return own

    def tells_callers_apart(self, target: Target) -> bool:
        """Whether what is found of a target's keys depends on the caller, or the form to use instead does."""
        if target.tenancy is not None:
            return True
        names = {one.name for one in self.bindings if one.home == target.home}
        standard = target.standard if target.kind in ("legacy", "stray") else None
        forms = (standard, target.successor)
        return any(hole.name in names for form in forms if form is not None for hole in form.holes)

    def owners_values(self, keys: Iterable[bytes]) -> Values:
        """The values of whoever has these keys for its own."""
        if not self.bindings:
            return ()
        found = ((key, self.target(key)) for key in keys)
        known = ((key, one.pattern, one.tenancy) for key, one in found if one is not None)
        return owners_values(len(self.bindings), known)

    def target(self, key: bytes) -> Target | None:
        """What `key` is; None where no target covers it."""
        if len(key) > MAX_CONFIRMED or isinstance(key, Streamed):
            return self._unconfirmed(key)
        index = self.classifier.first(key)
        return self.targets[index] if index >= 0 else None

    def registration(self, script: Script) -> Registration | None:
        """What the policy says of a script; None for one that isn't registered."""
        if isinstance(script.name, Streamed):
            return None
        if script.kind == "function":
            return self.functions.get(function_name(script.name))
        if not self.scripts:
            return None
        return script_of(self.scripts, sha1_of(script))

    def shares(self, script: Script) -> bool:
        """Whether the policy says that a connection that clients share may carry this script."""
        registration = self.registration(script)
        return registration is not None and registration.shared

    def _unconfirmed(self, key: bytes) -> Target | None:
        """The first target that takes the key without its lengths being counted; None where the key isn't at
        hand as a whole."""
        if isinstance(key, Streamed):
            return None
        accept = self.classifier.automaton.match(key)
        members = self.classifier.automaton.sets[accept] if accept >= 0 else ()
        found = (self.targets[index] for index in members)
        return next((target for target in found if not target.pattern.needs_verification), None)
