"""Which requests the admin listener accepts.

Rule: only an operator changes something. Reaching the port is not enough, and neither is being a web page
that an operator happens to visit. `routes` says which requests need an operator. On the page an operator has
a session, which the token opens (`web.sessions`).

- With tokens, such a request must carry one whose role suffices. Without any, it must come from this machine:
  on an address that other machines reach, a scraper must not be able to switch enforcement off.
- The Host header must be an address literal, `localhost` or a configured name. A stranger can point a name of
  their own at this address (DNS rebinding), which would make the stranger's page same-origin. A request
  without Host passes, because no browser sends one.
- Origin and Sec-Fetch-Site, which browsers send, must not name another site, whatever the method. Only links
  are exempt: a browser may open the page that a link in a chat or a wiki leads to.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from keyfence.net.addresses import ip_address

from .token import Role, Token

if TYPE_CHECKING:
    from aiohttp import web

FAILURE_SECONDS = 1.0  # until a wrong token is answered; other requests do not wait for that

_WRONG_HOST = "The Host header must be an address, localhost or a name that the settings list."
_OTHER_SITE = "Pages of other sites may not send this request."
_NO_TOKEN = "This needs the admin token, as Authorization: Bearer TOKEN."
WRONG_TOKEN = "The admin token is wrong."
_REMOTE = "Without a token, only this machine may do this; set admin: {listen: …, token_file: …}."


class Refusal(Exception):
    """A refused request: why, in one sentence, the HTTP status, and the reason as a metric label."""

    def __init__(self, text: str, status: int, reason: str) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason


class Access:
    """The access checks of one admin listener."""

    def __init__(self, names: Collection[str] = (), tokens: Sequence[Token] = ()) -> None:
        self.generation = 0  # changes with the tokens
        self._tokens: tuple[Token, ...] = ()
        self.take(names, tokens)

    def take(self, names: Collection[str], tokens: Sequence[Token]) -> bool:
        """Use these from now on. `names` are the host names of the listener. Returns whether the tokens are
        new ones."""
        is_new = self.is_new(tokens)
        self.generation += is_new
        self._tokens = tuple(tokens)
        self._names = frozenset(name.lower().rstrip(".") for name in names) | {"localhost"}
        return is_new

    def is_new(self, tokens: Sequence[Token]) -> bool:
        """Whether these are not the tokens in use."""
        return tuple(tokens) != self._tokens

    def check_host(self, request: web.Request) -> None:
        """Check the Host header. Raises Refusal."""
        for host in request.headers.getall("Host", ()):
            if not self._is_own(host):
                raise Refusal(_WRONG_HOST, 403, "host")

    @property
    def has_token(self) -> bool:
        return bool(self._tokens)

    def token(self, text: str) -> Token | None:
        """The token that a text is; None: it is none. All are compared, so that the time tells nothing."""
        given = text.strip().encode("utf-8", "surrogateescape")
        found = [one for one in self._tokens if hmac.compare_digest(given, one.secret)]
        return found[0] if found else None

    def check_site(self, request: web.Request) -> None:
        """Check that no other site's page sends a request. Raises Refusal."""
        hosts = request.headers.getall("Host", ())
        own = {f"{scheme}://{host}" for host in hosts for scheme in ("http", "https")}
        if any(origin not in own for origin in request.headers.getall("Origin", ())):
            raise Refusal(_OTHER_SITE, 403, "origin")
        sites = request.headers.getall("Sec-Fetch-Site", ())
        if any(site not in ("same-origin", "none") for site in sites) and not _follows_link(request):
            raise Refusal(_OTHER_SITE, 403, "origin")

    def check_operator(self, request: web.Request, role: Role) -> str:
        """Check that an operator with a role sends a request. Returns the name of the token; "" for none.
        Raises Refusal."""
        if not self._tokens:
            if not _is_local(request):
                raise Refusal(_REMOTE, 403, "remote")
            return ""
        given = request.headers.getall("Authorization", ())
        if not given:
            raise Refusal(_NO_TOKEN, 401, "no_token")
        scheme, _, text = given[0].partition(" ")
        token = self.token(text)
        if len(given) != 1 or scheme.lower() != "bearer" or token is None:
            raise Refusal(WRONG_TOKEN, 401, "wrong_token")
        check_role(token, role)
        return token.name

    def _is_own(self, header: str) -> bool:
        """Whether a Host header names this listener."""
        host, bracket, _ = header.strip().rpartition("]")
        if bracket:
            host = host.removeprefix("[")
        else:
            host = header.strip().partition(":")[0].lower().rstrip(".")
        return host in self._names or ip_address(host) is not None


def check_role(token: Token, role: Role) -> None:
    """Raises Refusal if a token does not allow what needs a role."""
    if not token.may(role):
        name = f"the token {token.name}" if token.name else "this token"
        raise Refusal(f"This needs the role {role}; {name} has the role {token.role}.", 403, "role")


def _follows_link(request: web.Request) -> bool:
    """Whether a browser opens a page of its own, which no other page can read, for a link to it."""
    mode, kind = (request.headers.getall(f"Sec-Fetch-{name}", ()) for name in ("Mode", "Dest"))
    return request.method == "GET" and mode == ["navigate"] and kind == ["document"]


def _is_local(request: web.Request) -> bool:
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    address = ip_address(peer[0].partition("%")[0]) if peer else None
    return address is not None and address.is_loopback
