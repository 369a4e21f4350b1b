"""The configuration file: its sections and settings.

Rule: a model says what may be written and what the default is. Relations between settings are checked in
`checks`, and with the policy in `settings`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from keyfence.net.addresses import Address
from keyfence.policy.compiled.splittable import splittable
from keyfence.policy.source.model import Duration, Flag, mapping_or, one_as_list
from keyfence.policy.source.validate import file_kind
from keyfence.policy.verdict import Mode
from keyfence.resp.limits import MAX_ARGUMENTS, MAX_REQUEST, MIB, RequestLimits

from .defaults import DEFAULT_ADMIN
from .fields import (
    NONE,
    STRICT,
    AddressOrNone,
    Drain,
    EnvironmentName,
    ListenAddress,
    Network,
    Number,
    NumberOrNone,
    Permissions,
    Size,
    StoreOrNone,
    TimeLimit,
    WebUrl,
    Workers,
)
from .identify import IdentifyModel
from .limits import ANY_SERVICE, ClientLimits
from .news import NewsModel
from .policy import PolicySourceModel
from .sentinel import Primaries, PrimaryModel
from .upstream import UpstreamModel

Change = Literal["new", "open", "waived", "quiet", "reopened", "resolved"]


class _Model(BaseModel):
    model_config = STRICT


class ListenerTlsModel(_Model):
    """TLS of a listener. All files are PEM."""

    cert: str  # the certificate and the chain to its authority
    key: str
    client_ca: str = ""  # the authorities of clients' certificates; without it, no client is asked for one
    require_client_cert: Flag | None = None  # default: if there is a client_ca
    min_version: Literal["1.2", "1.3"] = "1.2"

    @property
    def requires_certificate(self) -> bool:
        return bool(self.client_ca) if self.require_client_cert is None else self.require_client_cert


class ListenerModel(_Model):
    """An address to listen on, and the service that connects to it."""

    listen: ListenAddress
    service: str = ""  # the service of clients that nothing else identifies
    unix_mode: Permissions | None = None  # of a unix socket's file
    tls: ListenerTlsModel | None = None
    proxy_protocol: Flag = False  # each connection begins with a header of the PROXY protocol, version 2
    trusted: list[Network] = []  # networks that may send it; empty: all
    sentinel: Primaries = None  # it answers as a Sentinel that names keyfence: true, a mapping, or a list

    @property
    def address(self) -> Address:
        return Address(self.listen)

    @property
    def primaries(self) -> list[PrimaryModel]:
        """The primaries that it names; empty: it serves Redis' clients."""
        if self.sentinel is None:
            return []
        return self.sentinel if isinstance(self.sentinel, list) else [self.sentinel]


class ModeModel(_Model):
    """One line of `modes`: the first that matches a rule and a service decides."""

    mode: Mode
    rule: str = ""
    service: str = ""


class TokenModel(_Model):
    """The token of one operator, or of one program."""

    # The name stands in the audit log and the history for who has used the token.
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
    token_file: str
    role: Literal["read", "waive", "operate"]


class AdminModel(_Model):
    """The admin listener."""

    listen: AddressOrNone = DEFAULT_ADMIN  # HOST:PORT, or none
    token_file: str = ""  # POST and DELETE need its token; without, they must come from this machine
    tokens: list[TokenModel] = []  # more of them, with names and roles; that of `token_file` may operate
    names: list[str] = []  # its host names, beside that of `listen`
    audit_log: str = ""  # who changed what, as JSON lines


class DecisionLogModel(_Model):
    """Where violations are written, as JSON lines."""

    path: str = ""  # "-" is standard output; "" is nowhere
    mask_keys: Flag = False  # write a hash of each key in place of the key


class FindingsModel(_Model):
    """Where findings are kept over restarts."""

    url: StoreOrNone = ""  # sqlite: or postgresql:; "" is a file in the user's state directory
    keep: Annotated[Duration, Field(ge=86_400_000)] = 90 * 86_400_000  # ms


class ReadsModel(_Model):
    """Where the reads of a service go."""

    at: Literal["primary", "replicas"]
    after_write: Duration = 1000  # ms for which a client's reads stay at the primary after its last write


def _for_every_service(value: Any) -> Any:
    return value if isinstance(value, dict) else {ANY_SERVICE: value}


class NotifyModel(_Model):
    """A webhook that receives changes of findings."""

    webhook: WebUrl
    on: Annotated[list[Change], BeforeValidator(one_as_list), Field(min_length=1)] = ["new", "reopened"]
    group: Duration = 5 * 60_000  # ms for which changes are gathered into one message
    form: Literal["json", "slack", "teams"] = "json"


class LimitsModel(_Model):
    """The limits of clients."""

    request: Size = MAX_REQUEST  # bytes of one request
    arguments: Number = MAX_ARGUMENTS  # of one request, the command's name included
    request_time: TimeLimit = 0  # from a request's first byte to its last
    client_output: Size = 64 * MIB  # bytes of replies that one client has not read
    connections: Number = 10_000
    # A number for each service, or a mapping of services to numbers; "*" is every other service.
    connections_per_service: Annotated[dict[str, NumberOrNone], mapping_or(ANY_SERVICE)] = {}
    connections_per_address: NumberOrNone = 0
    handshake: Annotated[Duration, Field(ge=1)] = 10_000  # until TLS and the PROXY header are done
    idle: TimeLimit = 0  # for a client without outstanding replies

    def of_requests(self) -> RequestLimits:
        return RequestLimits(max_arguments=self.arguments, max_request=self.request)

    def of_clients(self) -> ClientLimits:
        return ClientLimits(
            connections=self.connections,
            per_address=self.connections_per_address,
            per_service=self.connections_per_service,
            output=self.client_output,
            handshake=self.handshake / 1000,
            idle=self.idle / 1000,
            request_time=self.request_time / 1000,
        )


@file_kind("a configuration, which --config names")
class ConfigModel(_Model):
    """A configuration file."""

    policy: Annotated[PolicySourceModel, mapping_or("path")] = PolicySourceModel()
    environment: EnvironmentName = ""  # where keyfence runs: staging, prod
    reload: Literal["manual", "auto"] = "manual"  # auto: when the files have changed
    waivers: str = ""
    upstream: Annotated[UpstreamModel, mapping_or("url")] = UpstreamModel()
    # The services that read from replicas; "*" is every other service.
    reads: Annotated[dict[str, Annotated[ReadsModel, mapping_or("at")]], mapping_or(ANY_SERVICE)] = {}
    # The commands that are sent in parts for a service, before a cluster behind one address.
    split: Annotated[
        dict[str, Annotated[list[Annotated[str, AfterValidator(splittable)]], BeforeValidator(one_as_list)]],
        BeforeValidator(_for_every_service),
    ] = {}
    listeners: list[ListenerModel] = []
    identify: IdentifyModel = IdentifyModel()
    modes: list[ModeModel] = []
    # What operators use: HOST:PORT, none, or a mapping.
    admin: Annotated[AdminModel, mapping_or("listen")] = AdminModel()
    metrics: AddressOrNone = NONE  # HOST:PORT of the metrics listener
    decision_log: Annotated[DecisionLogModel, mapping_or("path")] = DecisionLogModel()
    findings: Annotated[FindingsModel, mapping_or("url")] = FindingsModel()
    notify: NotifyModel | None = None
    news: NewsModel | None = None
    limits: LimitsModel = LimitsModel()
    name_services: Flag = True  # whether a refusal names the services that have the right
    # Worker processes. 0: one process does everything.
    workers: Workers = 0
    drain: Drain = 5000  # how long draining may take, in ms
