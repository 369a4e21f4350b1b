"""Who acts now: the name under which changes go into the history.

Rule: it is set where a request, a signal or a background job begins, and only read where something changes.
It follows the calls and tasks that come of it, and no others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_acting = ContextVar("acting", default="keyfence")


def who_acts() -> str:
    """The name of an operator or of a part of keyfence."""
    return _acting.get()


def act_as(who: str) -> None:
    """For the rest of this task."""
    _acting.set(who)


@contextlib.contextmanager
def acting_as(who: str) -> Iterator[None]:
    """For a block."""
    token = _acting.set(who)
    try:
        yield
    finally:
        _acting.reset(token)
