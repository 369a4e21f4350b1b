"""Which certificates keyfence trusts as a client with TLS."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from keyfence.net.trust import client_context
from tests.servers import Certificates, issue_certificate, openssl


def handshake(context: ssl.SSLContext, server: Certificates, name: str) -> None:
    """Raises SSLError if the client does not trust the server."""
    shows = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    shows.load_cert_chain(server.certificate, server.key)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, server_hostname=name)
    other = shows.wrap_bio(to_server, to_client, server_side=True)
    left = [client, other]
    while left:
        side = left.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            left.append(side)


@pytest.fixture(params=["this Python", "a strict Python"])
def _python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 3.13 on, the default context is strict."""
    made = ssl.create_default_context

    def strict(**options: str | None) -> ssl.SSLContext:
        context = made(**options)  # type: ignore[arg-type]
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    if request.param == "a strict Python":
        monkeypatch.setattr(ssl, "create_default_context", strict)


@pytest.mark.usefixtures("_python")
def test_an_authority_without_key_usage_is_trusted(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    openssl("-subj", "/CN=plain", "-keyout", tmp_path / "ca.key", "-out", ca)
    server = issue_certificate(ca, "server", "/CN=localhost", "IP:127.0.0.1")
    handshake(client_context(str(ca)), server, "127.0.0.1")


@pytest.mark.usefixtures("_python")
def test_another_name_is_not_trusted(certificates: Certificates) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        handshake(client_context(str(certificates.ca)), certificates, "127.0.0.2")


def test_an_authority_that_is_not_listed_is_not_trusted(certificates: Certificates) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(client_context(), certificates, "127.0.0.1")


def test_a_listed_certificate_is_trusted_although_its_issuer_is_not_listed(
    certificates: Certificates,
) -> None:
    handshake(client_context(str(certificates.certificate)), certificates, "127.0.0.1")


def test_a_file_that_cannot_be_used_raises(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    with pytest.raises(FileNotFoundError):
        client_context(str(tmp_path / "none.pem"))
    with pytest.raises(ssl.SSLError):
        client_context(str(tmp_path / "empty.pem"))
