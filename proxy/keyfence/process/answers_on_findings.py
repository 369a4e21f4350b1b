"""The answers to questions about findings, from the findings store or from the report in memory.

Rule: this is the only place that answers them. It runs in a thread, so clients wait for none of it. What the
store lacks could change an answer about what was not seen, so there is none then.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from keyfence.admin.asked import (
    CommonCause,
    EvidenceSince,
    Fleet,
    Listing,
    News,
    Owners,
    Question,
    Readiness,
    RightsOf,
    Single,
    Summary,
    Trend,
    Unused,
    Uses,
    WhatIf,
)

from .causes import Causes, by_cause, common_cause, summary_of
from .news import told_since
from .serving.answers import SPLICED
from .serving.backend import not_known

if TYPE_CHECKING:
    from keyfence.findings.views import Views


# They say what was not seen.
_OF_ABSENCE = (EvidenceSince, Readiness, Unused, WhatIf)


def answer(
    question: Question, views: Views, causes: Causes, *, in_memory: bool, notes: Sequence[str] = ()
) -> Any:
    """Returns plain values for JSON. `in_memory`: they are those of the report, and some answers say so.
    `notes`: why the store lacks what was counted last. Raises ValueError."""
    now = time.time()
    if notes and isinstance(question, _OF_ABSENCE):
        raise not_known(notes[0])
    match question:
        case Listing(which):
            return {**by_cause(views, causes, which), "in_memory": in_memory, "notes": [*notes]}
        case CommonCause():
            return {**common_cause(views, causes), "in_memory": in_memory}
        case Single(name):
            return {**causes.with_meant(views.single(name)), "in_memory": in_memory}
        case Summary():
            return {**summary_of(views, causes), "in_memory": in_memory}
        case EvidenceSince(since):
            return views.evidence(since)
        case Trend(since, service, commands_since):
            return views.trend(since, service, commands_since)
        case Uses(since):
            return views.uses(since)
        case Fleet():
            return views.fleet(now)
        case News(since, owner):
            return told_since(views, causes, since, now, owner)
        case Owners():
            return views.owners()
        case WhatIf(modes, service, since):
            return views.breaks(modes, service, since)
    policy, in_force = views.in_force.policy, views.in_force.modes
    if policy is None or in_force is None:
        raise ValueError(SPLICED)
    match question:
        case Readiness(quiet):
            return views.readiness(in_force.matrix(), quiet, now)
        case RightsOf(service, since):
            return views.rights(policy, service, since)
        case Unused(seconds):
            return views.unused(policy, seconds, now)
