"""Compiles the models of policy files into the tables that run: numbered services, targets, one automaton.

Rule: everything that follows from the policy alone is computed here, once per load. Every name that refers to
nothing is reported with its place, all of them at once.

Stages, in order, for each file: services and placeholders (`context`) → bound placeholders (`bindings`) →
scopes, entries (`entries`) → legacy forms (`legacy`) → naming rules (`naming`) → targets → channels → scripts
and functions → grants. Then for all files together (`merge`): which file a key belongs to → the order of
targets → the automata over them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Sequence

from keyfence.policy.compiled.names import Names
from keyfence.policy.compiled.policy import CompiledPolicy, Grant, Home, Target
from keyfence.policy.compiled.scripts import Registration
from keyfence.policy.compiled.secrets import leading_to_secret, policy_secrecy
from keyfence.policy.compiled.tenants import Binding
from keyfence.policy.diagnostics import FileError
from keyfence.policy.patterns.automaton import Classifier
from keyfence.policy.patterns.determinize import TooManyStates, classify
from keyfence.policy.patterns.regular import SEPARATOR_MASK
from keyfence.policy.records import replaced
from keyfence.policy.services import UNKNOWN
from keyfence.policy.source.model import PolicyModel
from keyfence.policy.source.yaml import Source

from .bindings import read_bindings
from .channels import build_channels, order_channels
from .commands import build_selectors
from .context import SCOPE_HOLE, CompilerContext
from .entries import build_entries, build_scopes, is_claimed
from .grants import build_grants
from .legacy import build_exceptions, build_legacy, build_strays, build_versions
from .merge import check_together, common_home, home_of, in_order, merged, merged_scripts, services_of
from .naming import build_names, compare, has_capitals, surely_short, surely_tagged
from .requirements import read_type_words
from .scripts import build_functions, build_scripts, build_unregistered
from .targets import build_targets

MAX_TARGETS = 50_000
MAX_RIGHTS = 5_000_000  # services times targets; each takes about 16 bytes


@dataclasses.dataclass(slots=True)
class _Part:
    """One file, compiled as far as that needs no other file."""

    context: CompilerContext
    home: Home
    targets: list[Target]
    channels: list[Target]
    scripts: dict[bytes, Registration]
    functions: dict[bytes, Registration]
    grants: dict[int, tuple[Grant, ...]]
    forbid: frozenset[str]
    allow: frozenset[str]


def compile_policies(
    files: Sequence[tuple[PolicyModel, Source]], name: str, *, name_services: bool = True
) -> CompiledPolicy:
    """Compiles the well-formed files of several teams as one policy. Raises FileError with every fault."""
    services = services_of(model for model, _ in files)
    contexts = [
        CompilerContext(model, source, services, number) for number, (model, source) in enumerate(files)
    ]
    for context in contexts:
        context.siblings = contexts
    bindings: list[Binding] = []
    parts = [_part(context, bindings) for context in contexts]
    check_together(contexts, [part.scripts for part in parts])
    _raise_faults(contexts)
    homes = tuple(part.home for part in parts)
    targets = in_order([(part.home, part.targets) for part in parts])
    channels = order_channels(itertools.chain(*(part.channels for part in parts)), services)
    classifier = _automaton(contexts[0], targets, "keys")
    channel_classifier = _automaton(contexts[0], channels, "channels")
    if classifier is None or channel_classifier is None:
        raise FileError(contexts[0].faults)
    common = common_home(homes)
    models = [context.model for context in contexts]
    formed = [target for context in contexts for target in _formed(context)]
    return CompiledPolicy(
        name=name,
        revision=_revision(contexts),
        contact=common.contact,
        services=services,
        targets=tuple(targets),
        classifier=classifier,
        claims=tuple(claim for model in models for claim in model.claims),
        should=common.should,
        databases=next((frozenset(one.databases) for one in models if one.databases is not None), None),
        forbid=frozenset().union(*(part.forbid for part in parts)),
        allow=frozenset().union(*(part.allow for part in parts)),
        grants={
            number: tuple(grant for part in parts for grant in part.grants.get(number, ()))
            for number in sorted({number for part in parts for number in part.grants})
        },
        channels=tuple(channels),
        channel_classifier=channel_classifier,
        scripts=merged_scripts(part.scripts for part in parts),
        functions=merged(part.functions for part in parts),
        cluster=any(home.cluster for home in homes),
        homes=homes,
        common=common,
        secret_beginnings=_secret_beginnings([*formed, *channels]),
        secrecy=policy_secrecy(
            ((one.classes[name], least) for one in contexts for name, least in one.secrets.items()),
            ((one.pattern, one.secrets) for one in (*formed, *targets, *channels)),
        ),
        bindings=tuple(bindings),
        exceptions=tuple(itertools.chain(*map(build_exceptions, contexts))),
        name_services=name_services,
    )


def _part(context: CompilerContext, bindings: list[Binding]) -> _Part:
    """Compiles one file. `bindings` has the caller bindings of the files before it; this file's are added."""
    number = context.home
    context.first_binding = len(bindings)
    _check_services(context)
    read_bindings(context)
    bindings += context.bindings
    _check_size(context)
    context.type_words = read_type_words(context)
    build_scopes(context)
    build_entries(context)
    build_versions(context)
    build_legacy(context)
    build_strays(context)
    names = build_names(context)
    commands, should = context.model.commands, frozenset(context.model.should)
    return _Part(
        context=context,
        home=home_of(
            context,
            names=names,
            type_words=context.type_words,
            unregistered_scripts=build_unregistered(context),
        ),
        targets=[_with_names(target, names, context.claims) for target in build_targets(context)],
        channels=[dataclasses.replace(one, home=number, should=should) for one in build_channels(context)],
        scripts=build_scripts(context),
        functions=build_functions(context),
        grants=build_grants(context, number),
        forbid=build_selectors(
            context, commands.forbid, ("commands", "forbid"), may_be_own=True, may_be_every=False
        ),
        allow=build_selectors(context, commands.allow, ("commands", "allow"), may_be_own=True),
    )


