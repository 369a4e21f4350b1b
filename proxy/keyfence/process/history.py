"""What this keyfence tells its history: what is in force, and what has changed.

Rule: the history begins with what is in force at the start. A row says what is in force then, not only what
is new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from keyfence import __version__
from keyfence.admin.acting import who_acts
from keyfence.config.settings import Settings
from keyfence.findings.history.book import MODES, POLICY, START, WAIVERS, Book
from keyfence.policy.enforcement.modes import Modes
from keyfence.policy.engine.authorizer import Authorizer

Note = Callable[[str, Mapping[str, Any]], None]  # takes the kind of a change and its detail


class History:
    """The history of one keyfence; without a findings store there is none."""

    def __init__(self, book: Book | None = None) -> None:
        self._book = book
        self._in_force: dict[str, Mapping[str, Any]] = {}

    def note(self, kind: str, detail: Mapping[str, Any]) -> None:
        """Add a change that is made now."""
        if self._book is not None:
            self._book.note(who_acts(), (kind, detail))

    def put_in_force(self, authorizer: Authorizer | None, settings: Settings) -> None:
        """Add what is in force from now on, if it is not what was. None: commands pass unread."""
        if self._book is None:
            return
        waivers = [one.model_dump(mode="json", exclude_defaults=True) for one in settings.waivers]
        now: dict[str, Mapping[str, Any]] = {
            POLICY: _policy(authorizer, settings),
            MODES: compact(None if authorizer is None else authorizer.modes),
            WAIVERS: {"in_force": waivers},
        }
        changed = [(kind, detail) for kind, detail in now.items() if self._in_force.get(kind) != detail]
        if not self._in_force:
            changed.insert(0, (START, {"version": __version__}))
        if changed:
            self._book.note(who_acts(), *changed)
        self._in_force = now

    def head(self) -> str:
        """The last row, as a line for the audit log; "" if there is none."""
        return self._book.head.text if self._book is not None and self._book.head.rows else ""

    def give_up(self) -> None:
        """There is no store to write it to."""
        self._book = None

    def stop(self) -> None:
        if self._book is not None and self._in_force:
            self._book.stop(who_acts())


def _policy(authorizer: Authorizer | None, settings: Settings) -> dict[str, Any]:
    if authorizer is None:
        return {"passthrough": True}
    policy, signed = authorizer.policy, settings.policy_signed
    return {
        "name": policy.name,
        "revision": policy.revision,
        "source": settings.policy_shown,
        "should": sorted(policy.should),
        **({"environment": settings.environment} if settings.environment else {}),
        **({"signed": signed.status()} if signed is not None else {}),
    }


def compact(modes: Modes | None) -> dict[str, Any]:
    """Modes in few words: for which services a rule is enforced or disabled. `*` is all. What is not named is
    observed."""
    if modes is None:
        return {"services": []}
    services = list(modes.services)
    found: dict[str, Any] = {"services": services, "enforce": {}, "disabled": {}}
    for rule, by_service in modes.matrix().items():
        for mode in ("enforce", "disabled"):
            of_mode = [name for name in services if by_service[name] == mode]
            if of_mode:
                found[mode][rule] = ["*"] if of_mode == services else of_mode
    return found
