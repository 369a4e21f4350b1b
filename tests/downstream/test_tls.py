"""Every fault of the files that TLS needs is reported with its position, before anything starts."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides, Settings
from keyfence.downstream.tls import check_tls, listener_context, upstream_context
from keyfence.policy.diagnostics import FileError
from tests.servers import Certificates, issue_certificate


def load(tmp_path: Path, text: str) -> Settings:
    file = tmp_path / "keyfence.yaml"
    file.write_text(f"policy: p\n{text}\n")
    return load_settings(str(file), Overrides())


def faults(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(FileError) as caught:
        check_tls(load(tmp_path, text))
    return [
        str(one).replace(f"{tmp_path}/", "").replace(": error: ", ": ") for one in caught.value.diagnostics
    ]


@pytest.fixture
def files(certificates: Certificates, tmp_path: Path) -> Path:
    """A folder with usable and unusable files."""
    (tmp_path / "ca.pem").write_bytes(certificates.ca.read_bytes())
    (tmp_path / "a.pem").write_bytes(certificates.certificate.read_bytes())
    (tmp_path / "a.key").write_bytes(certificates.key.read_bytes())
    other = issue_certificate(certificates.ca, "other", "/CN=other")
    (tmp_path / "other.key").write_bytes(other.key.read_bytes())
    (tmp_path / "dir").mkdir()
    (tmp_path / "empty.pem").write_bytes(b"")
    (tmp_path / "not.pem").write_bytes(b"\xff nothing")
    encrypt = ["openssl", "pkey", "-in", certificates.key, "-aes256", "-passout", "pass:secret"]
    subprocess.run([*encrypt, "-out", tmp_path / "locked.key"], check=True, capture_output=True)
    return tmp_path


def test_usable_files_make_contexts(files: Path) -> None:
    tls = "{cert: a.pem, key: a.key, client_ca: ca.pem, min_version: 1.3}"
    upstream = "upstream: {url: 'rediss://h', ca: ca.pem, cert: a.pem, key: a.key}"
    text = f"{upstream}\nlisteners: [{{listen: ':0', tls: {tls}}}, {{listen: ':1'}}]"
    settings = load(files, text)
    check_tls(settings)
    context = listener_context(settings, 0)
    assert context
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.minimum_version == ssl.TLSVersion.TLSv1_3
    assert listener_context(settings, 1) is None
    client = upstream_context(settings)
    assert client
    assert (client.verify_mode, client.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_an_upstream_may_be_unverified_or_without_tls(files: Path) -> None:
    client = upstream_context(load(files, "upstream: {url: 'rediss://h', verify: no}"))
    assert client
    assert (client.verify_mode, client.check_hostname) == (ssl.CERT_NONE, False)
    assert upstream_context(load(files, "upstream: redis://h")) is None
    assert upstream_context(load(files, "admin: none")) is None


BAD = {
    "cert: gone.pem, key: a.key": "17: gone.pem cannot be read: no such file or directory",
    "cert: a.pem, key: gone.key": "29: gone.key cannot be read: no such file or directory",
    "cert: a.pem, key: other.key": "29: other.key is not the key of the certificate a.pem",
    "cert: a.pem, key: locked.key": "29: locked.key is encrypted; give keyfence a key without a passphrase",
    "cert: empty.pem, key: a.key": "17: empty.pem holds no certificate in PEM",
    "cert: a.pem, key: a.pem": "29: a.pem holds no private key in PEM",
    "cert: a.pem, key: a.key, client_ca: not.pem": "47: not.pem holds no certificate of an authority in PEM",
    "cert: a.pem, key: a.key, client_ca: dir": "47: dir cannot be read: it is a folder; name a regular file",
}


@pytest.mark.parametrize("tls", BAD)
def test_an_unusable_file_of_a_listener_is_reported_with_its_position(tls: str, files: Path) -> None:
    text = f"listeners:\n  - listen: ':0'\n    tls: {{{tls}}}"
    assert faults(files, text) == [f"keyfence.yaml:4:{BAD[tls]}"]


def test_all_unusable_files_are_reported_at_once(files: Path) -> None:
    upstream = "upstream: {url: 'rediss://h', ca: empty.pem, cert: a.pem, key: a.key}"
    listeners = (
        "listeners: [{listen: ':0', tls: {cert: x, key: a.key}}, {listen: ':1', tls: {cert: a.pem, key: y}}]"
    )
    assert faults(files, f"{upstream}\n{listeners}") == [
        "keyfence.yaml:2:35: empty.pem holds no certificate of an authority in PEM",
        "keyfence.yaml:3:40: x cannot be read: no such file or directory",
        "keyfence.yaml:3:96: y cannot be read: no such file or directory",
    ]
