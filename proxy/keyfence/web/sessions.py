"""Who has signed in on the page.

Rule: a session is an entry of this process's memory; the cookie holds only its random id. The token is never
in a cookie. A change of the token ends every session.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import Counter
from collections.abc import Callable
from typing import Literal, NamedTuple

from aiohttp import web

from keyfence.admin.access import WRONG_TOKEN, Access, Refusal
from keyfence.admin.token import Token

LIFETIME = 8 * 3600.0  # seconds
MAX_SESSIONS = 100
_NO_SESSION = "Sign in first: this page is read-only without the admin token."
_FORGED = "This form is not one of this page, or you have signed in again since; open the page again."


class Notice(NamedTuple):
    """What came of an action."""

    kind: Literal["good", "bad"]
    text: str


class Session:
    """One person who has signed in."""

    def __init__(self, who: str, ends: float, generation: int, token: Token) -> None:
        self.who = who
        self.token = token
        self.ends = ends
        self.generation = generation  # of the token
        self.csrf = secrets.token_urlsafe(24)
        self.notices: list[Notice] = []  # shown once, on the next page


class Sessions:
    """The sessions of one admin listener."""

    def __init__(self, access: Access, clock: Callable[[], float] = time.monotonic) -> None:
        self._access = access
        self._clock = clock
        self._sessions: dict[str, Session] = {}

    @property
    def possible(self) -> bool:
        """Whether there is a token to sign in with."""
        return self._access.has_token

    def sign_in(self, who: str, token: str) -> str:
        """Returns the id of a new session. Raises Refusal for a wrong token."""
        found = self._access.token(token)
        if found is None:
            raise Refusal(WRONG_TOKEN, 401, "wrong_token")
        now = self._clock()
        self._sessions = {one: held for one, held in self._sessions.items() if held.ends > now}
        while len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[self._dispensable(found)]
        one = secrets.token_urlsafe(32)
        # Whoever has a token may write any name, so the token's stands beside it.
        who = who if found.name in ("", who) else f"{who} (token {found.name})"
        self._sessions[one] = Session(who, now + LIFETIME, self._access.generation, found)
        return one

    def _dispensable(self, newcomer: Token) -> str:
        """The session to end for one of the newcomer's token: the oldest of the token that has the most. So
        the holders of one token sign out nobody else."""
        held = Counter(one.token for one in self._sessions.values())
        held[newcomer] += 1
        return max(self._sessions, key=lambda one: held[self._sessions[one].token])

    def who(self, one: str) -> str:
        """The name of a session's person, for the audit log."""
        return self._sessions[one].who

    def find(self, request: web.Request) -> Session | None:
        """The session of a request."""
        held = self._sessions.get(request.cookies.get(cookie_name(request), ""))
        if held is None or held.ends <= self._clock() or held.generation != self._access.generation:
            return None
        return held

    def check(self, request: web.Request, csrf: str) -> Session:
        """The session of a request that changes something. Raises Refusal."""
        held = self.find(request)
        if held is None:
            raise Refusal(_NO_SESSION, 401, "no_token")
        if not hmac.compare_digest(csrf.encode("utf-8", "replace"), held.csrf.encode()):
            raise Refusal(_FORGED, 403, "csrf")
        return held

    def sign_out(self, request: web.Request) -> None:
        self._sessions.pop(request.cookies.get(cookie_name(request), ""), None)


def cookie_name(request: web.Request) -> str:
    """The cookie's name. Cookies do not keep ports apart, and a machine may run several keyfences."""
    try:
        return f"keyfence_{request.url.port}"
    except ValueError:  # a Host header that is not one
        return "keyfence"


def set_cookie(request: web.Request, response: web.StreamResponse, value: str) -> None:
    """Have the browser send the id of a session: to this host only, and from no other site's links."""
    is_tls = request.headers.get("Origin", "").startswith("https:")
    response.set_cookie(
        cookie_name(request), value, max_age=int(LIFETIME), httponly=True, samesite="Strict", secure=is_tls
    )


def drop_cookie(request: web.Request, response: web.StreamResponse) -> None:
    response.del_cookie(cookie_name(request), httponly=True, samesite="Strict")
