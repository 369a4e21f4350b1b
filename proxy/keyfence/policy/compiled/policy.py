"""The compiled policy: the values that the compiler makes and that the evaluator runs on.

Rule: a compiled policy is immutable and independent of the files that it came from. A reload makes a new one.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from keyfence.commands.arguments import function_name
from keyfence.commands.model import Script, Streamed
from keyfence.policy.patterns.automaton import Classifier
from keyfence.policy.patterns.globs import Glob
from keyfence.policy.patterns.patterns import KeyPattern
from keyfence.policy.patterns.value_forms import Form, NumberRange
from keyfence.policy.show import anchor
from keyfence.policy.source.model import HashTag, Length
from keyfence.shapes.secrecy import Secrecy

from .key_commands import KeyCommands
from .names import Names
from .permissions import selects_name
from .scripts import (
    LOAD_ONLY,
    RUNNING,
    Registration,
    Unregistered,
    Word,
    is_sha1,
    script_of,
    sha1_of,
    strictest,
)
from .tenants import Binding, Caller, Tenancy, Values, owners_values, value_in, values_of
from .ttl import TtlRule

TOP = "the policy's top"  # in place of a scope's name, for rights of entries that are in no scope
# Counting the lengths in a key takes up to 1.5 µs a byte, so the lengths in a key with more bytes than this
# count as wrong.
MAX_CONFIRMED = 8192
_GLOB_SIGN = re.compile(rb"[*?\[\\]")


class Fields(NamedTuple):
    """The fields that a hash or stream may have: by name, or else by the first pattern that matches."""

    named: dict[bytes, Form]
    patterned: tuple[tuple[Form, Form], ...]  # (form of the name, form of the value)
    text: str
    hides_names: bool  # some of them match a secret placeholder
    folded: dict[bytes, bytes]  # the named ones, by the name in lower case
    exact: bool = (
        False  # True: a field that differs from a listed one only in case is not listed, and never allowed
    )

    def form_of(self, name: bytes) -> Form | None:
        """Returns the form of the field's value; None for a field that is not listed."""
        form = self.named.get(name)
        if form is not None:
            return form
        if self.exact and name.lower() in self.folded:
            return None
        return next((value for of_name, value in self.patterned if of_name.accepts(name)), None)

    def meant(self, name: bytes) -> bytes | None:
        """Returns the listed field that differs from `name` only in case; None if there is none."""
        listed = self.folded.get(name.lower())
        if listed is not None or self.hides_names:
            return listed
        spelled = (other for other in (name.lower(), name.upper()) if other != name)
        return next((one for one in spelled if any(form.accepts(one) for form, _ in self.patterned)), None)


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """An entry, ready to be checked against an access. The members of a family share its name."""

    name: str
    text: str  # the pattern as written, expanded
    types: tuple[str, ...]
    ttl: TtlRule | None
    fields: Fields | None
    field_case: str  # "exact": see Fields.exact; "": not set
    values: Form | None  # of a string
    members: Form | None  # of the elements of a set, list or sorted set
    scores: NumberRange | None
    maxlen: int | None
    maxlen_exact: bool  # the policy does not allow approximate trimming
    max_length: Length | None
    commands: KeyCommands | None  # restrictions on commands
    is_plain: bool  # it has no requirements except rights and the key's form
    max_value: int | None = None  # bytes, of a string, a field's value or an element
    max_fields: int | None = None
    max_members: int | None = None
    about: str = dataclasses.field(default="", compare=False)  # for people
    written: str = dataclasses.field(default="", compare=False)  # the pattern as written, not expanded
    number: int = dataclasses.field(default=0, compare=False)  # its place in the file
    # Its requirements on what a command writes (`requirements.ON_CONTENT`).
    on_content: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    @property
    def is_sized(self) -> bool:
        """Whether it limits the size of its keys."""
        return not (self.max_value is None and self.max_fields is None and self.max_members is None)


TargetKind = Literal[
    "entry", "legacy", "stray", "malformed", "scope", "claim", "channel", "keyspace", "keyevent"
]


@dataclasses.dataclass(frozen=True, slots=True)
class Home:
    """The policy file that a target comes from: the owner of its keys, and what applies to all of them."""

    policy: str
    file: str
    contact: str
    claims: tuple[str, ...]  # none: it owns the keys that no other file claims
    should: frozenset[str]
    cluster: bool
    names: Names = dataclasses.field(default_factory=Names)
    type_words: dict[bytes, tuple[str, ...]] = dataclasses.field(default_factory=dict)  # segment: types
    owner: str = ""  # the team
    docs: str = ""  # the address of the page that describes the convention
    delegates: tuple[str, ...] = ()  # the claims inside its own that other files may have
    unregistered_scripts: Unregistered = LOAD_ONLY  # what scripts that are not registered may do

    def page_of(self, entry: str) -> str:
        """Returns the address of an entry's part of that page, of the page itself for "", or "" for none."""
        if not self.docs or not entry:
            return self.docs
        return f"{self.docs.partition('#')[0]}#{anchor(entry)}"


