"""The sections of a draft: what each part of the plan says as YAML.

Rule: each entry, scope, channel and script shows what it was learned from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from keyfence.policy.units import counted as count

from .kinds import Kind
from .layout import Rights, Scope
from .plan import Plan, is_short
from .requirements import (
    Setting,
    quoted,
    setting_of_fields,
    setting_of_maxlen,
    setting_of_ttl,
    setting_of_values,
)
from .seen import MARK, READS, WRITES, Evidence, ScriptSeen
from .text import (
    WIDTH,
    comment,
    example_of,
    listed,
    plain,
    seen_by,
    setting_lines,
    shown,
    span,
    spoken,
    with_comment,
    without_ids,
)
from .values import ValueClass, is_harmless


def written(plan: Plan) -> str:
    """Returns the whole draft."""
    lines = [
        *_top(plan),
        *_head(plan),
        *_section("placeholders", _placeholders(plan)),
        *_names(plan),
        *_section("scopes", _scopes(plan)),
        *_section("keys", _keys(plan)),
        *_legacy(plan),
        *_section("channels", _channels(plan)),
        *_scripts(plan),
        *_grants(plan),
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _section(name: str, lines: Iterable[str]) -> list[str]:
    body = list(lines)
    return ["", f"{name}:", *body] if body else []


def notes(plan: Plan) -> list[str]:
    """Returns what the evidence does not show, in sentences."""
    evidence = plan.evidence
    found = []
    if evidence.times and is_short(evidence):
        if evidence.seconds is None:
            found.append("The sources have no times, so it is unknown how long they cover.")
        else:
            found.append(
                f"The sources cover only {_duration(evidence.seconds)}, less than a day. "
                "Jobs that run daily or monthly are missing."
            )
    if evidence.masked:
        found.append(
            f"{count(evidence.masked, 'use')} of masked, cut, empty or very long names left out. "
            "Write their entries by hand."
        )
    if evidence.cut:
        found.append(
            f"{count(evidence.cut, 'command')} had names that are too long, too many or too unusual for a "
            "record. The draft was not tried on them and may refuse them. Entries whose fields they wrote "
            "list no fields."
        )
    found += hidden_scripts(evidence)
    if evidence.lost:
        found.append(
            f"{evidence.lost:,} uses of keys are left out, because too many different keys were seen."
        )
    found += [one.sentence() for one in plan.typos]
    found += [one.sentence() for one in plan.applications]
    if plan.unused:
        names = spoken([kind.name for kind in plan.unused][:_SHOWN_UNUSED])
        more = len(plan.unused) - _SHOWN_UNUSED
        found.append(
            f"No command was seen on the keys of {names}{f' and {more} more' if more > 0 else ''}. They "
            f"stand here as keys of {plan.holder}. Find out who uses them: record the commands."
        )
    found += _without_rights(plan)
    found += _rare_uses(plan)
    if plan.renamed:
        who = ", ".join(sorted(evidence.clients.get(plan.renamed, ())))
        found.append(
            f"Clients that nothing identified stand here as {plan.renamed}. Tell services apart by listener, "
            f"network, user or certificate, and record again.{f' They were: {who}.' if who else ''}"
        )
    if not plan.claims:
        found.append("Some keys begin with a value, so the draft has no claims, and no scope for these keys.")
    return found


def _without_rights(plan: Plan) -> list[str]:
    """Returns which services get no right on an entry, because all their commands are for another type."""
    return [
        f"{service} gets no right on {kind.name}: the keys are of the type {spoken(kind.types)}, and all its "
        f"commands there are for another one ({seen_by(kind.facts, [service])})."
        for kind in plan.entries
        for service in sorted(kind.strangers)
    ]


def _rare_uses(plan: Plan) -> list[str]:
    """Returns which services hardly use an entry that others use a lot. They have the right, until people
    decide."""
    found = []
    for kind in plan.entries:
        facts = kind.facts
        for service, commands in sorted(facts.commands.items()):
            is_rare = facts.times >= _OFTEN and commands.total() <= _RARELY * facts.times
            is_rare = is_rare and service not in kind.strangers
            if is_rare and plan.rights[kind.name].writers != (service,):
                share = f"{commands.total():,} of {count(facts.times, 'command')}"
                found.append(f"{service}: {', '.join(sorted(commands))} of {kind.name} ({share})")
    more = f"; and {len(found) - _SHOWN_RARE} more" if len(found) > _SHOWN_RARE else ""
    return [f"These uses are rare. Is each right? {'; '.join(found[:_SHOWN_RARE])}{more}."] if found else []


def hidden_scripts(evidence: Evidence) -> list[str]:
    """Returns what people must know about scripts that cannot be registered."""
    if not evidence.masked_scripts:
        return []
    return [
        "Scripts whose SHA-1 a source masks, because it may be a secret, are left out "
        f"({count(evidence.masked_scripts, 'call')}). Register them by their text."
    ]


def _duration(seconds: float) -> str:
    if seconds < 120:
        return count(round(seconds), "second")
    return count(round(seconds / 60), "minute") if seconds < 7200 else count(round(seconds / 3600), "hour")


_SHOWN_UNUSED = 10
_SHOWN_RARE = 10
_OFTEN = 30  # commands on the keys of an entry, from which on …
_RARELY = 0.06  # … this share of them is rare


def widenings(plan: Plan) -> list[str]:
    """Returns what the draft admits that was not seen, one sentence for each placeholder."""
    found = []
    for name, (held, values) in plan.slots.items():
        where = [kind.name or kind.pattern for kind in plan.kinds
                 if any(slot.name == name for slot in kind.slots)]  # fmt: skip
        where += [
            f"fields of {entry}" for entry, (_, slot) in plan.fields.items() if slot and slot.name == name
        ]
        found.append(
            f"<{name}> admits {held.words}; seen: {_values(values, plan.hidden, name)}; "
            f"in {', '.join(dict.fromkeys(where))}"
        )
    return found


def _values(values: set[str], hidden: Collection[str], name: str) -> str:
    """Returns how many values were seen, and one of them if it cannot be a secret."""
    seen = sorted(value for value in values if MARK not in value)
    if not seen:
        return "only as a shape"
    harmless = next(filter(is_harmless, seen), "") if name not in hidden else ""
    if len(seen) == 1:
        return f"only {shown(harmless)}" if harmless else "only one value"
    return f"{count(len(seen), 'value')}{f', such as {shown(harmless)}' if harmless else ''}"


def _top(plan: Plan) -> Iterator[str]:
    evidence = plan.evidence
    yield "# A draft. It admits what was seen, and what its placeholders admit. Read and edit it before use."
    where = f" from {', '.join(evidence.sources)}" if evidence.sources else ""
    when = span(evidence.first, evidence.last)
    seen = (
        [f"{count(evidence.times, 'command')} on {count(len(evidence.keys), 'key')}"]
        if evidence.times
        else []
    )
    seen += [count(evidence.there, "key") + " that Redis holds"] if evidence.there else []
    yield from comment(f"It was made{where}: {', and '.join(seen)}{f', {when} UTC' if when else ''}.")
    yield "#"
    yield "# What it cannot know:"
    for sentence in (*notes(plan), *_UNKNOWABLE):
        yield from comment(f"- {sentence}")
    if plan.refused:
        yield "#"
        yield "# Seen, and still refused by this draft. Decide whether it is right:"
        for one in plan.refused[:40]:
            yield from comment(f"- {one.sentence()}")
        if len(plan.refused) > 40:
            yield f"# - and {len(plan.refused) - 40} more"
    yield "#"
    yield '# "guess:" marks what the evidence suggests and does not prove. Remove it when you have decided.'


_UNKNOWABLE = (
    "Whether what was seen is right. A mistake that a service makes every day looks like a rule.",
    "What is rare: what runs yearly, after a failure or by hand.",
    "Values, beyond their form; which placeholders are secret (secret: yes masks them); who owns what.",
)


def _head(plan: Plan) -> Iterator[str]:
    yield f"policy: {plain(plan.name)}"
    yield from with_comment('owner: {team: "", contact: ""}', "every refusal names the contact")
    if plan.claims:
        yield f"claims: [{', '.join(quoted(claim) for claim in plan.claims)}]"
    services = sorted({*plan.services, *plan.grants})
    yield f"services: {listed(services)}"
    others = sorted(set(plan.evidence.services) - {*services, "unknown"})
    if others:
        yield from comment(f"Not listed, because nothing that was seen gives them a right: {spoken(others)}.")
    databases = sorted({0, *plan.evidence.databases})
    yield from with_comment(f"databases: [{', '.join(map(str, databases))}]",
                            "the databases that were selected, and 0", guess=True)  # fmt: skip
    if plan.cluster:
        why = "most keys have a hash tag, and no command crossed slots"
        yield from with_comment("cluster: true", why, guess=True)


def _placeholders(plan: Plan) -> Iterator[str]:
    used = {slot.name for kind in plan.kinds for slot in kind.slots}
    used |= {slot.name for _, slot in plan.fields.values() if slot is not None}
    declared = {name: held for name, held in plan.slots.items() if name in used and held[0].text != name}
    for name, (held, values) in declared.items():
        text, why = placeholder_lines(held, values, plan.hidden, name)
        yield from with_comment(f"  {name}: {text}", why, guess=not held.is_exact)


def placeholder_lines(
    held: ValueClass, values: set[str], hidden: Collection[str], name: str
) -> tuple[str, str]:
    """Returns a placeholder's class as YAML, and its evidence."""
    text = held.text if held.text.isalnum() else quoted(held.text)
    return text, f"admits {held.words}; seen: {_values(values, hidden, name)}"


