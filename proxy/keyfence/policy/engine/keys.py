"""The checks of one access to one key, each with the violations that it finds.

Rule: one key has one answer, and its violations are in one order (`_CHECKS`). If only Redis knows the key's
time to live or size, the question is left open, never guessed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

from keyfence.commands.model import GROUP, READ, WRITE, Access, Carried, Command, Streamed, Touches
from keyfence.policy.budget import cost
from keyfence.policy.compiled.key_commands import UNNAMED, instead_of
from keyfence.policy.compiled.key_targets import KeyTargets
from keyfence.policy.compiled.named import NameCheck
from keyfence.policy.compiled.names import NameFault, hash_tag_fault, lowered
from keyfence.policy.compiled.policy import CompiledPolicy, Target, types_in
from keyfence.policy.compiled.sizes import Excess, Question, answers, asks, late_excess
from keyfence.policy.compiled.tenants import OWN, own_key, value_in
from keyfence.policy.compiled.ttl import FAULTS, FINE, SIZED, TtlFault, TtlRule, late_fault, outcome
from keyfence.policy.patterns.patterns import REST
from keyfence.policy.show import printable
from keyfence.policy.verdict import Found, Violation
from keyfence.policy.wording.instead import Instead, MissingPrefixes
from keyfence.policy.wording.masking import filled_text, standard_key
from keyfence.policy.wording.messages import Wording, said

from .asker import Asker
from .carried import Moves, type_doubt
from .checks import (
    BY_KIND,
    CARRIED,
    COMMANDS,
    CONTENT,
    FORM,
    LIFETIME,
    NAME,
    NAMED,
    OPEN,
    RIGHTS,
    TIME,
    TYPE,
    TYPE_IN_KEY,
    Standing,
    Standings,
    carries,
    lacking,
)
from .content import Fault, content_faults, fits, ttl_fault, type_fault
from .evaluation import Evaluation, Use
from .permissions import Grants
from .writes import Write

ANYONE = Asker(-1)  # of no service, so without rights and grants
MAX_NAMED = 3  # services, in a message about several
MAX_SOURCES = 8  # source keys that `is_clean` checks; with more, the slow search for violations runs


# Yields the violations of one check, and None whenever a turn is over.
Find = Callable[["KeyChecks", Use, Target | None], Iterator[Found | None]]


class KeyChecks:
    """Checks accesses to keys under one policy."""

    def __init__(
        self, policy: CompiledPolicy, clock: Callable[[], float], grants: Grants, wording: Wording
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._grants = grants
        self._wording = wording
        self._name_checks: dict[tuple[object, ...], NameCheck] = {}
        self._missing = MissingPrefixes(policy)
        self.standings = Standings(policy, clock)
        self._moves = Moves(policy)

    def access(self, use: Use) -> Iterator[Found | None]:
        """Yields every violation of one access, check after check. Checks that cannot fail are skipped.

        If a grant covers the key, only the keys that its content comes from are checked.
        """
        access, target = use.access, use.evaluation.target(use.access.key)
        if isinstance(access.key, Streamed):
            use = use._replace(access=access._replace(key=bytes(access.key)))  # how it begins
        if self._policy.grants and self._grants.cover(use.evaluation, access, target):
            yield from self._carried(use, target, is_granted=True)
            return
        if target is None:
            yield self._unregistered(use.evaluation, use.access, None)
            return
        if target.kind in BY_KIND:
            doubts = BY_KIND[target.kind] | (CARRIED if carries(access) else 0)
            doubts |= NAME if target.kind in NAMED and not target.names_sure else 0
        else:
            command = None if use.is_script else use.command
            doubts = self._standing(use.evaluation, command, access, target).doubts
        for find in _finders(doubts):
            yield from find(self, use, target)

    def _standing(
        self, evaluation: Evaluation, command: Command | None, access: Access, target: Target
    ) -> Standing:
        """Returns the caller's standing for an access to a key of a target."""
        known = evaluation.standing
        if known is not None and known[0] is access and known[1] is command:
            return known[2]
        service = evaluation.asker.service
        held = target.held(service, access.key, evaluation.asker.values) & ~target.denied[service]
        standing = self.standings.of(evaluation.name, command, access, target, held)
        evaluation.standing = access, command, standing
        return standing

    def is_clean(self, evaluation: Evaluation, command: Command | None, access: Access) -> bool:
        """Whether an access certainly breaks nothing; if so, records the questions that it leaves open."""
        target = evaluation.target(access.key)
        if target is None or target.kind in BY_KIND:
            return False
        doubts, found = self._standing(evaluation, command, access, target)
        unsure = doubts & ~OPEN
        if unsure and (unsure & ~_BY_A_LOOK or not self._resolves(evaluation, doubts, access, target)):
            return False
        if found:
            rule = target.entry.ttl if target.entry is not None else None
            evaluation.leave_open(found, access, target, rule)
        return True

    def _resolves(self, evaluation: Evaluation, doubts: int, access: Access, target: Target) -> bool:
        """Whether the key's name and the sources of its content remove all of these doubts."""
        if doubts & NAME and not self.is_well_named(access.key, target):
            return False
        if doubts & TYPE_IN_KEY and not fits(self._types(access.key, target), access.types):
            return False
        content = access.content
        if content is None:
            return True
        if content.carried is not None:
            return self._is_harmless(evaluation, access, content.carried, target)
        return not doubts & CONTENT

    def _commands(self, use: Use, target: Target | None) -> Iterator[Found]:
        """Finds the violation of an entry's or scope's command restrictions."""
        evaluation, command, access = use.evaluation, use.command, use.access
        commands = target.entry.commands if target is not None and target.entry is not None else None
        if target is None or commands is None or command is None:
            return
        if use.is_script:
            fault = commands.fault_of_script(command, access, use.runs)
        else:
            fault = commands.fault(command, access, self._clock)
        if not fault:
            return

        def words() -> tuple[str, str]:
            place = f"the {'scope' if target.kind == 'scope' else 'entry'} {target.name}"
            shown = evaluation.wording.shown(access.key, target)
            message = f"{evaluation.who()} may not {command.name} {shown}"
            hint = instead_of(fault, place)
            if fault == UNNAMED and use.registration is not None:
                hint = f"name them under {use.registration.name}, as commands: [HSET, EXPIRE]"
            elif fault == UNNAMED:
                hint = "register the script, and name the commands that it runs"
            return f"{message}: {place} {fault}", hint

        yield evaluation.about("command.forbidden", access, target, words)

    def _form(self, use: Use, target: Target | None) -> Iterator[Found | None]:
        """Finds the violations of the key's form. A legacy key has one answer: `key.legacy`, unless its
        exception allows the access."""
        evaluation, access = use.evaluation, use.access
        if target is None or target.kind == "stray":
            yield self._unregistered(evaluation, access, target)
        elif target.kind == "legacy":
            yield from self._legacy(evaluation, access, target)
        elif target.kind in ("malformed", "claim"):
            words = self._malformed if target.kind == "malformed" else self._in_no_scope
            yield evaluation.about(
                "key.format", access, target, lambda: words(evaluation, access.key, target)
            )
        elif target.kind == "scope" and not target.is_open:
            message = "no entry of the scope {} covers {}"
            yield evaluation.about(
                "key.unregistered",
                access,
                target,
                lambda: (
                    message.format(target.name, evaluation.wording.shown(access.key, target)),
                    "register the key in the policy first",
                ),
            )

    def _malformed(self, evaluation: Evaluation, key: bytes, target: Target) -> tuple[str, str]:
        own = self._own(evaluation, target) if target.tenancy is not None else {}
        hint = evaluation.wording.of_key(key, lambda key: _form_hint(key, target, own))
        return f"{evaluation.wording.shown(key, target)} is not of the form {target.text}", hint

    def _in_no_scope(self, evaluation: Evaluation, key: bytes, target: Target) -> tuple[str, str]:
        scopes = sorted(
            {
                one.text
                for one in self._policy.targets
                if one.kind == "scope"
                and one.home == target.home
                and not one.is_others(evaluation.asker.service)
            }
        )
        hint = f"a key begins with one of {', '.join(scopes)}" if scopes else ""
        return f"{evaluation.wording.shown(key, target)} is in no scope of the policy", hint

    def _content(self, use: Use, target: Target | None) -> Iterator[Found | None]:
        """Finds the violations of type, content and time to live that the command shows, in this order. Other
        questions are left open."""
        evaluation, access = use.evaluation, use.access
        assert target is not None
        name, entry = evaluation.name, target.entry
        types = self._types(access.key, target)

        def shown() -> str:
            return evaluation.wording.shown(access.key, target)

        is_sized = entry is not None and entry.is_sized
        if not fits(types, access.types):
            yield self._fault(evaluation, type_fault(name, access, types, shown), access, target)
            is_sized = False
        elif entry is not None and entry.on_content:
            for fault in content_faults(access, entry, shown, evaluation.budget):
                yield None if fault is None else self._fault(evaluation, fault, access, target)
                is_sized = is_sized and (fault is None or not answers(fault.rule, access))
        if entry is None:
            return
        found = FINE if entry.ttl is None else outcome(entry.ttl, access, self._clock)
        if found in FAULTS and entry.ttl is not None:
            fault = ttl_fault(found, name, access, entry.ttl, shown)
            yield self._fault(evaluation, fault, access, target)
        if is_sized and asks(name, access, entry):
            found = SIZED[found]
        if found:
            evaluation.leave_open(found, access, target, entry.ttl)

    def _carried(
        self, use: Use, target: Target | None, *, is_granted: bool = False
    ) -> Iterator[Found | None]:
        """Finds the violations of content from other keys: services may read it here and not there, or,
        unless the access is granted, the target requires more of it. Only the first such source is listed."""
        evaluation, access = use.evaluation, use.access
        carried = access.content.carried if access.content is not None else None
        if target is None or carried is None:
            return
        is_asked = target.kind in ("entry", "scope") and not is_granted
        if is_asked and not carried.keys:
            yield from self._unlike(evaluation, access, carried, target, None)
        for position, key in enumerate(carried.keys, carried.position):
            if evaluation.budget.works(cost(key)):
                yield None
            source = evaluation.target(key)
            gained = self._moves.gained_by(source, target)
            origin = Access(position, key, READ)
            if source is not None and gained and not self._grants.cover(evaluation, origin, source):
                yield self._shows(evaluation, origin, source, access.key, target, gained)
            if is_asked:
                wrong = [*self._unlike(evaluation, access, carried, target, key)]
                is_asked = not wrong
                yield from wrong

    def _shows(
        self,
        evaluation: Evaluation,
        origin: Access,
        source: Target,
        key: bytes,
        target: Target,
        gained: Sequence[int],
    ) -> Found:
        """Makes the violation of content that goes to a key with additional readers."""

        def words() -> tuple[str, str]:
            wording = evaluation.wording
            from_, to = wording.shown(origin.key, source), wording.shown(key, target)
            who = "services that may not read the first may read the second"
            if source.tenancy is not None and any(source.rights[one] & READ for one in gained):
                names = " and ".join(place.name for place in source.tenancy.places)
                who = f"callers other than its {names} may read the second"
            elif self._policy.name_services:
                names = ", ".join(map(wording.who, gained[:MAX_NAMED]))
                more = f" and {len(gained) - MAX_NAMED} more" if len(gained) > MAX_NAMED else ""
                who = f"{names}{more} may read the second and not the first"
            message = f"{evaluation.who()} may not {evaluation.name} from {from_} to {to}: {who}"
            return message, "give both the same readers, or use a target without additional readers"

        return evaluation.about("scope.read", origin, source, words)

    def _unlike(
        self, evaluation: Evaluation, access: Access, carried: Carried, target: Target, key: bytes | None
    ) -> Iterator[Found]:
        """Finds the requirements of the target, on type and on content, that the content of `key`, or of a
        dump (None), may not meet."""
        source = evaluation.target(key) if key is not None else None
        wanted, given = self._types(access.key, target), carried.types
        if key is not None and source is not None:
            given = tuple(self._types(key, source))

        def names() -> tuple[str, str]:
            shown = evaluation.wording.shown
            whose = "the dump" if key is None else shown(key, source)
            return whose, shown(access.key, target)

        differs = type_doubt(given, wanted) if carried.kind == "value" else False
        if differs or (differs is None and key is not None):

            def of_types() -> tuple[str, str]:
                whose, shown = names()
                what = f"may be a {' or '.join(given)}" if given else "may be of any type"
                what = f"is a {' or '.join(given)}" if differs else what
                message = f"{shown} is a {' or '.join(wanted)}, but {whose} {what}"
                remedy = "give both entries the same" if key is not None else "write it to a key that has it"
                return message, f"{evaluation.name} keeps the type; {remedy}"

            yield evaluation.about("type.mismatch", access, target, of_types)
        # If type.mismatch is only observed, the content must still be evaluated.
        types = (given or wanted) if carried.kind == "value" else wanted
        item = self._moves.unequal(source, target, carried, types)
        if not item:
            return

        def content() -> tuple[str, str]:
            whose, shown = names()
            message = f"the content that {evaluation.name} takes from {whose} to {shown} cannot be checked"
            return message, f"{shown} requires {item}; require the same of the source, or write them directly"

        yield evaluation.about("value.invalid", access, target, content)

    def _is_harmless(self, evaluation: Evaluation, access: Access, carried: Carried, target: Target) -> bool:
        """Whether content that comes from a few other keys breaks nothing."""
        if len(carried.keys) > MAX_SOURCES:
            return False
        sources = [evaluation.target(key) for key in carried.keys]
        if sources and all(self._moves.are_harmless(source, target, carried) for source in sources):
            return True
        # For no service: the answer is kept for all services, so it must not depend on any grants.
        alone = Evaluation(self._wording, ANYONE, (b"",), Touches(None), evaluation.keys)
        if any(found is not None for found in self._carried(Use(alone, access, None), target)):
            return False
        self._moves.remember(sources, target, carried)
        return True

    def _types(self, key: bytes, target: Target) -> Sequence[str]:
        """Returns the types that a key may have, by its entry or else by words in the key; none: any type."""
        if target.entry is not None and target.entry.types:
            return target.entry.types
        return types_in(key, self._policy.home(target).type_words)

    def _fault(self, evaluation: Evaluation, fault: Fault, access: Access, target: Target) -> Found:
        found = evaluation.violation(fault.rule, fault.position, access.key, target, fault.words)
        return found._replace(severity="must") if fault.is_must else found

    def late_ttl(self, write: Write, rule: TtlRule, everything: bool, remaining: int) -> Violation | None:
        """Returns the violation if Redis answers PTTL with `remaining`, a grace time after a write; None if
        there is none. Not `everything`: only whether the key has a time to live counts."""
        shown = self._wording.shown(write.key, write.target)
        return self._late(write, late_fault(remaining, everything, rule, write.command, shown))

    def late_size(self, write: Write, question: Question, size: int) -> Violation | None:
        """Returns the violation if Redis answers `question` with `size`, some time after a write; None if
        there is none."""
        shown = self._wording.shown(write.key, write.target)
        return self._late(write, late_excess(question, size, write.command, shown))

    def _late(self, write: Write, found: TtlFault | Excess | None) -> Violation | None:
        if found is None:
            return None
        command, keys = (write.command.encode(),), KeyTargets(self._policy)
        evaluation = Evaluation(self._wording, write.asker, command, Touches(None), keys)
        words = said(found.message, found.hint)
        return evaluation.violation(found.rule, write.position, write.key, write.target, words).worded()

    def _rights(self, use: Use, target: Target | None) -> Iterator[Found]:
        evaluation, service, access = use.evaluation, use.evaluation.asker.service, use.access
        assert target is not None
        held = target.held(service, access.key, evaluation.asker.values)
        missing = lacking(service, access.needs, target, held)
        writes = access.needs & WRITE and not access.needs & GROUP and not missing & WRITE

        def refused() -> str:
            shown = evaluation.wording.shown(access.key, target)
            return f"{evaluation.who()} may not {evaluation.name} {shown}"

        if writes and not target.is_written_by(use.by):
            yield evaluation.about(
                "scope.write",
                access,
                target,
                lambda: (
                    f"{refused()}: only scripts write it",
                    f"it is written by {', '.join(sorted(target.written_by))}",
                ),
            )
        newer = target.successor
        if missing and newer is not None and not lacking(service, access.needs, target, held, True):
            form = target.own_form(service) or newer

            def replaced() -> tuple[str, str]:
                return (
                    f"{refused()}, which is replaced",
                    f"use {filled_text(form, self._own(evaluation, target))}",
                )

            yield evaluation.about("key.legacy", access, target, replaced)
            return
        rights = target.rights[service]
        own = missing if held == rights else lacking(service, access.needs, target, rights)
        for right in (READ, WRITE):
            if not missing & right:
                continue
            rule = "scope.write" if right & WRITE else "scope.read"
            holders = "consumers" if access.needs & GROUP and right == WRITE else _HOLDERS[right]
            yield evaluation.about(
                rule,
                access,
                target,
                lambda holders=holders if right & own else "": (  # type: ignore[misc]
                    refused(),
                    self._holders_hint(holders, target)
                    if holders
                    else self.own_hint(evaluation, access.key, target),
                ),
            )

    def _own(self, evaluation: Evaluation, target: Target) -> dict[str, bytes]:
        """Returns the caller's values of bound placeholders, for a hint about a target's keys."""
        return self._policy.own_values(evaluation.asker.service, target, evaluation.asker.values)

    def own_hint(self, evaluation: Evaluation, key: bytes, target: Target) -> str:
        """Returns the hint for a key that is another tenant's."""
        tenancy = target.tenancy
        assert tenancy is not None
        for place in tenancy.places:
            binding = self._policy.bindings[place.binding]
            if value_in(evaluation.asker.values, place.binding) is None:
                return binding.why_none()
        own = own_key(key, target.pattern, tenancy, evaluation.asker.values)
        names = " and ".join(place.name for place in tenancy.places)
        return f"{OWN}{names}: {evaluation.wording.shown(own, target)}" if own else f"use its own {names}"

    def _holders_hint(self, holders: str, target: Target) -> str:
        who = target.names_with(_RIGHTS[holders], self._policy.services)
        if target.kind == "scope" and not who:
            return f"no entry of the policy covers it, and the scope {target.name} has no {holders}"
        return self._wording.who_may(holders, who)

    def _unregistered(self, evaluation: Evaluation, access: Access, stray: Target | None) -> Found:
        key = access.key

        def words() -> tuple[str, str, str]:
            shown, hint = evaluation.wording.shown(key, stray), self._hint_instead(evaluation, access, stray)
            message = (
                f"{evaluation.who()} may not {evaluation.name} {shown}: no entry of the policy covers it"
            )
            return shown, *evaluation.wording.with_page((message, hint), stray)

        rule, contact = "key.unregistered", self._policy.home(stray).contact
        # No entry covers it; the report groups such keys by their shape.
        return Found(rule, self._wording.severity(rule, stray), access.position, key, "", "", contact, words)

    def _hint_instead(self, evaluation: Evaluation, access: Access, stray: Target | None) -> str:
        """Returns the hint about a key that no entry covers: to use the key that the policy names, or the
        same key behind a scope's prefix, if that is an entry's key that the service may use."""
        needs, service, wording = access.needs, evaluation.asker.service, evaluation.wording
        if stray is not None:
            own = self._own(evaluation, stray)
            return wording.of_key(access.key, lambda key: f"use {standard_key(key, stray, service, own)}")
        claims = " or ".join(self._policy.claims)
        other = f"every key begins with {claims}" if claims else "register the key in the policy first"

        def instead(key: bytes) -> str:
            for behind, target in self._missing.entries(key):
                if not lacking(service, needs, target, target.rights[service]):
                    return f"use {self._wording.shown(behind, target)}"
            return other

        filler = Instead(instead, self._missing, other) if wording.draft is not None else None
        return wording.of_key(access.key, instead, filler)

    def _legacy(self, evaluation: Evaluation, access: Access, target: Target) -> Iterator[Found]:
        """Finds `key.legacy`, unless the form's exception allows the access."""
        service, key = evaluation.asker.service, access.key
        held = target.held(service, key, evaluation.asker.values)
        if not lacking(service, access.needs, target, held):
            return

        def words() -> tuple[str, str]:
            wording = evaluation.wording
            shown = wording.shown(key, target)
            message = f"{evaluation.who()} may not {evaluation.name} {shown}, a deprecated form"
            if target.has_lapsed:
                message += " that was tolerated for a while"
            own = self._own(evaluation, target)
            return message, wording.of_key(key, lambda key: f"use {standard_key(key, target, service, own)}")

        yield evaluation.about("key.legacy", access, target, words)

    def _named(self, use: Use, target: Target | None) -> Iterator[Found]:
        """Finds the violations of the naming rules."""
        evaluation, access = use.evaluation, use.access
        assert target is not None
        for fault in self._name_faults(access.key, target):
            found = evaluation.about(
                fault.rule,
                access,
                target,
                lambda fault=fault: _name_words(evaluation, fault, access.key, target),  # type: ignore[misc]
            )
            yield found if fault.severity == "must" else found._replace(severity="should")

    def is_well_named(self, key: bytes, target: Target) -> bool:
        """Whether a name keeps the naming rules."""
        return self.name_check(target).faults(key, 0, len(key)) == 0

    def name_check(self, target: Target) -> NameCheck:
        """The naming rules for the keys of a target. Targets with the same rules share one."""
        names = self._policy.names(target)
        limit = target.entry.max_length if target.entry is not None else None
        rules = (id(names), limit, "any" if target.tag_sure else target.hash_tag, target.bytes_sure)
        check = self._name_checks.get(rules)
        if check is None:
            check = self._name_checks[rules] = NameCheck(names, *rules[1:])
        return check

    def _name_faults(self, key: bytes, target: Target) -> Iterator[NameFault]:
        limit = target.entry.max_length if target.entry is not None else None
        for fault in self._policy.names(target).faults(key, limit):
            # `_form` has found this already, with a better message.
            if fault.rule != "key.format" or target.kind not in ("malformed", "claim"):
                yield fault
        tag = hash_tag_fault(key, target.hash_tag)
        if tag is not None:
            yield tag


