"""Which commands a service may use at all, and which keys its grants of a command cover.

Rule: a command that the policy neither allows nor forbids is forbidden if it is dangerous by itself. A grant
does not help against a prohibition. It covers keys of its own file only; what no file claims needs a grant of
each file that claims nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from keyfence.commands.arguments import fold, word
from keyfence.commands.model import Access, Command
from keyfence.commands.own import own_name
from keyfence.policy.compiled.permissions import forbidden_by_default, lets_unknown, names, selects
from keyfence.policy.compiled.policy import CompiledPolicy, Grant, Target, beginning_of
from keyfence.policy.verdict import Found

from .evaluation import Evaluation

FORBIDDEN = "the policy forbids it"
MAX_GRANTS_KNOWN = 10_000  # services and commands; clients can invent names of unknown commands


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

    def spells_out(self, service: int, command: str) -> bool:
        """Whether the policy allows a command to the service by its full name. `*`, a category and the name
        of a container do not count."""
        grants = (grant.selectors for grant in self._policy.grants.get(service, ()))
        return any(command in selectors for selectors in (self._policy.allow, *grants))

    def let_unknown(self, evaluation: Evaluation) -> bool:
        """Whether the policy allows a command that is not in the command table."""
        argv, command = evaluation.argv, evaluation.touches.command
        policy, spelled = self._policy, {evaluation.name} if command is not None else set()
        first = fold(argv[0]).decode("latin-1") if argv else ""
        spelled |= {first, f"{first} {word(argv[1]).decode('latin-1')}"} if len(argv) > 1 else {first}
        grants = [grant.selectors for grant in policy.grants.get(evaluation.asker.service, ())]
        if any(command is not None and names(granted, command) for granted in grants):
            return True
        is_granted = any(not granted.isdisjoint(spelled) for granted in grants)
        return is_granted or lets_unknown(policy.allow.union(*grants), policy.forbid, spelled)


class Grants:
    """Answers what the grants of one policy cover."""

    def __init__(self, policy: CompiledPolicy) -> None:
        self._policy = policy
        self._known: dict[tuple[int, str], list[Grant]] = {}
        # Each of these files must grant an access to a key that no file claims.
        self.unclaimed_by = {number for number, home in enumerate(policy.homes) if not home.claims} or set(
            range(len(policy.homes))
        )

    def forget(self) -> None:
        """Forgets all kept answers, because the command table has changed."""
        self._known.clear()

    def of(self, service: int, name: str) -> list[Grant]:
        """Returns the service's grants of the command of this name; of "", those of every command."""
        known = self._known.get((service, name))
        if known is None:
            known = self._policy.grants_of(service, name)
            if len(self._known) < MAX_GRANTS_KNOWN:
                self._known[service, name] = known
        return known

    def cover(self, evaluation: Evaluation, access: Access, target: Target | None) -> bool:
        """Whether the caller's grants of the command cover a key of this target."""
        grants = self.of(evaluation.asker.service, evaluation.name)
        if not grants:
            return False
        granting = {one.home for one in grants if one.covers(access.key, target)}
        return bool(granting) and (target is not None or granting >= self.unclaimed_by)

    def are_on_all_keys(self, grants: Iterable[Grant], glob: bytes = b"*") -> bool:
        """Whether these grants cover a pattern of keys as it is written, or every key. Each file whose keys
        it can match must grant it."""
        granting = {grant.home for grant in grants if b"*" in grant.texts or glob in grant.texts}
        return bool(granting) and granting >= self._files_of(glob)

    def _files_of(self, glob: bytes) -> set[int]:
        """Returns the files whose keys a pattern can match, by their number."""
        claims = [
            (claim.encode(), number)
            for number, home in enumerate(self._policy.homes)
            for claim in home.claims
        ]
        begun = beginning_of(glob)
        around = max((one for one in claims if begun.startswith(one[0])), default=None)
        if around is None:
            return set(range(len(self._policy.homes)))
        return {around[1]} | {number for claim, number in claims if claim.startswith(begun)}
