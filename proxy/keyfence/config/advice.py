"""Warnings about settings that are valid, and that another setting or the policy in force defeats.

Rule: advice is a warning. It refuses nothing, and names the setting to change.
"""

from __future__ import annotations

from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.diagnostics import Diagnostic
from keyfence.policy.enforcement.modes import mode_of
from keyfence.policy.units import named

from .limits import ClientSettings
from .settings import Settings

_CROSS = "slot.cross"


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


def _of_split(settings: Settings, services: list[str]) -> Diagnostic:
    each, name = ("", services[0]) if len(services) == 1 else ("for each of them ", "NAME")
    text = (
        f"commands of {named(services)} may be sent in parts, and {_CROSS} is enforced there, so keyfence "
        f"refuses them; {each}write {{mode: observe, rule: {_CROSS}, service: {name}}} at the top of modes, "
        "or take it out of split"
    )
    return settings.fault(("split",), text)._replace(level="warning")
