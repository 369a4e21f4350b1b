"""Proposals that add to a policy what it lacks, judged by evidence.

Rule: a proposal only adds. One that would leave the policy invalid, or that would not admit what it is for,
is left out, and the reason is said.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from keyfence.authoring.lint import check_text
from keyfence.authoring.replay import verdict_on
from keyfence.commands.model import READ, Access, Touches
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.diagnostics import FileError
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.patterns.classes import NAMES
from keyfence.policy.source.model import PolicyModel
from keyfence.policy.source.validate import validate
from keyfence.policy.source.yaml import Source
from keyfence.policy.source.yaml_edits import EditError, add_to_list, add_to_mapping
from keyfence.policy.units import counted as count

from .applications import Application, applications_in
from .draft import suspects
from .kinds import FINE, Kind, Slot, words_of
from .naming import unique
from .plan import Plan, plan_of
from .requirements import quoted
from .sections import channel_rights, placeholder_lines, script_parts, settings_of
from .seen import Evidence, Facts
from .text import comment, example_of, listed, plain, shown, spoken
from .typos import Typo, mistyped_for
from .values import class_of, is_word, may_be_secret

_NAMES = ("key.unregistered", "key.format")
_PLACEHOLDERS = re.compile("<([A-Za-z0-9_]+)>")
_RIGHTS = {"scope.read": "readers", "scope.write": "writers"}


@dataclasses.dataclass(frozen=True)
class Proposal:
    """One thing that a policy lacks."""

    what: str  # "entry", "right", "field", "channel" or "script"
    name: str  # of the entry, channel or script
    title: str  # one sentence
    edit: Callable[[str], str] = dataclasses.field(compare=False)
    kind: Kind | None = None  # of an entry
    plan: Plan | None = dataclasses.field(default=None, compare=False)
    doubt: str = ""  # why it is left out unless somebody says that it is right

    @property
    def id(self) -> str:
        """An id that stays the same as long as the proposal does."""
        return hashlib.sha256(f"{self.what} {self.title}".encode()).hexdigest()[:8]


class Lack(NamedTuple):
    """What was seen and the policy refuses."""

    rule: str
    service: str
    command: str
    entry: str
    field: str
    times: int


class Extension(NamedTuple):
    """A policy with what it lacked."""

    text: str
    taken: list[Proposal]
    dropped: list[tuple[Proposal, str]]  # with the reason
    rest: list[Lack]  # that no proposal is for, or that remain


def applications_beside(text: str, evidence: Evidence, shipped: Mapping[str, str]) -> list[Application]:
    """Returns the shipped policies for keys that a policy lacks. `shipped` are their texts by name. Raises
    FileError."""
    policy = parse_policy(text)
    evidence.rename_unknown()
    part = copy.copy(evidence)
    part.keys = _missing(policy, evidence)
    # A folder can have only one file without claims.
    return [one for one in applications_in(part, shipped) if one.claims or policy.claims]


def proposals_for(text: str, evidence: Evidence) -> tuple[list[Proposal], list[Lack]]:
    """Returns what a policy lacks, and what it refuses that no proposal is for. Raises FileError."""
    policy, model = _read(text)
    evidence.rename_unknown()
    lacks = lacks_of(policy, evidence)
    found = [
        *_entries(text, policy, model, evidence),
        *_rights(model, lacks),
        *_fields(model, lacks),
        *_channels(policy, model, evidence),
        *_scripts(policy, evidence),
    ]
    known = {"key.unregistered", "key.format", "field.unknown", "script.unregistered", *_RIGHTS}
    known |= {"channel.read", "channel.write"}
    return found, [one for one in lacks if one.rule not in known]


def extended(text: str, chosen: Iterable[Proposal], evidence: Evidence) -> Extension:
    """Returns a policy with the chosen proposals. One that makes the policy invalid, or is in doubt, is
    left out."""
    taken: list[Proposal] = []
    dropped: list[tuple[Proposal, str]] = []
    for one in chosen:
        changed, why = (text, one.doubt) if one.doubt else tried(text, one, evidence)
        if why:
            dropped.append((one, why))
        elif changed != text:
            text = changed
            taken.append(one)
    return Extension(text, taken, dropped, lacks_of(parse_policy(text), evidence))


def tried(text: str, one: Proposal, evidence: Evidence) -> tuple[str, str]:
    """Returns the policy with a proposal; or as it was, and why the proposal does not work."""
    try:
        changed = one.edit(text)
        faults = check_text(changed)[0]
        if len(faults) > len(check_text(text)[0]):
            return text, faults[0].message
        if one.what == "right":
            before, after = (_kinds_of_lacks(parse_policy(each), evidence) for each in (text, changed))
            if after - before:
                return text, "other services would lose rights that they have from the scope"
            if after == before:
                return text, "a denial or written_by is stronger"
    except (EditError, FileError) as exc:
        return text, str(exc)
    return changed, ""


def _kinds_of_lacks(policy: CompiledPolicy, evidence: Evidence) -> set[tuple[str, ...]]:
    return {(one.rule, one.service, one.command, one.entry) for one in lacks_of(policy, evidence)}


def as_legacy(one: Proposal, entry: str, guess: str = "", *, writes: bool = False) -> Proposal:
    """Returns the proposal that takes an entry's keys for a deprecated form of another entry. `guess` is why
    keyfence takes them so. `writes`: they may still be written."""
    above = comment(f"guess: {guess}") if guess else []
    allow = ["read", *(["write"] if writes else []), "delete"]

    def edit(text: str) -> str:
        if one.kind is None or entry not in _read(text)[1].keys:
            raise EditError(f"{entry} is not an entry of the policy")
        plan = one.plan
        if plan is not None:
            text = _with_services(text, one.kind.facts.uses)
            text = _with_placeholders(text, plan, {slot.name for slot in one.kind.slots})
        have = _read(text)[1].legacy
        if not have.allow and not have.keys:  # otherwise this would allow more on the forms that are there
            text = add_to_mapping(text, ["legacy"], "allow", ["[read, delete]"])
        is_allowed = set(allow) <= set(_read(text)[1].legacy.allow)
        form = plain(entry) if is_allowed else f"{{entry: {plain(entry)}, allow: {listed(allow)}}}"
        return add_to_mapping(text, ["legacy", "keys"], quoted(one.kind.pattern), [form], above)

    title = f"{one.name} as a deprecated form of {entry}{f', as a guess: {guess}' if guess else ''}"
    return Proposal("legacy", one.name, title, edit)


def _read(text: str) -> tuple[CompiledPolicy, PolicyModel]:
    return parse_policy(text), validate(PolicyModel, Source("<policy>", text))


def lacks_of(policy: CompiledPolicy, evidence: Evidence) -> list[Lack]:
    """Returns what the policy refuses of the commands that were seen."""
    evaluator = Evaluator(policy)
    found: Counter[tuple[str, str, str, str, str]] = Counter()
    for one in evidence.lines:
        for violation in verdict_on(evaluator, one).violations:
            names = {
                field.position: field.name.decode("utf-8", "surrogateescape")
                for access in one.touches.accesses
                if access.content is not None
                for field in access.content.fields
            }
            field = names.get(violation.position, "") if violation.rule == "field.unknown" else ""
            found[violation.rule, one.service, one.command, violation.entry, field] += one.times
    return [Lack(*key, times) for key, times in sorted(found.items())]


# -- entries


def _missing(policy: CompiledPolicy, evidence: Evidence) -> dict[str, Facts]:
    """Returns the keys that break the policy by their names."""
    evaluator = Evaluator(policy)
    seen: set[bytes] = set()
    broken: set[bytes] = set()
    for one in evidence.lines:
        verdict = verdict_on(evaluator, one)
        seen |= {access.key for access in one.touches.accesses}
        at = {violation.position for violation in verdict.violations if violation.rule in _NAMES}
        broken |= {access.key for access in one.touches.accesses if access.position in at}
    missing = {}
    for key, facts in evidence.keys.items():
        name = key.encode("utf-8", "surrogateescape")
        if name not in seen:  # only a report has it
            touches = Touches(None, (Access(1, name, READ),))
            verdict = evaluator.evaluate(Asker(policy.number("")), [b"GET"], touches)
            if any(violation.rule in _NAMES for violation in verdict.violations):
                missing[key] = facts
        elif name in broken:
            missing[key] = facts
    return missing


def _entries(text: str, policy: CompiledPolicy, model: PolicyModel, evidence: Evidence) -> list[Proposal]:
    missing = _missing(policy, evidence)
    if not missing:
        return []
    mistyped = {name: one for one in suspects(evidence) for name in one.names}
    older = _older_names(text, policy, model, evidence, missing, mistyped)
    part = Evidence()
    taken = {key for one in older if one.kind is not None for key in one.kind.keys}
    part.keys = {key: facts for key, facts in missing.items() if key not in taken}
    plan = _named_apart(plan_of(part, model.policy, "", FINE, guesses_legacy=False), model)
    entries = [_entry(plan, kind, _doubt(kind, mistyped, model.claims)) for kind in plan.entries]
    return [*entries, *older]


def _older_names(
    text: str,
    policy: CompiledPolicy,
    model: PolicyModel,
    evidence: Evidence,
    missing: Collection[str],
    mistyped: Mapping[str, Typo],
) -> list[Proposal]:
    """Returns the kinds of missing keys that seem to be older names of an entry's keys, as such."""
    plan = plan_of(evidence, model.policy, "", FINE, guesses_legacy=True, left_out=mistyped)
    found = []
    for kind in _named_apart(plan, model).legacy:
        newer = kind.legacy_of.keys if kind.legacy_of is not None else []
        targets = [policy.target(key.encode("utf-8", "surrogateescape")) for key in newer]
        names = {one.name if one is not None and one.kind == "entry" else "" for one in targets}
        name = names.pop() if len(names) == 1 else ""
        if name in model.keys and all(key in missing for key in kind.keys):
            _name_alike(kind, model.keys[name].key)
            guess = f"{count(kind.facts.times, 'command')}; {kind.why.replace('{new}', name)}"
            one = Proposal("entry", kind.pattern, "", lambda text: text, kind, plan)
            one = as_legacy(one, name, guess, writes=bool(kind.facts.changed))
            one = dataclasses.replace(one, kind=kind, plan=plan)
            found += [one] if not tried(text, one, evidence)[1] else []
    return found


