"""Which findings to list.

Rule: a filter is checked when it is made, so that no query fails because of it.
"""

from __future__ import annotations

import dataclasses

from keyfence.policy.diagnostics import did_you_mean

from .finding import State

MAX_LIMIT = 20_000
# The orders of a list. Times and numbers begin with the greatest. By cause, findings of one cause stand
# together, and else the order is that of violations.
SORTS = ("violations", "cause", "last", "first", "since", "service", "rule", "state", "owner")


@dataclasses.dataclass(frozen=True, slots=True)
class Filter:
    """Which findings to list. Empty fields match all."""

    service: str = ""
    rule: str = ""
    state: tuple[State, ...] = ()
    owner: str = ""
    entry: str = ""  # or shape
    text: str = ""  # anywhere in the names, the hint and the examples
    since: float = 0.0  # seen after this time, in Unix seconds
    sort: str = SORTS[0]  # one of SORTS
    limit: int = MAX_LIMIT
    offset: int = 0


EVERYTHING = Filter()


def sort_by(text: str) -> str:
    """The order that a text names; "" is the first of SORTS. Raises ValueError."""
    if text and text not in SORTS:
        raise ValueError(f"{text!r} is not an order{did_you_mean(text, SORTS)}")
    return text or SORTS[0]


def states(text: str) -> tuple[State, ...]:
    """The states that a text names, separated by commas; `active` is new, open and reopened. Raises
    ValueError."""
    found: list[State] = []
    for name in filter(None, text.replace(" ", "").split(",")):
        if name == "active":
            found += (State.NEW, State.OPEN, State.REOPENED)
        elif name in State._value2member_map_:
            found.append(State(name))
        else:
            known = ["active", *map(str, State)]
            raise ValueError(f"{name!r} is not a state{did_you_mean(name, known)}")
    return tuple(dict.fromkeys(found))
