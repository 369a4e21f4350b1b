"""The configuration: how one environment runs a policy.

Rule: everything is validated before anything starts; flags override the file; a relative path in the file is
relative to the file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import ipaddress
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from keyfence.identity.networks import Network
from keyfence.identity.passwords import Password
from keyfence.identity.resolver import Resolver, make_resolver
from keyfence.net.addresses import Address, parse_address, parse_listen
from keyfence.policy.diagnostics import Diagnostic, FileError, Place, did_you_mean
from keyfence.policy.enforcement.modes import ModeRule, Waiver, mode_faults
from keyfence.policy.enforcement.waivers import WaiverModel, read_waivers
from keyfence.policy.source.model import Duration, Flag
from keyfence.policy.source.validate import file_kind, other_kind, validate
from keyfence.policy.source.yaml import Source, read_source
from keyfence.policy.units import milliseconds, size_bytes
from keyfence.policy.verdict import Mode
from keyfence.resp.limits import MAX_ARGUMENTS, MAX_REQUEST, MIB, RequestLimits
from keyfence.upstream.health import UpstreamAddress
from keyfence.upstream.url import parse_upstream

from .limits import ANY_SERVICE, ClientLimits
from .references import Resolved, file_of
from .upstream import UpstreamModel, address_of

DEFAULT_LISTEN = "127.0.0.1:6380"
DEFAULT_ADMIN = "127.0.0.1:9464"

NONE = "none"  # what is written where there is no limit


def _or_none(value: Any) -> Any:
    return 0 if value == NONE else value


def _time_limit(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("expected a duration such as 60s, or none")
    try:
        return 0 if value in (NONE, "0") else milliseconds(value)
    except ValueError as exc:
        raise ValueError(f"{exc}, or none") from None


Size = Annotated[int, BeforeValidator(size_bytes), Field(ge=1, le=2**40)]
Number = Annotated[int, Field(ge=1, le=2**31 - 1)]
# 0 is no limit
NumberOrNone = Annotated[int, Field(ge=0, le=2**31 - 1), BeforeValidator(_or_none)]
TimeLimit = Annotated[int, BeforeValidator(_time_limit)]  # milliseconds


MAX_WORKERS = 256


def parse_workers(text: str) -> int:
    """A number of worker processes; `auto` is one for each core. Raises ValueError."""
    if text == "auto":
        return min(len(os.sched_getaffinity(0)), MAX_WORKERS)
    if text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MAX_WORKERS:
        return int(text)
    raise ValueError(f"{text!r} is no number of workers; write 1 to {MAX_WORKERS}, or auto")


def parse_drain(text: str) -> int:
    """How long an end may take, in milliseconds. Raises ValueError."""
    return 0 if text == "0" else milliseconds(text)


def _workers(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("expected a number of workers, or auto")
    return parse_workers(value)


def _drain(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("expected a duration such as 5s")
    return parse_drain(value)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _checked_listen(value: str) -> str:
    return parse_listen(value)


def _checked_or_none(value: str) -> str:
    try:
        return value if value == NONE else parse_address(value)
    except ValueError as exc:
        raise ValueError(f"{exc}, or none") from None


def _permissions(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch("0?[0-7]{3}", value, re.ASCII):
        return int(value, 8)
    raise ValueError(f"{value!r} are no permissions; write three octal digits, as 0660")


def _network(value: str) -> str:
    try:
        ipaddress.ip_network(value)
    except ValueError:
        try:
            meant = str(ipaddress.ip_network(value, strict=False))
        except ValueError:
            raise ValueError(f"{value!r} is no network; write it as 10.0.0.0/8 or fd00::/8") from None
        raise ValueError(f"{value!r} has bits behind the prefix; write {meant}") from None
    return value


class ListenerTlsModel(_Model):
    """TLS of a listener. All files are PEM."""

    cert: str  # the certificate, and what leads from it to its authority
    key: str
    client_ca: str = ""  # the authorities that vouch for clients; without, none is asked for a certificate
    require_client_cert: Flag | None = None  # default: where there is a client_ca
    min_version: Literal["1.2", "1.3"] = "1.2"

    @property
    def requires_certificate(self) -> bool:
        return bool(self.client_ca) if self.require_client_cert is None else self.require_client_cert


class ListenerModel(_Model):
    """An address to listen on, and who connects to it."""

    listen: Annotated[str, AfterValidator(_checked_listen)]
    service: str = ""  # the service on the other end, when nothing better says so
    unix_mode: Annotated[int, BeforeValidator(_permissions)] | None = None  # of a unix socket's file
    tls: ListenerTlsModel | None = None
    proxy_protocol: Flag = False  # each connection begins with a header of the PROXY protocol, version 2
    trusted: list[Annotated[str, AfterValidator(_network)]] = []  # who may send it; empty: everybody

    @property
    def address(self) -> Address:
        return Address(self.listen)


def _sha256(value: str) -> str:
    if not re.fullmatch("[0-9a-fA-F]{64}", value, re.ASCII):
        # The value isn't shown: it may be the password itself.
        raise ValueError("this is no SHA-256 hash of 64 hexadecimal digits; printf %s PASSWORD | sha256sum")
    return value.lower()


def _at_least_one(value: list[str]) -> list[str]:
    if not value:
        raise ValueError("no hash, so nobody could log in; printf %s PASSWORD | sha256sum makes one")
    return value


def _hidden_mapping(value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError("write {sha256: [HASH]}, the password's SHA-256 hash and not the password")
    return value


class PasswordModel(_Model):
    """A user whose password keyfence checks itself; Redis never sees it."""

    # More than one while a password is being changed.
    sha256: Annotated[
        list[Annotated[str, AfterValidator(_sha256)]],
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
        AfterValidator(_at_least_one),
    ] = []
    # The password itself, as file:PATH or ${NAME} only.
    password: Annotated[
        list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
    ] = Field([], repr=False)
    service: str = ""  # default: what `users` says, else the service of the user's name

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if not self.sha256 and not self.password:
            raise ValueError("nobody could log in; write sha256: [HASH], or password: file:PATH")
        return self

    @property
    def digests(self) -> tuple[bytes, ...]:
        """The SHA-256 digest of each password that is taken."""
        hashed = (hashlib.sha256(one.encode()).digest() for one in self.password)
        return (*map(bytes.fromhex, self.sha256), *hashed)


class IdentifyModel(_Model):
    """What tells one service from another beyond the listener."""

    users: dict[str, str] = {}  # Redis user name → service
    passwords: dict[str, Annotated[PasswordModel, BeforeValidator(_hidden_mapping)]] = {}  # by user name
    certificates: dict[str, str] = {}  # URI, DNS name or CN of a client's certificate → service
    uids: dict[Annotated[int, Field(ge=0, le=2**32 - 2)], str] = {}  # Unix user id → service
    networks: dict[str, str] = {}  # network in CIDR → service

    def service_of(self, user: str) -> str:
        """The service of a user of `passwords`."""
        return self.passwords[user].service or self.users.get(user, "") or user


class ModeModel(_Model):
    """One line of `modes`: the first that matches a rule and a service decides."""

    mode: Mode
    rule: str = ""
    service: str = ""


class AdminModel(_Model):
    """Where operators ask and steer keyfence."""

    listen: Annotated[str, AfterValidator(_checked_or_none)] = DEFAULT_ADMIN  # HOST:PORT, or none
    token_file: str = ""  # what POST and DELETE need; without, they are taken from this machine alone
    names: list[str] = []  # host names under which it may be called, beside that of `listen`


class DecisionLogModel(_Model):
    """Where violations are written, as JSON lines."""

    path: str = ""  # "-" is standard output; "" is nowhere
    mask_keys: Flag = False  # write a hash of each key in place of the key


class LimitsModel(_Model):
    """What a client may cost."""

    request: Size = MAX_REQUEST  # bytes of one request
    arguments: Number = MAX_ARGUMENTS  # of one request, the command's name included
    request_time: TimeLimit = 0  # from a request's first byte to its last
    client_output: Size = 64 * MIB  # bytes of replies that one client hasn't read
    connections: Number = 10_000
    # A number for each service, or a mapping of services to numbers in which "*" is each other one.
    connections_per_service: Annotated[
        dict[str, NumberOrNone], BeforeValidator(lambda n: {ANY_SERVICE: n} if isinstance(n, str) else n)
    ] = {}
    connections_per_address: NumberOrNone = 0
    handshake: Annotated[Duration, Field(ge=1)] = 10_000  # until TLS and the PROXY header are through
    idle: TimeLimit = 0  # for a client that waits for nothing

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

    policy: str = ""
    waivers: str = ""
    upstream: Annotated[
        UpstreamModel, BeforeValidator(lambda value: {"url": value} if isinstance(value, str) else value)
    ] = UpstreamModel()
    listeners: list[ListenerModel] = []
    identify: IdentifyModel = IdentifyModel()
    modes: list[ModeModel] = []
    # What operators use: HOST:PORT, none, or a mapping.
    admin: Annotated[
        AdminModel, BeforeValidator(lambda value: {"listen": value} if isinstance(value, str) else value)
    ] = AdminModel()
    metrics: Annotated[str, AfterValidator(_checked_or_none)] = NONE  # HOST:PORT of metrics and health alone
    decision_log: Annotated[
        DecisionLogModel, BeforeValidator(lambda value: {"path": value} if isinstance(value, str) else value)
    ] = DecisionLogModel()
    limits: LimitsModel = LimitsModel()
    name_services: Flag = True  # whether a refusal names the services that do have the right
    # Processes that serve clients, below one that looks after them. Without: one process does all.
    workers: Annotated[int, BeforeValidator(_workers)] = 0
    drain: Annotated[int, BeforeValidator(_drain)] = 5000  # how long clients may take to end, in ms


@dataclasses.dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line says in place of the file. Empty: the file decides."""

    policy: str = ""
    upstream: str = ""
    listen: str = ""
    service: str = ""
    mode: Mode | Literal[""] = ""
    admin: str = ""
    decision_log: str = ""
    workers: str = ""
    drain: str = ""
    record: str = ""  # the command log, which only the command line can ask for
    metrics: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """A configuration in force: file and flags together, paths resolved."""

    policy: str
    upstream: UpstreamAddress | None  # None: start a Redis of our own
    upstream_ca: str
    upstream_cert: str
    upstream_key: str
    upstream_verify: bool
    connect_timeout: float  # seconds
    shared_connections: int  # 0: every client has its own
    listeners: tuple[ListenerModel, ...]
    identify: IdentifyModel
    modes: tuple[ModeRule, ...]
    waivers: tuple[WaiverModel, ...]
    waivers_source: Source | None
    admin: Address | None
    admin_token_file: str
    admin_names: tuple[str, ...]
    metrics: Address | None
    decision_log: str
    mask_keys: bool
    limits: LimitsModel
    name_services: bool
    workers: int  # 0: one process does all
    drain: float  # seconds
    record: str  # where to write the command log; "" is nowhere
    secret_files: tuple[str, ...]  # what `file:` names
    source: Source | None

    @property
    def admin_listeners(self) -> int:
        """How many listeners there are that speak HTTP."""
        return (self.admin is not None) + (self.metrics is not None)

    def fault(self, path: tuple[str | int, ...], message: str) -> Diagnostic:
        """An error at a place of the configuration file, or of the command line where there is no file."""
        if self.source is None:
            return Diagnostic(Place("command line", 1, 1), "error", message)
        return self.source.error(path, message)

    def check_against(self, services: tuple[str, ...], more: Iterable[Diagnostic] = ()) -> None:
        """Raise FileError for every name that the policy doesn't have, and for what else was found.
        `services` includes `unknown`."""
        faults = [
            self.fault(("modes", index, field), message)
            for index, field, message in mode_faults(self.modes, services)
        ]
        for path, service in self._named_services():
            if service and service not in services:
                known = did_you_mean(service, services)
                faults.append(self.fault(path, f"{service!r} is no service of the policy{known}"))
        faults.extend(more)
        if faults:
            raise FileError(faults)

    def _named_services(self) -> list[tuple[tuple[str | int, ...], str]]:
        return [
            *((("listeners", i, "service"), one.service) for i, one in enumerate(self.listeners)),
            *(
                (("identify", kind, str(key)), name)
                for kind in ("users", "certificates", "uids", "networks")
                for key, name in getattr(self.identify, kind).items()
            ),
            *(
                (("identify", "passwords", user, *(["service"] if one.service else [])), name)
                for user, one in self.identify.passwords.items()
                for name in [self.identify.service_of(user)]
            ),
            *(
                (("limits", "connections_per_service", name), name)
                for name in self.limits.connections_per_service
                if name != ANY_SERVICE
            ),
        ]

    def identities(self, services: tuple[str, ...]) -> Resolver:
        said = self.identify
        networks: list[tuple[Network, str]] = [
            (ipaddress.ip_network(network), service) for network, service in said.networks.items()
        ]
        passwords = {
            user: Password(one.digests, said.service_of(user)) for user, one in said.passwords.items()
        }
        return make_resolver(
            frozenset(services),
            users=said.users,
            passwords=passwords,
            certificates=said.certificates,
            uids=said.uids,
            networks=tuple(networks),
        )

    def waived(self) -> list[Waiver]:
        return [one.waiver for one in self.waivers]


