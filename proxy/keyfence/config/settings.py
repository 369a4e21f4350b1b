"""The settings in force: the configuration file and the command line together.

Rule: every value is complete and checked, with paths resolved. Nothing here reads a file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal

from keyfence.fleet.keys import Trust
from keyfence.fleet.manifest import Signed
from keyfence.fleet.model import PolicyServer
from keyfence.net.addresses import Address
from keyfence.policy.diagnostics import Diagnostic, FileError, Place, did_you_mean
from keyfence.policy.enforcement.modes import ModeRule, Waiver, mode_faults
from keyfence.policy.enforcement.waivers import WaiverModel
from keyfence.policy.services import UNKNOWN
from keyfence.policy.source.yaml import PathKey, Source
from keyfence.policy.verdict import Mode
from keyfence.upstream.address import UpstreamAddress

from .identify import IdentifyModel
from .limits import ANY_SERVICE
from .models import LimitsModel, ListenerModel, NotifyModel, ReadsModel, TokenModel
from .news import NewsModel
from .upstream import AnnounceModel


@dataclasses.dataclass(frozen=True, slots=True)
class Overrides:
    """The settings of the command line, which win over the file. Empty: the file decides."""

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
    findings: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """The settings in force: file and flags together, paths resolved."""

    environment: str  # where keyfence runs; "": nobody has said
    policy: str  # its path; of a policy with a URL, that of the copy on disk
    policy_server: PolicyServer | None  # None: the policy is a file
    policy_trust: Trust | None  # who may sign the policy; None: nobody has to
    policy_signed: Signed | None  # the signature of the policy that was loaded; None: it is not signed
    reload: Literal["manual", "auto"]
    upstream: UpstreamAddress | None  # None: start an embedded Redis
    announce: AnnounceModel | None  # for a cluster only
    expose: Literal["single"] | None  # a cluster behind one address
    upstream_ca: str
    upstream_cert: str
    upstream_key: str
    upstream_verify: bool
    connect_timeout: float  # seconds
    shared_connections: int  # 0: every client has its own
    replicas: tuple[tuple[str, int], ...] | Literal["sentinel"]
    reads: dict[str, ReadsModel]
    split: dict[str, list[str]]
    listeners: tuple[ListenerModel, ...]
    identify: IdentifyModel
    modes: tuple[ModeRule, ...]
    waivers: tuple[WaiverModel, ...]
    waivers_file: str  # "" is none
    waivers_source: Source | None
    admin: Address | None
    admin_token_file: str
    admin_tokens: tuple[TokenModel, ...]
    admin_names: tuple[str, ...]
    admin_audit_log: str
    metrics: Address | None
    decision_log: str
    findings: str  # the URL of the store; "" is none
    findings_are_default: bool  # neither the file nor the command line names a store
    findings_keep: float  # seconds
    notify: NotifyModel | None
    news: NewsModel | None
    mask_keys: bool
    limits: LimitsModel
    name_services: bool
    workers: int  # 0: one process does all
    drain: float  # seconds
    record: str  # where to write the command log; "" is nowhere
    secret_files: tuple[str, ...]  # what `file:` names
    source: Source | None

    @property
    def policy_shown(self) -> str:
        """Where the policy comes from, for people: its path, or its URL."""
        return self.policy if self.policy_server is None else self.policy_server.shown

    @property
    def admin_listeners(self) -> int:
        """The number of HTTP listeners."""
        return (self.admin is not None) + (self.metrics is not None)

    @property
    def after_write(self) -> dict[str, float | None]:
        """As `ClientSettings` has it."""
        return {
            name: one.after_write / 1000 if one.at == "replicas" else None for name, one in self.reads.items()
        }

    @property
    def splits(self) -> dict[str, frozenset[bytes]]:
        """As `ClientSettings` has it."""
        return {service: frozenset(name.encode() for name in names) for service, names in self.split.items()}

    @property
    def serving(self) -> list[ListenerModel]:
        """The listeners for Redis' clients."""
        return [one for one in self.listeners if not one.primaries]

    def named_by_default(self, listener: ListenerModel) -> ListenerModel | None:
        """The listener whose address a Sentinel listener names if it is not told one: the one for Redis'
        clients of the same service, or else of all. None: there is not exactly one."""
        found = [one for one in self.serving if one.service == listener.service] or self.serving
        return found[0] if len(found) == 1 else None

    def whose(self, listener: ListenerModel) -> str:
        """The service of a listener, or by what its clients are told apart: `by certificate`. The names of
        the primaries, if it answers as a Sentinel."""
        if listener.primaries:
            return f"Sentinel for {' and '.join(one.name for one in listener.primaries)}"
        if listener.service:
            return listener.service
        known, is_local = self.identify, bool(listener.address.unix_path)
        evidence = {
            "user": known.users or known.passwords,
            "certificate": listener.tls is not None and listener.tls.client_ca,
            "Unix user": known.uids and is_local,
            "network": known.networks and not is_local,
        }
        found = [name for name, is_used in evidence.items() if is_used]
        return f"by {' or '.join(found)}" if found else UNKNOWN

    def fault(self, path: tuple[str | int, ...], message: str) -> Diagnostic:
        """An error at a setting of the configuration file, or of the command line if there is no file."""
        if self.source is None:
            return Diagnostic(Place("command line", 1, 1), "error", message)
        return self.source.error(path, message)

    def check_against(self, services: tuple[str, ...], more: Iterable[Diagnostic] = ()) -> None:
        """Raise FileError with every name that the policy does not have, and with `more` faults. `services`
        includes `unknown`."""
        faults = [
            self.fault(("modes", index, field), message)
            for index, field, message in mode_faults(self.modes, services)
        ]
        for path, service in self._named_services():
            if service and service not in services:
                known = did_you_mean(service, services)
                faults.append(self.fault(path, f"{service!r} is not a service of the policy{known}"))
        faults.extend(more)
        if faults:
            raise FileError(faults)

    def _named_services(self) -> list[tuple[PathKey, str]]:
        """Each service that the configuration names, and the setting that names it."""
        return [
            *((("listeners", i, "service"), one.service) for i, one in enumerate(self.listeners)),
            *((("identify", *path), name) for path, name in self.identify.named_services()),
            *(
                (("limits", "connections_per_service", name), name)
                for name in self.limits.connections_per_service
                if name != ANY_SERVICE
            ),
            *((("reads", name), name) for name in self.reads if name != ANY_SERVICE),
            *((("split", name), name) for name in self.split if name != ANY_SERVICE),
        ]

    def waived(self) -> list[Waiver]:
        return [one.waiver for one in self.waivers]
