"""The upstream, as the configuration or the command line names it.

Rule: a login is given in one place, the URL or the settings beside it. No message shows a password.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from keyfence.net.addresses import Address, ip_address, parse_address
from keyfence.policy.diagnostics import file_error
from keyfence.policy.source.model import Duration, Flag
from keyfence.upstream.address import Sentinels, UpstreamAddress, parse_upstream
from keyfence.upstream.credentials.clouds import FromAws, FromEntra, FromGoogle
from keyfence.upstream.credentials.local import FromCommand, FromEnvironment, FromFile
from keyfence.upstream.credentials.model import Source

from .fields import STRICT
from .references import resolved_url

SENTINEL: Literal["sentinel"] = "sentinel"


def _checked_upstream(value: str) -> str:
    parse_upstream(value)
    return value


def _address_check(what: str) -> Callable[[str], str]:
    """A check that a text is the address of one machine; `what` is there."""

    def checked(value: str) -> str:
        host, port = Address(parse_address(value)).host_port
        if not host or not port:
            raise ValueError(f"{value!r} is not the address of a {what}; write HOST:PORT")
        return value

    return checked


_checked_replica = _address_check("replica")
_Sentinel = Annotated[str, AfterValidator(_address_check("Sentinel"))]
_Node = Annotated[str, AfterValidator(_address_check("node"))]


def _checked_replicas(value: Any) -> Any:
    if value == SENTINEL:
        return value
    if not isinstance(value, list):
        raise ValueError("expected a list of replicas, each as HOST:PORT, or the word sentinel")
    for one in value:
        if not isinstance(one, str):
            raise ValueError(f"{one!r} is not the address of a replica; write HOST:PORT")
        _checked_replica(one)
    return value


def _checked_announced(value: str) -> str:
    address = ip_address(value.strip("[]"))
    is_name = re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", value) is not None
    if (address is None and not is_name) or (address is not None and address.is_unspecified):
        raise ValueError(
            f"{value!r} is not the address of one machine; write the IP address or name of keyfence"
        )
    return value.strip("[]")


def parse_ports(text: str) -> tuple[int, int]:
    """The first and the last port of a range. Raises ValueError."""
    first, dash, last = text.partition("-")
    numbers = [int(one) if one.isascii() and one.isdigit() and len(one) < 6 else 0 for one in (first, last)]
    if not dash or not all(numbers):
        raise ValueError(f"{text!r} is not a range of ports; write FIRST-LAST, as in 7200-7299")
    if max(numbers) > 65535:
        raise ValueError(f"{text!r} goes beyond the last port, 65535")
    if numbers[0] > numbers[1]:
        raise ValueError(f"{text!r} ends before it begins; write {last}-{first}")
    return numbers[0], numbers[1]


def _checked_ports(value: str) -> str:
    parse_ports(value)
    return value


def _hosts_as_mapping(value: Any) -> Any:
    if not value or isinstance(value, str):
        raise ValueError(f"{value!r} is no list of addresses; write [HOST:PORT, HOST:PORT]")
    return {"hosts": value} if isinstance(value, list) else value


class SentinelModel(BaseModel):
    """The Sentinels that name the primary."""

    model_config = STRICT

    hosts: Annotated[list[_Sentinel], Field(min_length=1)]  # HOST:PORT
    name: Annotated[str, Field(min_length=1)]  # of the primary, as `sentinel monitor` has it
    username: str = ""  # of the Sentinels …
    password: str = Field("", repr=False)  # … as file:PATH or ${NAME} too
    tls: Flag = False  # the Sentinels and the nodes that they name speak TLS
    database: Annotated[int, Field(ge=0, lt=10**9)] = 0

    def of_sentinels(self) -> Sentinels:
        hosts = tuple(Address(one).host_port for one in self.hosts)
        return Sentinels(hosts, self.name, self.username, self.password)


class ClusterModel(BaseModel):
    """Nodes of a cluster, which are asked for all others."""

    model_config = STRICT

    hosts: Annotated[list[_Node], Field(min_length=1)]  # HOST:PORT
    tls: Flag = False  # all nodes speak TLS


class AnnounceModel(BaseModel):
    """The addresses of keyfence that clients of a cluster get in place of the nodes' own."""

    model_config = STRICT

    host: Annotated[str, AfterValidator(_checked_announced)]  # by which clients reach this keyfence
    ports: Annotated[str, AfterValidator(_checked_ports)]  # FIRST-LAST: one for each node
    nodes: dict[str, Annotated[int, Field(ge=1, le=65535)]] = {}  # HOST:PORT of a node: its port

    @property
    def range(self) -> range:
        first, last = parse_ports(self.ports)
        return range(first, last + 1)