def _name_alike(older: Kind, pattern: str) -> None:
    """Gives the placeholders of an older name the names that they have in the entry's pattern."""
    slots = older.legacy_of.slots if older.legacy_of is not None else []
    names = _PLACEHOLDERS.findall(pattern)
    if len(names) == len(slots):
        named = {id(slot): name for slot, name in zip(slots, names, strict=True)}
        for at, part in enumerate(older.parts):
            if isinstance(part, Slot) and id(part) in named:
                older.parts[at] = dataclasses.replace(part, name=named[id(part)])


def _doubt(kind: Kind, mistyped: Mapping[str, Typo], claims: Iterable[str]) -> str:
    """Returns why the keys of a kind look mistyped; "" if they do not."""
    nearest = next((mistyped[key].nearest for key in kind.keys if key in mistyped), "")
    nearest = nearest or mistyped_for(kind.prefix[: kind.prefix.find(":") + 1], claims)
    return f"it looks like a typo of {nearest}, and --interactive asks about it" if nearest else ""


def _named_apart(plan: Plan, model: PolicyModel) -> Plan:
    """Renames placeholders and entries that the policy has already."""
    declared = {name: one.is_ for names, one in model.placeholders.items() for name in names.split("|")}
    taken = {*declared, *NAMES}
    for name in list(plan.slots):
        held, values = plan.slots[name]
        same = next((one for one, text in declared.items() if text == held.text), "")
        final = name if name in NAMES and held.text == name else same if same and name == same else ""
        if not final:
            final = unique(name, taken, joint="_")
            taken.add(final)
        if final != name:
            plan.slots[final] = held, values
            del plan.slots[name]
            slots = [slot for kind in plan.kinds for slot in kind.slots if slot.name == name]
            slots += [slot for _, slot in plan.fields.values() if slot is not None and slot.name == name]
            for slot in slots:
                slot.name = final
    for kind in plan.entries:
        fields, rights = plan.fields.pop(kind.name), plan.rights.pop(kind.name)
        kind.name = unique(kind.name, {*model.keys, *plan.fields})
        plan.fields[kind.name], plan.rights[kind.name] = fields, rights
    return plan


