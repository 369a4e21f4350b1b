"""From what a command touches to a verdict.

Rule: every access is judged, every violation is listed, rights before form before content; the same inputs
give the same verdict. Nothing is refused here, and no exception is part of the answer.

docs/policy.md has the table of which rule fires when; tests/policy/test_which_rule_fires.py holds it to this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from ..commands.extract import extract
from ..commands.model import DELETE, GROUP, READ, WRITE, Access, Channel, Command, Content, Touches, Ttl
from ..commands.table import COMMANDS
from .compile import UNKNOWN, CompiledPolicy, Entry, Target
from .masking import shown, standard_key
from .model import TtlModel
from .reach import Reach
from .show import printable
from .units import duration_text
from .verdict import ALLOWED, Severity, Verdict, Violation

# Redis' own categories decide what is forbidden by default: whatever administers the server, whatever Redis
# calls dangerous and names no key, and whatever works on the whole key space at once.
_FORBIDDEN_CATEGORIES = frozenset({"admin"})
# Dangerous by category, but asked by client libraries at connect to see whether Redis is loading.
_HARMLESS = frozenset({"INFO"})
# A container without a subcommand, or with one that no server has, runs nothing; that it is unknown says
# enough.
_CONTAINERS = frozenset(row.command.name for row in COMMANDS.values() if row.subcommands)
# Redis 6.2 has SELECT, WAIT and READONLY in @keyspace too. SCAN is judged by its pattern.
_ABOUT_THE_CONNECTION = frozenset({"connection"})
_JUDGED_OTHERWISE = frozenset({"SCAN", "OBJECT HELP", "ASKING"})
# Commands whose category doesn't tell that they change what other clients run, move keys away, or name keys.
_FORBIDDEN_BY_NAME = {
    "CLUSTER GETKEYSINSLOT": "it shows key names",
    "MIGRATE": "it moves keys to another server",
    **dict.fromkeys(
        ("FUNCTION DELETE", "FUNCTION FLUSH", "FUNCTION KILL", "FUNCTION LOAD", "FUNCTION RESTORE"),
        "it is administrative",
    ),
    **dict.fromkeys(("SCRIPT DEBUG", "SCRIPT FLUSH", "SCRIPT KILL"), "it is administrative"),
}


def forbidden_by_default(command: Command, names_keys: bool) -> str:
    """Why a policy that says nothing forbids the command; "" where it doesn't."""
    if command.name in _HARMLESS or command.name in _CONTAINERS or command.name in _JUDGED_OTHERWISE:
        return ""
    if command.name in _FORBIDDEN_BY_NAME:
        return _FORBIDDEN_BY_NAME[command.name]
    if command.categories & _FORBIDDEN_CATEGORIES:
        return "it is administrative (@admin)"
    if names_keys:
        return ""
    if "dangerous" in command.categories:
        return "it is @dangerous and names no key"
    if "keyspace" in command.categories and not _ABOUT_THE_CONNECTION & command.categories:
        return "it works on the whole key space"
    return ""