class AwsModel(BaseModel):
    """A user of ElastiCache or MemoryDB that logs in by IAM. keyfence's rights are those of this machine."""

    model_config = STRICT

    cache: Annotated[str, Field(min_length=1)]  # the replication group, serverless cache or cluster
    region: str = ""  # empty: as this machine's AWS configuration says
    service: Literal["elasticache", "memorydb"] = "elasticache"
    serverless: Flag = False


class EntraModel(BaseModel):
    """An identity of Microsoft Entra ID: a service principal, or without a secret the one of this machine."""

    model_config = STRICT

    tenant: str = ""
    client_id: str = ""
    client_secret: str = Field("", repr=False)  # as file:PATH or ${NAME} too

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.client_secret and not (self.tenant and self.client_id):
            raise ValueError("a client_secret needs its tenant and client_id")
        if self.tenant and not self.client_secret:
            raise ValueError("a tenant is for a service principal, which needs its client_secret")
        return self


class GcpModel(BaseModel):
    """The account that this machine's environment names."""

    model_config = STRICT


class CredentialsModel(BaseModel):
    """Where keyfence's own login comes from, if it changes: one of these."""

    model_config = STRICT

    file: str = ""  # with the password as its only line, or JSON
    command: list[Annotated[str, Field(min_length=1)]] = []  # that prints the same
    env: str = ""  # the name of a variable that holds the same
    aws_iam: AwsModel | None = None
    entra: EntraModel | None = None
    gcp_iam: GcpModel | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if not self.kind:
            raise ValueError(f"name one source of credentials: {', '.join(type(self).model_fields)}")
        return self

    @property
    def kind(self) -> str:
        """The setting that is given; "" if it is not exactly one."""
        given = [name for name in type(self).model_fields if getattr(self, name)]
        return given[0] if len(given) == 1 else ""

    def source(self, username: str, folder: Path, where: str) -> Source:
        """The source, for this user if it gives none itself. Paths are relative to `folder`."""
        if self.file:
            return FromFile(str(folder / self.file), username=username, where=where)
        if self.env:
            return FromEnvironment(self.env, username=username, where=where)
        if self.aws_iam is not None:
            aws = self.aws_iam
            login = aws.cache, aws.region, aws.service, aws.serverless
            return FromAws(*login, username=username, where=where)
        if self.entra is not None:
            entra = self.entra
            identity = entra.tenant, entra.client_id, entra.client_secret
            return FromEntra(*identity, username=username, where=where)
        if self.gcp_iam is not None:
            return FromGoogle(username=username, where=where)
        program, *rest = self.command
        is_path = "/" in program  # otherwise it is looked for in PATH
        argv = (str(folder / program) if is_path else program, *rest)
        return FromCommand(argv, username=username, where=where)


def _some_time(value: int) -> int:
    if not value:
        raise ValueError("in no time nothing connects; write a duration such as 5s")
    return value