def types_in(key: bytes, words: Mapping[bytes, tuple[str, ...]]) -> tuple[str, ...]:
    """Returns the types that the first type word among a key's segments stands for: for `chat:list:1`,
    list."""
    for segment in key.split(b":"):
        if segment in words:
            return words[segment]
    return ()


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """One kind of key. A key belongs to the first target whose pattern matches it."""

    kind: TargetKind
    name: str  # of the entry, legacy key or scope
    pattern: KeyPattern
    rights: tuple[int, ...]  # READ | WRITE | DELETE | GROUP by service number; the last is `unknown`
    denied: tuple[int, ...]  # by service number: rights that nothing else can give
    entry: Entry | None  # its requirements; for a malformed or legacy key, those of its entry
    text: str  # the pattern as people write it
    secrets: frozenset[str]  # placeholders whose values are masked
    standard: KeyPattern | None = None  # for a legacy or malformed key: the form to use instead
    # By service number, if `standard` or `successor` is a family: the caller's own member of it.
    own_forms: tuple[KeyPattern | None, ...] = ()
    unclear: frozenset[int] = frozenset()  # for a legacy form: services that have several such members
    is_open: bool = False  # for a scope: it allows keys that no entry covers
    # What scripts that are not registered may do with its keys; None: its scope does not say.
    unregistered_scripts: Word | None = None
    successor: KeyPattern | None = None  # for a replaced entry: the form of the entry that replaces it
    denied_before: tuple[int, ...] = ()  # for a replaced entry: `denied` before its replacement
    bound: tuple[tuple[str, bytes], ...] = ()  # the values of bound placeholders: (placeholder, value)
    alike: tuple[tuple[str, bytes], ...] = ()  # those that all keys of one command must share
    tenancy: Tenancy | None = None  # which rights depend on the caller
    written_by: frozenset[str] = frozenset()  # if not empty, only these scripts and functions may write
    should: frozenset[str] = frozenset()  # rules that never refuse, only report
    hash_tag: HashTag = "any"
    # For an entry whose own text is in lower case: the values of its placeholders may have capital letters.
    is_lower: bool = False
    names_sure: bool = False  # every key that matches keeps all naming rules …
    bytes_sure: bool = False  # … those on its bytes, all but lengths and hash tags …
    tag_sure: bool = False  # … that on its hash tag
    ends: float | None = None  # Unix seconds; a legacy form with `on_expiry: refuse` allows nothing then
    has_lapsed: bool = False
    home: int = 0  # the number of its file
    rights_of: str = ""  # for an entry that sets no rights: the scope whose rights it has
    # What tells a member of a family from the others: the values of bound placeholders and of <scope>.
    family: tuple[tuple[str, bytes], ...] = ()

    def is_written_by(self, script: str) -> bool:
        """Whether `written_by` lets this script write; "" is a plain command."""
        return not self.written_by or script in self.written_by

    def held(self, service: int, key: bytes, values: Values) -> int:
        """Returns the rights of a service on a key of this target, without denials, for a caller with these
        values."""
        tenancy = self.tenancy
        if tenancy is None:
            return self.rights[service]
        return tenancy.held(service, self.rights, tenancy.own_places(key, self.pattern, values))

    def own_form(self, service: int) -> KeyPattern | None:
        """Returns the form that this service must use instead; None if it is the same for all services, or if
        the service has no single form of its own."""
        return self.own_forms[service] if self.own_forms else None

    def is_others(self, service: int) -> bool:
        """Whether this is a member of a family whose values belong to other services."""
        return bool(self.bound) and not self.rights[service]

    def names_with(self, right: int, services: Sequence[str]) -> list[str]:
        """Returns the services that hold `right`."""
        return [
            name
            for name, held, gone in zip(services, self.rights, self.denied, strict=False)
            if held & right & ~gone
        ]


