"""Warnings about settings that are valid, and that the policy in force defeats.

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


def _of_split(settings: Settings, services: list[str]) -> Diagnostic:
    each, name = ("", services[0]) if len(services) == 1 else ("for each of them ", "NAME")
    text = (
        f"commands of {named(services)} may be sent in parts, and {_CROSS} is enforced there, so keyfence "
        f"refuses them; {each}write {{mode: observe, rule: {_CROSS}, service: {name}}} at the top of modes, "
        "or take it out of split"
    )
    return settings.fault(("split",), text)._replace(level="warning")
