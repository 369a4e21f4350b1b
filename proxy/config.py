"""The configuration: how one environment runs a policy.

Rule: everything is validated before anything starts; flags override the file; a relative path in the file is
relative to the file.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
import urllib.parse
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from .policy.diagnostics import Diagnostic, FileError, Place, did_you_mean
from .policy.model import Date, Duration, Flag
from .policy.modes import ModeRule, Waiver, mode_faults
from .policy.units import size_bytes
from .policy.validate import validate
from .policy.verdict import RULES, Mode
from .policy.yaml_source import Source, read_source
from .relay.identity import Identities, Network
from .upstream.target import UpstreamAddress

DEFAULT_LISTEN = "127.0.0.1:6380"
DEFAULT_ADMIN = "127.0.0.1:9464"

Size = Annotated[int, BeforeValidator(size_bytes), Field(ge=1, le=2**40)]


class Address(str):
    """`host:port`, `[::1]:port` or `:port`, kept as it was written."""

    __slots__ = ()

    @property
    def host_port(self) -> tuple[str, int]:
        host, _, port = self.rpartition(":")
        return host.strip("[]"), int(port)


def parse_address(text: str) -> Address:
    """Check a listening address. Raises ValueError with what is admitted."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is no address; write HOST:PORT, as 127.0.0.1:6380 or [::1]:6380")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"{text!r}: put an IPv6 address into brackets, as [::1]:6380")
    return Address(text)


def parse_upstream(url: str) -> UpstreamAddress:
    """`redis://[user:password@]host[:port][/db]`, `rediss://…`, `unix:///path[?db=n]`. Raises ValueError,
    whose text never holds the password."""
    shown = without_password(url)
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        raise ValueError(f"{shown!r} is no URL") from None
    username = urllib.parse.unquote(parts.username or "")
    password = urllib.parse.unquote(parts.password or "")
    query = urllib.parse.parse_qsl(parts.query, keep_blank_values=True)
    # A sign in the password may have ended the part that it stands in; what follows was taken for another.
    misread = ValueError(f"{shown!r}: write / ? # of a user or password as %2F %3F %23")
    if parts.scheme in ("redis", "rediss", "unix") and ("@" in parts.query or parts.fragment):
        raise misread
    if parts.scheme == "unix":
        if not parts.path or parts.hostname:
            raise ValueError(f"{shown!r} names no socket; write unix:///path/to/redis.sock")
        _only(query, ("db",), shown)
        return UpstreamAddress(
            "unix",
            path=urllib.parse.unquote(parts.path),
            username=username,
            password=password,
            database=_database(dict(query).get("db", "0"), shown),
            shown=shown,
        )
    if parts.scheme not in ("redis", "rediss"):
        raise ValueError(
            f"{shown!r} is no upstream; write redis://HOST:PORT, rediss://HOST:PORT or unix:///PATH"
        )
    if "@" in parts.path:
        raise misread
    if not parts.hostname:
        raise ValueError(f"{shown!r} names no host; write redis://HOST:PORT")
    _only(query, (), shown)
    database = _database(parts.path.strip("/") or "0", shown)
    kind: Literal["tcp", "tls"] = "tls" if parts.scheme == "rediss" else "tcp"
    return UpstreamAddress(
        kind, parts.hostname, _port(parts, shown), "", username, password, database, shown=shown
    )


def _port(parts: urllib.parse.SplitResult, shown: str) -> int:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError(f"the upstream's port is no number from 1 to 65535: {shown!r}")
    return port or 6379


def _only(query: list[tuple[str, str]], known: tuple[str, ...], shown: str) -> None:
    for name, _ in query:
        if name not in known:
            raise ValueError(f"{shown!r}: there is no parameter {name!r} here")


