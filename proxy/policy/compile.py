"""From the policy file's model to what `decide` runs on: numbered services, targets, one automaton.

Rule: whatever can be found out from the policy alone is found out here, once per load; every name that refers
to nothing is reported with its place, all of them in one go.

Stages, in order: services and placeholders (`draft`) → scopes, entries, legacy forms (`build_catalogue`) →
channels → scripts and functions → grants → the order of targets → the automata over them.
"""

from __future__ import annotations

import dataclasses
import hashlib

from .automaton import Classifier
from .bind import read_bindings
from .build_automaton import TooManyStates, classify
from .build_catalogue import build_entries, build_scopes
from .build_channels import build_channels
from .build_content import read_type_words
from .build_grants import build_grants, build_selectors
from .build_legacy import build_exceptions, build_legacy, build_strays
from .build_names import build_names, surely_named, surely_tagged
from .build_scripts import build_functions, build_scripts
from .build_targets import build_targets
from .compiled import UNKNOWN, CompiledPolicy, Target
from .diagnostics import FileError
from .draft import Draft
from .model import PolicyModel
from .names import Names
from .yaml_source import Source


def compile_policy(model: PolicyModel, source: Source, *, name_services: bool = True) -> CompiledPolicy:
    """Compile a well-formed policy. Raises FileError with every fault."""
    draft = Draft(model, source, (*model.services, UNKNOWN))
    _check_services(draft)
    read_bindings(draft)
    draft.type_words = read_type_words(draft)
    build_scopes(draft)
    build_entries(draft)
    build_legacy(draft)
    build_strays(draft)
    channels = build_channels(draft)
    scripts, functions = build_scripts(draft), build_functions(draft)
    grants = build_grants(draft)
    forbid = build_selectors(draft, model.commands.forbid, ("commands", "forbid"))
    allow = build_selectors(draft, model.commands.allow, ("commands", "allow"))
    names = build_names(draft)
    targets = [_with_names(target, names) for target in build_targets(draft)]
    classifier = _automaton(draft, targets, "keys")
    channel_classifier = _automaton(draft, channels, "channels")
    if draft.faults or classifier is None or channel_classifier is None:
        raise FileError(draft.faults)
    text = "\n".join(source.lines)
    return CompiledPolicy(
        name=model.policy,
        revision=hashlib.sha256(text.encode()).hexdigest()[:12],
        contact=model.owner.contact or model.owner.team,
        services=draft.services,
        targets=tuple(targets),
        classifier=classifier,
        claims=tuple(model.claims),
        should=frozenset(model.should),
        databases=None if model.databases is None else frozenset(model.databases),
        forbid=forbid,
        allow=allow,
        grants=grants,
        channels=tuple(channels),
        channel_classifier=channel_classifier,
        scripts=scripts,
        functions=functions,
        forbids_unregistered_scripts=model.unregistered_scripts == "forbid",
        cluster=model.cluster,
        names=names,
        type_words=draft.type_words,
        open_scopes=frozenset(n for n, scope in model.scopes.items() if scope.unregistered == "allow"),
        secret_beginnings=tuple(
            one.pattern.literal_prefix
            for one in (*draft.entries, *draft.legacy, *draft.strays, *channels)
            if one.secrets and (one.kind in ("legacy", "stray") or one.pattern.literal_prefix)
        ),
        exceptions=tuple(build_exceptions(draft)),
        name_services=name_services,
    )


def _check_services(draft: Draft) -> None:
    seen: set[str] = set()
    for index, name in enumerate(draft.model.services):
        if name in seen:
            draft.error(("services", index), f"the service {name} is listed twice")
        elif name == UNKNOWN:
            draft.error(("services", index), f"{UNKNOWN} is the name of clients that nothing identifies")
        elif not name or not name.isprintable() or " " in name:
            draft.error(("services", index), f"{name!r} is no service name; use one word")
        seen.add(name)
    if not draft.model.services:
        draft.error(("services",), "no services; list who uses this Redis")


def _with_names(target: Target, names: Names) -> Target:
    """The target, marked if none of its keys need be held against the naming rules."""
    if target.kind not in ("entry", "scope"):
        return target
    limit = target.entry.max_length if target.entry is not None else None
    sure = (
        (limit is None or target.pattern.longest <= limit.most)
        and surely_tagged(target.pattern, target.hash_tag)
        and surely_named(target.pattern, names)
    )
    return dataclasses.replace(target, names_sure=sure)


def _automaton(draft: Draft, targets: list[Target], section: str) -> Classifier | None:
    if draft.faults:
        return None
    patterns = [target.pattern for target in targets]
    try:
        return classify(patterns)
    except TooManyStates as exc:
        draft.error((section,), str(exc), of_key=True)
        return None