def _entry(plan: Plan, kind: Kind, doubt: str) -> Proposal:
    facts = kind.facts
    many = f" on {count(len(kind.keys), 'key')}"
    about = f"{count(facts.times, 'command')}{many}; for example {example_of(kind)}"
    settings = [one for one in settings_of(plan, kind, None) if (kind.name, one.name) not in plan.omitted]
    names = {slot.name for slot in kind.slots}
    slot = plan.fields[kind.name][1]
    names |= {slot.name} if slot is not None else set()

    def edit(text: str) -> str:
        have, now = _read(text)[1], _with_services(text, facts.uses)
        prefix = kind.prefix
        if have.claims and ":" in prefix and not any(prefix.startswith(one) for one in have.claims):
            now = add_to_list(now, ["claims"], quoted(prefix[: prefix.index(":") + 1]))
        now = _with_placeholders(now, plan, names)
        lines = [f"key: {quoted(kind.pattern)}", *(f"{one.name}: {one.text}" for one in settings)]
        return add_to_mapping(now, ["keys"], plain(kind.name), lines, comment(f"guess: {about}"))

    title = f"the entry {kind.name} ({kind.pattern}): {about}"
    return Proposal("entry", kind.name, title, edit, kind, plan, doubt)


def _with_services(text: str, services: Iterable[str]) -> str:
    """Returns the policy with these services listed."""
    have = _read(text)[1].services
    for service in sorted(services):
        if service not in have:
            text = add_to_list(text, ["services"], plain(service))
    return text


