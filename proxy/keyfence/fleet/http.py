"""Asks an HTTPS server for a policy, once.

Rule: everything is bounded: the times, the size, the redirects. An answer that may be cut short is no answer.
No message holds a login, a URL's query, or text of the server.

Of a signed policy the signature changes with each version, so keyfence asks whether that has changed, and
then for the policy. If the server is between two versions, they do not fit, and both are asked for again.
"""

from __future__ import annotations

import asyncio
import base64
import os
import ssl

import aiohttp
from yarl import URL

from keyfence.net.addresses import is_this_machine
from keyfence.net.trust import client_context
from keyfence.policy.source.files import MAX_BYTES, Unreadable, read_file

from .manifest import MAX_SIGNED, BadManifest, digest_of, parse_signed
from .model import Answer, NotFetched, PolicyServer, shown_url

HEAD_SECONDS = 10.0  # until the answer begins, beside the time that the server was asked to wait
BODY_SECONDS = 20.0  # from there to its end
MAX_REDIRECTS = 3
MAX_TOKEN = 64 * 1024  # bytes
MAX_ETAG = 1024  # characters; a longer one is not used
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_REMEDIES = {
    401: "; check credentials",
    403: "; check credentials",
    404: "; check the url",
    304: ", although it was not asked whether the policy has changed",
}


class _Missing(NotFetched):
    """The server has nothing there."""


async def fetch(server: PolicyServer, etag: str = "", wait: float = 0.0) -> Answer:
    """Ask for the policy, unless it is the one with this ETag. The server may wait for a change for `wait`
    seconds. Raises NotFetched."""
    if not server.signed_as:
        return await _get(server, server.url, etag, wait)
    try:
        found = await _get(server, server.signature_url, etag, wait)
    except _Missing:
        found = Answer(b"", "", False)
    if found.content is None:
        return found
    signature = found.content[: MAX_SIGNED + 1]
    policy = (await _get(server, server.url)).content or b""
    return Answer(policy, found.etag if _is_pair(signature, policy) else "", found.waits, signature)


def _is_pair(signature: bytes, policy: bytes) -> bool:
    """Whether a signature is one of this content. If not, the server may be between two versions."""
    try:
        return digest_of(policy) in dict(parse_signed(signature).manifest.files).values()
    except BadManifest:
        return False


async def _get(server: PolicyServer, url: str, etag: str = "", wait: float = 0.0) -> Answer:
    """The content at a URL of the server, as `fetch` says. Raises NotFetched."""
    context = await asyncio.to_thread(_context, server) if server.url.startswith("https:") else None
    headers = {"Accept-Encoding": "identity", "User-Agent": "keyfence"}
    if etag:
        headers["If-None-Match"] = etag
        if wait:
            headers["Prefer"] = f"wait={round(wait)}"  # RFC 7240
    try:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context if context is not None else True, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        ) as session:
            return await _follow(session, server, url, headers, HEAD_SECONDS + wait)
    except aiohttp.ClientConnectorCertificateError as exc:
        why = getattr(exc.certificate_error, "verify_message", "") or "it cannot be verified"
        raise NotFetched(
            f"shows a certificate that is not trusted ({why}); check ca and the host's name"
        ) from None
    except aiohttp.ClientSSLError:
        raise NotFetched("does not speak TLS as keyfence does; check the url") from None
    except aiohttp.ClientConnectorDNSError:
        raise NotFetched("has a name that leads to no address; check the url") from None
    except aiohttp.ClientConnectorError as exc:
        raise NotFetched(f"cannot be reached ({_named(exc.os_error)})") from None
    except aiohttp.ClientPayloadError:
        raise NotFetched("sends an answer that ends early") from None
    except (aiohttp.ClientError, ValueError) as exc:  # its texts hold the URL
        raise NotFetched(f"sends an answer that is not HTTP ({type(exc).__name__})") from None
    except OSError as exc:
        raise NotFetched(f"cannot be reached ({_named(exc)})") from None


