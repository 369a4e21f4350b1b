# cython: annotation_typing=False
"""Who asks: one client as one policy knows it, between two changes of its identity, database or transaction.

Rule: an asker never changes. After a login, SELECT, MULTI or EXEC the client is another asker.
"""

from __future__ import annotations

from keyfence.policy.compiled.tenants import Values
from keyfence.policy.verdict import Peer

_NOT_SHOWN = Peer("")


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
        peer: Peer = _NOT_SHOWN,
        sender: object = None,
        transaction: Transaction | None = None,
    ) -> None:
        self.service = service  # its number
        self.values = values  # of the caller's bound placeholders (`CompiledPolicy.values`)
        self.database = database  # the selected one
        self.peer = peer  # who the client is, as logs show it
        # Identifies the connection, on which commands run in order; by default `peer` does.
        self.sender = peer if sender is None else sender
        self.transaction = transaction  # in which the command is queued; None outside MULTI
