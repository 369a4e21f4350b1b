"""The checks of names that stand for many keys: patterns, channels, scripts.

Rule: a service needs rights on everything that such a name can mean. If that cannot be determined, a named
rule is broken; the name is never silently allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from keyfence.commands.arguments import glob_escape, literal_of
from keyfence.commands.model import READ, WRITE, Access, Channel, Command, Script, Streamed
from keyfence.commands.table import COMMANDS
from keyfence.policy.budget import cost
from keyfence.policy.compiled.keyspace import INVALIDATIONS, KEYSPACE, NOTIFICATIONS
from keyfence.policy.compiled.policy import CompiledPolicy, Grant, Target, beginning_of
from keyfence.policy.compiled.scripts import (
    MissingArgument,
    Name,
    Registration,
    Word,
    first_line,
    how_to_register,
    is_named,
    strictest,
    whole_sha1_of,
)
from keyfence.policy.reach.channels import Channels, key_of
from keyfence.policy.reach.reach import Nearest, Reach, holding, own_scan_pattern, scan_pattern
from keyfence.policy.show import LAST_DATABASE, printable
from keyfence.policy.units import counted
from keyfence.policy.verdict import Found
from keyfence.policy.wording.masking import shown_code

from .checks import Use
from .evaluation import Evaluation
from .keys import KeyEvaluator

MAX_OWN_SCANS = 100  # patterns among which a hint looks for one
# The reason if a pattern has used up the budget.
_TOO_LONG = "finding out what it reaches takes too long"
MAX_FIRST_LINES = 1_000
_LESS = "use fewer wildcards, or fewer patterns at a time"
_BEYOND = "it reaches channels that the service may not use"
_TRACKING = "CLIENT TRACKING"
_COUNTING = frozenset({"PUBSUB NUMSUB", "PUBSUB SHARDNUMSUB"})  # the number of a channel's subscribers
_PATTERNED = frozenset({"SCAN", "KEYS", _TRACKING})  # a hint can offer another pattern


class WideEvaluator(KeyEvaluator):
    """Evaluates patterns, channels and registered scripts against one compiled policy."""

    def _take(self, policy: CompiledPolicy) -> None:
        super()._take(policy)
        self._readable: dict[int, Nearest] = {}  # by the service's number: the patterns that it may scan
        self._keys = Reach(policy.classifier, policy.targets)
        self._first_lines: dict[str, str] = {}  # of unregistered scripts, by SHA-1, as people may see them
        self._opened = Reach(policy.classifier, policy.targets, elsewhere=True)
        self._channels = Channels(policy, self._keys)
        self._scopes_unregistered = policy.scopes_unregistered

    def _on_all_keys(self, grants: Iterable[Grant], glob: bytes = b"*") -> bool:
        """Whether these grants cover a pattern of keys as it is written, or every key. Each file whose keys
        it can match must grant it."""
        granting = {grant.home for grant in grants if b"*" in grant.texts or glob in grant.texts}
        return bool(granting) and granting >= self._files_of(glob)

    def _files_of(self, glob: bytes) -> set[int]:
        """Returns the files whose keys a pattern can match, by their number."""
        claims = [
            (claim.encode(), number) for number, home in enumerate(self.policy.homes) for claim in home.claims
        ]
        begun = beginning_of(glob)
        around = max((one for one in claims if begun.startswith(one[0])), default=None)
        if around is None:
            return set(range(len(self.policy.homes)))
        return {around[1]} | {number for claim, number in claims if claim.startswith(begun)}

    def _reaches_only_own(
        self, evaluation: Evaluation, name: str, glob: bytes, right: int, by: str = ""
    ) -> bool | None:
        """Whether a pattern reaches only keys on which the service has the right, for the command of this
        name; None: it takes too long to find out."""
        service = evaluation.service
        granted = self._grants_of(service, name)
        if self._on_all_keys(granted):
            return True  # also what no target covers
        if isinstance(glob, Streamed):
            return False
        if self._on_all_keys(granted, glob):
            return True
        who = (service, right, tuple(map(id, granted)), by)
        own = self._keys.own_places(glob, evaluation.values)
        holds = holding(service, right, granted, own, by)
        return self._keys.covers(glob, holds, who, evaluation.budget, own=own)

    def _pattern(self, evaluation: Evaluation, position: int, glob: bytes, right: int) -> Iterator[Found]:
        """Checks that the service has the right on every key that a glob can match."""
        only_own = self._reaches_only_own(evaluation, evaluation.name, glob, right)
        if only_own:
            return
        glob = bytes(glob)
        verb = "write" if right == WRITE else "read"

        def words() -> tuple[str, str]:
            shown = evaluation.wording.shown(glob, None)
            message = f"{evaluation.who()} may not {evaluation.name} {shown}"
            if only_own is None:
                return f"{message}: {_TOO_LONG}", _LESS
            return f"{message}: it reaches keys that it may not {verb}", self._scan_hint(evaluation, glob)

        yield evaluation.violation("scan.scope", position, glob, None, words)

    def _scan_hint(self, evaluation: Evaluation, glob: bytes) -> str:
        """Returns a hint with a pattern near the glob that would pass."""
        near = self.near(evaluation, glob)
        if near is None:
            return ""
        how = "PREFIX" if evaluation.name == _TRACKING else "SCAN 0 MATCH"
        return f"{how} {printable(near)} would pass"

    def near(self, evaluation: Evaluation, glob: bytes) -> bytes | None:
        """Returns a pattern near the glob that the service may scan, or for CLIENT TRACKING a prefix that it
        may track. None if there is none, or the command takes neither."""
        service, name = evaluation.service, evaluation.name
        if name not in _PATTERNED:
            return None
        scan = COMMANDS[b"SCAN"].command
        if name != _TRACKING and self.why_forbidden(service, scan):
            return None
        readable = self._readable.get(service)
        if readable is None:
            holds = holding(service, READ, self._grants_of(service, ""))
            readable = self._readable[service] = Nearest(
                scan_pattern(target)
                for target in self.policy.targets
                if target.kind in ("entry", "scope") and holds(target)
            )
        begins = beginning_of(glob)[:1]
        for text in [*self._own_scans(evaluation, glob), *readable.to(glob, 20)]:
            if not text.startswith(begins):
                continue  # it is unrelated to the glob
            prefix = literal_of(text[:-1]) if text.endswith(b"*") else b""
            if name == _TRACKING and (not prefix or glob_escape(prefix) + b"*" != text):
                continue
            if self._reaches_only_own(evaluation, name if name == _TRACKING else "SCAN", text, READ):
                return prefix if name == _TRACKING else text
        return None

    def why_forbidden(self, service: int, command: Command) -> str:
        """Returns the reason why the service may not use the command at all; "" if it may."""
        raise NotImplementedError

    def channel(self, name: bytes) -> Target | None:
        """Returns the target of one channel; None if there is none."""
        return self._channels.target(name)

    def _own_scans(self, evaluation: Evaluation, glob: bytes) -> list[bytes]:
        """Returns the patterns of the caller's own keys that are nearest to the glob."""
        if not any(value is not None for value in evaluation.values):
            return []
        found: dict[bytes, bytes] = {}
        for target in self.policy.targets:
            if target.tenancy is not None and target.kind in ("entry", "scope"):
                texts = own_scan_pattern(target, evaluation.values, glob)
                if texts is not None:
                    found[texts[0]] = texts[1]
            if len(found) >= MAX_OWN_SCANS:
                break
        return [found[text] for text in Nearest(found).to(glob, 8)]

    def _databases_hint(self) -> str:
        return f"the policy covers database {', '.join(map(str, sorted(self.policy.databases or ())))}"

    def _database(self, evaluation: Evaluation, position: int, number: int) -> Iterator[Found]:
        admitted = self.policy.databases
        if admitted is not None and number not in admitted:
            shown = number if abs(number) <= LAST_DATABASE else "?"
            yield evaluation.plain(
                "database.forbidden",
                position,
                f"{evaluation.who()} may not {evaluation.name} database {shown}",
                self._databases_hint(),
            )

    def _channel(self, evaluation: Evaluation, channel: Channel) -> Iterator[Found | None]:
        if isinstance(channel.name, Streamed):
            begins = bytes(channel.name)
            if not self._is_granted_channel(evaluation, channel):
                yield self._no_channel(evaluation, channel._replace(name=begins, is_pattern=False), None)
            return
        service, budget, values = evaluation.service, evaluation.budget, evaluation.values
        database = self._channels.database_of(channel)
        leaves = False if database is not None else self._channels.leaves_databases(channel, budget)
        if database is not None:
            yield from self._database(evaluation, channel.position, database)
        elif leaves:
            yield evaluation.plain(
                "database.forbidden",
                channel.position,
                f"{evaluation.who()} may not {evaluation.name} channels "
                "that report on keys in other databases",
                self._databases_hint(),
            )
        key = key_of(channel)
        if key is not None:
            yield from self._access(Use(evaluation, Access(channel.position, key, READ), None))
            return
        is_granted = self._is_granted_channel(evaluation, channel)
        admitted = is_granted or self._channels.admits(service, channel, budget, values)
        if not admitted and evaluation.name in _COUNTING:  # PUBLISH answers the number too
            speaks = channel._replace(publish=True)
            admitted = self._channels.admits(service, speaks, budget, values)
        if not admitted or leaves is None:
            target = None if channel.is_pattern else self._channels.target(channel.name)
            is_told = admitted is not None and leaves is not None
            yield self._no_channel(evaluation, channel, target, is_told=is_told)

    def _is_granted_channel(self, evaluation: Evaluation, channel: Channel) -> bool:
        """Whether a grant covers a channel, or everything that a pattern can match. Keyspace notifications
        also need the right to read the keys."""
        grants = [one for one in self._grants_of(evaluation.service, evaluation.name) if one.channels]
        if not grants:
            return False
        everywhere = set(range(len(self.policy.homes)))
        if channel.is_pattern or isinstance(channel.name, Streamed):
            if {grant.home for grant in grants if grant.covers_channels(channel.name)} != everywhere:
                return False
            return channel.publish or self._hears_only_own(evaluation, channel.name)
        granting = {grant.home for grant in grants if grant.covers_channel(channel.name)}
        target = self._channels.target(channel.name)
        if target is None or target.kind in ("keyspace", "keyevent"):
            is_told = not channel.publish and target is not None and target.kind == "keyevent"
            return granting >= self._unclaimed_by and (not is_told or self._reads_all(evaluation))
        return target.home in granting

    def _hears_only_own(self, evaluation: Evaluation, pattern: bytes) -> bool:
        """Whether a pattern matches no notifications about keys that the service may not read."""
        beginning = beginning_of(pattern)
        apart = not (beginning.startswith(NOTIFICATIONS) or NOTIFICATIONS.startswith(beginning))
        return apart or self._reads_all(evaluation)

    def _reads_all(self, evaluation: Evaluation) -> bool:
        return self._reaches_only_own(evaluation, evaluation.name, b"*", READ) is True

    def _no_channel(
        self, evaluation: Evaluation, channel: Channel, target: Target | None, *, is_told: bool = True
    ) -> Found:
        """Makes the violation. Not `is_told`: it takes too long to find out what the pattern reaches."""
        position, name, publish, is_pattern = channel

        def words() -> tuple[str, str]:
            shown = evaluation.wording.shown(name, target)
            message = f"{evaluation.who()} may not {evaluation.name} {shown}"
            if not is_told:
                return f"{message}: {_TOO_LONG}", _LESS
            if is_pattern and name.startswith(KEYSPACE + b"*"):
                return message, "name the database: the * also matches what comes before a later __: in a key"
            if publish and _is_for_scripts(evaluation.service, target):
                message += ": only scripts publish there"
            if is_pattern:
                return message, _BEYOND
            return message, self._channel_hint(evaluation, channel, target)

        rule = "channel.write" if publish else "channel.read"
        return evaluation.violation(rule, position, name, target, words)

    def _channel_hint(self, evaluation: Evaluation, channel: Channel, target: Target | None) -> str:
        service, publish = evaluation.service, channel.publish
        right, verb = (WRITE, "publishers") if publish else (READ, "subscribers")
        who = target.names_with(right, self.policy.services) if target is not None else []
        if target is not None and target.kind in ("keyspace", "keyevent"):
            return (
                "only Redis publishes there"
                if publish
                else "it reports on keys that the service may not read"
            )
        if target is not None and target.kind == "malformed":
            return f"the form is {target.text}"
        if target is not None and publish and _is_for_scripts(service, target):
            return f"it is written by {', '.join(sorted(target.written_by))}"
        if (
            target is not None
            and target.tenancy is not None
            and target.rights[service] & ~target.denied[service] & right
        ):
            return self.own_hint(evaluation, channel.name, target)
        if target is not None:
            return self.wording.who_may(verb, who)
        if channel.name == INVALIDATIONS and not publish:
            return "it is for services that may use CLIENT TRACKING"
        return "no channel of the policy covers it"

    # -- scripts

    def _unregistered_script(self, evaluation: Evaluation, script: Script) -> Iterator[Found | None]:
        """Yields the violation of an unregistered script, unless the policy lets the service run it, or
        load it."""
        service = evaluation.service
        words: dict[int, Word] = {}  # by the file that owns keys
        for key in script.keys if self._scopes_unregistered else ():
            if evaluation.budget.works(cost(key)):
                yield None
            for home, word in self.policy.unregistered_at(service, key).items():
                words[home] = strictest((word, words.get(home, word)))
        may = self.policy.unregistered_scripts(service, words)
        loads = evaluation.name == "SCRIPT LOAD"
        if may == "report" and not script.keys:
            may = "load_only"  # nothing shows whose keys it touches
        if may == "forbid" or (may != "declared" and not loads):
            found = self._of_unregistered(evaluation, script)
            yield found._replace(severity="should") if may == "report" else found
        elif may != "declared":
            self._loaded(script)

    def _of_unregistered(self, evaluation: Evaluation, script: Script) -> Found:
        """Makes the violation of an unregistered script, which can touch any key, whatever it declares."""
        rule, contact = "script.unregistered", self.policy.common.contact
        is_function = script.kind == "function"
        function = self.wording.shown(script.name, None) if is_function and is_named(script) else ""
        sha1 = "" if is_function else whole_sha1_of(script)
        if script.kind == "text":
            self._remember(script, sha1)

        def words() -> tuple[str, str, str]:
            what = "function" if is_function else "script"
            name = evaluation.name
            message = f"{evaluation.who()} may not {name} a {what} that the policy does not know"
            return (
                self._first_lines.get(sha1, ""),
                message,
                how_to_register(script, function, sha1, is_run=name != "SCRIPT LOAD"),
            )

        shape = function or sha1
        return Found(rule, self.wording.severity(rule), script.position, None, "", shape, contact, words)

    def _remember(self, script: Script, sha1: str) -> None:
        """Keeps a script's first line, by which people recognise it. EVALSHA shows only the SHA-1."""
        if sha1 and sha1 not in self._first_lines:
            if len(self._first_lines) >= MAX_FIRST_LINES:
                del self._first_lines[next(iter(self._first_lines))]
            self._first_lines[sha1] = shown_code(self.policy, first_line(script.name))

    def _loaded(self, script: Script) -> None:
        """Keeps the first line of an unregistered script that the service may load."""
        if not isinstance(script.name, Streamed):
            self._remember(script, whole_sha1_of(script))

    def _registered(
        self, evaluation: Evaluation, script: Script, registration: Registration
    ) -> Iterator[Found | None]:
        """Checks the keys and channels that a registered script touches according to its registration."""
        command, name = evaluation.touches.command, evaluation.name
        if name == "SCRIPT LOAD":
            return
        if not registration.takes(len(script.keys)):
            message = f"{name} of {registration.name} declares {counted(len(script.keys), 'key')}"
            yield evaluation.plain(
                "script.keys", script.position + 1, message, f"exactly {registration.keys}"
            )
            captured = None
        else:
            captured = registration.captured(script)
            if captured is None:
                message = f"{name} of {registration.name} declares keys of another form"
                yield evaluation.plain(
                    "script.keys", script.position + 2, message, f"its keys: {registration.forms}"
                )
        # If script.keys is only observed, the known keys must still be evaluated.
        if registration.declared:
            for access in evaluation.touches.accesses:
                if evaluation.budget.works(cost(access.key)):
                    yield None
                # A variant for reading (EVAL_RO) cannot write, whatever is registered.
                needs = access.needs & registration.declared or access.needs & READ
                one = access._replace(needs=needs)
                yield from self._access(Use(evaluation, one, command, True, registration, registration.runs))
        if captured is not None and command is not None:
            yield from self._templates(evaluation, command, script, registration, captured)

    def _templates(
        self,
        evaluation: Evaluation,
        command: Command,
        script: Script,
        registration: Registration,
        captured: Mapping[str, bytes],
    ) -> Iterator[Found | None]:
        """Checks the keys and channels that a script makes of its arguments."""
        name, missing = command.name, ""
        captured = registration.own(evaluation.values) | dict(captured)
        for template, right in registration.touches:
            try:
                key = template.fill(script, captured)
                access = template.access(key.text, script, script.position, right)
            except MissingArgument as exc:
                missing = missing or str(exc)
            else:
                runs = template.runs if template.runs is not None else registration.runs
                if key.is_pattern:
                    yield from self._script_pattern(evaluation, command, access, registration, runs)
                    continue
                yield from self._access(Use(evaluation, access, command, True, registration, runs))
        for template in registration.publishes:
            try:
                channel = template.fill(script, captured)
            except MissingArgument as exc:
                missing = missing or str(exc)
            else:
                yield from self._script_channel(evaluation, script.position, channel, registration.name)
        if missing:
            message = f"{name} of {registration.name} lacks {missing}, of which its keys are made"
            yield evaluation.plain("script.keys", script.position, message, "give it all its arguments")

    def _script_pattern(
        self,
        evaluation: Evaluation,
        command: Command,
        access: Access,
        registration: Registration,
        runs: frozenset[str] | None,
    ) -> Iterator[Found]:
        """Checks keys that only Redis knows: the service needs the right on every key that they can be."""
        position, key, right = access.position, access.key, access.needs
        name, by = command.name, registration.name

        def touching() -> str:
            shown = evaluation.wording.shown(key, None)
            return f"{evaluation.who()} may not {name} a script that touches {shown}"

        if self._restricts and not self._is_open_to(evaluation, command, access, runs):

            def forbidden() -> tuple[str, str]:
                hint = f"name the commands of {by} there, as commands: [HSET, EXPIRE]"
                return f"{touching()}: entries among these restrict commands", hint

            yield evaluation.violation("command.forbidden", position, key, None, forbidden)
        only_own = self._reaches_only_own(evaluation, name, key, right, by)
        if only_own:
            return
        rule = "scope.write" if right == WRITE else "scope.read"

        def words() -> tuple[str, str]:
            if only_own is None:
                return f"{touching()}: {_TOO_LONG}", _LESS
            return touching(), "it has no right to all of these"

        yield evaluation.violation(rule, position, key, None, words)

    def _is_open_to(
        self,
        evaluation: Evaluation,
        command: Command,
        access: Access,
        runs: frozenset[str] | None = None,
        *,
        is_script: bool = True,
    ) -> bool | None:
        """Whether every key that a pattern can mean admits the command, or the commands that a script runs;
        None if that takes too long to find out. A command with unknown effects counts as a script."""
        service, name = evaluation.service, command.name
        grants = self._grants_of(service, name)
        if self._on_all_keys(grants, access.key):
            return True

        def holds(target: Target) -> bool:
            commands = target.entry.commands if target.entry is not None else None
            if commands is None:
                return True
            if is_script:
                fault = commands.fault_of_script(command, access, runs)
            else:
                fault = commands.fault(command, access, self._clock)
            return not fault or any(grant.includes(target) for grant in grants)

        who = (service if grants else -1, name, access.needs, runs, is_script)
        return self._opened.covers(access.key, holds, who, evaluation.budget)

    def _script_channel(
        self, evaluation: Evaluation, position: int, channel: Name, by: str
    ) -> Iterator[Found]:
        one = Channel(position, channel.text, True, channel.is_pattern)
        if self._is_granted_channel(evaluation, one):
            return
        service, budget, values = evaluation.service, evaluation.budget, evaluation.values
        if channel.is_pattern:
            admitted = self._channels.covers(service, channel.text, WRITE, budget, values, by)
        else:
            admitted = self._channels.admits(service, one, budget, values, by)
        if not admitted:
            target = None if channel.is_pattern else self._channels.target(channel.text)
            yield self._no_channel(evaluation, one, target, is_told=admitted is not None)


def _is_for_scripts(service: int, target: Target | None) -> bool:
    """Whether a service may publish on a channel only by certain scripts, and has used none of these."""
    return (
        target is not None
        and target.kind == "channel"
        and bool(target.written_by)
        and bool(target.rights[service] & WRITE)
    )
