from __future__ import annotations

import pytest

from keyfence.identity.certificates import certificate_names, with_certificate
from keyfence.identity.client_facts import Evidence


def certificate(cn: str = "", *alternative: tuple[str, str]) -> dict[str, object]:
    """What `ssl.SSLSocket.getpeercert` gives."""
    subject = ((("organizationName", "o"),), (("commonName", cn),)) if cn else ()
    return {"subject": subject} | ({"subjectAltName": alternative} if alternative else {})


SPIFFE = "spiffe://cube.example/ns/a/sa/b"


@pytest.mark.parametrize(
    ("known", "names"),
    [
        (None, ()),
        ({}, ()),
        (certificate("A"), ("A",)),
        (certificate("A", ("DNS", "b.example")), ("b.example",)),
        (certificate("A", ("DNS", "b.example"), ("URI", SPIFFE)), (SPIFFE, "b.example")),
        (certificate("A", ("URI", SPIFFE)), (SPIFFE,)),
        (certificate("A", ("IP Address", "10.0.0.1")), ("A",)),
        # Choosing a CN or a DNS name is not choosing a URI.
        (certificate(SPIFFE), ()),
        (certificate("A", ("DNS", SPIFFE)), ()),
        (certificate("A", ("URI", "A")), ("A",)),
    ],
)
def test_the_names_of_a_certificate_are_its_uris_and_dns_names_else_its_common_name(
    known: dict[str, object] | None, names: tuple[str, ...]
) -> None:
    assert certificate_names(known) == names


def test_a_client_without_a_certificate_keeps_its_evidence() -> None:
    known = Evidence("L", "10.0.0.1")
    assert with_certificate(known, None) is known
    assert with_certificate(known, certificate("A")).names == ("A",)
