"""Values of settings as they are written: sizes, limits, times, addresses, hashes.

Rule: a value is checked here, so that a field of a model is a type. Messages say what to write, and never
show a value that may be a secret.
"""

from __future__ import annotations

import ipaddress
import os
import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from keyfence.net.addresses import parse_address, parse_listen
from keyfence.policy.units import milliseconds, size_bytes

NONE = "none"  # written where there is no limit, or no address
MAX_WORKERS = 256
MAX_NAME = 40  # characters of an environment's name
_STORES = "sqlite:////PATH/FILE, postgresql://USER@HOST/DATABASE, or none"
_MAPPED = 96  # bits before an IPv4 address that is mapped into IPv6
STRICT = ConfigDict(extra="forbid", frozen=True)  # every model has it


def parse_workers(text: str) -> int:
    """A number of worker processes; `auto` is one for each core. Raises ValueError."""
    if text == "auto":
        return min(len(os.sched_getaffinity(0)), MAX_WORKERS)
    if text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MAX_WORKERS:
        return int(text)
    raise ValueError(f"{text!r} is not a number of workers; write 1 to {MAX_WORKERS}, or auto")


def parse_drain(text: str) -> int:
    """How long draining may take, in milliseconds. Raises ValueError."""
    return 0 if text == "0" else milliseconds(text)


def parse_network(text: str) -> str:
    """A network in CIDR notation, unchanged. Raises ValueError."""
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        try:
            meant = str(ipaddress.ip_network(text, strict=False))
        except ValueError:
            raise ValueError(f"{text!r} is not a network; write it as 10.0.0.0/8 or fd00::/8") from None
        raise ValueError(f"{text!r} has bits behind the prefix; write {meant}") from None
    if isinstance(network, ipaddress.IPv6Network):
        _check_clients_of(network, text)
    return text


def _check_clients_of(network: ipaddress.IPv6Network, text: str) -> None:
    """Raise ValueError if no client is in a network, or others than those that it names."""
    first = network.network_address
    if first.scope_id is not None:
        raise ValueError(f"{text!r} has a zone, which does not count; write it without")
    if first.ipv4_mapped is not None and network.prefixlen >= _MAPPED:
        ipv4 = f"{first.ipv4_mapped}/{network.prefixlen - _MAPPED}"
        raise ValueError(f"{text!r} holds no client, because such addresses count as IPv4; write {ipv4}")


def _number_or_none(value: Any) -> Any:
    if value in (0, "0"):
        raise ValueError("0 admits nothing; write none for no limit")
    return 0 if value == NONE else value


def _time_limit(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("expected a duration such as 60s, or none")
    try:
        return 0 if value in (NONE, "0") else milliseconds(value)
    except ValueError as exc:
        raise ValueError(f"{exc}, or none") from None


def _workers(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("expected a number of workers, or auto")
    return parse_workers(value)


def _drain(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("expected a duration such as 5s")
    return parse_drain(value)


def _address_or_none(value: str) -> str:
    try:
        return value if value == NONE else parse_address(value)
    except ValueError as exc:
        raise ValueError(f"{exc}, or none") from None


def _permissions(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch("0?[0-7]{3}", value, re.ASCII):
        return int(value, 8)
    raise ValueError(f"{value!r} are not permissions; write three octal digits, as 0660")


def is_store(text: str) -> bool:
    """Whether a text is meant as the URL of a findings store, by its scheme."""
    scheme, colon, _ = text.partition("://")
    return bool(colon) and scheme.partition("+")[0] in ("sqlite", "postgresql", "postgres")


def store_url(text: str) -> str:
    """The URL of a findings store as SQLAlchemy has it."""
    return text.replace("postgres://", "postgresql://", 1)


def parse_store(text: str) -> str:
    """The URL of a findings store, unchanged. Raises ValueError."""
    scheme, _, rest = text.partition("://")
    kind = scheme.partition("+")[0]
    if not is_store(text):
        raise ValueError(f"{'that' if '@' in text else repr(text)} is not a findings store; write {_STORES}")
    if kind == "sqlite" and not rest.startswith("/"):
        raise ValueError(f"{text!r} has two slashes; write sqlite:///FILE, or sqlite:////PATH/FILE")
    if kind == "sqlite" and len(rest) == 1:
        raise ValueError(f"{text!r} names no file; write {_STORES}")
    if kind != "sqlite" and _host_of(text) is None:  # "": PostgreSQL's own socket
        raise ValueError(f"its host and port cannot be read; write {_STORES}")
    return text


def _store_or_none(value: str) -> str:
    return value if value == NONE else parse_store(value)


def parse_web_url(text: str) -> str:
    """The URL of a webhook, unchanged. Raises ValueError, which does not show it: it may be a secret."""
    scheme = text.partition("://")[0]
    if scheme not in ("http", "https") or not _host_of(text) or any(one.isspace() for one in text):
        raise ValueError("this is not a URL of a webhook; write https://HOST/PATH")
    return text


def _host_of(url: str) -> str | None:
    """The host that a URL names, "" if it names none; None: its host or port cannot be one."""
    try:
        parts = urlsplit(url)
        return None if parts.port == 0 else parts.hostname or ""
    except ValueError:
        return None


def parse_environment(text: str) -> str:
    """The name of an environment, unchanged. Raises ValueError."""
    if not re.fullmatch(f"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME - 1}}}", text, re.ASCII):
        raise ValueError(
            f"{text!r} is not a name of an environment; write up to {MAX_NAME} letters, digits, dots, dashes "
            "and underscores, as staging"
        )
    return text


def _sha256(value: str) -> str:
    if not re.fullmatch("[0-9a-fA-F]{64}", value, re.ASCII):
        # The value is not shown: it may be the password itself.
        raise ValueError(
            "this is not a SHA-256 hash of 64 hexadecimal digits; printf %s PASSWORD | sha256sum"
        )
    return value.lower()


Size = Annotated[int, BeforeValidator(size_bytes), Field(ge=1, le=2**40)]  # bytes
Number = Annotated[int, Field(ge=1, le=2**31 - 1)]
NumberOrNone = Annotated[int, Field(ge=0, le=2**31 - 1), BeforeValidator(_number_or_none)]  # 0: no limit
TimeLimit = Annotated[int, BeforeValidator(_time_limit)]  # milliseconds; 0: no limit
Workers = Annotated[int, BeforeValidator(_workers)]
Drain = Annotated[int, BeforeValidator(_drain)]  # milliseconds
ListenAddress = Annotated[str, AfterValidator(parse_listen)]  # HOST:PORT or unix:PATH
WebUrl = Annotated[str, AfterValidator(parse_web_url)]  # http: or https:
StoreOrNone = Annotated[str, AfterValidator(_store_or_none)]  # a URL, or none
AddressOrNone = Annotated[str, AfterValidator(_address_or_none)]  # HOST:PORT, or none
Permissions = Annotated[int, BeforeValidator(_permissions)]
Network = Annotated[str, AfterValidator(parse_network)]
EnvironmentName = Annotated[str, AfterValidator(parse_environment)]
Sha256 = Annotated[str, AfterValidator(_sha256)]  # hexadecimal
