from __future__ import annotations

import shutil
import ssl
import subprocess
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides, Settings
from keyfence.downstream.certificates import certificates_of, not_after, renewed
from keyfence.policy.units import clock_text
from tests.servers import Certificates, issue_certificate


def settings_of(tmp_path: Path, files: Certificates) -> Settings:
    tls = f"{{cert: {files.certificate}, key: {files.key}, client_ca: {files.ca}}}"
    file = tmp_path / "keyfence.yaml"
    file.write_text(f"policy: p\nlisteners: [{{listen: ':0', tls: {tls}}}]\n")
    return load_settings(str(file), Overrides())


def end_of(certificate: Path) -> float:
    """When openssl says that a certificate ends."""
    asked = ["openssl", "x509", "-in", str(certificate), "-noout", "-enddate", "-dateopt", "iso_8601"]
    said = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
    return parsedate_to_datetime(_rfc_date(said.strip().removeprefix("notAfter="))).timestamp()


def _rfc_date(iso: str) -> str:
    date, time = iso.removesuffix("Z").split(" ")
    year, month, day = date.split("-")
    names = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
    return f"{day} {names[int(month) - 1]} {year} {time} +0000"


@pytest.fixture
def files(certificates: Certificates, tmp_path: Path) -> Certificates:
    """Copies of a listener's certificate and its authority, which a test may replace."""
    ca = Path(shutil.copy(certificates.ca, tmp_path / "ca.pem"))
    shutil.copy(certificates.ca.with_suffix(".key"), tmp_path / "ca.key")
    return issue_certificate(ca, "listener", "/CN=listener")


def test_a_renewed_certificate_is_named_with_its_expiry(tmp_path: Path, files: Certificates) -> None:
    settings = settings_of(tmp_path, files)
    before = certificates_of(settings)
    assert renewed(before, certificates_of(settings)) == []
    issue_certificate(files.ca, "listener", "/CN=renewed")
    said = renewed(before, certificates_of(settings))
    assert said == [f"certificate {files.certificate} (expires {clock_text(end_of(files.certificate))})"]


def test_a_chain_expires_with_its_first_certificate(tmp_path: Path, files: Certificates) -> None:
    settings = settings_of(tmp_path, files)
    later = issue_certificate(files.ca, "later", "/CN=later", days=400)
    files.certificate.write_bytes(later.certificate.read_bytes() + files.ca.read_bytes())
    assert certificates_of(settings)[str(files.certificate)].expires == end_of(files.ca)


@pytest.mark.parametrize("days", [2, 36_500])  # the years are written with two digits, and with four
def test_the_expiry_is_that_which_openssl_reads(files: Certificates, days: int) -> None:
    one = issue_certificate(files.ca, "one", "/CN=one", "DNS:one.example", days=days)
    assert not_after(ssl.PEM_cert_to_DER_cert(one.certificate.read_text())) == end_of(one.certificate)


def test_a_file_without_a_certificate_has_no_expiry(tmp_path: Path, files: Certificates) -> None:
    settings = settings_of(tmp_path, files)
    before = certificates_of(settings)
    files.certificate.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert renewed(before, certificates_of(settings)) == [
        f"certificate {files.certificate} (its expiry cannot be read)"
    ]