def _with_placeholders(text: str, plan: Plan, names: Iterable[str]) -> str:
    """Returns the policy with these placeholders of a plan declared."""
    declared = {one for together in _read(text)[1].placeholders for one in together.split("|")}
    for name in sorted((set(names) & plan.slots.keys()) - declared):
        held, values = plan.slots[name]
        if held.text != name:
            value, why = placeholder_lines(held, values, plan.hidden, name)
            text = add_to_mapping(text, ["placeholders"], name, [value], comment(f"guess: {why}"))
    return text


# -- rights, fields, channels, scripts


def _rights(model: PolicyModel, lacks: list[Lack]) -> list[Proposal]:
    wanted: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)  # entry and service: rule and commands
    rules: dict[tuple[str, str], set[str]] = defaultdict(set)
    mismatched = {(one.service, one.command, one.entry) for one in lacks if one.rule == "type.mismatch"}
    for one in lacks:
        is_of_type = (one.service, one.command, one.entry) not in mismatched
        if one.rule in _RIGHTS and one.entry in model.keys and is_of_type:
            wanted[one.entry, one.service][one.command] += one.times
            rules[one.entry, one.service].add(one.rule)
    found = []
    for (name, service), commands in sorted(wanted.items()):
        word = "writers" if "scope.write" in rules[name, service] else "readers"
        seen = ", ".join(f"{command} {times:,}" for command, times in commands.most_common(4))

        def edit(text: str, name: str = name, service: str = service, word: str = word) -> str:
            have = _read(text)[1]
            now = _with_services(text, [service])
            entry = have.keys[name]
            if not (entry.writers or entry.readers or entry.consumers):
                now = _with_scope_rights(now, have, name)
            return add_to_list(now, ["keys", name, word], plain(service))

        found.append(Proposal("right", name, f"{service} among the {word} of {name}: {seen}", edit))
    return found


def _with_scope_rights(text: str, model: PolicyModel, name: str) -> str:
    """Writes the rights of its scope into an entry, which its own rights would replace."""
    key = model.keys[name].key
    if "<scope>" in key or any(f"<{bound}>" in key for bound in model.bind):
        raise EditError("its keys lie in several scopes, and rights of its own would replace those of all")
    around = [scope for scope in model.scopes.values() if key.startswith(scope.prefix)]
    held = max(around, key=lambda scope: len(scope.prefix), default=model)
    for word in ("writers", "readers", "consumers"):
        names = getattr(held, word)
        if names:
            text = add_to_mapping(text, ["keys", name], word, [listed(names)])
    return text


