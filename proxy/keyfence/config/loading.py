"""Reads a configuration file and lays the command line over it.

Rule: everything is checked before anything starts; a flag wins over the file; a relative path in the file is
relative to the file.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from keyfence.fleet.keys import Trust
from keyfence.fleet.model import PolicyServer
from keyfence.net.addresses import Address
from keyfence.policy.diagnostics import Diagnostic, FileError
from keyfence.policy.enforcement.modes import ModeRule
from keyfence.policy.enforcement.waivers import WaiverModel, read_waivers
from keyfence.policy.source.validate import other_kind, validate
from keyfence.policy.source.yaml import Source as YamlSource
from keyfence.policy.source.yaml import read_source
from keyfence.upstream.credentials.model import Source

from .checks import faults_of
from .defaults import DEFAULT_LISTEN
from .fields import NONE, parse_drain, parse_workers, store_url
from .models import ConfigModel, ListenerModel
from .news import NewsModel
from .policy import PolicySourceModel
from .references import Resolved, file_of
from .settings import Overrides, Settings
from .state_file import policy_copy, state_file
from .upstream import address_of, replicas_of


def load_settings(path: str, overrides: Overrides, *, needs_policy: bool = True) -> Settings:
    """Read a configuration file (`path` may be empty) and lay the command line over it. Raises FileError."""
    folder = Path(path).parent if path else Path()
    source = Resolved(read_source(path), folder) if path else None
    model = validate(ConfigModel, source) if source is not None else ConfigModel()
    waivers, waivers_source, faults = _waivers(folder, model.waivers)
    settings = _settings(model, source, overrides, folder)
    settings = dataclasses.replace(settings, waivers=waivers, waivers_source=waivers_source)
    faults += faults_of(model, settings)
    if needs_policy and not settings.policy:
        faults.append(settings.fault(("policy",), "no policy; name one with policy: or --policy"))
    if faults:
        raise FileError(faults)
    return settings


def load_policy_server(path: str, overrides: Overrides) -> PolicyServer | None:
    """The server that has the policy, without a look at the other settings; None: there is none. Raises
    FileError."""
    if not path or overrides.policy:
        return None
    folder = Path(path).parent
    source = Resolved(read_source(path), folder)
    return _policy_server(validate(ConfigModel, source).policy, source, folder)


def named_files(path: str, overrides: Overrides) -> tuple[str, list[Diagnostic]]:
    """The policy that a faulty configuration names ("": none can be read), and the faults of its waivers. So
    both files can be checked although the configuration cannot be used."""
    data: Any = {}
    if path:
        with contextlib.suppress(FileError):
            data = read_source(path, keep_going=True).data
    if other_kind(ConfigModel, data) is not None:
        data = {}  # its "policy" is a name
    if isinstance(data.get("policy"), dict):
        data = {**data, "policy": data["policy"].get("path")}
    named = {key: data[key] for key in ("policy", "waivers") if isinstance(data.get(key), str)}
    folder = Path(path).parent
    policy = overrides.policy or _in(folder, named.get("policy", ""))
    return policy, _waivers(folder, named.get("waivers", ""))[2]


def _waivers(folder: Path, name: str) -> tuple[tuple[WaiverModel, ...], YamlSource | None, list[Diagnostic]]:
    """The waivers that a configuration names, their source, and their faults."""
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
    said = model.upstream.credentials
    return Settings(
        environment=model.environment,
        policy=flags.policy or _policy(model.policy, source, folder),
        policy_server=None if flags.policy else _policy_server(model.policy, source, folder),
        policy_trust=None if flags.policy else _trust(model.policy, folder),
        policy_signed=None,
        reload=model.reload,
        upstream=address_of(model.upstream, flags.upstream, _credentials(model, source, folder)),
        announce=model.upstream.announce if model.upstream.cluster and not flags.upstream else None,
        expose=model.upstream.expose if model.upstream.cluster and not flags.upstream else None,
        upstream_ca=_in(folder, model.upstream.ca),
        upstream_cert=_in(folder, model.upstream.cert),
        upstream_key=_in(folder, model.upstream.key),
        upstream_verify=model.upstream.verify,
        connect_timeout=model.upstream.connect_timeout / 1000,
        shared_connections=model.upstream.shared_connections if model.upstream.mode == "shared" else 0,
        replicas=() if flags.upstream else replicas_of(model.upstream),
        reads=model.reads,
        split=model.split,
        listeners=_listeners(model, flags, folder),
        identify=model.identify,
        modes=modes,
        waivers=(),
        waivers_file=str(folder / model.waivers) if model.waivers else "",
        waivers_source=None,
        admin=admin,
        admin_token_file=_in(folder, model.admin.token_file),
        admin_tokens=tuple(
            one.model_copy(update={"token_file": _in(folder, one.token_file)}) for one in model.admin.tokens
        ),
        admin_audit_log=_in(folder, model.admin.audit_log),
        admin_names=(*model.admin.names, *([admin.host_port[0]] if admin and admin.host_port[0] else [])),
        metrics=_address(flags.metrics or model.metrics),
        decision_log=log,
        findings=_store(flags.findings or model.findings.url, source, Path() if flags.findings else folder),
        findings_are_default=not (flags.findings or model.findings.url),
        findings_keep=model.findings.keep / 1000,
        notify=model.notify,
        news=_news(model, folder),
        mask_keys=model.decision_log.mask_keys,
        limits=model.limits,
        name_services=model.name_services,
        workers=parse_workers(flags.workers) if flags.workers else model.workers,
        drain=(parse_drain(flags.drain) if flags.drain else model.drain) / 1000,
        record=flags.record,
        secret_files=_secret_files(source, flags, _in(folder, said.file) if said is not None else ""),
        source=source,
    )


def _policy(said: PolicySourceModel, source: Resolved | None, folder: Path) -> str:
    """The path of the policy, or of the copy of one that a server has."""
    return str(policy_copy(source.file)) if said.is_asked and source is not None else _in(folder, said.path)


def _policy_server(said: PolicySourceModel, source: Resolved | None, folder: Path) -> PolicyServer | None:
    if source is None:
        return None
    login = ("policy", "credentials")
    return said.server(_in(folder, said.ca), source.file_at(login, (*login, "token")))


def _trust(said: PolicySourceModel, folder: Path) -> Trust | None:
    try:
        return said.trusted(folder)
    except ValueError:  # `policy_faults` reports it
        return None


def _address(text: str) -> Address | None:
    return None if text == NONE else Address(text)


def _store(url: str, source: Resolved | None, folder: Path) -> str:
    """The URL of the findings store. The default is a file of the configuration in the user's state
    directory; without a configuration file there is none."""
    if url == NONE:
        return ""
    scheme, _, rest = url.partition("://")
    if url and scheme.startswith("sqlite"):
        return f"sqlite:///{(folder / rest[1:]).absolute()}"
    if url:
        return store_url(url)
    return f"sqlite:///{state_file(source.file)}" if source is not None else ""


def _in(folder: Path, path: str) -> str:
    return str(folder / path) if path else ""


def _credentials(model: ConfigModel, source: Resolved | None, folder: Path) -> Source | None:
    said = model.upstream.credentials
    if said is None or source is None:
        return None
    place = source.place(("upstream", "credentials", said.kind))
    return said.source(model.upstream.user, folder, f"{place.file}:{place.line}: {said.kind}")


def _news(model: ConfigModel, folder: Path) -> NewsModel | None:
    """The news, with the path of the mail server's authorities resolved."""
    news = model.news
    if news is None or news.smtp is None:
        return news
    smtp = news.smtp.model_copy(update={"ca": _in(folder, news.smtp.ca)})
    return news.model_copy(update={"smtp": smtp})