def _names(plan: Plan) -> Iterator[str]:
    if plan.hash_tag:
        why = "every key has one" if plan.hash_tag == "required" else "no key has two, or an empty one"
        yield ""
        yield from with_comment(f"names: {{hash_tag: {plan.hash_tag}}}", why, guess=True)


def _scopes(plan: Plan) -> Iterator[str]:
    for scope in plan.scopes:
        rights = ", ".join(f"{word}: {listed(names)}" for word, names in _rights(scope.rights))
        line = f"  {plain(scope.name)}: {{prefix: {quoted(scope.pattern)}, {rights}}}"
        yield from with_comment(
            line, f"{len(scope.kinds)} kinds of keys" if len(scope.kinds) > 1 else "one kind of key"
        )


def _rights(rights: Rights) -> Iterator[tuple[str, tuple[str, ...]]]:
    if rights.writers:
        yield "writers", rights.writers
    if rights.readers:
        yield "readers", rights.readers
    if rights.consumers:
        yield "consumers", rights.consumers


def _keys(plan: Plan) -> Iterator[str]:
    last: Scope | None = None
    for index, kind in enumerate(plan.entries):
        scope = plan.scope(kind)
        if index and scope is not last:
            yield ""
        last = scope
        yield from _entry(plan, kind, scope)


