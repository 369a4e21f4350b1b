"""From the policy file's model to what `decide` runs on: numbered services, targets, one automaton.

Rule: whatever can be found out from the policy alone is found out here, once per load; every name that refers
to nothing is reported with its place, all of them in one go.

Stages, in order: services → placeholders → scopes → entries (families expanded) → legacy → channels → scripts
→ commands and grants → the automata over all targets.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..commands.model import DELETE, GROUP, READ, WRITE
from ..commands.table import known_names
from ..commands.words import function_name
from .automaton import Classifier
from .build_automaton import TooManyStates, classify
from .compiled import UNKNOWN, CompiledPolicy, Entry, Fields, Grant, Target
from .diagnostics import Diagnostic, FileError, did_you_mean
from .globs import Glob
from .keyspace import KEYEVENT_NAMES, KEYSPACE_NAMES
from .model import EntryModel, FunctionModel, PolicyModel, Rights, ScriptModel, TtlModel
from .patterns import (
    ClassExpression,
    KeyPattern,
    PatternError,
    exact_pattern,
    parse_class,
    parse_pattern,
    prefix_pattern,
)
from .scripts import Registration, Template
from .values import Form, class_form, parse_form
from .yaml_source import Source

KNOWN_COMMANDS, KNOWN_CATEGORIES = known_names()
SCOPE_HOLE = "scope"  # <scope> in an entry's key expands over the policy's scopes


def compile_policy(model: PolicyModel, source: Source, *, name_services: bool = True) -> CompiledPolicy:
    """Compile a well-formed policy. Raises FileError with every fault."""
    return dataclasses.replace(_Compiler(model, source).run(), name_services=name_services)


@dataclasses.dataclass(slots=True)
class _Scope:
    name: str
    prefix: str
    rights: tuple[int, ...]
    denied: tuple[int, ...]


class _Compiler:
    def __init__(self, model: PolicyModel, source: Source) -> None:
        self.model = model
        self.source = source
        self.faults: list[Diagnostic] = []
        self.services: tuple[str, ...] = ()
        self.classes: dict[str, ClassExpression] = {}
        self.secrets: set[str] = set()
        self.scopes: list[_Scope] = []
        self.entries: list[Target] = []
        self.legacy: list[Target] = []

    def run(self) -> CompiledPolicy:
        self._services()
        self._placeholders()
        self._scopes()
        self._entries()
        self._legacy()
        channels = self._channels()
        scripts, functions = self._scripts(), self._functions()
        grants = self._grants()
        forbid = self._selectors(self.model.commands.forbid, ("commands", "forbid"))
        allow = self._selectors(self.model.commands.allow, ("commands", "allow"))
        charset, charset_text = self._charset()
        targets = self._targets()
        classifier = self._automaton(targets, "keys")
        channel_classifier = self._automaton(channels, "channels")
        if self.faults or classifier is None or channel_classifier is None:
            raise FileError(self.faults)
        text = "\n".join(self.source.lines)
        return CompiledPolicy(
            name=self.model.policy,
            revision=hashlib.sha256(text.encode()).hexdigest()[:12],
            contact=self.model.owner.contact or self.model.owner.team,
            services=self.services,
            targets=tuple(targets),
            classifier=classifier,
            claims=tuple(self.model.claims),
            should=frozenset(self.model.should),
            databases=None if self.model.databases is None else frozenset(self.model.databases),
            forbid=forbid,
            allow=allow,
            grants=grants,
            channels=tuple(channels),
            channel_classifier=channel_classifier,
            scripts=scripts,
            functions=functions,
            forbids_unregistered_scripts=self.model.unregistered_scripts == "forbid",
            cluster=self.model.cluster,
            max_length=self.model.key_rules.max_length,
            charset=charset,
            charset_text=charset_text,
            open_scopes=frozenset(
                n for n, scope in self.model.scopes.items() if scope.unregistered == "allow"
            ),
            secret_beginnings=tuple(
                one.pattern.literal_prefix
                for one in (*self.entries, *self.legacy, *channels)
                if one.secrets and (one.kind == "legacy" or one.pattern.literal_prefix)
            ),
            exceptions=tuple(self._exceptions()),
        )

    def _error(self, path: Sequence[str | int], message: str, *, of_key: bool = False) -> None:
        self.faults.append(self.source.error(path, message, of_key=of_key))

    # -- services and rights

    def _services(self) -> None:
        seen: set[str] = set()
        for index, name in enumerate(self.model.services):
            if name in seen:
                self._error(("services", index), f"the service {name} is listed twice")
            elif name == UNKNOWN:
                self._error(("services", index), f"{UNKNOWN} is the name of clients that nothing identifies")
            elif not name or not name.isprintable() or " " in name:
                self._error(("services", index), f"{name!r} is no service name; use one word")
            seen.add(name)
        if not self.model.services:
            self._error(("services",), "no services; list who uses this Redis")
        self.services = (*self.model.services, UNKNOWN)

    def _numbers(self, names: Iterable[str], path: tuple[str | int, ...]) -> set[int]:
        numbers = set()
        for index, name in enumerate(names):
            if name in self.services:
                numbers.add(self.services.index(name))
            else:
                known = did_you_mean(name, self.services)
                self._error((*path, index), f"{name!r} is not listed under services{known}")
        return numbers

    def _rights(self, rights: Rights, path: tuple[str | int, ...]) -> tuple[list[int], list[int]]:
        held, denied = [0] * len(self.services), [0] * len(self.services)
        for names, field, bits, table in (
            (rights.writers, "writers", READ | WRITE | DELETE | GROUP, held),
            (rights.readers, "readers", READ, held),
            (rights.consumers, "consumers", READ | GROUP, held),
            (rights.deny_write, "deny_write", WRITE | DELETE | GROUP, denied),
            (rights.deny_read, "deny_read", READ, denied),
        ):
            for number in self._numbers(names, (*path, field)):
                table[number] |= bits
        return held, denied

    # -- placeholders, scopes, entries

    def _placeholders(self) -> None:
        for names, model in self.model.placeholders.items():
            path = ("placeholders", names)
            try:
                expression = parse_class(model.is_)
            except PatternError as exc:
                self._error(path, f"{model.is_!r}: {exc}")
                continue
            for name in names.split("|"):
                if not name.replace("_", "").replace("-", "").isalnum():
                    self._error(
                        path, f"{name!r} is no placeholder name; use letters, digits, _ and -", of_key=True
                    )
                elif name in self.classes:
                    self._error(path, f"the placeholder {name} is declared twice", of_key=True)
                elif name == SCOPE_HOLE:
                    self._error(
                        path, "<scope> stands for the policy's scopes; choose another name", of_key=True
                    )
                else:
                    self.classes[name] = expression
                    if model.secret:
                        self.secrets.add(name)

    def _scopes(self) -> None:
        by_prefix: dict[str, str] = {}
        for name, model in self.model.scopes.items():
            path = ("scopes", name)
            held, denied = self._rights(model, path)
            if not model.prefix:
                self._error((*path, "prefix"), "an empty prefix covers every key; write the scope's prefix")
            if model.prefix in by_prefix:
                self._error((*path, "prefix"), f"the scope {by_prefix[model.prefix]} has the same prefix")
            elif self.model.claims and not model.prefix.startswith(tuple(self.model.claims)):
                claims = ", ".join(self.model.claims)
                self._error((*path, "prefix"), f"{model.prefix!r} is outside the policy's claims ({claims})")
            by_prefix[model.prefix] = name
            self.scopes.append(_Scope(name, model.prefix, tuple(held), tuple(denied)))

    def _entries(self) -> None:
        for name, model in self.model.keys.items():
            path = ("keys", name)
            requirements = self._requirements(name, model, path)
            own = self._rights(model, path)
            own_rights = bool(model.writers or model.readers or model.consumers)
            for text, scope in self._expansions(model, path):
                pattern = self._pattern(text, (*path, "key"))
                if pattern is None:
                    continue
                if scope is None and not self._is_claimed(pattern):
                    claims = ", ".join(self.model.claims)
                    self._error((*path, "key"), f"{text!r} is outside the policy's claims ({claims})")
                home = scope or self._scope_of(pattern)
                held, denied = self._entry_rights(own, own_rights, home, path)
                self.entries.append(
                    Target(
                        kind="entry",
                        name=name,
                        pattern=pattern,
                        rights=held,
                        denied=denied,
                        entry=dataclasses.replace(requirements, text=text),
                        text=text,
                        secrets=frozenset(self.secrets & {hole.name for hole in pattern.holes}),
                    )
                )

    def _is_claimed(self, pattern: KeyPattern) -> bool:
        beginning = pattern.literal_prefix
        return not self.model.claims or beginning.startswith(tuple(one.encode() for one in self.model.claims))

    def _expansions(self, model: EntryModel, path: tuple[str, ...]) -> Iterable[tuple[str, _Scope | None]]:
        hole = f"<{SCOPE_HOLE}>"
        if hole not in model.key:
            return [(model.key, None)]
        if not self.scopes:
            self._error((*path, "key"), "<scope> expands over the policy's scopes, and there are none")
        expanded = [(model.key.replace(hole, scope.name), scope) for scope in self.scopes]
        for text, scope in expanded:
            if not text.startswith(scope.prefix):
                self._error(
                    (*path, "key"),
                    f"<scope> makes {text!r}, which is outside the scope's prefix {scope.prefix!r}",
                )
        return expanded

    def _pattern(self, text: str, path: tuple[str | int, ...]) -> KeyPattern | None:
        try:
            return parse_pattern(text, self.classes)
        except PatternError as exc:
            known = did_you_mean(exc.name, self.classes) if exc.name and exc.name not in self.classes else ""
            self._error(path, f"{text!r}: {exc}{known}", of_key=path[0] == "legacy")
            return None

    def _scope_of(self, pattern: KeyPattern) -> _Scope | None:
        literal = pattern.literal_prefix.decode("utf-8", "surrogateescape")
        inside = [scope for scope in self.scopes if literal.startswith(scope.prefix)]
        return max(inside, key=lambda scope: len(scope.prefix), default=None)

    def _entry_rights(
        self, own: tuple[list[int], list[int]], own_rights: bool, home: _Scope | None, path: tuple[str, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """An entry's rights replace its scope's; a scope's denials stay."""
        held, denied = own
        if not own_rights:
            if home is None:
                self._error(
                    path, "in no scope and without writers or readers: nobody could use it", of_key=True
                )
                return tuple(held), tuple(denied)
            held = list(home.rights)
        if home is not None:
            denied = [mine | theirs for mine, theirs in zip(denied, home.denied, strict=True)]
        return tuple(held), tuple(denied)

    def _requirements(self, name: str, model: EntryModel, path: tuple[str, ...]) -> Entry:
        """All that an entry asks beyond rights and form."""
        if model.fields is not None and model.type and not {"hash", "stream"} & set(model.type):
            self._error(
                (*path, "fields"), f"a {' or '.join(model.type)} has no fields; those are for hash and stream"
            )
        if model.values is not None and model.type and "string" not in model.type:
            self._error((*path, "values"), "values are for the type string")
        if model.maxlen is not None and model.type and "stream" not in model.type:
            self._error((*path, "maxlen"), "maxlen is for the type stream")
        self._check_ttl(model.ttl, (*path, "ttl"))
        looks_into_values = any(one is not None for one in (model.fields, model.values, model.maxlen))
        plain = not (looks_into_values or model.type or model.ttl or model.max_length)
        return Entry(
            name=name,
            text=model.key,
            types=tuple(model.type),
            ttl=model.ttl,
            fields=self._fields(model, path),
            values=None if model.values is None else self._form(model.values, (*path, "values")),
            maxlen=None if model.maxlen is None else int(model.maxlen.lstrip("~")),
            maxlen_exact=model.maxlen is not None and not model.maxlen.startswith("~"),
            max_length=model.max_length,
            is_plain=plain,
            looks_into_values=looks_into_values,
        )

    def _check_ttl(self, ttl: TtlModel | None, path: tuple[str, ...]) -> None:
        if ttl is None:
            return
        if ttl.none and (ttl.min is not None or ttl.max is not None or ttl.default is not None):
            self._error(path, "none excludes min, max and default")
        if ttl.min is not None and ttl.max is not None and ttl.min > ttl.max:
            self._error(path, "min is above max: no time to live would do")
        if ttl.default is not None and not (ttl.min or 0) <= ttl.default <= (ttl.max or ttl.default):
            self._error(path, "default is outside min and max")

    def _fields(self, model: EntryModel, path: tuple[str, ...]) -> Fields | None:
        if model.fields is None:
            return None
        named: dict[bytes, Form] = {}
        patterned: list[tuple[Form, Form]] = []
        for field, spec in model.fields.items():
            form = self._form(spec, (*path, "fields", field))
            if field.startswith("<") and field.endswith(">"):
                of_name = self._form(field, (*path, "fields", field), of_key=True)
                if form and of_name:
                    patterned.append((of_name, form))
            elif form:
                named[field.encode()] = form
        hides_names = any(f"<{name}>" in model.fields for name in self.secrets)
        return Fields(named, tuple(patterned), ", ".join(model.fields), hides_names)

    def _form(self, spec: str | list[str], path: tuple[str, ...], *, of_key: bool = False) -> Form | None:
        try:
            return parse_form(spec, self.classes)
        except ValueError as exc:
            self._error(path, str(exc), of_key=of_key)
            return None

    # -- legacy, commands, grants, key rules

    def _legacy(self) -> None:
        allow = self.model.legacy.allow
        bits = {"read": READ, "delete": DELETE, "write": WRITE}
        granted = sum(bits[word] for word in set(allow))
        by_name = {target.name: target for target in self.entries}
        for text, standard_name in self.model.legacy.keys.items():
            path = ("legacy", "keys", text)
            pattern = self._pattern(text, path)
            standard = by_name.get(standard_name)
            if standard is None:
                known = did_you_mean(standard_name, by_name)
                self._error(path, f"{standard_name!r} is no entry under keys{known}")
            if pattern is None or standard is None:
                continue
            self.legacy.append(
                Target(
                    kind="legacy",
                    name=standard_name,
                    pattern=pattern,
                    rights=tuple(held & granted for held in standard.rights),
                    denied=standard.denied,
                    entry=standard.entry,
                    text=text,
                    secrets=frozenset(self.secrets & {hole.name for hole in pattern.holes}),
                    standard=standard.pattern,
                )
            )

    # -- channels and scripts

    def _channels(self) -> list[Target]:
        """Channels in the order in which they decide, then what Redis itself publishes about keys."""
        channels = []
        for name, model in self.model.channels.items():
            path = ("channels", name)
            held = [0] * len(self.services)
            for names, field, bit in (
                (model.publishers, "publishers", WRITE),
                (model.subscribers, "subscribers", READ),
            ):
                for number in self._numbers(names, (*path, field)):
                    held[number] |= bit
            pattern = self._pattern(model.channel, (*path, "channel"))
            if pattern is not None:
                secrets = frozenset(self.secrets & {hole.name for hole in pattern.holes})
                nothing = (0,) * len(self.services)
                channels.append(
                    Target("channel", name, pattern, tuple(held), nothing, None, model.channel, secrets)
                )
        channels.sort(key=lambda target: target.pattern.specificity)
        # As with keys, patterns are judged by rights: names under a rule's prefix are its own in any form.
        beginnings = sorted(channels, key=lambda target: len(target.pattern.literal_prefix), reverse=True)
        channels += [
            dataclasses.replace(
                one,
                kind="malformed",
                pattern=prefix_pattern(one.pattern.literal_prefix),
                secrets=_secrets_behind(one.pattern.literal_prefix, channels),
                standard=one.pattern,
            )
            for one in beginnings
            if one.pattern.literal_prefix and not one.pattern.is_literal
        ]
        nothing = (0,) * len(self.services)
        return [
            Target("keyspace", "", KEYSPACE_NAMES, nothing, nothing, None, "__keyspace@…", frozenset()),
            Target("keyevent", "", KEYEVENT_NAMES, nothing, nothing, None, "__keyevent@…", frozenset()),
            *channels,
        ]

    def _scripts(self) -> dict[bytes, Registration]:
        scripts: dict[bytes, Registration] = {}
        for name, model in self.model.scripts.items():
            path = ("scripts", name)
            registration = self._registration(name, model, path)
            for sha1 in self._sha1s(model, path):
                if sha1 in scripts:
                    self._error(path, f"the script {scripts[sha1].name} has the same SHA-1", of_key=True)
                elif registration is not None:
                    scripts[sha1] = registration
        return scripts

    def _functions(self) -> dict[bytes, Registration]:
        functions: dict[bytes, Registration] = {}
        for name, model in self.model.functions.items():
            registration = self._registration(name, model, ("functions", name))
            key = function_name(name.encode())
            if key in functions:
                message = (
                    f"the function {functions[key].name} is the same to Redis: it reads names in any case"
                )
                self._error(("functions", name), message, of_key=True)
            elif registration is not None:
                functions[key] = registration
        return functions

    def _sha1s(self, model: ScriptModel, path: tuple[str, ...]) -> list[bytes]:
        sha1s = []
        for index, text in enumerate(model.sha1):
            if len(text) != 40 or not set(text.lower()) <= set("0123456789abcdef"):
                self._error((*path, "sha1", index), f"{text!r} is no SHA-1; it has 40 hex digits")
            sha1s.append(text.lower().encode())
        if model.source:
            file = Path(self.source.file).parent / model.source
            try:
                sha1s.append(hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest().encode())
            except OSError as exc:
                self._error((*path, "source"), f"{file} can't be read: {exc.strerror}")
        elif not sha1s:
            self._error(path, "neither sha1 nor source: nothing tells this script from others", of_key=True)
        return sha1s

    def _registration(self, name: str, model: FunctionModel, path: tuple[str, ...]) -> Registration | None:
        texts = model.keys if isinstance(model.keys, list) else []
        patterns = [self._pattern(text, (*path, "keys", index)) for index, text in enumerate(texts)]
        known = [pattern for pattern in patterns if pattern is not None]
        if len(known) < len(patterns):
            return None
        captured = frozenset(hole.name for pattern in known for hole in pattern.holes)
        templates = {
            field: tuple(self._templates(getattr(model, field), captured, (*path, field)))
            for field in ("reads", "writes", "publishes")
        }
        # Templates say all that a script touches; its declared keys aren't unless that is said too.
        declared = model.declared or ("none" if templates["reads"] or templates["writes"] else "both")
        return Registration(
            name=name,
            keys=len(texts) if isinstance(model.keys, list) else model.keys,
            patterns=tuple(known),
            declared={"none": 0, "read": READ, "write": WRITE, "both": READ | WRITE}[declared],
            **templates,
        )

    def _templates(
        self, texts: Iterable[str], captured: frozenset[str], path: tuple[str, ...]
    ) -> Iterable[Template]:
        for index, text in enumerate(texts):
            try:
                yield Template(text, captured)
            except ValueError as exc:
                self._error((*path, index), f"{text!r}: {exc}")

    def _selectors(self, names: Iterable[str], path: tuple[str | int, ...]) -> frozenset[str]:
        """Command names in upper case and @categories in lower case; each must be known."""
        selectors = set()
        for index, name in enumerate(names):
            selector = name.lower() if name.startswith("@") else " ".join(name.upper().split())
            if "." in selector:  # a module's command, which only the server that has it can tell
                selectors.add(selector)
                continue
            known = KNOWN_CATEGORIES if selector.startswith("@") else KNOWN_COMMANDS
            if selector not in known:
                kind = "category" if selector.startswith("@") else "command"
                near = did_you_mean(selector, known)
                self._error((*path, index), f"{name!r} is no {kind} of Redis or Valkey{near}")
            selectors.add(selector)
        return frozenset(selectors)

    def _grants(self) -> dict[int, tuple[Grant, ...]]:
        grants: dict[int, tuple[Grant, ...]] = {}
        for service, model in self.model.grants.items():
            path = ("grants", service)
            if service not in self.services:
                known = did_you_mean(service, self.services)
                self._error(path, f"{service!r} is not listed under services{known}", of_key=True)
                continue
            selectors = self._selectors(model.commands, (*path, "commands"))
            texts = tuple(key.encode() for key in model.keys if key != "legacy")
            grant = Grant(selectors, tuple(map(Glob, texts)), "legacy" in model.keys, texts)
            grants[self.services.index(service)] = (grant,)
        return grants

    def _exceptions(self) -> Iterable[tuple[str, datetime.date]]:
        if self.model.legacy.until is not None:
            yield "legacy", self.model.legacy.until
        for grant in self.model.grants.values():
            if grant.until is not None:
                yield "grants", grant.until

    def _charset(self) -> tuple[frozenset[int] | None, str]:
        text = self.model.key_rules.charset
        if text is None:
            return None, ""
        try:
            form = class_form(parse_class(text), text)
        except PatternError as exc:
            self._error(("key_rules", "charset"), f"{text!r}: {exc}")
            return None, ""
        return frozenset(byte for byte in range(256) if form.accepts(bytes([byte]))), text

    # -- the automaton

    def _targets(self) -> list[Target]:
        """All targets in the order in which they decide; see docs/policy.md, "Which rule fires"."""
        entries = sorted(self.entries, key=lambda target: target.pattern.specificity)
        legacy = sorted(self.legacy, key=lambda target: target.pattern.specificity)
        return [*entries, *legacy, *self._malformed(), *self._scope_targets(), *self._claim_targets()]

    def _malformed(self) -> list[Target]:
        """Keys that begin as an entry's do but break its form: the longest beginning decides."""
        targets = []
        seen: set[bytes] = set()
        for target in sorted(self.entries, key=lambda t: len(t.pattern.literal_prefix), reverse=True):
            prefix = target.pattern.literal_prefix
            if target.pattern.is_literal or prefix in seen or self._is_scope_prefix(prefix):
                continue
            seen.add(prefix)
            broken = dataclasses.replace(
                target,
                kind="malformed",
                pattern=prefix_pattern(prefix),
                secrets=_secrets_behind(prefix, self.entries),
                standard=target.pattern,
            )
            targets.append(broken)
            if prefix.endswith(b":"):  # the id is missing together with its colon
                targets.append(dataclasses.replace(broken, pattern=exact_pattern(prefix[:-1])))
        return targets

    def _is_scope_prefix(self, prefix: bytes) -> bool:
        text = prefix.decode("utf-8", "surrogateescape")
        return any(scope.prefix.startswith(text) for scope in self.scopes)

    def _scope_targets(self) -> list[Target]:
        ordered = sorted(self.scopes, key=lambda scope: len(scope.prefix), reverse=True)
        return [
            Target(
                kind="scope",
                name=scope.name,
                pattern=prefix_pattern(scope.prefix.encode()),
                rights=scope.rights,
                denied=scope.denied,
                entry=None,
                text=scope.prefix + "…",
                secrets=frozenset(),
            )
            for scope in ordered
        ]

    def _claim_targets(self) -> list[Target]:
        nothing = (0,) * len(self.services)
        return [
            Target(
                "claim", "", prefix_pattern(claim.encode()), nothing, nothing, None, claim + "…", frozenset()
            )
            for claim in sorted(self.model.claims, key=len, reverse=True)
        ]

    def _automaton(self, targets: list[Target], section: str) -> Classifier | None:
        if self.faults:
            return None
        patterns = [target.pattern for target in targets]
        try:
            return classify(patterns)
        except TooManyStates as exc:
            self._error((section,), str(exc), of_key=True)
            return None


def _secrets_behind(prefix: bytes, targets: Sequence[Target]) -> frozenset[str]:
    """The secret placeholders of all patterns with this beginning: what is of no form may be meant as any."""
    behind = (target.secrets for target in targets if target.pattern.literal_prefix == prefix)
    return frozenset().union(*behind)
