"""From what a command touches to a verdict.

Rule: every access is judged, every violation is listed, rights before form before content; the same inputs
give the same verdict. Nothing is refused here, and no exception is part of the answer.

docs/policy.md has the table of which rule fires when; tests/policy/test_which_rule_fires.py holds it to this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ..commands.extract import extract
from ..commands.model import DELETE, GROUP, READ, WRITE, Access, Channel, Command, Script, Touches
from .bind import first_difference
from .channels import Channels
from .compiled import UNKNOWN, CompiledPolicy, Grant, Target
from .content import Fault, content_faults, fits, ttl_fault, type_fault, types_in
from .keyspace import KEYSPACE
from .masking import shown_in, standard_key
from .names import NameFault, hash_tag_fault, lowered
from .pending import Pending
from .permissions import forbidden_by_default, selects, selects_name
from .reach import Holds, Reach, nearest, scan_pattern
from .scripts import MissingArgument, Name, Registration
from .show import printable
from .slots import hash_slot
from .ttl import FAULTS, FINE, TtlRule, late_fault, outcome
from .verdict import ALLOWED, COVERED, Severity, Verdict, Violation


class Transaction:
    """What must be known of a transaction's earlier commands to judge a later one."""

    def __init__(self) -> None:
        self.slot: int | None = None  # of the first key, where the policy is for a cluster


