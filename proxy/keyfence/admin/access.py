"""Who may change something through the admin listener.

Rule: only an operator changes or judges something: not everybody who can reach the port, and no web page that
an operator happens to visit.

- Where there is a token, POST and DELETE need it. Without one they are taken from this machine alone: on an
  address that other machines reach, a scraper must not be able to switch enforcement off.
- The Host header must be an address literal, `localhost` or a configured name, since a name that a stranger
  owns can be made to point here (DNS rebinding), which would make the stranger's page same-origin. A request
  without Host is no browser's, and passes.
- Origin and Sec-Fetch-Site, where a browser sends them, must name no other site.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection

from aiohttp import web

from keyfence.net.addresses import ip_address

READING = frozenset({"GET", "HEAD", "OPTIONS"})
FAILURE_SECONDS = 1.0  # until a wrong token is answered; others don't wait for that

_WRONG_HOST = "The Host header must be an address, localhost or a name that the settings list."
_OTHER_SITE = "This is taken from no other site's page."
_NO_TOKEN = "This needs the admin token, as Authorization: Bearer TOKEN."
_WRONG_TOKEN = "The admin token is wrong."
_REMOTE = "Without a token this is taken from the same machine alone; set admin: {listen: …, token_file: …}."


class Refusal(Exception):
    """A request that is turned away: a sentence, the status that says so, and the reason as a label."""

    def __init__(self, text: str, status: int, reason: str) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason


class Access:
    """Judges requests."""

    def __init__(self, names: Collection[str] = (), token: bytes | None = None) -> None:
        self.take(names, token)

    def take(self, names: Collection[str], token: bytes | None) -> None:
        """Judge by these from now on. `names` are the host names under which the listener may be called;
        token None: there is none."""
        self._token = token
        self._names = frozenset(name.lower().rstrip(".") for name in names) | {"localhost"}

    def check_host(self, request: web.Request) -> None:
        """Raises Refusal."""
        for host in request.headers.getall("Host", ()):
            if not self._is_own(host):
                raise Refusal(_WRONG_HOST, 403, "host")

    def check_change(self, request: web.Request) -> None:
        """Whether a request may change something. Raises Refusal."""
        if request.method in READING:
            return
        own = {f"http://{host}" for host in request.headers.getall("Host", ())}
        if any(origin not in own for origin in request.headers.getall("Origin", ())):
            raise Refusal(_OTHER_SITE, 403, "origin")
        if any(s not in ("same-origin", "none") for s in request.headers.getall("Sec-Fetch-Site", ())):
            raise Refusal(_OTHER_SITE, 403, "origin")
        if self._token is None:
            if not _is_local(request):
                raise Refusal(_REMOTE, 403, "remote")
            return
        given = request.headers.getall("Authorization", ())
        if not given:
            raise Refusal(_NO_TOKEN, 401, "no_token")
        scheme, _, token = given[0].partition(" ")
        is_right = hmac.compare_digest(token.strip().encode("utf-8", "surrogateescape"), self._token)
        if len(given) != 1 or scheme.lower() != "bearer" or not is_right:
            raise Refusal(_WRONG_TOKEN, 401, "wrong_token")

    def _is_own(self, header: str) -> bool:
        """Whether a Host header names this listener and not a name that somebody pointed here."""
        host, bracket, _ = header.strip().rpartition("]")
        if bracket:
            host = host.removeprefix("[")
        else:
            host = header.strip().partition(":")[0].lower().rstrip(".")
        return host in self._names or ip_address(host) is not None


def _is_local(request: web.Request) -> bool:
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    address = ip_address(peer[0].partition("%")[0]) if peer else None
    return address is not None and address.is_loopback
