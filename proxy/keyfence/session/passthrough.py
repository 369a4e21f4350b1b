# cython: annotation_typing=False
"""A session that reads nothing: `run --splice` uses it, and `Session` builds on it.

Rule: every byte is passed on unchanged, in both directions. There is no policy and no reply slot.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

from keyfence.resp.limits import IDENTIFIED
from keyfence.resp.profile import Profile
from keyfence.session.conversation.conversation import Conversation
from keyfence.session.conversation.identity import Identity
from keyfence.session.conversation.owner_questions import Question
from keyfence.session.conversation.routing import Route
from keyfence.session.conversation.states import Event


class Passthrough:
    """A client's session: takes in bytes from both sides. What they lead to is in the conversation."""

    def __init__(self, client: Identity, conversation: Conversation) -> None:
        self.client = client
        self.conversation = conversation

    def from_client(self, data: bytes) -> None:
        """Take in bytes from the client."""
        self.conversation.from_client(data)

    def from_upstream(self, data: bytes) -> None:
        """Take in bytes from Redis on the client's dedicated connection."""
        self.conversation.from_upstream(data, 0, self.client)

    def from_shared(self, data: bytes, completed: int, whole: bool) -> None:
        """Take in this client's part of the bytes from Redis on a shared connection. `completed` replies end
        in `data`. `whole`: the last of them ends with it."""
        self.conversation.from_shared(data, completed, whole)

    def from_kept(self, data: bytes) -> None:
        """Take in bytes from Redis on the dedicated connection while the client uses a shared one."""
        self.conversation.from_kept(data, self.client)

    def upstream_refused(self, reason: str) -> None:
        """No connection could be made, so nothing was sent."""
        self.conversation.upstream_refused(reason)

    def take_answer(self, question: Question, answer: Any) -> None:
        """Take in the answer to the conversation's question. None: no answer came."""
        question.answered(answer)

    def take_turn(self) -> None:
        """Go on with the evaluation that was interrupted for other clients."""

    def forget_policy(self) -> None:
        """Another policy is in force. Without this, an idle client would keep the earlier one in memory."""


class Unread(Conversation):
    """A conversation of which every byte passes unread from the beginning, on a dedicated connection."""

    def __init__(self, database: int = 0) -> None:
        route = Route(sharing=False, clock=monotonic)
        super().__init__(Profile(database=database), route, IDENTIFIED)
        self._due = 0  # 1: nothing has come back since the last bytes were sent; keyfence cannot know more
        self.enter(Event.LOSE_TRACK)
        self.enter(Event.ANSWERED)

    def from_client(self, data: bytes) -> bool:
        self._due = 1
        return super().from_client(data)

    def from_upstream(self, data: bytes, at: int, client: Identity) -> int:
        self._due = 0
        return super().from_upstream(data, at, client)

    @property
    def outstanding(self) -> int:
        return self._due
