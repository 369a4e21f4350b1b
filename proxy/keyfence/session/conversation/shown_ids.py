"""The connection ids that Redis has shown to clients, and the clients that may name them.

Rule: a client may name its own connection and those of its service. Any other id may belong to a foreign
client, or to a connection that many clients share; these clients would get what Redis sends there. An id
counts only at its node: another node gives the same id to other connections.

Redis gives every connection an id and shows it to the client (CLIENT ID, CLIENT INFO, HELLO). With CLIENT
TRACKING … REDIRECT id, Redis sends another connection what the client would get itself. CLIENT KILL and
CLIENT UNBLOCK name ids too, and are administrative.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol

from keyfence.commands.arguments import integer, word
from keyfence.policy.compiled.tenants import Caller
from keyfence.policy.services import UNKNOWN

_CLIENT_ID = re.compile(rb":([0-9]{1,19})\r\n\Z")
_HELLO = re.compile(rb"\$2\r\nid\r\n:([0-9]{1,19})\r\n")
_CLIENT_INFO = re.compile(rb"[$=][0-9]+\r\n(?:txt:)?id=([0-9]{1,19}) ")


class Named(Protocol):
    """A client that was shown an id, with its current service."""

    service: str
    caller: Caller

    def is_named(self) -> None:
        """Another client may have Redis send messages to this client's connection from now on."""


def _nowhere() -> str:
    return ""


class ShownIds:
    """The newest id shown to each live client of an upstream in a process."""

    def __init__(self, node: Callable[[], str] = _nowhere) -> None:
        """`node`: where the connections lead now, in the same words in each process."""
        self.node = node
        self.is_all = True  # None: no other process has clients
        self._whose: dict[int, Named] = {}
        self._of: dict[Named, int] = {}

    def show(self, client: Named, reply: bytes) -> None:
        """Note the id in a reply that the client gets to CLIENT ID, CLIENT INFO or HELLO."""
        found = _CLIENT_ID.match(reply) or _CLIENT_INFO.match(reply) or _HELLO.search(reply)
        if found is not None:
            self.forget(client)
            number = int(found[1])
            before = self._whose.get(number)
            if before is not None:
                self.forget(before)  # Redis was restarted and counts from one again
            self._whose[number], self._of[client] = client, number

    def forget(self, client: Named) -> None:
        """The client has gone."""
        number = self._of.pop(client, None)
        if number is not None:
            del self._whose[number]

    def may_name(self, service: str, number: int, caller: Caller | None = None) -> bool:
        """Whether a client of this service (and `caller`, if given) was shown the id, so that others may name
        it; that client is told. An unidentified client has no service."""
        client = self._whose.get(number)
        if client is None or client.service != service or service == UNKNOWN:
            return False
        if caller is not None and client.caller != caller:
            return False
        client.is_named()
        return True

    def was_shown(self, service: str, node: str, number: int) -> bool:
        """The same of an id of this node, for a client of another process."""
        return node == self.node() and self.may_name(service, number)

    def is_own(self, client: Named, number: int) -> bool:
        return self._of.get(client) == number

    def __len__(self) -> int:
        return len(self._of)


def redirections(argv: Sequence[bytes]) -> list[tuple[int, int]]:
    """The ids that a CLIENT TRACKING command names, as (position, id). Redis refuses more than one id, and
    words that are not integers (`src/networking.c`, clientCommand)."""
    found = []
    index = 3
    while index < len(argv) - 1:
        option = word(argv[index])
        if option in (b"REDIRECT", b"PREFIX"):
            index += 1
            number = integer(argv[index]) if option == b"REDIRECT" else None
            if number is not None:
                found.append((index, number))
        index += 1
    return found
