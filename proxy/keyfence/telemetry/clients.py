"""The clients that broke a rule, as log lines and rows of the report show them.

Rule: a row lists MAX_CLIENTS different clients at most. Host, user, name and library distinguish clients;
ports do not.
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
    """The fields of a log line beside the address, without empty ones."""
    return {name: value for name, value in zip(FIELDS, peer[1:], strict=True) if value}


@lru_cache(maxsize=4_096)
def listed(peer: Peer) -> Client:
    """A client as a row lists it."""
    return {"address": _PORT.sub("", peer.address)} | fields_of(peer)


def meet(clients: list[Client], client: Client) -> None:
    """Add a client to those of a row, if it is new and there is room."""
    if client not in clients and len(clients) < MAX_CLIENTS:
        clients.append(client)


def from_fields(record: dict[str, Any], address: str) -> Client:
    """The client of a log line, or of a row; `address` names the field with the address. Raises ValueError if
    a field is not a string."""
    values = {name: record[name] for name in (address, *FIELDS) if record.get(name)}
    if not all(isinstance(value, str) for value in values.values()):
        raise ValueError("a client's fields are not strings")
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