def load_settings(path: str, overrides: Overrides, *, needs_policy: bool = True) -> Settings:
    """Read a configuration file (`path` may be empty) and lay the command line over it. Raises FileError."""
    folder = Path(path).parent if path else Path()
    source = Resolved(read_source(path), folder) if path else None
    model = validate(ConfigModel, source) if source is not None else ConfigModel()
    waivers, waivers_source, faults = _waivers(folder, model.waivers)
    settings = _settings(model, source, overrides, folder)
    settings = dataclasses.replace(settings, waivers=waivers, waivers_source=waivers_source)
    faults += [*_network_faults(settings), *_listener_faults(settings)]
    faults += [*_password_faults(settings), *_upstream_faults(model, settings)]
    if needs_policy and not settings.policy:
        faults.append(settings.fault(("policy",), "no policy; name one with policy: or --policy"))
    if faults:
        raise FileError(faults)
    return settings


def named_files(path: str, overrides: Overrides) -> tuple[str, list[Diagnostic]]:
    """The policy that a configuration with faults names ("": none that can be told), and what is wrong with
    its waivers: what can be looked at although the configuration can't be used."""
    data: Any = {}
    if path:
        with contextlib.suppress(FileError):
            data = read_source(path, keep_going=True).data
    if other_kind(ConfigModel, data) is not None:
        data = {}  # its "policy" is a name
    named = {key: data[key] for key in ("policy", "waivers") if isinstance(data.get(key), str)}
    folder = Path(path).parent
    policy = overrides.policy or _in(folder, named.get("policy", ""))
    return policy, _waivers(folder, named.get("waivers", ""))[2]