def _entry(plan: Plan, kind: Kind, scope: Scope | None) -> Iterator[str]:
    facts = kind.facts
    when = span(facts.first, facts.last)
    many = f" on {count(len(kind.keys), 'key')}" if len(kind.keys) > 1 else ""
    example = f"; for example {example_of(kind)}" if kind.example and kind.slots else ""
    said = [f"{count(facts.times, 'command')}{many}"] if facts.times or not facts.there else []
    said += [f"{count(facts.there, 'key')} there now"] if facts.there else []
    yield from comment(f"{', and '.join(said)}{f', {when}' if when else ''}{example}", 2)
    if scope is not None and scope.rights == plan.rights[kind.name]:
        yield from comment(seen_by(facts, sorted(facts.uses)), 2)
    yield f"  {plain(kind.name)}:"
    guessed = [slot.name for slot in kind.slots if slot.guessed]
    why = f"<{'>, <'.join(guessed)}> stands for words that are used alike" if guessed else ""
    yield from with_comment(f"    key: {quoted(kind.pattern)}", why, guess=True)
    for setting in settings_of(plan, kind, scope):
        if (kind.name, setting.name) not in plan.omitted:
            yield from setting_lines(setting, 4)


def settings_of(plan: Plan, kind: Kind, scope: Scope | None) -> Iterator[Setting]:
    """Yields the settings of an entry. Without a scope it has all rights itself."""
    facts = kind.facts
    types = kind.types
    if types:
        text = types[0] if len(types) == 1 else listed(types)
        yield Setting("type", text, "" if len(types) == 1 else "commands of each were used", len(types) > 1)
    rights = plan.rights[kind.name]
    if scope is None or scope.rights != rights:  # otherwise they are those of its scope
        for word, names in _rights(rights):
            yield Setting(word, listed(names), seen_by(facts, names))
    ttl = setting_of_ttl(facts, types)
    if ttl is not None:
        yield ttl
    if not types or set(types) & {"hash", "stream"}:
        fields = setting_of_fields(facts, *plan.fields[kind.name])
        if fields is not None:
            yield fields
    maxlen = setting_of_maxlen(facts) if not types or "stream" in types else None
    for found in (setting_of_values(facts, types), maxlen):
        if found is not None:
            yield found


def _legacy(plan: Plan) -> Iterator[str]:
    if not plan.legacy:
        return
    yield ""
    yield from comment(
        "guess: these look like older names of keys. Remove a line to make its keys unregistered."
    )
    yield "legacy:"
    allow = ["read"] + (["delete"] if any(kind.facts.deleters for kind in plan.legacy) else [])
    yield f"  allow: {listed(allow)}"
    yield "  keys:"
    for kind in plan.legacy:
        assert kind.legacy_of is not None
        reason = kind.why.replace("{new}", kind.legacy_of.name)
        why = f"{count(kind.facts.times, 'command')}; {reason}; for example {example_of(kind)}"
        form = plain(kind.legacy_of.name)
        if kind.facts.changed:
            form = f"{{entry: {form}, allow: [read, write, delete]}}"
        yield from with_comment(f"    {quoted(kind.pattern)}: {form}", why, guess=True)


