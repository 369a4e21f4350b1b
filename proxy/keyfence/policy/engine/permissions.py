"""Which commands a service may use at all, whatever their keys.

Rule: a command that the policy neither allows nor forbids is forbidden if it is dangerous by itself. A grant
does not help against a prohibition.
"""

from __future__ import annotations

from collections.abc import Sequence

from keyfence.commands.arguments import fold, word
from keyfence.commands.model import Command
from keyfence.commands.own import own_name
from keyfence.policy.compiled.permissions import forbidden_by_default, lets_unknown, names, selects
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.verdict import Found

from .evaluation import Evaluation

FORBIDDEN = "the policy forbids it"


class Permissions:
    """Answers which commands the services of one policy may use."""

    def __init__(self, policy: CompiledPolicy) -> None:
        self._policy = policy
        self._known: dict[tuple[int, str], str] = {}

    def forget(self) -> None:
        """Forgets all kept answers, because the command table has changed."""
        self._known.clear()

    def reason(self, service: int, command: Command) -> str:
        """Returns the reason why the service may not use a command at all; "" if it may."""
        key = (service, command.name)
        reason = self._known.get(key)
        if reason is None:
            reason = self._known[key] = self.why_forbidden(service, command)
        return reason

    def violation(self, evaluation: Evaluation, reason: str) -> Found:
        """Makes the violation of a command that the caller may not use, for this reason."""
        hint = "the policy can grant it to a service"
        if reason == FORBIDDEN:
            hint = "use another command; or ask the owner of the policy to change its commands"
        message = f"{evaluation.who()} may not use {evaluation.name}: {reason}"
        return evaluation.plain("command.forbidden", 0, message, hint)

    def why_forbidden(self, service: int, command: Command) -> str:
        """Returns the same, and keeps nothing."""
        policy = self._policy
        grants = [grant.selectors for grant in policy.grants.get(service, ())]
        if command.name in policy.allow or any(names(granted, command) for granted in grants):
            return ""
        if names(policy.forbid, command):
            return FORBIDDEN
        if any(selects(allowed, command) for allowed in (policy.allow, *grants)):
            return ""
        return forbidden_by_default(command, command.names_keys)

    def answers(self, service: int, argv: Sequence[bytes], command: Command | None) -> bool:
        """Whether keyfence itself answers a command of the service: it is one of its own, and the policy
        grants it by name. `*` does not, since these commands also show other services' clients."""
        own = own_name(argv) if command is None else ""
        if not own:
            return False
        policy, spelled = self._policy, Command(own, 0, frozenset(), frozenset(), (), False)
        grants = [grant.selectors for grant in policy.grants.get(service, ())]
        if own in policy.allow or any(names(granted, spelled) for granted in grants):
            return True
        return names(policy.allow, spelled) and not names(policy.forbid, spelled)

    def let_unknown(self, evaluation: Evaluation) -> bool:
        """Whether the policy allows a command that is not in the command table."""
        argv, command = evaluation.argv, evaluation.touches.command
        policy, spelled = self._policy, {evaluation.name} if command is not None else set()
        first = fold(argv[0]).decode("latin-1") if argv else ""
        spelled |= {first, f"{first} {word(argv[1]).decode('latin-1')}"} if len(argv) > 1 else {first}
        grants = [grant.selectors for grant in policy.grants.get(evaluation.service, ())]
        if any(command is not None and names(granted, command) for granted in grants):
            return True
        is_granted = any(not granted.isdisjoint(spelled) for granted in grants)
        return is_granted or lets_unknown(policy.allow.union(*grants), policy.forbid, spelled)