def _secret_files(source: Resolved | None, flags: Overrides, credentials: str) -> tuple[str, ...]:
    """The files that hold secrets. `credentials` is one, or empty."""
    files = source.files if source is not None else set()
    return tuple(sorted({*files, file_of(flags.upstream, Path()), credentials} - {""}))


def _listeners(model: ConfigModel, flags: Overrides, folder: Path) -> tuple[ListenerModel, ...]:
    if flags.listen:
        return (ListenerModel(listen=flags.listen, service=flags.service),)
    if not model.listeners:
        return (ListenerModel(listen=DEFAULT_LISTEN, service=flags.service),)
    named = {"service": flags.service} if flags.service else {}
    return tuple(
        one.model_copy(update=named | _resolved(one, folder) | _primaries(one, model))
        for one in model.listeners
    )


def _primaries(one: ListenerModel, model: ConfigModel) -> dict[str, Any]:
    """The primaries of a Sentinel listener, each with a name if there is any."""
    if not one.primaries:
        return {}
    by_default = model.upstream.sentinel.name if model.upstream.sentinel is not None else ""
    names = (primary.name or by_default for primary in one.primaries)
    return {
        "sentinel": [
            primary.model_copy(update={"name": name})
            for primary, name in zip(one.primaries, names, strict=True)
        ]
    }


def _resolved(one: ListenerModel, folder: Path) -> dict[str, Any]:
    """The settings of a listener that name files, relative to a folder."""
    changed: dict[str, Any] = {"listen": one.address.relative_to(folder)}
    if one.tls is not None:
        files = {name: _in(folder, getattr(one.tls, name)) for name in ("cert", "key", "client_ca")}
        changed["tls"] = one.tls.model_copy(update=files)
    return changed