@dataclasses.dataclass(frozen=True, slots=True)
class Grant:
    """The commands that one service may use beyond its rights, and on which keys."""

    selectors: frozenset[str]  # upper-case command names, @categories
    globs: tuple[Glob, ...]
    legacy: bool
    texts: tuple[bytes, ...] = ()
    ends: float | None = None  # Unix seconds; after that it grants nothing
    home: int = 0  # the number of its file; it grants nothing on keys of other files
    channels: tuple[bytes, ...] = ()  # globs

    def includes(self, target: Target) -> bool:
        """Whether the grant covers every key of a target, as far as the beginnings of its globs show."""
        if target.home != self.home:
            return False
        if self.legacy and target.kind == "legacy":
            return True
        beginning = target.pattern.literal_prefix
        return any(
            glob.endswith(b"*") and not _GLOB_SIGN.search(glob[:-1]) and beginning.startswith(glob[:-1])
            for glob in self.texts
        )

    def covers(self, key: bytes, target: Target | None) -> bool:
        """Whether the grant covers a key, whose target is `target`."""
        if target is not None and target.home != self.home:
            return False
        if self.legacy and target is not None and target.kind == "legacy":
            return True
        return b"*" in self.texts or any(glob.matches(key) for glob in self.globs)

    def covers_channel(self, name: bytes) -> bool:
        """Whether the grant covers a channel."""
        return any(text == b"*" or Glob(text).matches(name) for text in self.channels)

    def covers_channels(self, pattern: bytes) -> bool:
        """Whether the grant covers all channels that a pattern can match: it has the pattern itself, or one
        with a `*` after a beginning of it."""
        beginning = beginning_of(pattern)
        return pattern in self.channels or any(
            beginning_of(text) == text[:-1] and text.endswith(b"*") and beginning.startswith(text[:-1])
            for text in self.channels
        )


