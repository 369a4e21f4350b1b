from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import aiohttp
import pytest

from keyfence.findings.news.posting import post
from tests.findings.news.webhooks import running_hooks
from tests.servers import PATIENCE_SECONDS, issue_certificate, openssl


def test_an_authority_of_the_system_without_key_usage_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What aiohttp trusts by itself is strict from Python 3.13 on."""
    ca = tmp_path / "ca.pem"
    openssl("-subj", "/CN=plain", "-keyout", tmp_path / "ca.key", "-out", ca)
    shown = issue_certificate(ca, "server", "/CN=localhost", "IP:127.0.0.1")
    serves = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serves.load_cert_chain(shown.certificate, shown.key)
    monkeypatch.setenv("SSL_CERT_FILE", str(ca))

    async def main() -> None:
        async with running_hooks(serves) as hooks, aiohttp.ClientSession() as session:
            await post(session, f"{hooks.url}/T0", {"text": "x"}, PATIENCE_SECONDS)
            assert hooks.got == [("/T0", {"text": "x"})]

    asyncio.run(main())