def _database(text: str, shown: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ValueError(f"{shown!r}: {text!r} is no database number")
    return int(text)


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_OTHER_QUERY = re.compile(r"\?(?!db=\d*$).*", re.DOTALL)


def without_password(text: str) -> str:
    """A URL as it may be shown, also where it is none: whatever may be a password is taken out."""
    scheme = found[0] if (found := _SCHEME.match(text)) else ""
    credentials, at, rest = text[len(scheme) :].rpartition("@")
    user, colon, _ = credentials.partition(":")
    shown = f"{user}:***@" if user and colon else f"***{at}" if at else ""
    return scheme + shown + _OTHER_QUERY.sub("?…", rest)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _checked_address(value: str) -> str:
    return parse_address(value)


def _checked_upstream(value: str) -> str:
    parse_upstream(value)
    return value


class ListenerModel(_Model):
    """An address to listen on, and who connects to it."""

    listen: Annotated[str, AfterValidator(_checked_address)]
    service: str = ""  # the service on the other end, when nothing better says so


class UpstreamModel(_Model):
    """The Redis to stand in front of. Without a URL, keyfence starts one of its own."""

    url: Annotated[str, AfterValidator(_checked_upstream)] = ""
    ca: str = ""  # a PEM file of the authorities that may have signed a rediss:// server's certificate
    verify: Flag = True  # check a rediss:// server's certificate and name
    connect_timeout: Duration = 5000


class IdentifyModel(_Model):
    """What tells one service from another beyond the listener."""

    users: dict[str, str] = {}  # Redis user name → service
    networks: dict[str, str] = {}  # network in CIDR → service


class ModeModel(_Model):
    """One line of `modes`: the first that matches a rule and a service decides."""

    mode: Mode
    rule: str = ""
    service: str = ""


class DecisionLogModel(_Model):
    """Where violations are written, as JSON lines."""

    path: str = ""  # "-" is standard output; "" is nowhere
    mask_keys: Flag = False  # write a hash of each key in place of the key


class LimitsModel(_Model):
    """What a client may cost."""

    request: Size = 64 * 1024 * 1024  # bytes of one request
    client_output: Size = 64 * 1024 * 1024  # bytes of replies that one client hasn't read
    connections: Annotated[int, Field(ge=1)] = 10_000


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
    admin: str = DEFAULT_ADMIN  # HOST:PORT, or none
    decision_log: Annotated[
        DecisionLogModel, BeforeValidator(lambda value: {"path": value} if isinstance(value, str) else value)
    ] = DecisionLogModel()
    limits: LimitsModel = LimitsModel()
    name_services: Flag = True  # whether a refusal names the services that do have the right


class WaiverModel(_Model):
    """A known violation that is tolerated until it is mended."""

    service: str
    rule: str
    entry: str = ""
    command: str = ""
    owner: str
    reason: str
    until: Date


class WaiversModel(_Model):
    """A waivers file."""

    waivers: list[WaiverModel]


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


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """A configuration in force: file and flags together, paths resolved."""

    policy: str
    upstream: UpstreamAddress | None  # None: start a Redis of our own
    upstream_ca: str
    upstream_verify: bool
    connect_timeout: float  # seconds
    listeners: tuple[ListenerModel, ...]
    identify: IdentifyModel
    modes: tuple[ModeRule, ...]
    waivers: tuple[WaiverModel, ...]
    waivers_source: Source | None
    admin: Address | None
    decision_log: str
    mask_keys: bool
    limits: LimitsModel
    name_services: bool
    source: Source | None

    def fault(self, path: tuple[str | int, ...], message: str) -> Diagnostic:
        """An error at a place of the configuration file, or of the command line where there is no file."""
        if self.source is None:
            return Diagnostic(Place("command line", 1, 1), "error", message)
        return self.source.error(path, message)

    def check_against(self, services: tuple[str, ...]) -> None:
        """Raise FileError for every name that the policy doesn't have. `services` includes `unknown`."""
        faults = [
            self.fault(("modes", index, field), message)
            for index, field, message in mode_faults(self.modes, services)
        ]
        for path, service in self._named_services():
            if service and service not in services:
                known = did_you_mean(service, services)
                faults.append(self.fault(path, f"{service!r} is no service of the policy{known}"))
        for index, one in enumerate(self.waivers if self.waivers_source else ()):
            if self.waivers_source and one.service not in services:
                known = did_you_mean(one.service, services)
                message = f"{one.service!r} is no service of the policy{known}"
                faults.append(self.waivers_source.error(("waivers", index, "service"), message))
        if faults:
            raise FileError(faults)

    def _named_services(self) -> list[tuple[tuple[str | int, ...], str]]:
        return [
            *((("listeners", i, "service"), one.service) for i, one in enumerate(self.listeners)),
            *((("identify", "users", user), name) for user, name in self.identify.users.items()),
            *((("identify", "networks", net), name) for net, name in self.identify.networks.items()),
        ]

    def identities(self, services: tuple[str, ...]) -> Identities:
        networks: list[tuple[Network, str]] = [
            (ipaddress.ip_network(network), service) for network, service in self.identify.networks.items()
        ]
        return Identities(frozenset(services), dict(self.identify.users), tuple(networks))

    def waived(self) -> list[Waiver]:
        return [Waiver(one.service, one.rule, one.entry, one.command) for one in self.waivers]


def load_settings(path: str, overrides: Overrides, *, needs_policy: bool = True) -> Settings:
    """Read a configuration file (`path` may be empty) and lay the command line over it. Raises FileError."""
    source = read_source(path) if path else None
    model = validate(ConfigModel, source) if source is not None else ConfigModel()
    settings = _settings(model, source, overrides, Path(path).parent if path else Path())
    faults = _network_faults(settings) + _admin_faults(model, settings)
    if needs_policy and not settings.policy:
        faults.append(settings.fault(("policy",), "no policy; name one with policy: or --policy"))
    if faults:
        raise FileError(faults)
    return settings


def _settings(model: ConfigModel, source: Source | None, flags: Overrides, folder: Path) -> Settings:
    url = flags.upstream or model.upstream.url
    modes = tuple(ModeRule(one.mode, one.rule, one.service) for one in model.modes)
    if flags.mode:
        modes = (ModeRule(flags.mode),)
    log = flags.decision_log or model.decision_log.path
    if not flags.decision_log and log not in ("", "-"):
        log = str(folder / log)
    admin = flags.admin or model.admin
    waivers_source = read_source(folder / model.waivers) if model.waivers else None
    return Settings(
        policy=flags.policy or (str(folder / model.policy) if model.policy else ""),
        upstream=parse_upstream(url) if url else None,
        upstream_ca=str(folder / model.upstream.ca) if model.upstream.ca else "",
        upstream_verify=model.upstream.verify,
        connect_timeout=model.upstream.connect_timeout / 1000,
        listeners=_listeners(model, flags),
        identify=model.identify,
        modes=modes,
        waivers=tuple(_waivers(waivers_source)) if waivers_source else (),
        waivers_source=waivers_source,
        admin=None if admin == "none" else Address(admin),
        decision_log=log,
        mask_keys=model.decision_log.mask_keys,
        limits=model.limits,
        name_services=model.name_services,
        source=source,
    )


def _listeners(model: ConfigModel, flags: Overrides) -> tuple[ListenerModel, ...]:
    if flags.listen:
        return (ListenerModel(listen=flags.listen, service=flags.service),)
    if not model.listeners:
        return (ListenerModel(listen=DEFAULT_LISTEN, service=flags.service),)
    if flags.service:
        return tuple(one.model_copy(update={"service": flags.service}) for one in model.listeners)
    return tuple(model.listeners)


def _network_faults(settings: Settings) -> list[Diagnostic]:
    faults = []
    for network in settings.identify.networks:
        try:
            ipaddress.ip_network(network)
        except ValueError as exc:
            faults.append(settings.fault(("identify", "networks", network), f"{exc}"))
    return faults


def _admin_faults(model: ConfigModel, settings: Settings) -> list[Diagnostic]:
    if settings.admin is None:
        return []
    try:
        parse_address(settings.admin)
    except ValueError as exc:
        return [settings.fault(("admin",) if model.admin == settings.admin else (), f"{exc}, or none")]
    return []


def _waivers(source: Source) -> list[WaiverModel]:
    waivers = validate(WaiversModel, source).waivers
    faults = [
        source.error(("waivers", index, "rule"), f"{one.rule!r} is no rule{did_you_mean(one.rule, RULES)}")
        for index, one in enumerate(waivers)
        if one.rule not in RULES
    ]
    if faults:
        raise FileError(faults)
    return waivers
