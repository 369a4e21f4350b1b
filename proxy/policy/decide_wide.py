"""What is wrong with names that stand for many keys: patterns, channels, scripts.

Rule: such a name is judged by rights over all that it can mean; where that can't be told, it is a violation
of a named rule and never a silent yes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..commands.model import READ, WRITE, Access, Channel, Script
from .channels import Channels
from .compiled import CompiledPolicy, Grant, Target
from .decide_keys import KeyDecider
from .keyspace import KEYSPACE
from .reach import Holds, Reach, nearest, scan_pattern
from .scripts import MissingArgument, Name, Registration, how_to_register
from .show import printable
from .verdict import Violation


class WideDecider(KeyDecider):
    """Judges patterns, channels and registered scripts against one compiled policy."""

    def _take(self, policy: CompiledPolicy) -> None:
        super()._take(policy)
        self._keys = Reach(policy.classifier, policy.targets)
        self._channels = Channels(policy, self._keys, lambda service: self._holds(service, READ, ""))

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

    def _on_all_keys(self, grants: Iterable[Grant]) -> bool:
        """Whether these grants leave no key out: each file must have one."""
        return {grant.home for grant in grants if b"*" in grant.texts} == set(range(len(self.policy.homes)))

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

    def _databases_hint(self) -> str:
        return f"the policy speaks for database {', '.join(map(str, sorted(self.policy.databases or ())))}"

    def _database(self, service: int, name: str, position: int, number: int) -> Iterator[Violation]:
        admitted = self.policy.databases
        if admitted is not None and number not in admitted:
            yield self._plain(
                "database.forbidden",
                position,
                f"{self.who(service)} may not {name} database {number}",
                self._databases_hint(),
            )

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

    def _unregistered_script(self, service: int, name: str, script: Script) -> Violation:
        """A script can touch any key, whatever it declares."""
        what = "function" if script.kind == "function" else "script"
        message = f"{self.who(service)} may not {name} a {what} that the policy doesn't know"
        hint = how_to_register(script, self._shown(script.name, None))
        return self._plain("script.unregistered", script.position, message, hint)

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
