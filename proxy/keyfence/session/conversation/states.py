"""The states of a session, and what each of them admits.

Rule: a session is in exactly one state, and only the events of `TRANSITIONS` change it. An event that a
state's row does not list changes nothing.

                       HOLD                       LOSE_TRACK
    AWAITING_REPLY ◀─────────┐                ┌──────────────▶ BECOMING_OPAQUE
                   ─────────▶│                │                      │ ANSWERED
                     RELEASE │    READING     │                      ▼
                     ANSWERED│  (every session│                    OPAQUE
                   ─────────▶│   begins here) │
    AWAITING_ALL   ◀─────────┘                └──────────────▶ CLOSING
                       DEFER                         FINISH

LOSE_TRACK and FINISH also lead out of the two waiting states.

READING          each request is evaluated as soon as it is complete.
AWAITING_REPLY   the next evaluation depends on a due reply (to AUTH, HELLO, SELECT, EXEC or a barrier) or on
                 an answer from other processes. The client's bytes are kept.
AWAITING_ALL     the current request is carried out once every due reply has arrived: it needs another
                 connection, or nothing may stand between it and its reply. The client's bytes are kept.
BECOMING_OPAQUE  keyfence cannot follow the session any more. Once every due reply has arrived, every byte
                 passes unread.
OPAQUE           every byte passes unread, in both directions.
CLOSING          the client's further bytes are dropped. The session closes once every due reply has arrived.

Three conditions are not states, because each may hold in several states. `closing` (a reason): the session
has ended; the reply side sets it too. `wants_turn`: a long evaluation is under way. `partly_sent`: the
beginning of a large request was sent upstream before the request was evaluated.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, IntEnum
from typing import NamedTuple


class State(IntEnum):
    """Compiled modules compare these as C integers."""

    READING = 0
    AWAITING_REPLY = 1
    AWAITING_ALL = 2
    BECOMING_OPAQUE = 3
    OPAQUE = 4
    CLOSING = 5


class Event(Enum):
    """The events that change a session's state."""

    HOLD = "the next evaluation depends on a due reply"
    RELEASE = "that reply has arrived, or will never come"
    DEFER = "the current request must wait until every due reply has arrived"
    ANSWERED = "every due reply has arrived"
    LOSE_TRACK = "keyfence cannot follow the session any more"
    FINISH = "the session ends once every due reply has arrived"


class Input(Enum):
    """How bytes from the client are handled."""

    EVALUATE = "complete requests are evaluated"
    KEEP = "they wait until the session reads on"
    PASS = "they go upstream unread"
    DROP = "they go nowhere"


class Admits(NamedTuple):
    """A state's row in ADMITS."""

    input: Input
    reads: bool  # the client's socket is read, independent of the kept input
    awaits_more: bool  # something may still come for a client that sends no more


ADMITS = {
    State.READING: Admits(Input.EVALUATE, reads=True, awaits_more=False),
    State.AWAITING_REPLY: Admits(Input.KEEP, reads=False, awaits_more=True),
    State.AWAITING_ALL: Admits(Input.KEEP, reads=False, awaits_more=True),
    State.BECOMING_OPAQUE: Admits(Input.KEEP, reads=False, awaits_more=True),
    State.OPAQUE: Admits(Input.PASS, reads=True, awaits_more=True),
    State.CLOSING: Admits(Input.DROP, reads=True, awaits_more=False),
}

_END = {Event.LOSE_TRACK: State.BECOMING_OPAQUE, Event.FINISH: State.CLOSING}
TRANSITIONS: dict[State, dict[Event, State]] = {
    State.READING: {Event.HOLD: State.AWAITING_REPLY, Event.DEFER: State.AWAITING_ALL, **_END},
    State.AWAITING_REPLY: {Event.RELEASE: State.READING, **_END},
    State.AWAITING_ALL: {Event.ANSWERED: State.READING, **_END},
    State.BECOMING_OPAQUE: {Event.ANSWERED: State.OPAQUE},
    State.OPAQUE: {},
    State.CLOSING: {},
}


def states_where(admitted: Callable[[Admits], bool]) -> int:
    """Returns the states whose row of ADMITS satisfies the condition, as bits: bit n is state n. Compiled
    modules compute such a set once, and then test one bit."""
    return sum(1 << state for state, admits in ADMITS.items() if admitted(admits))


def next_state(state: int, event: Event) -> State:
    """Returns the state after an event."""
    before = State(state)
    return TRANSITIONS[before].get(event, before)
