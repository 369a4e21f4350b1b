"""The checks of scripts and functions: of what they are registered to touch, and of those that are not.

Rule: a service needs rights on everything that a script may touch. If the arguments do not show that, a named
rule is broken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from keyfence.commands.arguments import integer
from keyfence.commands.model import READ, WRITE, Access, Command, Script, Streamed
from keyfence.policy.budget import cost
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.compiled.scripts import (
    Name,
    Registration,
    Template,
    Word,
    first_line,
    how_to_register,
    is_named,
    strictest,
    whole_sha1_of,
)
from keyfence.policy.units import counted
from keyfence.policy.verdict import Found
from keyfence.policy.wording.masking import shown_code, shown_in

from .channels import ChannelChecks
from .evaluation import Evaluation, Use
from .keys import KeyChecks
from .patterns import LESS, TOO_LONG, Patterns

MAX_FIRST_LINES = 1_000


def script_name(policy: CompiledPolicy, script: Script) -> str:
    """Returns the SHA-1 of a script, or a function's name as people may see it; "" if it has none."""
    if script.kind != "function":
        return whole_sha1_of(script)
    return shown_in(policy, script.name, None) if is_named(script) else ""


class ScriptChecks:
    """Checks scripts and functions under one policy."""

    def __init__(
        self, policy: CompiledPolicy, keys: KeyChecks, patterns: Patterns, channels: ChannelChecks
    ) -> None:
        self._policy = policy
        self._keys = keys
        self._patterns = patterns
        self._channels = channels
        self._first_lines: dict[str, str] = {}  # of unregistered scripts, by SHA-1, as people may see them
        self._scopes_unregistered = policy.scopes_unregistered

    def unregistered(self, evaluation: Evaluation, script: Script) -> Iterator[Found | None]:
        """Yields the violation of an unregistered script, unless the policy lets the service run it, or
        load it."""
        service = evaluation.asker.service
        words: dict[int, Word] = {}  # by the file that owns keys
        for key in script.keys if self._scopes_unregistered else ():
            if evaluation.budget.works(cost(key)):
                yield None
            for home, word in self._policy.unregistered_at(service, key).items():
                words[home] = strictest((word, words.get(home, word)))
        may = self._policy.unregistered_scripts(service, words)
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
        rule, contact = "script.unregistered", self._policy.common.contact
        is_function = script.kind == "function"
        shape = script_name(self._policy, script)
        function, sha1 = (shape, "") if is_function else ("", shape)
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

        return Found(
            rule, evaluation.wording.severity(rule), script.position, None, "", shape, contact, words
        )

    def _remember(self, script: Script, sha1: str) -> None:
        """Keeps a script's first line, by which people recognise it. EVALSHA shows only the SHA-1."""
        if sha1 and sha1 not in self._first_lines:
            if len(self._first_lines) >= MAX_FIRST_LINES:
                del self._first_lines[next(iter(self._first_lines))]
            self._first_lines[sha1] = shown_code(self._policy, first_line(script.name))

    def _loaded(self, script: Script) -> None:
        """Keeps the first line of an unregistered script that the service may load."""
        if not isinstance(script.name, Streamed):
            self._remember(script, whole_sha1_of(script))

    def registered(
        self, evaluation: Evaluation, script: Script, registration: Registration
    ) -> Iterator[Found | None]:
        """Checks the keys and channels that a registered script touches according to its registration."""
        command, name = evaluation.touches.command, evaluation.name
        if name == "SCRIPT LOAD":
            return
        captured = registration.captured(script)
        values = registration.own(evaluation.asker.values) | (captured or {})
        touched = [(one, right, one.fill(script, values)) for one, right in registration.touches]
        published = [one.fill(script, values) for one in registration.publishes]
        names = (*(made for _, _, made in touched), *published)
        lack = next((made.lack for made in names if made.lack), "")
        if not registration.takes(len(script.keys)):
            yield self._wrong_number(evaluation, script, registration)
        elif captured is None:
            message = f"{name} of {registration.name} declares keys of another form"
            hint = f"its keys: {registration.forms}"
            yield evaluation.plain("script.keys", script.position + 2, message, hint)
        elif lack:
            message = f"{name} of {registration.name} lacks {lack}, of which its keys are made"
            yield evaluation.plain("script.keys", script.position, message, "give it all its arguments")
        # If script.keys is only observed, all that the script may touch must still be evaluated.
        if registration.declared:
            for access in evaluation.touches.accesses:
                if evaluation.budget.works(cost(access.key)):
                    yield None
                # A variant for reading (EVAL_RO) cannot write, whatever is registered.
                needs = access.needs & registration.declared or access.needs & READ
                one = access._replace(needs=needs)
                yield from self._keys.access(
                    Use(evaluation, one, command, True, registration, registration.runs)
                )
        if command is not None:
            yield from self._made(evaluation, command, script, registration, touched)
        for channel in published:
            yield from self._channels.check_of_script(evaluation, script.position, channel, registration.name)

    def _wrong_number(self, evaluation: Evaluation, script: Script, registration: Registration) -> Found:
        """Makes the violation of a call with another number of keys."""
        problem, at = evaluation.touches.problem, script.position + 1
        what = f"{evaluation.name} of {registration.name}"
        message = f"{what} declares {counted(len(script.keys), 'key')}"
        if problem is not None and integer(evaluation.argv[at]) != 0:
            message = f"{what} cannot be evaluated: {problem.reason}"
        return evaluation.plain("script.keys", at, message, f"exactly {registration.keys}")

    def _made(
        self,
        evaluation: Evaluation,
        command: Command,
        script: Script,
        registration: Registration,
        touched: Sequence[tuple[Template, int, Name]],
    ) -> Iterator[Found | None]:
        """Checks the keys that a script makes of its arguments."""
        for template, right, key in touched:
            access = template.access(key.text, script, script.position, right)
            runs = template.runs if template.runs is not None else registration.runs
            if key.is_pattern:
                yield from self._script_pattern(evaluation, command, access, registration, runs)
            else:
                yield from self._keys.access(Use(evaluation, access, command, True, registration, runs))

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

        if self._patterns.restrict and not self._patterns.are_open_to(evaluation, command, access, runs):

            def forbidden() -> tuple[str, str]:
                hint = f"name the commands of {by} there, as commands: [HSET, EXPIRE]"
                return f"{touching()}: entries among these restrict commands", hint

            yield evaluation.violation("command.forbidden", position, key, None, forbidden)
        only_own = self._patterns.reach_only_own(evaluation, name, key, right, by)
        if only_own:
            return
        rule = "scope.write" if right == WRITE else "scope.read"

        def words() -> tuple[str, str]:
            if only_own is None:
                return f"{touching()}: {TOO_LONG}", LESS
            return touching(), "it has no right to all of these"

        yield evaluation.violation(rule, position, key, None, words)
