"""Keys that sign policies: Ed25519, by the package cryptography.

Rule: the package is an optional extra, and is imported when a key is used. No message shows a private key.

A public key is a word, `ed25519:BASE64`. A file of public keys has one a line; what follows the word is a
comment, and so is a line with # at its beginning. A private key is a PEM file (PKCS #8).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import importlib.util
from typing import NamedTuple

from keyfence.policy.source.files import Unreadable, read_file

from .manifest import FORMAT, Manifest, Signed

PREFIX = "ed25519:"
MAX_KEYS = 64 * 1024  # bytes of a file of keys
NEEDS = "signatures need the package cryptography, which is not installed; pip install 'keyfence[fleet]'"


class PublicKey(NamedTuple):
    """A key that signatures are checked with."""

    raw: bytes

    @property
    def text(self) -> str:
        return PREFIX + base64.b64encode(self.raw).decode()

    @property
    def id(self) -> str:
        """A short name for it. It says which key to try, and proves nothing."""
        return hashlib.sha256(self.raw).hexdigest()[:16]


class Trust(NamedTuple):
    """Which published policy is accepted: the one of this name, signed by one of these keys."""

    name: str
    keys: tuple[PublicKey, ...]
    form: str = FORMAT  # of its manifest: that of a policy, or of a candidate


def is_available() -> bool:
    """Whether signatures can be made and checked."""
    return importlib.util.find_spec("cryptography") is not None


def parse_public(text: str) -> PublicKey:
    """Raises ValueError, which does not show the text: it may be a private key."""
    try:
        raw = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if not text.startswith(PREFIX) or len(raw) != 32:
        raise ValueError(f"this is not a public key; write {PREFIX}BASE64, as keyfence key prints it")
    return PublicKey(raw)


def read_public(path: str) -> list[PublicKey]:
    """The keys in a file. Raises ValueError."""
    try:
        lines = read_file(path, MAX_KEYS).decode().splitlines()
    except Unreadable as exc:
        raise ValueError(f"{path} {exc}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text; name a file of public keys") from None
    found = []
    for number, line in enumerate(lines, 1):
        word = line.split("#")[0].split()[:1]
        try:
            found += [parse_public(one) for one in word]
        except ValueError as exc:
            raise ValueError(f"{path}:{number}: {exc}") from None
    if not found:
        raise ValueError(f"{path} holds no public key; write one a line, as keyfence key prints it")
    return found


def new_private() -> bytes:
    """A new private key, as PEM."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


class Signer:
    """A private key."""

    def __init__(self, pem: bytes) -> None:
        """Raises ValueError, which does not show the key."""
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            key = load_pem_private_key(pem, None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError(
                "this is not an Ed25519 private key without a password, as PEM; keyfence key makes one"
            )
        self._key = key
        self.public = PublicKey(key.public_key().public_bytes_raw())

    def sign(self, manifest: Manifest) -> Signed:
        line = manifest.line()
        return Signed(manifest, line, self.public.id, self._key.sign(line))


def read_signer(path: str) -> Signer:
    """The private key in a file. Raises ValueError."""
    try:
        return Signer(read_file(path, MAX_KEYS))
    except Unreadable as exc:
        raise ValueError(f"{path} {exc}") from None
    except ValueError as exc:
        raise ValueError(f"{path}: {exc}") from None


def signature_fault(signed: Signed, keys: tuple[PublicKey, ...]) -> str:
    """Why a manifest is not to be trusted; "": one of these keys has signed it."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    named = [key for key in keys if key.id == signed.key]
    if not named:
        return f"untrusted key: it was signed by the key {signed.key}, which is not under trust"
    for key in named:
        try:
            Ed25519PublicKey.from_public_bytes(key.raw).verify(signed.signature, signed.line)
        except (InvalidSignature, ValueError):
            continue
        return ""
    return f"wrong signature: it does not fit the manifest and the key {signed.key}"