def _channels(plan: Plan) -> Iterator[str]:
    for kind in plan.channels:
        facts = kind.facts
        many = f"{count(facts.times, 'command')} on {count(len(kind.keys), 'channel')}"
        yield from comment(f"{many}; for example {example_of(kind)}", 2)
        yield f"  {plain(kind.name)}:"
        yield f"    channel: {quoted(kind.pattern)}"
        yield from (f"    {line}" for line in channel_rights(kind))


def channel_rights(kind: Kind) -> Iterator[str]:
    """Yields who may publish to the channels of a kind, and who may subscribe to them."""
    for word, use in (("publishers", WRITES), ("subscribers", READS)):
        names = sorted(service for service, held in kind.facts.uses.items() if held & use)
        if names:
            yield f"{word}: {listed(names)}"


def _scripts(plan: Plan) -> Iterator[str]:
    if plan.evidence.scripts:
        yield ""
        why = "scripts that were not seen may not even be loaded"
        yield from with_comment("unregistered_scripts: forbid", why, guess=True)
    for title, of_functions in (("scripts", False), ("functions", True)):
        seen = {name: one for name, one in plan.evidence.scripts.items() if one.is_function == of_functions}
        if not seen:
            continue
        yield from comment(
            "guess: they use the keys that they declare and no others. "
            "A script can touch any key; read it, and add what else it reads and writes."
        )
        yield f"{title}:"
        digits = 8 if len({name[:8] for name in seen}) == len(seen) else 40
        for name, one in sorted(seen.items()):
            label = plain(name) if of_functions else f"script_{name[:digits]}"
            yield from _script(plan, name, label, one)


def _declared(plan: Plan | None, name: str, one: ScriptSeen) -> str:
    """Returns what a script declares: a pattern for each key if each is of one kind, or their number."""
    numbers = set(one.keys) or {0}
    if len(numbers) > 1:
        return "any"
    number = numbers.pop()
    if plan is None:
        return str(number)
    patterns = [
        plan.pattern_of({call[at] for call in one.calls if len(call) == number}) for at in range(number)
    ]
    if not number or not one.calls or not all(patterns) or (name, "keys") in plan.omitted:
        return str(number)
    return f"[{', '.join(map(quoted, patterns))}]"


def script_parts(plan: Plan | None, name: str, one: ScriptSeen) -> list[str]:
    """Returns the settings of a script. Without a plan, its keys are only counted."""
    parts = [] if one.is_function else [f'sha1: "{name}"']
    parts += [f"keys: {_declared(plan, name, one)}"]
    return parts + (["declared: both"] if one.keys and set(one.keys) != {0} else [])


def _script(plan: Plan, name: str, label: str, one: ScriptSeen) -> Iterator[str]:
    on = (
        f"; for example on {plan.shown(one.example.decode('utf-8', 'surrogateescape'))}"
        if one.example
        else ""
    )
    line = f"; it begins {without_ids(one.line)}" if one.line else ""
    only = "" if one.keys else "; it was only loaded, so set how many keys it takes"
    commands = f"{', '.join(sorted(one.commands))} {count(one.times, 'time')}"
    yield from comment(f"{commands} by {spoken(sorted(one.services))}{on}{line}{only}", 2)
    parts = script_parts(plan, name, one)
    whole = f"  {label}: {{{', '.join(parts)}}}"
    if len(whole) <= WIDTH:
        yield whole
    else:
        yield f"  {label}:"
        yield from (f"    {part}" for part in parts)


def _grants(plan: Plan) -> Iterator[str]:
    if not plan.grants:
        return
    times: Counter[str] = Counter()
    for (service, _, _, _), number in plan.evidence.patterns.items():
        times[service] += number
    yield ""
    yield from comment(
        "guess: patterns that reach more than the service's own keys. A narrower pattern needs no grant."
    )
    yield "grants:"
    for service, granted in sorted(plan.grants.items()):
        parts = [f"commands: {listed(sorted(granted['commands']))}"]
        for what in ("keys", "channels"):
            if granted.get(what):
                parts.append(f"{what}: [{', '.join(map(quoted, sorted(granted[what])))}]")
        parts.append(f"reason: {quoted('seen ' + count(times[service], 'time'))}")
        yield f"  {plain(service)}: {{{', '.join(parts)}}}"