def _named(exc: OSError) -> str:
    """The system's name of a fault. Loops put addresses into their own texts."""
    return os.strerror(exc.errno).lower() if exc.errno else "no connection"


def _context(server: PolicyServer) -> ssl.SSLContext:
    try:
        return client_context(server.ca)
    except OSError as exc:  # SSLError too
        why = (exc.strerror or "it has no certificates").lower()
        raise NotFetched(f"cannot be asked: ca {server.ca} cannot be used ({why})") from None


async def _follow(
    session: aiohttp.ClientSession, server: PolicyServer, to: str, headers: dict[str, str], seconds: float
) -> Answer:
    """The answer, after a few redirects. A login goes only to the host that it is configured for."""
    url, login = URL(to), await asyncio.to_thread(_login, server)
    first = url.origin()
    for _ in range(MAX_REDIRECTS + 1):
        own = {"Authorization": login} if login and url.origin() == first else {}
        try:
            async with asyncio.timeout(seconds):
                answer = await session.get(url, headers=headers | own, allow_redirects=False)
        except TimeoutError:
            raise NotFetched(f"does not answer within {seconds:g} s") from None
        async with answer:
            if answer.status not in _REDIRECTS:
                return await _read(answer, "If-None-Match" in headers)
            url = _next(url, answer.headers.get("Location", ""))
    raise NotFetched(f"redirects more than {MAX_REDIRECTS} times; name the last URL")


def _login(server: PolicyServer) -> str:
    """The value of the header Authorization; "": there is no login."""
    token = server.token
    if server.token_file:
        try:
            token = read_file(server.token_file, MAX_TOKEN).decode("ascii").strip()
        except (Unreadable, UnicodeDecodeError):
            raise NotFetched(f"cannot be asked: no token can be read from {server.token_file}") from None
    if token:
        if not token.isascii() or not token.isprintable():
            raise NotFetched("cannot be asked: the token has characters that no header may have")
        return f"Bearer {token}"
    if server.username:
        return f"Basic {base64.b64encode(f'{server.username}:{server.password}'.encode()).decode()}"
    return ""


def _next(url: URL, location: str) -> URL:
    """The target of a redirect."""
    try:
        target = url.join(URL(location)) if location else None
    except ValueError:
        target = None
    if target is None or not target.host:
        raise NotFetched("redirects to nowhere")
    is_safe = target.scheme == "https" or (
        (url.scheme, target.scheme) == ("http", "http") and is_this_machine(target.host)
    )
    if not is_safe:
        raise NotFetched(f"redirects to {shown_url(str(target))}, which is not https")
    return target.with_user(None)


async def _read(answer: aiohttp.ClientResponse, was_conditional: bool) -> Answer:
    """The content of the last answer."""
    etag = answer.headers.get("ETag", "")
    etag = etag if len(etag) <= MAX_ETAG else ""
    waits = "wait" in answer.headers.get("Preference-Applied", "").lower()
    if answer.status == 304 and was_conditional:
        return Answer(None, etag, waits)
    if answer.status != 200:
        kind = _Missing if answer.status in (404, 410) else NotFetched
        raise kind(f"answers with status {answer.status}{_REMEDIES.get(answer.status, '')}")
    if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise NotFetched("compresses its answer, although it was asked not to")
    is_chunked = "chunked" in answer.headers.get("Transfer-Encoding", "").lower()
    if answer.content_length is None and not is_chunked:
        raise NotFetched("does not say how long its answer is, so it may be cut short")
    if (answer.content_length or 0) > MAX_BYTES:
        raise NotFetched(f"sends more than {MAX_BYTES} bytes")
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in answer.content.iter_any():
                content += piece
                if len(content) > MAX_BYTES:
                    raise NotFetched(f"sends more than {MAX_BYTES} bytes")
    except TimeoutError:
        raise NotFetched(f"does not end its answer within {BODY_SECONDS:g} s") from None
    if not content:
        raise NotFetched("sends an empty answer")
    return Answer(bytes(content), etag, waits)
