# cython: annotation_typing=False
"""Who asks: one client as one policy knows it, between two changes of its identity, database or transaction.

Rule: an asker never changes. After a login, SELECT, MULTI or EXEC the client is another asker.
"""

from __future__ import annotations

from typing import Any, Protocol

from keyfence.policy.compiled.tenants import Values
from keyfence.policy.verdict import Peer

_NOT_SHOWN = Peer("")

# What a client says of itself: the user, its name, its library and the library's version.
Said = tuple[bytes, bytes, bytes, bytes]


class Sender(Protocol):
    """A connection, which is equal to no other."""

    def peer(self, said: Said) -> Peer:
        """Who the client is, as logs show it, if it says this of itself."""


class Transaction:
    """The facts about a transaction's earlier commands that the evaluation of the next one needs."""

    __slots__ = ("slot",)

    def __init__(self) -> None:
        self.slot: int | None = None  # the hash slot of the first key, if the policy is for a cluster


class Asker:
    """The client of a command."""

    def __init__(
        self,
        service: int,
        values: Values = (),
        *,
        database: int = 0,
        peer: Peer | Said = _NOT_SHOWN,
        sender: Sender | None = None,
        transaction: Transaction | None = None,
    ) -> None:
        """`peer` may be what the client says of itself, which `sender` shows when it is asked: few commands
        are reported, and each client would keep a text."""
        self.service = service  # its number
        self.values = values  # of the caller's bound placeholders (`CompiledPolicy.values`)
        self.database = database  # the selected one
        self._peer = peer
        # Identifies the connection, on which commands run in order; by default `peer` does.
        self.sender = peer if sender is None else sender
        self.transaction = transaction  # in which the command is queued; None outside MULTI

    @property
    def peer(self) -> Peer:
        """Who the client is, as logs show it."""
        peer = self._peer
        if isinstance(peer, Peer):
            return peer
        sender: Any = self.sender
        shown: Peer = sender.peer(peer)
        return shown
