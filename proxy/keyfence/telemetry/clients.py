"""Which clients broke a rule: what a log line and a row of the report say of them.

Rule: a row names MAX_CLIENTS different clients at most. A client is told apart by its host, user, name and
library, not by its port.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from keyfence.policy.verdict import Peer

MAX_CLIENTS = 5
FIELDS = ("user", "name", "library", "version")
_PORT = re.compile(r"(?<=[\d\]]):\d{1,5}$")

Client = dict[str, str]


def fields_of(peer: Peer) -> Client:
    """What a log line says beside the address: only what the client has."""
    return {name: value for name, value in zip(FIELDS, peer[1:], strict=True) if value}


@lru_cache(maxsize=4_096)
def listed(peer: Peer) -> Client:
    """A client as a row lists it."""
    return {"address": _PORT.sub("", peer.address)} | fields_of(peer)


def meet(clients: list[Client], client: Client) -> None:
    """Add a client to those that a row lists, if it is another one and there is room."""
    if client not in clients and len(clients) < MAX_CLIENTS:
        clients.append(client)


def from_fields(record: dict[str, Any], address: str) -> Client:
    """The client of a log line, or of a row; `address` is the field that has the address. Raises ValueError
    where a field isn't a text."""
    values = {name: record[name] for name in (address, *FIELDS) if record.get(name)}
    if not all(isinstance(value, str) for value in values.values()):
        raise ValueError("a client's fields aren't texts")
    return listed(
        Peer(**{"address": ""} | {("address" if name == address else name): v for name, v in values.items()})
    )


def text_of(clients: list[Client]) -> str:
    """The clients of a row in one line: `10.0.0.7 celery@a (redis-py 5.0.1) as app`."""
    return "; ".join(_text(one) for one in clients)


def _text(client: Client) -> str:
    library = " ".join(client[name] for name in ("library", "version") if name in client)
    parts = [client.get("address", ""), client.get("name", ""), f"({library})" if library else ""]
    parts.append(f"as {client['user']}" if "user" in client else "")
    return " ".join(part for part in parts if part)