def beginning_of(glob: bytes) -> bytes:
    """Returns the part of a glob before its first special character."""
    return _GLOB_SIGN.split(glob, 1)[0]


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledPolicy:
    """A policy as the evaluator uses it."""

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
    functions: dict[bytes, Registration]  # by `arguments.function_name`
    cluster: bool
    homes: tuple[Home, ...]
    common: Home  # for keys that belong to no file
    # The beginnings of the forms with secrets: any other name with such a beginning may hold a secret.
    secret_beginnings: tuple[bytes, ...] = ()
    secrecy: Secrecy | None = None  # None: it has no secrets
    bindings: tuple[Binding, ...] = ()  # placeholders that are bound to the caller
    exceptions: tuple[tuple[str, datetime.date], ...] = ()  # (legacy or grants, end date)
    name_services: bool = True  # whether hints may name other services

    def next_lapse(self) -> float | None:
        """Returns when the first legacy form or grant with `on_expiry: refuse` ends, in Unix seconds; None if
        none does."""
        ends = [one.ends for one in self.targets]
        ends += [one.ends for grants in self.grants.values() for one in grants]
        return min((end for end in ends if end is not None), default=None)

    def without_lapsed(self, now: float) -> CompiledPolicy:
        """Returns the policy at a time, in Unix seconds: without the grants, and the rights on legacy forms,
        that have ended with `on_expiry: refuse`."""
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
        """Returns the file that a key's target belongs to."""
        if target is None or target.kind in ("keyspace", "keyevent"):
            return self.common
        return self.homes[target.home]

    def names(self, target: Target | None) -> Names:
        """Returns the naming rules for the keys of a target."""
        names = self.home(target).names
        return names.of_forms if target is not None and target.is_lower else names

    def written_forms(self) -> dict[str, str]:
        """Returns the pattern of each entry as the policy writes it, by the entry's name. A scope may have
        the same name."""
        entries = (one.entry for one in self.targets if one.kind == "entry")
        return {one.name: one.written for one in entries if one is not None}

    def number(self, service: str) -> int:
        """Returns the number of a service; `unknown`'s for a name that the policy does not have."""
        try:
            return self.services.index(service)
        except ValueError:
            return len(self.services) - 1

    def values(self, caller: Caller) -> Values:
        """Returns the caller's values of the placeholders bound to callers."""
        return values_of(self.bindings, caller) if self.bindings else ()

    def own_values(self, service: int, target: Target, values: Values) -> dict[str, bytes]:
        """Returns what a hint for a caller with these values fills into the placeholders that the target's
        file binds to callers. It is `<name>` for a missing or secret value."""
        own = {}
        for number, one in enumerate(self.bindings):
            if one.home == target.home and service not in one.across:
                value = None if one.is_secret else value_in(values, number)
                own[one.name] = f"<{one.name}>".encode() if value is None else value
        return own

    def depends_on_caller(self, target: Target) -> bool:
        """Whether violations on a target's keys, or the form to use instead, depend on the caller."""
        if target.tenancy is not None or not self.bindings:
            return target.tenancy is not None
        names = {one.name for one in self.bindings if one.home == target.home}
        standard = target.standard if target.kind in ("legacy", "stray") else None
        forms = (standard, target.successor)
        return any(hole.name in names for form in forms if form is not None for hole in form.holes)

    def grants_of(self, service: int, name: str) -> list[Grant]:
        """Returns the service's grants of a command; of "", those of every command."""
        return [one for one in self.grants.get(service, ()) if selects_name(one.selectors, name)]

    def owners_values(self, keys: Iterable[bytes]) -> Values:
        """Returns the values of the caller who owns these keys."""
        if not self.bindings:
            return ()
        found = ((key, self.target(key)) for key in keys)
        known = ((key, one.pattern, one.tenancy) for key, one in found if one is not None)
        return owners_values(len(self.bindings), known)

    def target(self, key: bytes) -> Target | None:
        """Returns the target of a key; None if no target covers it."""
        if len(key) > MAX_CONFIRMED or isinstance(key, Streamed):
            return self._unconfirmed(key)
        index = self.classifier.first(key)
        return self.targets[index] if index >= 0 else None

    def registration(self, script: Script) -> Registration | None:
        """Returns a script's registration; None if it is not registered."""
        if isinstance(script.name, Streamed):
            return None
        if script.kind == "function":
            return self.functions.get(function_name(script.name))
        if not self.scripts:
            return None
        return script_of(self.scripts, sha1_of(script))

    @property
    def scopes_unregistered(self) -> bool:
        """Whether the keys that a script declares decide what it may do if it is not registered."""
        return any(one.unregistered_scripts is not None for one in self.targets)

    def unregistered_scripts(self, service: int, words: Mapping[int, Word] | None = None) -> Word:
        """Returns what a service may do with a script that is not registered: the strictest of what the files
        say. `words` has those of the files that own keys that the script declares (`unregistered_at`)."""
        given = words or {}
        return strictest(
            given.get(number, home.unregistered_scripts.of(service)) for number, home in enumerate(self.homes)
        )

    def unregistered_at(self, service: int, key: bytes) -> Mapping[int, Word]:
        """Returns what the file that owns a key says about scripts that declare it, by the file's number. A
        key that no file owns leaves the word to all files."""
        target = self.target(key)
        homes = self.homes if target is None else (self.homes[target.home],)
        first, scope = (0, None) if target is None else (target.home, target.unregistered_scripts)
        return {
            number: home.unregistered_scripts.of(service, scope) for number, home in enumerate(homes, first)
        }

    def may_run_unregistered(self, service: int) -> bool:
        """Whether the service may run some script that is not registered."""
        return all(any(word in RUNNING for word in words) for words in self.on_unregistered(service))

    def strictest_on_unregistered(self, service: int) -> Word:
        """Returns what a service may do with every script that is not registered, whatever it declares."""
        return strictest(word for words in self.on_unregistered(service) for word in words)

    def on_unregistered(self, service: int) -> list[set[Word]]:
        """Returns for each file all that it says about scripts that are not registered, of any keys."""
        scopes: dict[int, set[Word | None]] = {}
        for target in self.targets:
            scopes.setdefault(target.home, {None}).add(target.unregistered_scripts)
        return [
            {home.unregistered_scripts.of(service, scope) for scope in scopes.get(number, {None})}
            for number, home in enumerate(self.homes)
        ]

    @property
    def unregistered_exceptions(self) -> list[str]:
        """What single services and scopes say about scripts that are not registered, for people."""
        services = (
            f"{self.services[number]}: {word}"
            for home in self.homes
            for number, word in home.unregistered_scripts.services
        )
        scopes = (
            f"keys of the scope {one.name}: {one.unregistered_scripts}"
            for one in self.targets
            if one.kind == "scope" and one.unregistered_scripts is not None
        )
        return list(dict.fromkeys((*services, *scopes)))

    def registers(self, name: str) -> bool:
        """Whether it registers the script with this SHA-1, or the function with this name."""
        kind: Literal["sha1", "function"] = "sha1" if is_sha1(name) else "function"
        return self.registration(Script(kind, 0, name.encode("utf-8", "surrogateescape"), (), ())) is not None

    def shares(self, script: Script) -> bool:
        """Whether the policy lets this script run on a connection that clients share."""
        registration = self.registration(script)
        return registration is not None and registration.shared

    def _unconfirmed(self, key: bytes) -> Target | None:
        """Returns the first target that covers the key without counting lengths; None if only the beginning
        of the key is held."""
        if isinstance(key, Streamed):
            return None
        accept = self.classifier.automaton.match(key)
        members = self.classifier.automaton.sets[accept] if accept >= 0 else ()
        found = (self.targets[index] for index in members)
        return next((target for target in found if not target.pattern.needs_verification), None)