# The methods that find the violations of each check, in the order in which these are listed (policy.rules).
_CHECKS: tuple[tuple[int, Find], ...] = (
    (COMMANDS, KeyChecks._commands),
    (RIGHTS, KeyChecks._rights),
    (FORM, KeyChecks._form),
    (NAME, KeyChecks._named),
    (TYPE | TYPE_IN_KEY | CONTENT | LIFETIME | OPEN, KeyChecks._content),
    (CARRIED, KeyChecks._carried),
)


@functools.cache
def _finders(doubts: int) -> tuple[Find, ...]:
    """Returns the methods that find the violations of these checks."""
    return tuple(find for check, find in _CHECKS if doubts & check)


# Doubts that the key's name, the presence of written content, and its sources can resolve.
_BY_A_LOOK = NAME | TYPE_IN_KEY | CONTENT | CARRIED | OPEN | TIME
_HOLDERS = {READ: "readers", WRITE: "writers"}
_RIGHTS = {"readers": READ, "writers": WRITE, "consumers": GROUP}


def _form_hint(key: bytes, target: Target, own: Mapping[str, bytes]) -> str:
    held = target.pattern.capture(key)
    if held is not None and not held.get(REST):
        return "the part after the prefix is missing"
    return (
        f"for example {printable(target.standard.example({**(held or {}), **own}))}"
        if target.standard
        else ""
    )


def _name_words(evaluation: Evaluation, fault: NameFault, key: bytes, target: Target) -> tuple[str, str]:
    shown = evaluation.wording.shown(key, target)
    return fault.message.replace("{lower}", lowered(shown)).replace("{key}", shown), fault.hint
