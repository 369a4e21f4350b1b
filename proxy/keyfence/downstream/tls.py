"""The TLS contexts of listeners and of connections to Redis.

Rule: an unusable certificate, key or authority is reported with its position in the configuration, before
anything starts. Each process creates the contexts that it uses.
"""

from __future__ import annotations

import ssl

from keyfence.config.settings import Settings
from keyfence.net.trust import client_context
from keyfence.policy.diagnostics import Diagnostic, FileError
from keyfence.policy.source.files import Unreadable, read_file

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class _Unusable(Exception):
    """A file cannot be used. `setting` names it, and `str` says why."""

    def __init__(self, setting: str, why: str) -> None:
        super().__init__(why)
        self.setting = setting


def check_tls(settings: Settings) -> None:
    """Raise FileError with all faults of all files that TLS needs."""
    faults: list[Diagnostic] = []
    for index in range(-1, len(settings.listeners)):
        try:
            upstream_context(settings) if index < 0 else listener_context(settings, index)
        except FileError as exc:
            faults += exc.diagnostics
    if faults:
        raise FileError(faults)


def listener_context(settings: Settings, index: int) -> ssl.SSLContext | None:
    """The context of the listener with this index, or None without TLS. Raises FileError."""
    tls = settings.listeners[index].tls
    if tls is None:
        return None
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _VERSIONS[tls.min_version]
        _load_chain(context, tls.cert, tls.key)
        if tls.client_ca:
            _load_authorities(context, tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED if tls.requires_certificate else ssl.CERT_OPTIONAL
    except _Unusable as exc:
        raise FileError([settings.fault(("listeners", index, "tls", exc.setting), str(exc))]) from None
    return context


def upstream_context(settings: Settings) -> ssl.SSLContext | None:
    """The context for connections to Redis, or None without TLS. Raises FileError."""
    if settings.upstream is None or settings.upstream.kind != "tls":
        return None
    try:
        context = _client_context(settings.upstream_ca)
        if settings.upstream_cert:
            _load_chain(context, settings.upstream_cert, settings.upstream_key)
    except _Unusable as exc:
        raise FileError([settings.fault(("upstream", exc.setting), str(exc))]) from None
    if not settings.upstream_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _client_context(ca: str) -> ssl.SSLContext:
    if ca:
        _read("ca", ca)
    try:
        return client_context(ca)
    except OSError:  # SSLError too
        raise _no_authority("ca", ca) from None


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    _read("client_ca", path)
    try:
        context.load_verify_locations(path)
    except OSError:  # SSLError too
        raise _no_authority("client_ca", path) from None


def _no_authority(setting: str, path: str) -> _Unusable:
    return _Unusable(setting, f"{path} holds no certificate of an authority in PEM")


def _load_chain(context: ssl.SSLContext, cert: str, key: str) -> None:
    _read("cert", cert)
    _read("key", key)
    try:
        context.load_cert_chain(cert, key, password=_refuse_password)
    except _Encrypted:
        raise _Unusable("key", f"{key} is encrypted; give keyfence a key without a passphrase") from None
    except ssl.SSLError as exc:
        if exc.reason == "KEY_VALUES_MISMATCH":
            raise _Unusable("key", f"{key} is not the key of the certificate {cert}") from None
        at_fault = "key" if "-----BEGIN CERTIFICATE-----" in _read("cert", cert) else "cert"
        path, what = (key, "private key") if at_fault == "key" else (cert, "certificate")
        raise _Unusable(at_fault, f"{path} holds no {what} in PEM") from None


def _read(setting: str, path: str) -> str:
    try:
        return read_file(path).decode("latin-1")
    except Unreadable as exc:
        raise _Unusable(setting, f"{path} {str(exc).lower()}") from None


class _Encrypted(Exception):
    pass


def _refuse_password() -> str:
    """Prevents OpenSSL from asking for the password on the terminal."""
    raise _Encrypted
