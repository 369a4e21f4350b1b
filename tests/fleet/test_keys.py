"""A signature is accepted from trusted keys only, and no message shows a private key."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyfence.fleet.keys import Signer, parse_public, read_public, read_signer, signature_fault
from tests.fleet.publishing import Publisher
from tests.servers import openssl


def test_a_public_key_is_a_word_and_a_file_holds_several(tmp_path: Path) -> None:
    one, two = Publisher(), Publisher()
    assert parse_public(one.key) == one.signer.public
    file = tmp_path / "keys"
    file.write_text(f"# who may publish\n{one.key} ada, laptop\n\n{two.key}\n")
    assert read_public(str(file)) == [one.signer.public, two.signer.public]


@pytest.mark.parametrize("text", ["", "SECRET", "ed25519:", "ed25519:SECRET", "ed25519:" + "A" * 43])
def test_another_word_is_no_public_key_and_is_not_shown(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="this is not a public key") as caught:
        parse_public(text)
    assert "SECRET" not in str(caught.value)
    file = tmp_path / "keys"
    file.write_text(f"#\n{text}\n")
    with pytest.raises(ValueError, match=r"keys:2: this is not|holds no public key"):
        read_public(str(file))


def test_a_missing_file_of_keys_is_named() -> None:
    with pytest.raises(ValueError, match="/nowhere cannot be read"):
        read_public("/nowhere")


def test_only_a_trusted_key_that_has_signed_this_is_accepted() -> None:
    one, two = Publisher(), Publisher()
    signed = one.sign(1, {"shop.yaml": "one"})
    both = (two.signer.public, one.signer.public)
    assert signature_fault(signed, both) == ""
    assert signature_fault(signed, (two.signer.public,)).startswith("untrusted key: ")
    forged = signed._replace(key=two.signer.public.id)
    assert signature_fault(forged, both).startswith("wrong signature: ")
    other = signed._replace(line=signed.line.replace(b"ada", b"eve"))
    assert signature_fault(other, both).startswith("wrong signature: ")


def test_a_private_key_is_pem_of_ed25519(tmp_path: Path) -> None:
    one = Publisher()
    assert read_signer(str(one.key_file(tmp_path))).public == one.signer.public
    openssl("-subj", "/CN=x", "-keyout", tmp_path / "ec.pem", "-out", tmp_path / "x")
    for content in (b"SECRET", b"", (tmp_path / "ec.pem").read_bytes()):
        with pytest.raises(ValueError, match="this is not an Ed25519 private key") as caught:
            Signer(content)
        assert "SECRET" not in str(caught.value)
    with pytest.raises(ValueError, match="/nowhere cannot be read"):
        read_signer("/nowhere")