def _fields(model: PolicyModel, lacks: list[Lack]) -> list[Proposal]:
    wanted: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    values: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for one in lacks:
        if one.rule != "field.unknown" or one.entry not in model.keys or not one.field:
            continue
        before = (words_of(model.keys[one.entry].key) or [""])[-1]
        if is_word(one.field) and not may_be_secret(one.field, before):
            wanted[one.entry, one.field][one.service] += one.times
        elif one.field != "<masked>":
            values[one.entry][one.field][one.service] += one.times
    found = [_pattern_of_fields(name, fields) for name, fields in sorted(values.items())]
    for (name, field), services in sorted(wanted.items()):
        who = f"{spoken(sorted(services))} wrote it {count(services.total(), 'time')}"

        def edit(text: str, name: str = name, field: str = field) -> str:
            return add_to_mapping(text, ["keys", name, "fields"], plain(field), ["any"])

        found.append(Proposal("field", name, f"the field {shown(field)} of {name}: {who}", edit))
    return found


def _pattern_of_fields(name: str, fields: Mapping[str, Counter[str]]) -> Proposal:
    """Returns a pattern for fields that are values, such as ids. They may be secrets, so none is shown."""
    held = class_of(fields)
    times, services = (
        sum(one.total() for one in fields.values()),
        {who for one in fields.values() for who in one},
    )

    def edit(text: str) -> str:
        declared = {one for together in _read(text)[1].placeholders for one in together.split("|")}
        field = unique("field", {*declared, *NAMES}, joint="_")
        text = add_to_mapping(
            text, ["placeholders"], field, [quoted(held.text)], comment(f"guess: admits {held.words}")
        )
        return add_to_mapping(text, ["keys", name, "fields"], quoted(f"<{field}>"), ["any"])

    what = f"a pattern for {count(len(fields), 'field')} of {name} ({held.words})"
    return Proposal(
        "field", name, f"{what}: {spoken(sorted(services))} wrote them {count(times, 'time')}", edit
    )


def _channels(policy: CompiledPolicy, model: PolicyModel, evidence: Evidence) -> list[Proposal]:
    known = [target for target in policy.channels if target.kind == "channel"]
    part = Evidence()
    part.channels = {
        name: uses
        for name, uses in evidence.channels.items()
        if not any(one.pattern.matches(name.encode("utf-8", "surrogateescape")) for one in known)
    }
    part.channel_times = evidence.channel_times
    if not part.channels:
        return []
    plan = _named_apart(plan_of(part, model.policy, "", FINE, guesses_legacy=False), model)
    found = []
    for kind in plan.channels:
        kind.name = unique(kind.name, model.channels)
        lines = [f"channel: {quoted(kind.pattern)}", *channel_rights(kind)]

        def edit(text: str, kind: Kind = kind, lines: list[str] = lines) -> str:
            now = _with_services(text, kind.facts.uses)
            now = _with_placeholders(now, plan, {slot.name for slot in kind.slots})
            return add_to_mapping(now, ["channels"], plain(kind.name), lines)

        about = f"{count(kind.facts.times, 'command')}; for example {example_of(kind)}"
        found.append(
            Proposal("channel", kind.name, f"the channel {kind.name} ({kind.pattern}): {about}", edit)
        )
    return found


def _scripts(policy: CompiledPolicy, evidence: Evidence) -> list[Proposal]:
    registered = _registered(policy, evidence)
    found = []
    for name, one in sorted(evidence.scripts.items()):
        if name in registered:
            continue
        label = name if one.is_function else f"script_{name[:8]}"
        parts = script_parts(None, name, one)
        section = "functions" if one.is_function else "scripts"

        def edit(text: str, section: str = section, label: str = label, parts: list[str] = parts) -> str:
            return add_to_mapping(text, [section], plain(label), [f"{{{', '.join(parts)}}}"], _SCRIPT)

        who = f"{count(one.times, 'call')} by {spoken(sorted(one.services))}"
        found.append(Proposal("script", label, f"the script {label}: {who}", edit))
    return found


_SCRIPT = ["# guess: it uses the keys that it declares and no others; read it, and add what else it touches"]


def _registered(policy: CompiledPolicy, evidence: Evidence) -> set[str]:
    scripts = (one.touches.script for one in evidence.lines)
    return {
        _script_key(script.kind, script.name)
        for script in scripts
        if script is not None and policy.registration(script) is not None
    }


def _script_key(kind: str, name: bytes) -> str:
    text = name.decode("utf-8", "surrogateescape")
    return text if kind == "function" else text.lower()