class Decider:
    """Judges commands against one compiled policy."""

    def __init__(self, policy: CompiledPolicy, clock: Callable[[], float] = time.time) -> None:
        self.policy = policy
        self._clock = clock
        self._permissions: dict[tuple[int, str], str] = {}
        self._reach = Reach(policy)

    def decide(self, service: int, argv: Sequence[bytes]) -> Verdict:
        """The verdict on one command (argv with its name first) of the service with this number."""
        return self.judge(service, argv, extract(argv))

    def judge(self, service: int, argv: Sequence[bytes], touches: Touches) -> Verdict:
        """The verdict on what a command touches, where that is known already."""
        found = tuple(self._violations(service, argv, touches))
        return Verdict(found) if found else ALLOWED

    def _violations(self, service: int, argv: Sequence[bytes], touches: Touches) -> Iterator[Violation]:
        command = touches.command
        name = command.name if command is not None else printable(argv[0], 32).upper()
        if command is not None:
            yield from self._permission(service, command, touches)
        if touches.problem is not None:
            problem = touches.problem
            yield self._plain(
                problem.rule,
                problem.position,
                f"{name} can't be judged: {problem.reason}",
                "use a command whose keys are known, or ask for a grant",
            )
        yield from self._databases(service, name, touches)
        yield from self._patterns(service, name, touches)
        for channel in touches.channels:
            yield self._channel(service, name, channel)
        for access in touches.accesses:
            yield from self._access(service, name, command, access)

    # -- the command itself

    def _permission(self, service: int, command: Command, touches: Touches) -> Iterator[Violation]:
        key = (service, command.name)
        reason = self._permissions.get(key)
        if reason is None:
            reason = self._permissions[key] = self._why_forbidden(service, command, bool(touches.accesses))
        if reason:
            who = self._who(service)
            yield self._plain(
                "command.forbidden",
                0,
                f"{who} may not use {command.name}: {reason}",
                "the policy can grant it to a service",
            )

    def _why_forbidden(self, service: int, command: Command, names_keys: bool) -> str:
        policy = self.policy
        if any(_selects(grant.selectors, command) for grant in policy.grants.get(service, ())):
            return ""
        if command.name in policy.allow:
            return ""
        if _selects(policy.forbid, command):
            return "the policy forbids it"
        if _selects(policy.allow, command):
            return ""
        return forbidden_by_default(command, names_keys)

    def _databases(self, service: int, name: str, touches: Touches) -> Iterator[Violation]:
        admitted = self.policy.databases
        for position, number in touches.databases if admitted is not None else ():
            if admitted is not None and number not in admitted:
                numbers = ", ".join(map(str, sorted(admitted)))
                yield self._plain(
                    "database.forbidden",
                    position,
                    f"{self._who(service)} may not {name} database {number}",
                    f"the policy speaks for database {numbers}",
                )

    def _patterns(self, service: int, name: str, touches: Touches) -> Iterator[Violation]:
        """SCAN and KEYS are judged by rights, never by grammar: may the service read all that can match?"""
        if touches.pattern is None:
            return
        glob = touches.pattern.glob
        if self._reach.covers(service, name, glob):
            return
        reached = printable(glob)
        suggestion = self._reach.suggestion(service, glob)
        yield Violation(
            "scan.scope",
            self._severity("scan.scope"),
            touches.pattern.position,
            glob,
            reached,
            "",
            "",
            f"{self._who(service)} may not {name} {reached}: it reaches keys that it may not read",
            f"{name} {'0 MATCH ' if name == 'SCAN' else ''}{suggestion} would pass" if suggestion else "",
        )

    def _channel(self, service: int, name: str, channel: Channel) -> Violation:
        rule = "channel.write" if channel.publish else "channel.read"
        shown = printable(channel.name)
        return Violation(
            rule,
            self._severity(rule),
            channel.position,
            channel.name,
            shown,
            "",
            "",
            f"{self._who(service)} may not {name} {shown}",
            "the policy names no channels",
        )

    # -- keys

    def _access(
        self, service: int, name: str, command: Command | None, access: Access
    ) -> Iterator[Violation]:
        policy = self.policy
        target = policy.target(access.key)
        if target is None:
            violations = iter([self._unregistered(service, name, access)])
        elif target.kind == "legacy":
            violations = self._legacy(service, name, access, target)
        else:
            violations = self._standard(service, name, command, access, target)
        if policy.grants and self._granted(service, name, command, access, target):
            return
        yield from violations

    def _granted(
        self, service: int, name: str, command: Command | None, access: Access, target: Target | None
    ) -> bool:
        return any(
            (_selects(grant.selectors, command) if command else name in grant.selectors)
            and grant.covers(access.key, target)
            for grant in self.policy.grants.get(service, ())
        )

    def _standard(
        self, service: int, name: str, command: Command | None, access: Access, target: Target
    ) -> Iterator[Violation]:
        if target.kind != "claim":
            yield from self._rights(service, name, access, target)
        if target.kind == "malformed":
            yield self._about(
                "key.format",
                access,
                target,
                f"{shown(access.key, target)} is not of the form {target.text}",
                self._form_hint(access.key, target),
            )
        elif target.kind == "claim":
            scopes = sorted({t.text for t in self.policy.targets if t.kind == "scope"})
            yield self._about(
                "key.format",
                access,
                target,
                f"{shown(access.key, target)} is in no scope of the policy",
                f"a key begins with one of {', '.join(scopes)}" if scopes else "",
            )
        elif target.kind == "scope" and target.name not in self.policy.open_scopes:
            yield self._about(
                "key.unregistered",
                access,
                target,
                f"no entry of the scope {target.name} covers {shown(access.key, target)}",
                "register the key in the policy first",
            )
        yield from self._key_rules(access, target)
        if target.kind == "entry" and target.entry is not None and not target.entry.is_plain:
            yield from self._content(command, access, target, target.entry)

    def _rights(self, service: int, name: str, access: Access, target: Target) -> Iterator[Violation]:
        held = target.rights[service] & ~target.denied[service]
        needs = access.needs
        if needs & GROUP and held & GROUP:
            return
        if needs & READ and not held & READ:
            yield self._right("scope.read", READ, service, name, access, target)
        if needs & WRITE and not held & WRITE and not (needs & DELETE and held & DELETE):
            yield self._right("scope.write", WRITE, service, name, access, target)
        if not needs and not held:
            yield self._right("scope.read", READ, service, name, access, target)

    def _right(
        self, rule: str, right: int, service: int, name: str, access: Access, target: Target
    ) -> Violation:
        verb = "writers" if right == WRITE else "readers"
        who = target.names_with(right, self.policy.services)
        if access.needs & GROUP and right == WRITE:
            verb, who = "consumers", target.names_with(GROUP, self.policy.services)
        hint = f"its {verb}: {', '.join(who)}" if who else f"it has no {verb}"
        if not self.policy.name_services:
            hint = "ask for the right"
        return self._about(
            rule, access, target, f"{self._who(service)} may not {name} {shown(access.key, target)}", hint
        )

    def _unregistered(self, service: int, name: str, access: Access) -> Violation:
        claims = " or ".join(self.policy.claims)
        shown = printable(access.key)
        return Violation(
            "key.unregistered",
            self._severity("key.unregistered"),
            access.position,
            access.key,
            shown,
            "",
            "",
            f"{self._who(service)} may not {name} {shown}: no entry of the policy covers it",
            f"every key begins with {claims}" if claims else "register the key in the policy first",
        )

    def _legacy(self, service: int, name: str, access: Access, target: Target) -> Iterator[Violation]:
        """A legacy key has one answer: what its exception allows passes, all else is `key.legacy`."""
        held = target.rights[service] & ~target.denied[service]
        needs = access.needs
        lacks_read = needs & READ and not held & READ
        lacks_write = needs & WRITE and not held & WRITE and not (needs & DELETE and held & DELETE)
        if not lacks_read and not lacks_write and (needs or held):
            return
        yield self._about(
            "key.legacy",
            access,
            target,
            f"{self._who(service)} may not {name} {shown(access.key, target)}, a deprecated form",
            f"use {standard_key(access.key, target)}",
        )

    def _form_hint(self, key: bytes, target: Target) -> str:
        if len(key) <= len(target.pattern.literal_prefix):
            return "the part after the prefix is missing"
        return f"for example {printable(target.standard.example())}" if target.standard else ""

    def _key_rules(self, access: Access, target: Target) -> Iterator[Violation]:
        limit = self.policy.max_length
        if target.entry is not None and target.entry.max_length is not None:
            limit = min(limit or target.entry.max_length, target.entry.max_length)
        if limit is not None and len(access.key) > limit:
            yield self._about(
                "key.length",
                access,
                target,
                f"{shown(access.key, target)} is {len(access.key)} bytes long",
                f"at most {limit} bytes",
            )
        charset = self.policy.charset
        if charset is not None and not charset.issuperset(access.key):
            yield self._about(
                "key.charset",
                access,
                target,
                f"{shown(access.key, target)} holds bytes outside {self.policy.charset_text}",
                "",
            )

    # -- what an entry asks of the value

    def _content(
        self, command: Command | None, access: Access, target: Target, entry: Entry
    ) -> Iterator[Violation]:
        key = shown(access.key, target)
        if entry.types and access.types and not set(entry.types) & set(access.types):
            name = command.name if command else "this command"
            yield self._about(
                "type.mismatch",
                access,
                target,
                f"{name} is for a {' or '.join(access.types)}, but {key} is a {' or '.join(entry.types)}",
                "",
            )
        elif access.content is not None:
            yield from self._value(access, access.content, target, entry, key)
        if entry.ttl is not None and access.ttl is not None:
            yield from self._ttl(command, access, access.ttl, target, entry.ttl, key)

    def _value(
        self, access: Access, content: Content, target: Target, entry: Entry, key: str
    ) -> Iterator[Violation]:
        if entry.values is not None and content.value is not None and not entry.values.accepts(content.value):
            yield self._about(
                "value.invalid",
                access._replace(position=content.value_position),
                target,
                f"the value for {key} is not {entry.values.text}",
                "",
            )
        if entry.fields is not None:
            yield from self._fields(access, content, target, entry, key)
        if entry.maxlen is not None and content.stream_add:
            yield from self._maxlen(access, content, target, entry, key)

    def _fields(
        self, access: Access, content: Content, target: Target, entry: Entry, key: str
    ) -> Iterator[Violation]:
        assert entry.fields is not None
        for field in content.fields:
            form = entry.fields.form_of(field.name)
            name = printable(field.name, 64)
            if form is None:
                yield self._about(
                    "field.unknown",
                    access._replace(position=field.position),
                    target,
                    f"{key} has no field {name}",
                    f"its fields: {entry.fields.text}",
                )
            elif field.value_position and not form.accepts(field.value):
                yield self._about(
                    "value.invalid",
                    access._replace(position=field.value_position),
                    target,
                    f"the field {name} of {key} is not {form.text}",
                    "",
                )

    def _maxlen(
        self, access: Access, content: Content, target: Target, entry: Entry, key: str
    ) -> Iterator[Violation]:
        assert entry.maxlen is not None
        must = f"MAXLEN {'' if entry.maxlen_exact else '~ '}{entry.maxlen}"
        if content.maxlen is None:
            problem = f"XADD to {key} must trim the stream"
        elif content.maxlen > entry.maxlen:
            problem = f"XADD to {key} keeps more than {entry.maxlen} entries"
        elif entry.maxlen_exact and content.maxlen_approximate:
            problem = f"XADD to {key} must trim exactly"
        else:
            return
        position = content.maxlen_position or access.position
        yield self._about("stream.maxlen", access._replace(position=position), target, problem, f"use {must}")

    def _ttl(
        self, command: Command | None, access: Access, ttl: Ttl, target: Target, rule: TtlModel, key: str
    ) -> Iterator[Violation]:
        at = access._replace(position=ttl.position or access.position)
        if rule.none:
            if ttl.kind in ("sets", "expires"):
                yield self._about("ttl.forbidden", at, target, f"{key} must not have a time to live", "")
        elif ttl.kind in ("sets", "expires"):
            yield from self._ttl_range(at, ttl, target, rule, key)
        elif ttl.kind == "drops" or self._creates_without_ttl(command, ttl, rule):
            yield self._about(
                "ttl.required", at, target, f"{key} must have a time to live", _ttl_hint(rule, command)
            )

    def _creates_without_ttl(self, command: Command | None, ttl: Ttl, rule: TtlModel) -> bool:
        """Where the write itself must bring the TTL, a command that can't and may create the key doesn't do.

        Redis marks the commands that may need memory for new data as `denyoom`.
        """
        return (
            rule.at == "write" and ttl.kind == "keeps" and command is not None and "denyoom" in command.flags
        )

    def _ttl_range(
        self, access: Access, ttl: Ttl, target: Target, rule: TtlModel, key: str
    ) -> Iterator[Violation]:
        if ttl.milliseconds is None:
            return  # Redis refuses it itself: no integer
        remaining = ttl.milliseconds
        if ttl.absolute:
            remaining -= int(self._clock() * 1000)
        if rule.min is not None and remaining < rule.min:
            text, hint = "too short", f"at least {duration_text(rule.min)}"
        elif rule.max is not None and remaining > rule.max:
            text, hint = "too long", f"at most {duration_text(rule.max)}"
        else:
            return
        yield self._about("ttl.range", access, target, f"the time to live of {key} is {text}", hint)

    # -- wording

    def _who(self, service: int) -> str:
        name = self.policy.services[service]
        return "an unidentified client" if name == UNKNOWN else name

    def _severity(self, rule: str) -> Severity:
        return "should" if rule in self.policy.should else "must"

    def _about(self, rule: str, access: Access, target: Target, message: str, hint: str) -> Violation:
        entry = target.name or target.kind
        covered = target.kind in ("entry", "legacy", "malformed")
        return Violation(
            rule,
            self._severity(rule),
            access.position,
            access.key,
            shown(access.key, target),
            entry,
            entry if covered else "",
            message,
            hint,
        )

    def _plain(self, rule: str, position: int, message: str, hint: str) -> Violation:
        return Violation(rule, self._severity(rule), position, None, "", "", "", message, hint)


def _selects(selectors: frozenset[str], command: Command) -> bool:
    """Whether a command is named by its name, its container's name, or one of its categories."""
    if not selectors:
        return False
    container = command.name.split(" ")[0]
    return (
        command.name in selectors
        or container in selectors
        or any("@" + category in selectors for category in command.categories)
    )


def _ttl_hint(rule: TtlModel, command: Command | None) -> str:
    seconds = (rule.default or rule.max or 60_000) // 1000
    if command is not None and command.name in ("SET", "SETNX", "GETSET", "MSET", "MSETNX"):
        return f"SET it with EX {seconds}"
    return f"{duration_text(rule.default or rule.max or 60_000)}, for example"
