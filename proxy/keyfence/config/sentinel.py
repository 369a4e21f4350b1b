"""A listener that answers as a Sentinel: which primaries it names, and where clients reach them.

Rule: the primaries are keyfence itself. An address is named only if clients can connect to it.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Discriminator, Tag

from keyfence.net.addresses import Address, parse_address
from keyfence.policy.source.model import one_as_list

from .fields import STRICT

_ANYWHERE = ("", "0.0.0.0", "::")


def is_reachable(address: Address) -> bool:
    """Whether clients can be told this address: it names one host and a port."""
    return not address.unix_path and address.host_port[0] not in _ANYWHERE


def _address(value: str) -> str:
    address = parse_address(value)
    if not is_reachable(address) or not address.host_port[1]:
        raise ValueError(f"clients cannot connect to {value!r}; write HOST:PORT, as they reach it")
    return address


HostPort = Annotated[str, AfterValidator(_address)]


class PrimaryModel(BaseModel):
    """A primary that a Sentinel listener names: keyfence itself."""

    model_config = STRICT

    name: str = ""  # that clients ask for; default: the name of the upstream's primary
    address: HostPort = ""  # HOST:PORT of keyfence, as clients reach it; default: that of the other listener
    others: Annotated[list[HostPort], BeforeValidator(one_as_list)] = []  # other keyfences that answer so


def _written(value: Any) -> Any:
    """Accepts a flag in place of a mapping: all is as by default."""
    if value in ("true", "yes"):
        return {}
    if value in ("false", "no"):
        return None
    if isinstance(value, str) or value == []:
        raise ValueError("write true, or {name: NAME, address: HOST:PORT}, or a list of these")
    return value


def _form(value: Any) -> str:
    return "(several)" if isinstance(value, list) else "(one)" if value is not None else "(none)"


Primaries = Annotated[
    Annotated[
        Annotated[PrimaryModel, Tag("(one)")]
        | Annotated[list[PrimaryModel], Tag("(several)")]
        | Annotated[None, Tag("(none)")],
        Discriminator(_form),
    ],
    BeforeValidator(_written),
]