class UpstreamModel(BaseModel):
    """The Redis that keyfence connects to. Without a URL, Sentinels or a cluster, keyfence starts one of its
    own."""

    model_config = STRICT

    url: Annotated[str, AfterValidator(_checked_upstream)] = Field("", repr=False)
    sentinel: SentinelModel | None = None  # in place of the URL: who names the primary
    # In place of the URL: nodes of a cluster, as a list or a mapping …
    cluster: Annotated[ClusterModel | None, BeforeValidator(_hosts_as_mapping)] = None
    announce: AnnounceModel | None = (
        None  # … and keyfence's addresses, which clients get for the nodes' own, …
    )
    expose: Literal["single"] | None = None  # … or one address of keyfence for clients that know no clusters
    username: str = ""  # beside the URL: the user that keyfence logs in as …
    password: str = Field("", repr=False)  # … and its password, as file:PATH or ${NAME} too
    credentials: CredentialsModel | None = (
        None  # in place of the password: where a login that changes is from
    )
    ca: str = ""  # a PEM file of the authorities that rediss:// servers' certificates must come from
    cert: str = ""  # a PEM file of the certificate that keyfence shows to a rediss:// server …
    key: str = ""  # … and its key
    server_name: str = ""  # the name in a rediss:// server's certificate, if it is not the URL's host
    verify: Flag = True  # check a rediss:// server's certificate and name
    connect_timeout: Annotated[Duration, AfterValidator(_some_time)] = 5000
    # shared: commands that leave no state on a connection use connections that clients share.
    mode: Literal["shared", "dedicated"] = "shared"
    # HOST:PORT of each, or the word sentinel: those that the Sentinels name. Services that `reads` names use
    # them.
    replicas: Annotated[list[str] | Literal["sentinel"], BeforeValidator(_checked_replicas)] = []
    shared_connections: Annotated[int, Field(ge=1, le=64)] = 2  # of one kind: database, protocol, login

    @property
    def user(self) -> str:
        """The user that keyfence logs in as, as far as the settings name one."""
        return self.username or (parse_upstream(self.url).username if self.url else "")


def replicas_of(said: UpstreamModel) -> tuple[tuple[str, int], ...] | Literal["sentinel"]:
    """The hosts and ports of the replicas, or the word sentinel."""
    return (
        tuple(Address(one).host_port for one in said.replicas)
        if isinstance(said.replicas, list)
        else SENTINEL
    )


def upstream_of(flag: str) -> UpstreamAddress:
    """The upstream that the command line names, with its references resolved. Raises ValueError."""
    return parse_upstream(resolved_url(flag, Path()))


def address_of(said: UpstreamModel, flag: str, credentials: Source | None) -> UpstreamAddress | None:
    """The upstream that file and command line name; None: neither names one. `credentials` are those of the
    file. Raises FileError."""
    if flag:
        try:
            address = upstream_of(flag)
        except ValueError as exc:  # the referenced value has changed since the start
            raise file_error("command line", str(exc)) from None
        return dataclasses.replace(address, server_name=said.server_name)
    if said.sentinel is not None:
        address = _of_sentinels(said.sentinel)
    elif said.cluster is not None:
        address = _of_cluster(said.cluster)
    elif said.url:
        address = parse_upstream(said.url)
    else:
        return None
    return dataclasses.replace(
        address,
        server_name=said.server_name,
        username=said.username or address.username,
        password=said.password or address.password,
        credentials=credentials,
    )


def _of_cluster(said: ClusterModel) -> UpstreamAddress:
    """Any node of a cluster; at first it is the first one that is named."""
    nodes = tuple(Address(one).host_port for one in said.hosts)
    kind: Literal["tls", "tcp"] = "tls" if said.tls else "tcp"
    return UpstreamAddress(kind, *nodes[0], shown=f"cluster:{said.hosts[0]}", cluster=nodes)


def _of_sentinels(said: SentinelModel) -> UpstreamAddress:
    """The primary that Sentinels name. They have not named it yet."""
    return UpstreamAddress(
        "tls" if said.tls else "tcp",
        port=0,
        database=said.database,
        shown=f"sentinel:{said.name}",
        sentinels=said.of_sentinels(),
    )
