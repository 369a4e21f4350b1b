"""What can be changed on the page: one function for each action.

Rule: an action checks the fields of its form, makes one call of `Control`, and says what has happened. Who
may do it is checked before, and it is written down afterwards (`site`).
"""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from keyfence.admin.bodies import MAX_OBSERVE, BadRequest
from keyfence.admin.control import Control
from keyfence.admin.token import Role
from keyfence.policy.rules import RULES

MODES = ("enforce", "observe", "disabled")


class Outcome(NamedTuple):
    """What has happened."""

    text: str
    detail: str = ""  # for the audit log
    code: str = ""  # lines that a person must add, because keyfence could not
    lines: tuple[str, ...] = ()  # more sentences, for a page of their own


Form = Mapping[str, str]
Action = Callable[[Control, Form], Awaitable[Outcome]]


def required(form: Form, name: str) -> str:
    """A field that is not empty. Raises BadRequest."""
    value = form.get(name, "").strip()
    if not value:
        raise BadRequest(f"The field {name!r} is empty.")
    return value


class _Line(NamedTuple):
    """A line that an action adds to a file."""

    what: str
    where: str  # a person adds it, if keyfence cannot


_WAIVER = _Line("The waiver", "the waivers file, and reload:")
_MODE = _Line("The mode", "the configuration, before the other modes, and reload:")


def _written(
    done: Mapping[str, Any], line: _Line, detail: str, *, text: str = "", more: tuple[str, ...] = ()
) -> Outcome:
    """What has happened to a line of a file: keyfence has written it, or a person must."""
    if done["written"]:
        return Outcome(f"{text or line.what} is in {done['file']} and in force.", detail, lines=more)
    lines = (f"Nothing was written: {done['why']}.", f"Add this line to {line.where}", *more)
    return Outcome(f"{line.what} must be written by hand", detail, f"  - {done['line']}", lines)


async def _waive(control: Control, form: Form) -> Outcome:
    finding, owner, why = (required(form, name) for name in ("finding", "owner", "why"))
    try:
        until = datetime.date.fromisoformat(required(form, "until"))
    except ValueError:
        raise BadRequest("The last day is not a date like 2026-12-31.") from None
    if until < datetime.datetime.now(datetime.UTC).date():
        raise BadRequest("The last day is over already.")
    done = await control.waive(finding, owner, why, until)
    wide = tuple(f"It admits more than was seen: {text}." for text in done["wide"])
    return _written(done, _WAIVER, finding, more=wide)


async def _mode(control: Control, form: Form) -> Outcome:
    rule, service, mode = form.get("rule", ""), form.get("service", ""), required(form, "mode")
    if mode not in MODES:
        raise BadRequest(f"{mode!r} is not a mode; choose from {', '.join(MODES)}.")
    if rule and rule not in RULES:
        raise BadRequest(f"{rule!r} is not a rule.")
    done = await control.set_mode(rule, service, mode)  # type: ignore[arg-type]  # checked above
    said = f"{rule or 'every rule'} for {service or 'every service'}: {mode}"
    return _written(done, _MODE, said, text=f"{said}. It")


async def _reload(control: Control, _: Form) -> Outcome:
    done = await control.reload()
    changed = ", ".join(done["changed"]) or "nothing"
    restart = f" These need a restart: {', '.join(done['needs_restart'])}." if done["needs_restart"] else ""
    return Outcome(f"Reloaded; changed: {changed}.{restart}", changed)


async def _observe(control: Control, form: Form) -> Outcome:
    rule, service = form.get("rule", "").strip() or None, form.get("service", "").strip() or None
    try:
        seconds = float(required(form, "minutes")) * 60
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_OBSERVE:
        raise BadRequest(f"The minutes must be a number from 1 to {MAX_OBSERVE / 60:.0f}.")
    await control.observe(seconds, rule, service)
    said = f"{rule or 'every rule'}, {service or 'every service'}, {seconds / 60:g} minutes"
    return Outcome(f"Break-glass is open: {said}.", said)


async def _end_observe(control: Control, _: Form) -> Outcome:
    done = await control.end_observe()
    return Outcome("Break-glass has ended: modes are as configured.", f"{done['ended']} ended")


async def _load_candidate(control: Control, form: Form) -> Outcome:
    file = required(form, "file")
    done = await control.load_candidate(file)
    return Outcome(f"{file}, revision {done['revision']}, is compared with the policy in force.", file)


async def _rehearse(control: Control, _: Form) -> Outcome:
    done = await control.rehearse()
    return Outcome("A cluster is rehearsed with the policy in force.", done["revision"])


async def _drop(control: Control, _: Form) -> Outcome:
    done = (await control.drop_candidate())["dropped"]
    return Outcome("The comparison has ended.", done["file"] if done else "none was loaded")


async def _promote(control: Control, _: Form) -> Outcome:
    done = await control.promote_candidate()
    return Outcome(f"Revision {done['revision']} of the policy is in force.", done["revision"])


# The roles that actions need; all others need `operate`.
ROLES: dict[str, Role] = {"waive": "waive"}
ACTIONS: dict[str, Action] = {
    "waive": _waive,
    "mode": _mode,
    "reload": _reload,
    "observe": _observe,
    "end-observe": _end_observe,
    "load-candidate": _load_candidate,
    "rehearse": _rehearse,
    "drop": _drop,
    "promote": _promote,
}
