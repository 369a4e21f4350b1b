"""An open transaction: MULTI, and the commands queued after it.

Rule: a transaction is open from the moment MULTI is sent until EXEC, DISCARD or RESET is sent; Redis decides
its outcome. A queued command takes effect when EXEC's reply says so, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from keyfence.policy.engine.asker import Transaction
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.resp.replies import ReplyFramer

# The number of commands in one transaction that change the session; they are kept until EXEC.
MAX_EFFECTS = 1_000


class OpenTransaction:
    """A transaction between its MULTI and its end."""

    __slots__ = (
        *("_edits", "_effects", "authorizer", "evaluated", "is_confirmed", "is_shapeable", "logins"),
        "queued",
    )

    def __init__(self, authorizer: Authorizer) -> None:
        self.authorizer = authorizer  # a reload does not change a transaction's policy
        self.evaluated = Transaction()  # the evaluator's view of it
        self.is_confirmed = False  # Redis has answered MULTI
        self.is_shapeable = False  # whether the client's text might shape a part of EXEC's reply
        self.logins = 0  # commands that may log in and fail
        self.queued = 0  # commands for which EXEC's reply has an element
        self._effects: list[tuple[int, Callable[[bytes], None]]] = []
        self._edits: list[tuple[int, Callable[[bytes], bytes]]] = []

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another effect or edit."""
        return len(self._effects) + len(self._edits) >= MAX_EFFECTS

    @property
    def has_effects(self) -> bool:
        return bool(self._effects)

    @property
    def has_edits(self) -> bool:
        return bool(self._edits)

    def when_executed(self, effect: Callable[[bytes], None]) -> None:
        """Call `effect` with the reply to the next queued command, once EXEC's reply brings it."""
        self._effects.append((self.queued, effect))

    def edit_when_executed(self, edited: Callable[[bytes], bytes]) -> None:
        """The client gets the reply to the next queued command as `edited` returns it."""
        self._edits.append((self.queued, edited))

    def edited(self, reply: bytes) -> bytes:
        """EXEC's reply, with the edits in it."""
        replies = list(elements(reply))
        for index, edited in self._edits:
            if index < len(replies):
                replies[index] = edited(replies[index])
        return reply[: reply.find(b"\r\n") + 2] + b"".join(replies) if replies else reply

    def executed(self, reply: bytes) -> None:
        """Take in EXEC's reply: an array of the commands' replies, or a null or an error if none was run."""
        replies = elements(reply)
        for index, effect in self._effects:
            if index < len(replies):
                effect(replies[index])


def elements(reply: bytes) -> Sequence[bytes]:
    """Returns the raw elements of an array; none for any other reply."""
    end = reply.find(b"\r\n") + 2
    if not reply.startswith(b"*") or reply.startswith(b"*-"):
        return ()
    framer = ReplyFramer()
    found = []
    for _ in range(int(reply[1:end])):
        start, end = end, framer.advance(reply, end, 1)
        found.append(reply[start:end])
    return found