def _waivers(folder: Path, name: str) -> tuple[tuple[WaiverModel, ...], Source | None, list[Diagnostic]]:
    """The waivers that a configuration names, their source, and what is wrong with them."""
    if not name:
        return (), None, []
    try:
        return (*read_waivers(folder / name), [])
    except FileError as exc:
        return (), None, exc.diagnostics


def _settings(model: ConfigModel, source: Resolved | None, flags: Overrides, folder: Path) -> Settings:
    modes = tuple(ModeRule(one.mode, one.rule, one.service) for one in model.modes)
    if flags.mode:
        modes = (ModeRule(flags.mode),)
    log = flags.decision_log or model.decision_log.path
    if not flags.decision_log and log not in ("", "-"):
        log = str(folder / log)
    admin = _address(flags.admin or model.admin.listen)
    return Settings(
        policy=flags.policy or _in(folder, model.policy),
        upstream=address_of(model.upstream, flags.upstream),
        upstream_ca=_in(folder, model.upstream.ca),
        upstream_cert=_in(folder, model.upstream.cert),
        upstream_key=_in(folder, model.upstream.key),
        upstream_verify=model.upstream.verify,
        connect_timeout=model.upstream.connect_timeout / 1000,
        shared_connections=model.upstream.shared_connections if model.upstream.mode == "shared" else 0,
        listeners=_listeners(model, flags, folder),
        identify=model.identify,
        modes=modes,
        waivers=(),
        waivers_source=None,
        admin=admin,
        admin_token_file=_in(folder, model.admin.token_file),
        admin_names=(*model.admin.names, *([admin.host_port[0]] if admin and admin.host_port[0] else [])),
        metrics=_address(flags.metrics or model.metrics),
        decision_log=log,
        mask_keys=model.decision_log.mask_keys,
        limits=model.limits,
        name_services=model.name_services,
        workers=parse_workers(flags.workers) if flags.workers else model.workers,
        drain=(parse_drain(flags.drain) if flags.drain else model.drain) / 1000,
        record=flags.record,
        secret_files=_secret_files(source, flags),
        source=source,
    )