class Decider:
    """Judges commands against one compiled policy."""

    def __init__(self, policy: CompiledPolicy, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._permissions: dict[tuple[int, str], str] = {}
        self._grants_known: dict[tuple[int, str], list[Grant]] = {}
        self._take(policy.without_lapsed(clock()))
        # Rules about keys together, which `admits` leaves to `judge`.
        self._looks_closer = policy.cluster
        # The files that must grant what is on a key of no file.
        self._unclaimed_by = {number for number, home in enumerate(policy.homes) if not home.claims} or set(
            range(len(policy.homes))
        )
        self._binds = any(target.bound for target in policy.targets)
        self._reads_words = any(home.type_words for home in policy.homes)
        self._prefixes = _prefixes(policy)
        # What the last command means for times to live, where that isn't nothing.
        self.left_open: list[tuple[int, Access, Target, TtlRule]] = []

    def _take(self, policy: CompiledPolicy) -> None:
        """Judge by this policy from now on; what was remembered of another is forgotten."""
        self.policy = policy
        self._permissions.clear()
        self._grants_known.clear()
        self._keys = Reach(policy.classifier, policy.targets)
        self._channels = Channels(policy, self._keys, lambda service: self._holds(service, READ, ""))
        self._next_lapse = policy.next_lapse()

    def forget_permissions(self) -> None:
        """The command table has changed: what a command may do is asked anew."""
        self._permissions.clear()
        self._grants_known.clear()

    def decide(self, service: int, argv: Sequence[bytes]) -> Verdict:
        """The verdict on one command (argv with its name first) of the service with this number."""
        return self.judge(service, argv, extract(argv))

    def admits(self, service: int, touches: Touches) -> bool:
        """Whether nothing is wrong, as far as a glance shows. False says nothing: ask `judge`.

        The way of most commands; where it says yes, `judge` finds no violation (tests/policy/test_decide.py).
        """
        self.left_open.clear()
        if self._next_lapse is not None and self._clock() >= self._next_lapse:
            return False
        command, accesses, channels, pattern, script, databases, problem = touches
        if command is None or problem or channels or pattern or script or databases or self._looks_closer:
            return False
        reason = self._permissions.get((service, command.name))
        if reason is None or reason:
            return False
        if self._binds and len(accesses) > 1:
            return False
        return all(self._is_clean(service, access) for access in accesses)

    def _is_clean(self, service: int, access: Access) -> bool:
        """The same for one access: a catalogued key, all rights, and nothing to look into."""
        target = self.policy.target(access.key)
        if target is None or not self._is_registered(target):
            return False
        held = target.rights[service] & ~target.denied[service]
        needs = access.needs
        if not held or needs & ~held & (READ | WRITE) or (needs & WRITE and target.written_by):
            return False
        if not target.names_sure and not self.is_well_named(access.key, target):
            return False
        entry = target.entry
        if self._reads_words and not fits(self._types(access.key, target), access.types):
            return False
        if entry is None or entry.is_plain:
            return True
        if access.content is not None and entry.looks_into_values:
            return False
        if entry.ttl is not None:
            found = outcome(entry.ttl, access, self._clock)
            if found in FAULTS:
                return False
            if found:
                self.left_open.append((found, access, target, entry.ttl))
        return fits(entry.types, access.types)

    def at_a_glance(self, service: int, command: Command, access: Access, target: Target) -> int:
        """What an access means for its key's time to live (`ttl.outcome`), where nothing is wrong with it
        whatever the key is called, whatever is written, and at any time; -1: that can't be told."""
        if self._looks_closer or (self._next_lapse is not None and service in self.policy.grants):
            return -1
        if next(self._permission(service, command), None) is not None or not self._is_registered(target):
            return -1
        held = target.rights[service] & ~target.denied[service]
        needs = access.needs
        if not held or needs & ~held & (READ | WRITE) or (needs & WRITE and target.written_by):
            return -1
        entry = target.entry
        types = entry.types if entry is not None else ()
        if not fits(types, access.types) or (not types and self.policy.home(target).type_words):
            return -1
        if entry is None or entry.ttl is None:
            return FINE
        if access.ttl is not None and access.ttl.absolute:
            return -1
        found = outcome(entry.ttl, access, self._clock)
        return -1 if found in FAULTS else found

    def admits_alone(self, service: int, name: bytes) -> bool:
        """Whether nothing is wrong with a command that has no arguments, at any time."""
        if self._next_lapse is not None and service in self.policy.grants:
            return False
        return not self.decide(service, [name]).violations

    def judges_alike(self, service: int, name: str, target: Target | None) -> bool:
        """Whether a command on a well named key of this target (None: on one of none) breaks the same rules
        whatever the key is called, as far as these are about rights, form and time to live."""
        if self._looks_closer or self._next_lapse is not None or self._grants_of(service, name):
            return False
        return target is None or not (
            target.kind in ("entry", "scope") and self.policy.home(target).type_words
        )

    def _is_registered(self, target: Target) -> bool:
        """Whether the key is one that there may be."""
        return target.kind == "entry" or target.is_open

    def _types(self, key: bytes, target: Target) -> Sequence[str]:
        """The types that a key may have, by its entry or else by its words; none: any."""
        if target.entry is not None and target.entry.types:
            return target.entry.types
        return types_in(key, self.policy.home(target).type_words)

    def is_well_named(self, key: bytes, target: Target) -> bool:
        """Whether a name keeps all that is asked of it, as far as a glance shows."""
        limit = target.entry.max_length if target.entry is not None else None
        if limit is not None and len(key) > limit.most:
            return False
        if target.hash_tag != "any" and hash_tag_fault(key, target.hash_tag):
            return False
        return self.policy.home(target).names.admits(key)

    def judge(
        self, service: int, argv: Sequence[bytes], touches: Touches, transaction: Transaction | None = None
    ) -> Verdict:
        """The verdict on what a command touches, where that is known already."""
        self.left_open.clear()
        if self._next_lapse is not None and self._clock() >= self._next_lapse:
            self._take(self.policy.without_lapsed(self._clock()))
        found = tuple(self._violations(service, argv, touches, transaction))
        return Verdict(found) if found else ALLOWED

    def _violations(
        self, service: int, argv: Sequence[bytes], touches: Touches, transaction: Transaction | None
    ) -> Iterator[Violation]:
        command = touches.command
        name = command.name if command is not None else printable(argv[0], 32).upper()
        if command is not None:
            yield from self._permission(service, command)
        yield from self._databases(service, name, touches)
        if touches.pattern is not None:
            yield from self._pattern(service, name, touches.pattern.position, touches.pattern.glob, READ)
        for channel in touches.channels:
            yield from self._channel(service, name, channel)
        accesses = touches.accesses
        registration = self.policy.registration(touches.script) if touches.script is not None else None
        if touches.script is not None and registration is not None:
            yield from self._registered(service, name, touches.script, registration, accesses)
        else:
            yield from self._unknown_parts(service, name, touches)
            for access in accesses:
                yield from self._access(service, name, access)
        if registration is not None and touches.script is not None:
            accesses = (*accesses, *registration.made(touches.script))
        crossing = list(self._slots(name, accesses, transaction)) if self.policy.cluster else []
        yield from crossing or self._bindings(service, name, accesses)

    # -- the command itself

    def _permission(self, service: int, command: Command) -> Iterator[Violation]:
        key = (service, command.name)
        reason = self._permissions.get(key)
        if reason is None:
            reason = self._permissions[key] = self._why_forbidden(service, command)
        if reason:
            yield self._plain(
                "command.forbidden",
                0,
                f"{self.who(service)} may not use {command.name}: {reason}",
                "the policy can grant it to a service",
            )

    def _why_forbidden(self, service: int, command: Command) -> str:
        policy = self.policy
        if any(selects(grant.selectors, command) for grant in policy.grants.get(service, ())):
            return ""
        if command.name in policy.allow:
            return ""
        if selects(policy.forbid, command):
            return "the policy forbids it"
        if selects(policy.allow, command):
            return ""
        return forbidden_by_default(command, command.names_keys)

    def _unknown_parts(self, service: int, name: str, touches: Touches) -> Iterator[Violation]:
        """What can't be known of the command, unless it is granted for all keys."""
        problem = touches.problem
        if problem is not None and not self._is_granted_everything(service, name, touches.command):
            yield self._plain(
                problem.rule,
                problem.position,
                f"{name} can't be judged: {problem.reason}",
                "use a command whose keys are known, or ask for a grant on all keys",
            )
        if touches.script is not None and self.policy.forbids_unregistered_scripts:
            yield self._plain(
                "script.unregistered",
                touches.script.position,
                f"{self.who(service)} may not {name} a script that the policy doesn't know",
                "register it in the policy by its SHA-1 or source",
            )

    def _is_granted_everything(self, service: int, name: str, command: Command | None) -> bool:
        grants = self.policy.grants.get(service, ())
        return self._on_all_keys(
            one for one in grants if (selects(one.selectors, command) if command else name in one.selectors)
        )

    def _on_all_keys(self, grants: Iterable[Grant]) -> bool:
        """Whether these grants leave no key out: each file must have one."""
        return {grant.home for grant in grants if b"*" in grant.texts} == set(range(len(self.policy.homes)))

    def _databases(self, service: int, name: str, touches: Touches) -> Iterator[Violation]:
        for position, number in touches.databases:
            yield from self._database(service, name, position, number)

    def _database(self, service: int, name: str, position: int, number: int) -> Iterator[Violation]:
        admitted = self.policy.databases
        if admitted is not None and number not in admitted:
            yield self._plain(
                "database.forbidden",
                position,
                f"{self.who(service)} may not {name} database {number}",
                self._databases_hint(),
            )

    def _databases_hint(self) -> str:
        return f"the policy speaks for database {', '.join(map(str, sorted(self.policy.databases or ())))}"

    def _slots(
        self, name: str, accesses: Sequence[Access], transaction: Transaction | None
    ) -> Iterator[Violation]:
        """All keys of a command, and of a transaction, in one hash slot."""
        first = transaction.slot if transaction is not None else None
        for access in accesses:
            target = self.policy.target(access.key)
            if not self.policy.home(target).cluster:
                continue
            slot = hash_slot(access.key)
            if first is None:
                first = slot
            elif slot != first:
                text = self._shown(access.key, target)
                message = f"{name} {text} is in hash slot {slot}, an earlier key in {first}"
                hint = "give the keys one hash tag, as {tag}"
                yield self._violation("slot.cross", access.position, access.key, target, message, hint)
                break
        if transaction is not None:
            transaction.slot = first

    def _bindings(self, service: int, name: str, accesses: Sequence[Access]) -> Iterator[Violation]:
        """A bound placeholder has one value within a command, whatever keys a grant covers left out."""
        if not self._binds or len(accesses) < 2:
            return
        found = [(access, self.policy.target(access.key)) for access in accesses]
        found = [one for one in found if not self._granted(service, name, *one)]
        accesses, targets = [access for access, _ in found], [target for _, target in found]
        difference = first_difference([target.bound if target is not None else () for target in targets])
        if difference is not None:
            index, placeholder, value, first = difference
            access, target = accesses[index], targets[index]
            text = self._shown(access.key, target)
            told = f"the {placeholder} {printable(value)}, an earlier key {printable(first)}"
            message = f"{name} {text} has {told}"
            hint = f"the keys of one command share their {placeholder}"
            yield self._violation("key.format", access.position, access.key, target, message, hint)

    # -- names that stand for many: patterns, channels

    def _holds(self, service: int, right: int, name: str, by: str = "") -> Holds:
        """Whether a service has a right on all keys of a target, its own or by a grant of the command.

        `by` is the registered script that does it, "" for a plain command.
        """
        grants = self._grants_of(service, name)

        def holds(target: Target) -> bool:
            held = target.rights[service] & ~target.denied[service]
            if right & WRITE and not target.is_written_by(by):
                held = 0
            return bool(held & right) or any(grant.includes(target) for grant in grants)

        return holds

    def _grants_of(self, service: int, name: str) -> list[Grant]:
        known = self._grants_known.get((service, name))
        if known is None:
            grants = self.policy.grants.get(service, ())
            known = [grant for grant in grants if selects_name(grant.selectors, name)]
            if len(self._grants_known) < MAX_GRANTS_KNOWN:
                self._grants_known[service, name] = known
        return known

    def _reaches_only_own(self, service: int, name: str, glob: bytes, right: int, by: str = "") -> bool:
        granted = self._grants_of(service, name)
        if self._on_all_keys(granted):
            return True  # what no target covers, too
        who = (service, right, name if granted else "", by)
        return self._keys.covers(glob, self._holds(service, right, name, by), who)

    def _pattern(
        self, service: int, name: str, position: int, glob: bytes, right: int
    ) -> Iterator[Violation]:
        """A glob over keys is judged by rights: may the service touch all that can match?"""
        if self._reaches_only_own(service, name, glob, right):
            return
        verb = "write" if right == WRITE else "read"
        reached = self._shown(glob, None)
        message = f"{self.who(service)} may not {name} {reached}: it reaches keys that it may not {verb}"
        yield self._violation("scan.scope", position, glob, None, message, self._scan_hint(service, glob))

    def _scan_hint(self, service: int, glob: bytes) -> str:
        """A pattern near the glob that would pass."""
        holds = self._holds(service, READ, "")
        readable = [
            scan_pattern(target)
            for target in self.policy.targets
            if target.kind in ("entry", "scope") and holds(target)
        ]
        for text in nearest(readable, glob)[:20]:
            if self._reaches_only_own(service, "SCAN", text, READ):
                return f"SCAN 0 MATCH {printable(text)} would pass"
        return ""

    def _channel(self, service: int, name: str, channel: Channel) -> Iterator[Violation]:
        database = self._channels.database_of(channel)
        if database is not None:
            yield from self._database(service, name, channel.position, database)
        elif self._channels.leaves_databases(channel):
            yield self._plain(
                "database.forbidden",
                channel.position,
                f"{self.who(service)} may not {name} what tells of keys in other databases",
                self._databases_hint(),
            )
        key = self._channels.key_of(channel)
        if key is not None:
            yield from self._access(service, name, Access(channel.position, key, READ))
        elif not self._channels.admits(service, channel):
            target = None if channel.is_pattern else self._channels.target(channel.name)
            yield self._no_channel(service, name, channel.position, channel.name, target, channel.publish)

    def _no_channel(
        self, service: int, name: str, position: int, channel: bytes, target: Target | None, publish: bool
    ) -> Violation:
        right, verb = (WRITE, "publishers") if publish else (READ, "subscribers")
        who = target.names_with(right, self.policy.services) if target is not None else []
        if target is not None and target.kind in ("keyspace", "keyevent"):
            hint = "only Redis speaks there" if publish else "it tells of keys that the service may not read"
        elif target is not None and target.kind == "malformed":
            hint = f"the form is {target.text}"
        elif target is not None:
            hint = self._who_may(verb, who)
        elif channel.startswith(KEYSPACE + b"*"):
            hint = "name the database: the * also matches what comes before a later __: in a key"
        else:
            hint = "no channel of the policy covers it"
        message = f"{self.who(service)} may not {name} {self._shown(channel, target)}"
        rule = "channel.write" if publish else "channel.read"
        return self._violation(rule, position, channel, target, message, hint)

    # -- scripts

    def _registered(
        self,
        service: int,
        name: str,
        script: Script,
        registration: Registration,
        accesses: Sequence[Access],
    ) -> Iterator[Violation]:
        """A script that the policy knows touches what its registration says."""
        if name == "SCRIPT LOAD":
            return
        if len(script.keys) != registration.keys:
            message = f"{name} of {registration.name} declares {len(script.keys)} keys"
            yield self._plain("script.keys", script.position + 1, message, f"exactly {registration.keys}")
            captured = None
        else:
            captured = registration.captured(script)
            if captured is None:
                forms = ", ".join(pattern.text for pattern in registration.patterns)
                message = f"{name} of {registration.name} declares keys of another form"
                yield self._plain("script.keys", script.position + 2, message, f"its keys: {forms}")
        # Where script.keys is only observed, what is known of the keys must still be judged.
        if registration.declared:
            for access in accesses:
                # A variant for reading (EVAL_RO) can't write, whatever is registered.
                needs = access.needs & registration.declared or access.needs & READ
                yield from self._access(service, name, access._replace(needs=needs), by=registration.name)
        if captured is not None:
            yield from self._templates(service, name, script, registration, captured)

    def _templates(
        self,
        service: int,
        name: str,
        script: Script,
        registration: Registration,
        captured: Mapping[str, bytes],
    ) -> Iterator[Violation]:
        """The keys and channels that a script makes of its arguments."""
        missing = ""
        for template, right in registration.touches:
            try:
                key = template.fill(script, captured)
                access = template.access(key.text, script, script.position, right)
            except MissingArgument as exc:
                missing = missing or str(exc)
            else:
                yield from self._script_key(service, name, access, key.is_pattern, registration.name)
        for template in registration.publishes:
            try:
                channel = template.fill(script, captured)
            except MissingArgument as exc:
                missing = missing or str(exc)
            else:
                yield from self._script_channel(service, name, script.position, channel)
        if missing:
            message = f"{name} of {registration.name} lacks {missing}, of which its keys are made"
            yield self._plain("script.keys", script.position, message, "give it all its arguments")

    def _script_key(
        self, service: int, name: str, access: Access, is_pattern: bool, by: str
    ) -> Iterator[Violation]:
        position, key, right = access.position, access.key, access.needs
        if not is_pattern:
            yield from self._access(service, name, access, by=by)
        elif not self._reaches_only_own(service, name, key, right, by):
            rule = "scope.write" if right == WRITE else "scope.read"
            message = f"{self.who(service)} may not {name} a script that touches {self._shown(key, None)}"
            yield self._violation(rule, position, key, None, message, "it has no right to all of these")

    def _script_channel(self, service: int, name: str, position: int, channel: Name) -> Iterator[Violation]:
        if channel.is_pattern:
            admitted = self._channels.covers(service, channel.text, WRITE)
        else:
            admitted = self._channels.admits(service, Channel(position, channel.text, True, False))
        if not admitted:
            target = None if channel.is_pattern else self._channels.target(channel.text)
            yield self._no_channel(service, name, position, channel.text, target, True)

    # -- keys

    def _access(self, service: int, name: str, access: Access, by: str = "") -> Iterator[Violation]:
        """`by` is the registered script or function that touches the key; "" where the command does."""
        policy = self.policy
        target = policy.target(access.key)
        if policy.grants and self._granted(service, name, access, target):
            return
        if target is None or target.kind == "stray":
            yield self._unregistered(service, name, access, target)
        elif target.kind == "legacy":
            yield from self._legacy(service, name, access, target)
        else:
            yield from self._standard(service, name, access, target, by)

    def _granted(self, service: int, name: str, access: Access, target: Target | None) -> bool:
        grants = self._grants_of(service, name)
        if not grants:
            return False
        granting = {one.home for one in grants if one.covers(access.key, target)}
        return bool(granting) and (target is not None or granting >= self._unclaimed_by)

    def _standard(
        self, service: int, name: str, access: Access, target: Target, by: str
    ) -> Iterator[Violation]:
        if target.kind != "claim":
            yield from self._rights(service, name, access, target, by)
        if target.kind == "malformed":
            message = f"{self._shown(access.key, target)} is not of the form {target.text}"
            yield self._about("key.format", access, target, message, _form_hint(access.key, target))
        elif target.kind == "claim":
            targets = self.policy.targets
            scopes = sorted({one.text for one in targets if one.kind == "scope" and one.home == target.home})
            message = f"{self._shown(access.key, target)} is in no scope of the policy"
            hint = f"a key begins with one of {', '.join(scopes)}" if scopes else ""
            yield self._about("key.format", access, target, message, hint)
        elif target.kind == "scope" and not target.is_open:
            message = f"no entry of the scope {target.name} covers {self._shown(access.key, target)}"
            yield self._about(
                "key.unregistered", access, target, message, "register the key in the policy first"
            )
        if not target.names_sure:
            yield from self._named(access, target)
        if target.kind in ("entry", "scope"):
            yield from self._content(name, access, target)

    def _content(self, name: str, access: Access, target: Target) -> Iterator[Violation]:
        """What is wrong with the value, as far as the command shows it; the rest is left open."""
        entry = target.entry
        types = self._types(access.key, target)
        key = self._shown(access.key, target)
        if not fits(types, access.types):
            yield self._fault(type_fault(name, access, types, key), access, target)
        elif entry is not None and entry.looks_into_values:
            for fault in content_faults(access, entry, key):
                yield self._fault(fault, access, target)
        if entry is None or entry.ttl is None:
            return
        found = outcome(entry.ttl, access, self._clock)
        if found in FAULTS:
            yield self._fault(ttl_fault(found, name, access, entry.ttl, key), access, target)
        elif found:
            self.left_open.append((found, access, target, entry.ttl))

    def _fault(self, fault: Fault, access: Access, target: Target) -> Violation:
        at = access._replace(position=fault.position)
        return self._about(fault.rule, at, target, fault.message, fault.hint)

    def late(self, pending: Pending, left: int) -> Violation | None:
        """What is wrong with a key whose PTTL turned out to be `left`; None if nothing is."""
        key = self._shown(pending.key, pending.target)
        found = late_fault(left, pending.everything, pending.rule, pending.command, key)
        if found is None:
            return None
        access = Access(pending.position, pending.key, WRITE)
        return self._about(found.rule, access, pending.target, found.message, found.hint)

    def _rights(
        self, service: int, name: str, access: Access, target: Target, by: str
    ) -> Iterator[Violation]:
        lacking = set(_lacking(service, access.needs, target))
        writes = access.needs & WRITE and not access.needs & GROUP and WRITE not in lacking
        if writes and not target.is_written_by(by):
            shown = self._shown(access.key, target)
            message = f"{self.who(service)} may not {name} {shown}: only scripts write it"
            hint = f"it is written by {', '.join(sorted(target.written_by))}"
            yield self._about("scope.write", access, target, message, hint)
        newer = target.successor
        if lacking and newer is not None and not any(_lacking(service, access.needs, target, True)):
            shown = self._shown(access.key, target)
            message = f"{self.who(service)} may not {name} {shown}, which is replaced"
            yield self._about("key.legacy", access, target, message, f"use {newer.text}")
            return
        for right in sorted(lacking):
            rule = "scope.write" if right & WRITE else "scope.read"
            message = f"{self.who(service)} may not {name} {self._shown(access.key, target)}"
            if access.needs & GROUP and right == WRITE:
                hint = self._who_may("consumers", target.names_with(GROUP, self.policy.services))
            else:
                verb = "writers" if right == WRITE else "readers"
                hint = self._who_may(verb, target.names_with(right, self.policy.services))
            yield self._about(rule, access, target, message, hint)

    def _who_may(self, verb: str, who: Sequence[str]) -> str:
        if not self.policy.name_services:
            return "ask for the right"
        return f"its {verb}: {', '.join(who)}" if who else f"it has no {verb}"

    def _unregistered(self, service: int, name: str, access: Access, stray: Target | None) -> Violation:
        shown = self._shown(access.key, stray)
        message = f"{self.who(service)} may not {name} {shown}: no entry of the policy covers it"
        hint = self._instead(access.key, stray)
        found = self._violation("key.unregistered", access.position, access.key, stray, message, hint)
        # No entry's: the report has such keys by their shape.
        return found._replace(entry="", shape="")

    def _instead(self, key: bytes, stray: Target | None) -> str:
        """What to write in place of a key that no entry covers: what the policy says, or the same key behind
        a scope's prefix where that makes one that an entry covers."""
        if stray is not None:
            return f"use {standard_key(key, stray)}"
        for prefix in self._prefixes:
            target = self.policy.target(prefix + key)
            if target is not None and target.kind == "entry":
                return f"use {self._shown(prefix + key, target)}"
        claims = " or ".join(self.policy.claims)
        return f"every key begins with {claims}" if claims else "register the key in the policy first"

    def _legacy(self, service: int, name: str, access: Access, target: Target) -> Iterator[Violation]:
        """A legacy key has one answer: what its exception allows passes, all else is `key.legacy`."""
        if any(_lacking(service, access.needs, target)):
            shown = self._shown(access.key, target)
            message = f"{self.who(service)} may not {name} {shown}, a deprecated form"
            if target.has_lapsed:
                message += " that was tolerated for a while"
            yield self._about(
                "key.legacy", access, target, message, f"use {standard_key(access.key, target)}"
            )

    def _named(self, access: Access, target: Target) -> Iterator[Violation]:
        """What is wrong with the name itself, whatever kind of key it is."""
        for fault in self._name_faults(access.key, target):
            shown = self._shown(access.key, target)
            message = fault.message.replace("{lower}", lowered(shown)).replace("{key}", shown)
            found = self._about(fault.rule, access, target, message, fault.hint)
            yield found if fault.severity == "must" else found._replace(severity="should")

    def _name_faults(self, key: bytes, target: Target) -> Iterator[NameFault]:
        limit = target.entry.max_length if target.entry is not None else None
        for fault in self.policy.home(target).names.faults(key, limit):
            # What is of no form was told so already, and better.
            if fault.rule != "key.format" or target.kind not in ("malformed", "claim"):
                yield fault
        tag = hash_tag_fault(key, target.hash_tag)
        if tag is not None:
            yield tag

    # -- wording

    def who(self, service: int) -> str:
        """The service with this number, as messages name it."""
        name = self.policy.services[service]
        return "an unidentified client" if name == UNKNOWN else name

    def _shown(self, key: bytes, target: Target | None) -> str:
        """A key, channel or pattern as people may see it."""
        return shown_in(self.policy, key, target)

    def _severity(self, rule: str, target: Target | None = None) -> Severity:
        is_common = target is None or target.kind in ("keyspace", "keyevent")
        should = self.policy.should if is_common or target is None else target.should
        return "should" if rule in should else "must"

    def _about(self, rule: str, access: Access, target: Target, message: str, hint: str) -> Violation:
        return self._violation(rule, access.position, access.key, target, message, hint)

    def _violation(
        self, rule: str, position: int, key: bytes, target: Target | None, message: str, hint: str
    ) -> Violation:
        entry = (target.name or target.kind) if target is not None else ""
        covered = target is not None and target.kind in COVERED
        return Violation(
            rule,
            self._severity(rule, target),
            position,
            key,
            self._shown(key, target),
            entry,
            entry if covered else "",
            message,
            hint,
            self.policy.home(target).contact,
        )

    def _plain(self, rule: str, position: int, message: str, hint: str) -> Violation:
        contact = self.policy.common.contact
        return Violation(rule, self._severity(rule), position, None, "", "", "", message, hint, contact)


def _lacking(service: int, needs: int, target: Target, all_held: bool = False) -> Iterator[int]:
    """The rights (READ, WRITE) that an access needs and the service doesn't have on a target.

    `all_held`: what its replacement has taken from an entry counts as held.
    """
    held = target.rights[service]
    if not all_held:
        held &= ~target.denied[service]
    elif target.denied_before:
        held &= ~target.denied_before[service]
    if needs & GROUP and held & GROUP:
        needs &= ~WRITE  # a group's books only; what is read with them (XREADGROUP) is read
    if needs & READ and not held & READ:
        yield READ
    if needs & WRITE and not held & WRITE and not (needs & DELETE and held & DELETE):
        yield WRITE
    if not needs and not held:
        yield READ


MAX_PREFIXES = 64
MAX_GRANTS_KNOWN = 10_000  # services and commands: a name that isn't in the table is the client's to word


def _prefixes(policy: CompiledPolicy) -> tuple[bytes, ...]:
    """What may be missing before a key that no entry covers: the prefixes of scopes, so many at most."""
    scopes = [one.pattern.literal_prefix for one in policy.targets if one.kind == "scope"]
    return tuple(dict.fromkeys(prefix for prefix in scopes if prefix))[:MAX_PREFIXES]


def _form_hint(key: bytes, target: Target) -> str:
    if len(key) <= len(target.pattern.literal_prefix):
        return "the part after the prefix is missing"
    return f"for example {printable(target.standard.example())}" if target.standard else ""