def _formed(context: CompilerContext) -> list[Target]:
    return [*context.entries, *context.legacy, *context.strays]


def _secret_beginnings(targets: Sequence[Target]) -> tuple[bytes, ...]:
    found = (leading_to_secret(one.pattern, one.secrets) for one in targets)
    return tuple(beginning for beginning in found if beginning)


def _raise_faults(contexts: Sequence[CompilerContext]) -> None:
    faults = [fault for context in contexts for fault in context.faults]
    if faults:
        raise FileError(faults)


def _revision(contexts: Sequence[CompilerContext]) -> str:
    """Returns the beginning of the SHA-256 of everything read: the files, and the scripts that they name."""
    read = [
        text for context in contexts for text in ("\n".join(context.source.lines).encode(), *context.texts)
    ]
    if len(read) == 1:
        return hashlib.sha256(read[0]).hexdigest()[:12]
    return hashlib.sha256(b"".join(hashlib.sha256(text).digest() for text in read)).hexdigest()[:12]


def _check_size(context: CompilerContext) -> None:
    """Bounds the number of rights: there is one for each service on each target. A bound placeholder in a
    short file may stand for a million targets."""
    model = context.model
    values = {f"<{name}>": len(owned) for name, owned in context.bound.items()}
    values[f"<{SCOPE_HOLE}>"] = len(model.scopes)
    texts = [one.prefix for one in model.scopes.values()] + [one.key for one in model.keys.values()]
    texts += [*model.legacy.keys, *model.instead, *(one.channel for one in model.channels.values())]
    targets = sum(math.prod(count for hole, count in values.items() if hole in text) for text in texts)
    rights = targets * len(context.services)
    if targets > MAX_TARGETS or rights > MAX_RIGHTS:
        message = (
            f"{len(model.services)} services and {targets} scopes, keys, legacy forms and channels: at "
            f"most {MAX_TARGETS} of these, and {MAX_RIGHTS} times the services; divide the file"
        )
        context.error(("services",), message)
        raise FileError(context.faults)


def _check_services(context: CompilerContext) -> None:
    seen: set[str] = set()
    for index, name in enumerate(context.model.services):
        if name in seen:
            context.error(("services", index), f"the service {name} is listed twice")
        elif name == UNKNOWN:
            context.error(("services", index), f"{UNKNOWN} is the name for clients that nothing identifies")
        elif not name or not name.isprintable() or " " in name:
            context.error(("services", index), f"{name!r} is not a service name; use one word")
        seen.add(name)
    if len(context.services) == 1:
        context.error(("services",), "no services; list the services that use this Redis")


def _with_names(target: Target, names: Names, claims: frozenset[str]) -> Target:
    """Returns the target, marked if all of its keys keep the naming rules. Those apply to keys in the
    claims."""
    if target.kind not in ("entry", "scope"):
        return target
    limit = target.entry.max_length if target.entry is not None else None
    is_lower = target.kind == "entry" and not has_capitals(target)
    names = names.of_forms if is_lower else names
    tag_sure = surely_tagged(target.pattern, target.hash_tag)
    sure = tag_sure and (limit is None or target.pattern.longest <= limit.most)
    bytes_sure = False
    if not sure or is_claimed(claims, target.pattern):
        bytes_sure = not compare(target.pattern, names).some_break
        sure = sure and bytes_sure and surely_short(target.pattern, names)
    return replaced(target, names_sure=sure, bytes_sure=bytes_sure, tag_sure=tag_sure, is_lower=is_lower)


def _automaton(context: CompilerContext, targets: Sequence[Target], section: str) -> Classifier | None:
    patterns = [target.pattern for target in targets]
    try:
        return classify(patterns)
    except TooManyStates as exc:
        for index in exc.worst:
            _report_multiplier(context, targets[index], section, exc.max_states)
        return None


def _report_multiplier(context: CompilerContext, target: Target, section: str, limit: int) -> None:
    """Reports a pattern that takes part in most states of an automaton that would be too large."""
    path: tuple[str, ...] = (section, target.name, "channel" if section == "channels" else "key")
    if target.kind == "legacy":
        path = ("legacy", "keys", target.text)
    wide = [f"<{hole.name}>" for hole in target.pattern.holes if hole.expression.alphabet & SEPARATOR_MASK]
    why = f": {', '.join(wide)} may hold a colon; exclude it" if wide else "; narrow its placeholders"
    if target.pattern.is_literal:
        why = "; shorten the keys' text"
    message = f"{target.text!r} takes part in most of more than {limit} states{why}"
    context.error(path, message, of_key=target.kind == "legacy")