def _address(text: str) -> Address | None:
    return None if text == NONE else Address(text)


def _in(folder: Path, path: str) -> str:
    return str(folder / path) if path else ""


def _secret_files(source: Resolved | None, flags: Overrides) -> tuple[str, ...]:
    files = source.files if source is not None else set()
    named = file_of(flags.upstream, Path())
    return tuple(sorted({*files, *([named] if named else [])}))


def _listeners(model: ConfigModel, flags: Overrides, folder: Path) -> tuple[ListenerModel, ...]:
    if flags.listen:
        return (ListenerModel(listen=flags.listen, service=flags.service),)
    if not model.listeners:
        return (ListenerModel(listen=DEFAULT_LISTEN, service=flags.service),)
    named = {"service": flags.service} if flags.service else {}
    return tuple(one.model_copy(update=named | _resolved(one, folder)) for one in model.listeners)


def _resolved(one: ListenerModel, folder: Path) -> dict[str, Any]:
    """What of a listener names files, taken relative to a folder."""
    changed: dict[str, Any] = {"listen": one.address.relative_to(folder)}
    if one.tls is not None:
        files = {name: _in(folder, getattr(one.tls, name)) for name in ("cert", "key", "client_ca")}
        changed["tls"] = one.tls.model_copy(update=files)
    return changed


