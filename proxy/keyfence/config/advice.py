"""Warnings about settings that are valid, and that another setting or the policy in force defeats.

Rule: advice is a warning. It refuses nothing, and names the setting to change.
"""

from __future__ import annotations

from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.diagnostics import Diagnostic
from keyfence.policy.enforcement.modes import mode_of
from keyfence.policy.rules import RULES
from keyfence.policy.units import named

from .limits import ClientSettings
from .settings import Settings

_CROSS = "slot.cross"
_OPAQUE = "session.opaque"
# Commands that break these rules reach keys that keyfence does not see.
_UNSEEN = ("command.unknown", "script.unregistered", "script.keys")
_ON_KEYS = tuple(rule for rule in RULES if rule.startswith(("scope.", "key.")))


def advice(settings: Settings, policy: CompiledPolicy | None) -> list[Diagnostic]:
    """A warning about commands that may be sent in parts, if the policy refuses them before that."""
    if policy is None or not policy.cluster:
        return []
    clients = ClientSettings(splits=settings.splits)
    refused = [
        name
        for name in policy.services
        if clients.split_for(name) and mode_of(settings.modes, _CROSS, name) == "enforce"
    ]
    return [_of_split(settings, refused)] if refused else []


def hidden_modes(settings: Settings) -> list[Diagnostic]:
    """Warnings about lines of `modes` that never decide. The page leaves such lines when it writes others
    before them, so they are no advice for a keyfence that runs."""
    found = []
    for index, one in enumerate(settings.modes):
        before = [
            place
            for place, other in enumerate(settings.modes[:index])
            if other.rule in ("", one.rule) and other.service in ("", one.service)
        ]
        if before and settings.modes[before[0]].mode != one.mode:
            text = (
                f"line {index + 1} of modes never decides: line {before[0] + 1} matches all that it matches, "
                "and the first one that matches decides; move it up"
            )
            found.append(settings.fault(("modes", index), text)._replace(level="warning"))
    return found


def unread_sessions(settings: Settings, policy: CompiledPolicy | None) -> list[Diagnostic]:
    """A warning about services whose rights on keys are enforced while their sessions may pass unread. People
    enforce rules one by one on the page, so it is no advice for a keyfence that runs."""
    passing: dict[str, str] = {}  # services, with the first of such rules
    for name in policy.services if policy is not None else ():
        enforced = (rule for rule in _ON_KEYS if _is_enforced(settings, rule, name))
        rule = next(enforced, "") if not _is_enforced(settings, _OPAQUE, name) else ""
        if rule:
            passing[name] = rule
    if not passing:
        return []
    service, rule = next(iter(passing.items()))
    index = next(
        at for at, one in enumerate(settings.modes) if one.rule in ("", rule) and one.service in ("", service)
    )
    only = f", service: {service}" if len(passing) == 1 else ""
    text = (
        f"{rule} is enforced for {named([*passing])}, and {_OPAQUE} is not: after MULTI, SUBSCRIBE and "
        "DISCARD, every command passes unread; "
        f"write {{mode: enforce, rule: {_OPAQUE}{only}}} at the top of modes"
    )
    others = [other for other in _UNSEEN if not all(_is_enforced(settings, other, one) for one in passing)]
    if others:
        text += f"; without {named(others)} in enforce, commands can reach keys unseen too"
    return [settings.fault(("modes", index), text)._replace(level="warning", code="unread-sessions")]


def _is_enforced(settings: Settings, rule: str, service: str) -> bool:
    return mode_of(settings.modes, rule, service) == "enforce"


def _of_split(settings: Settings, services: list[str]) -> Diagnostic:
    each, name = ("", services[0]) if len(services) == 1 else ("for each of them ", "NAME")
    text = (
        f"commands of {named(services)} may be sent in parts, and {_CROSS} is enforced there, so keyfence "
        f"refuses them; {each}write {{mode: observe, rule: {_CROSS}, service: {name}}} at the top of modes, "
        "or take it out of split"
    )
    return settings.fault(("split",), text)._replace(level="warning")
