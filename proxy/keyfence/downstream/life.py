"""The life of a client's connection as a table: what each state admits, and what leads to the next.

Rule: a client is in exactly one state, and only the events of `TRANSITIONS` change it. An event that a
state's row does not list changes nothing.

    ARRIVING ──SERVE──▶ OPEN ──END──▶ HALF_CLOSED
        │                 └───────┬────────┘
        │ REJECT            LEAVE │ DISMISS
        ▼                    ┌────┴─────┐
    REJECTED                 ▼          ▼
                          CLOSING   DISMISSED

LOSE leads from each of them to GONE.

ARRIVING     the client is not identified yet.
OPEN         its requests are evaluated, and it gets replies.
HALF_CLOSED  it has sent its last byte, and waits for its last replies.
DISMISSED    the process ends. What the client still sends is dropped. It counts as a client until it has
             received everything that was written for it.
CLOSING      its transport sends what was written and accepts no more.
REJECTED     the same, but it never became a client, because its service has too many connections.
GONE         its transport is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple


class Life(IntEnum):
    """The states. Compiled modules compare them as C integers."""

    ARRIVING = 0
    OPEN = 1
    HALF_CLOSED = 2
    DISMISSED = 3
    CLOSING = 4
    REJECTED = 5
    GONE = 6


class Event(IntEnum):
    """What changes the state. Compiled modules use these as C integers, too."""

    SERVE = 0  # the client is identified, and its service has room for it
    REJECT = 1  # its service has no room for it
    END = 2  # the client sends no more
    DISMISS = 3  # the process ends, and no reply is due
    LEAVE = 4  # the transport is to be closed
    LOSE = 5  # the transport is closed


class Admits(NamedTuple):
    """A state's row in ADMITS."""

    requests: bool  # what the client sends is evaluated
    replies: bool  # the transport accepts more bytes
    is_client: bool  # it is among the clients of the process


ADMITS = {
    Life.ARRIVING: Admits(requests=False, replies=False, is_client=False),
    Life.OPEN: Admits(requests=True, replies=True, is_client=True),
    Life.HALF_CLOSED: Admits(requests=False, replies=True, is_client=True),
    Life.DISMISSED: Admits(requests=False, replies=False, is_client=True),
    Life.CLOSING: Admits(requests=False, replies=False, is_client=True),
    Life.REJECTED: Admits(requests=False, replies=False, is_client=False),
    Life.GONE: Admits(requests=False, replies=False, is_client=False),
}

_GONE = {Event.LOSE: Life.GONE}
_ENDS = {Event.DISMISS: Life.DISMISSED, Event.LEAVE: Life.CLOSING, **_GONE}
TRANSITIONS: dict[Life, dict[Event, Life]] = {
    Life.ARRIVING: {Event.SERVE: Life.OPEN, Event.REJECT: Life.REJECTED, **_GONE},
    Life.OPEN: {Event.END: Life.HALF_CLOSED, **_ENDS},
    Life.HALF_CLOSED: _ENDS,
    Life.DISMISSED: _GONE,
    Life.CLOSING: _GONE,
    Life.REJECTED: _GONE,
    Life.GONE: {},
}

# TRANSITIONS as one row of integers, because each connection looks up a few.
_NEXT = tuple(int(TRANSITIONS[state].get(event, state)) for state in Life for event in Event)
_EVENTS = len(Event)


def states_where(admitted: Callable[[Admits], bool]) -> int:
    """Returns the states whose row of ADMITS satisfies the condition, as bits: bit n is state n."""
    return sum(1 << state for state, admits in ADMITS.items() if admitted(admits))


def next_state(state: int, event: int) -> int:
    """Returns the state after an event."""
    return _NEXT[state * _EVENTS + event]