def _listener_faults(settings: Settings) -> list[Diagnostic]:
    """Settings of a listener that don't go together."""
    faults = []
    for index, one in enumerate(settings.listeners):
        wrong = {
            "unix_mode": (
                one.unix_mode is not None and not one.address.unix_path,
                f"unix_mode is for unix sockets, and {one.listen} is none; remove it",
            ),
            "trusted": (
                bool(one.trusted) and not one.proxy_protocol,
                "trusted says who may send PROXY headers, and none is expected; add proxy_protocol: true",
            ),
            "tls": (
                one.tls is not None and one.tls.requires_certificate and not one.tls.client_ca,
                "require_client_cert needs client_ca, the file of the authorities that vouch for clients",
            ),
        }
        if one.trusted and one.address.unix_path:
            wrong["trusted"] = (
                True,
                "trusted is for networks, and a unix socket's clients come from none; use unix_mode",
            )
        faults += [
            settings.fault(("listeners", index, name), text) for name, (is_so, text) in wrong.items() if is_so
        ]
    return faults


def _password_faults(settings: Settings) -> list[Diagnostic]:
    said = settings.identify
    return [
        settings.fault(
            ("identify", "passwords", user, "service"),
            f"the service of {user!r} is given under users too; give it in one place",
        )
        for user, one in said.passwords.items()
        if one.service and user in said.users
    ]


def _upstream_faults(model: ConfigModel, settings: Settings) -> list[Diagnostic]:
    """Settings of TLS that the connection to Redis doesn't use, or that lack their other half."""
    said = model.upstream
    faults = []
    if said.url:
        login = parse_upstream(said.url)
        faults += [
            settings.fault(("upstream", name), f"the URL names a {name} too; give it in one place")
            for name in ("username", "password")
            if getattr(said, name) and getattr(login, name)
        ]
    elif said.username or said.password:
        faults.append(settings.fault(("upstream",), "a login needs a url; name the Redis that it is for"))
    if said.username and settings.upstream is not None and not settings.upstream.password:
        text = "a username needs its password; write password: file:PATH or ${NAME}"
        faults.append(settings.fault(("upstream", "username"), text))
    for name, other in (("cert", "key"), ("key", "cert")):
        if getattr(said, name) and not getattr(said, other):
            text = f"a certificate and its key are both needed; add {other}:"
            faults.append(settings.fault(("upstream", name), text))
    if settings.upstream is not None and settings.upstream.kind != "tls":
        faults += [
            settings.fault(("upstream", name), f"{name} is for TLS only; write the URL as rediss://HOST:PORT")
            for name in ("cert", "key", "server_name")
            if getattr(said, name)
        ]
    return faults


def _network_faults(settings: Settings) -> list[Diagnostic]:
    faults = []
    for network in settings.identify.networks:
        try:
            _network(network)
        except ValueError as exc:
            faults.append(settings.fault(("identify", "networks", network), f"{exc}"))
    return faults
