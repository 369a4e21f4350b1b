"""The upstream, as the configuration or the command line names it.

Rule: a login is given in one place, the URL or the settings beside it. No message shows a password.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field

from keyfence.policy.diagnostics import file_error
from keyfence.policy.source.model import Duration, Flag
from keyfence.upstream.health import UpstreamAddress
from keyfence.upstream.url import parse_upstream

from .fields import STRICT
from .references import resolved_url


def _checked_upstream(value: str) -> str:
    parse_upstream(value)
    return value


class UpstreamModel(BaseModel):
    """The Redis that keyfence connects to. Without a URL, keyfence starts one of its own."""

    model_config = STRICT

    url: Annotated[str, AfterValidator(_checked_upstream)] = Field("", repr=False)
    username: str = ""  # beside the URL: the user that keyfence logs in as …
    password: str = Field("", repr=False)  # … and its password, as file:PATH or ${NAME} too
    ca: str = ""  # a PEM file of the authorities that rediss:// servers' certificates must come from
    cert: str = ""  # a PEM file of the certificate that keyfence shows to a rediss:// server …
    key: str = ""  # … and its key
    server_name: str = ""  # the name in a rediss:// server's certificate, if it is not the URL's host
    verify: Flag = True  # check a rediss:// server's certificate and name
    connect_timeout: Duration = 5000
    # shared: commands that leave no state on a connection use connections that clients share.
    mode: Literal["shared", "dedicated"] = "shared"
    shared_connections: Annotated[int, Field(ge=1, le=64)] = 2  # of one kind: database, protocol, login


def upstream_of(flag: str) -> UpstreamAddress:
    """The upstream that the command line names, with its references resolved. Raises ValueError."""
    return parse_upstream(resolved_url(flag, Path()))


def address_of(said: UpstreamModel, flag: str) -> UpstreamAddress | None:
    """The upstream that file and command line name; None: neither names one. Raises FileError."""
    if flag:
        try:
            address = upstream_of(flag)
        except ValueError as exc:  # the referenced value has changed since the start
            raise file_error("command line", str(exc)) from None
        return dataclasses.replace(address, server_name=said.server_name)
    if not said.url:
        return None
    address = parse_upstream(said.url)
    return dataclasses.replace(
        address,
        server_name=said.server_name,
        username=said.username or address.username,
        password=said.password or address.password,
    )
