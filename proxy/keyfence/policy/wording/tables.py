"""A policy as the tables of a convention, for people: scopes, entries, channels, scripts, services.

Rule: the tables are made of the compiled policy alone, so they show what is in force. All values are plain
values for JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keyfence.commands.model import GROUP, READ, WRITE
from keyfence.policy.compiled.policy import CompiledPolicy, Entry, Fields, Target
from keyfence.policy.compiled.ttl import TtlRule
from keyfence.policy.units import duration_text, size_text

SHOWN_FIELDS = 100  # of an entry
_OTHER_SCRIPTS = {  # what those that are not registered may do, by the word of the policy
    "declared": "are authorized by the keys that they declare",
    "report": "are authorized by the keys that they declare, and reported",
    "load_only": "may be loaded and not run",
    "forbid": "are forbidden",
}


def tables(policy: CompiledPolicy) -> dict[str, Any]:
    """The policy as tables: its files, services, databases, scopes, entries, channels, scripts."""
    others = policy.unregistered_scripts(len(policy.services) - 1)
    return {
        "name": policy.name,
        "revision": policy.revision,
        "files": [
            {
                "policy": one.policy,
                "file": one.file,
                "owner": one.owner,
                "contact": one.contact,
                "docs": one.docs,
            }
            for one in policy.homes
        ],
        "services": list(policy.services),
        "claims": list(policy.claims),
        "databases": None if policy.databases is None else sorted(policy.databases),
        "should": sorted(policy.should),
        "forbid": sorted(policy.forbid),
        "allow": sorted(policy.allow),
        "grants": [
            {
                "service": policy.services[number],
                "commands": sorted(one.selectors),
                "keys": [text.decode("utf-8", "replace") for text in one.texts],
                "legacy": one.legacy,
                "lapses": one.ends,
            }
            for number, held in policy.grants.items()
            for one in held
        ],
        "scopes": [_scope(policy, one) for one in policy.targets if one.kind == "scope"],
        "entries": _entries(policy),
        "channels": [
            {
                "name": one.name,
                "channel": one.text,
                "subscribers": one.names_with(READ, policy.services),
                "publishers": one.names_with(WRITE, policy.services),
            }
            for one in policy.channels
            if one.kind == "channel"
        ],
        "scripts": sorted({one.name for one in (*policy.scripts.values(), *policy.functions.values())}),
        "unregistered_scripts": others,
        "other_scripts": _OTHER_SCRIPTS[others],
        "unregistered_exceptions": policy.unregistered_exceptions,
    }


def _scope(policy: CompiledPolicy, scope: Target) -> dict[str, Any]:
    return {"name": scope.name, "keys": scope.text, "is_open": scope.is_open, **_rights(policy, scope)}


def _entries(policy: CompiledPolicy) -> list[dict[str, Any]]:
    """One row for each entry, in the order in which keys are matched. The members of a family are forms of
    one row."""
    rows: dict[str, dict[str, Any]] = {}
    legacy: dict[str, list[str]] = {}
    for target in policy.targets:
        if target.kind == "legacy":
            forms = legacy.setdefault(target.name, [])
            forms += [target.text] if target.text not in forms else []
        if target.kind != "entry":
            continue
        form = {"key": target.text, "scope": target.rights_of, **_membership(policy, target)}
        form |= _rights(policy, target)
        row = rows.get(target.name)
        if row is None:
            rows[target.name] = {"name": target.name, "forms": [form], **_requirements(policy, target)}
            rows[target.name] |= {"key": target.entry.written if target.entry is not None else target.text}
            rows[target.name] |= {"docs": policy.home(target).page_of(target.name)}
        else:
            row["forms"].append(form)
    for name, row in rows.items():
        row["legacy"] = legacy.get(name, [])
    return list(rows.values())


def _membership(policy: CompiledPolicy, target: Target) -> dict[str, Any]:
    """What tells a member of a family from the others, and the innermost scope around its keys."""
    key = target.pattern.example()
    around = (policy.targets[index] for index in policy.classifier.every(key))
    names = (one.name for one in around if one.kind == "scope" and one.home == target.home)
    return {
        "family": {name: value.decode("utf-8", "replace") for name, value in target.family},
        "under": next(names, ""),
    }


def _rights(policy: CompiledPolicy, target: Target) -> dict[str, list[str]]:
    writers = target.names_with(WRITE, policy.services)
    consumers = [one for one in target.names_with(GROUP, policy.services) if one not in writers]
    others = [one for one in target.names_with(READ, policy.services) if one not in (*writers, *consumers)]
    return {"writers": writers, "consumers": consumers, "readers": others}


def _requirements(policy: CompiledPolicy, target: Target) -> dict[str, Any]:
    entry = target.entry
    if entry is None:
        return {"about": "", "types": [], "ttl": "", "fields": {}, "more": {}, "owner": ""}
    more = _content(entry) | _commands(entry)
    if target.written_by:
        more["written by"] = ", ".join(sorted(target.written_by))
    home = policy.home(target)
    return {
        "about": entry.about,
        "types": list(entry.types),
        "ttl": ttl_text(entry.ttl),
        "fields": _fields(entry.fields),
        "more": more,
        "owner": home.contact or home.owner,
    }


def _content(entry: Entry) -> dict[str, str]:
    """What an entry says about values and sizes, in words."""
    forms = {"value": entry.values, "members": entry.members, "scores": entry.scores}
    found = {name: form.text for name, form in forms.items() if form is not None}
    if entry.max_value is not None:
        found["value at most"] = size_text(entry.max_value)
    numbers = {"fields at most": entry.max_fields, "members at most": entry.max_members}
    found |= {name: str(number) for name, number in numbers.items() if number is not None}
    if entry.maxlen is not None:
        found["stream length at most"] = f"{'' if entry.maxlen_exact else '~'}{entry.maxlen}"
    return found


def _commands(entry: Entry) -> dict[str, str]:
    """Which commands an entry admits, in words."""
    if entry.commands is None:
        return {}
    lists = {
        "only these commands": entry.commands.allow,
        "not these commands": entry.commands.forbid,
        "never": entry.commands.never,
    }
    return {name: ", ".join(sorted(commands)) for name, commands in lists.items() if commands}


def ttl_text(rule: TtlRule | None) -> str:
    """A rule for the time to live in a few words; "" if there is none."""
    if rule is None:
        return ""
    if rule.none:
        return "none"
    parts = [
        *([f"at least {duration_text(rule.min)}"] if rule.min is not None else []),
        *([f"at most {duration_text(rule.max)}"] if rule.max is not None else []),
        *([f"usually {duration_text(rule.default)}"] if rule.default is not None else []),
        *(["set by the write itself"] if rule.required and rule.at == "write" else []),
    ]
    return ", ".join(["required" if rule.required else "optional", *parts])


def _fields(fields: Fields | None) -> Mapping[str, str]:
    if fields is None:
        return {}
    named = {name.decode("utf-8", "backslashreplace"): form.text for name, form in fields.named.items()}
    patterned = {f"({name.text})": form.text for name, form in fields.patterned}
    return dict(list((named | patterned).items())[:SHOWN_FIELDS])
