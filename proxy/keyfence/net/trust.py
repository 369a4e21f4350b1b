"""Which servers keyfence trusts, as a client with TLS.

Rule: the same certificates are trusted with each version of Python, and the name is always checked. From 3.13
on, Python refuses authorities without the extensions that RFC 5280 demands. The common ways to make a private
authority leave them out, and OpenSSL, so redis-cli too, accepts that.
"""

from __future__ import annotations

import ssl


def client_context(ca: str = "") -> ssl.SSLContext:
    """Trusts what the file `ca` lists, an intermediate authority too; without it, the system's authorities.
    Raises OSError: the file cannot be read, or, as SSLError, it holds no certificate in PEM."""
    context = ssl.create_default_context(cafile=ca or None)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
