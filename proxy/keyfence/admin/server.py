"""The admin listener, for operators, and the metrics listener, for scrapers and probes.

Rule: a request is checked first (who sends it, see `access`; its form, see `bodies`) and then handed to
`Control`; nothing here decides anything. A request that changes or evaluates something takes `Content-Type:
application/json` only. A web page cannot send that to another origin without a preflight, and preflights are
never granted. DELETE needs a preflight in any case.

Errors are JSON, `{"error": "one sentence"}`; browsers get a page.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, Protocol

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from keyfence.net.addresses import Address, Bound, bind, url_at
from keyfence.telemetry.operator_log import notice

from .access import FAILURE_SECONDS, Access, Refusal
from .acting import acting_as
from .audit import PROGRAM, Audit
from .bodies import MAX_BODY, BadRequest, json_answer
from .bounds import DEFAULT_BOUNDS, Bounds
from .connections import Connection, Connections
from .control import Control
from .routes import READING, ROUTES, Route, checks_host, index, needed_role

MAX_DETAIL = 500  # characters of a request's body in the audit log

_log = logging.getLogger("keyfence.admin")


class Site(Protocol):
    """The page for people, beside the routes for programs."""

    @property
    def routes(self) -> Sequence[SiteRoute]:
        """Its own routes."""

    def view(self, path: str) -> Handler | None:
        """What a browser gets in place of the answer of a GET route; None: the same as a program."""

    def wants_page(self, request: web.Request) -> bool:
        """Whether a browser asks."""

    async def get_ready(self, request: web.Request) -> None:
        """Called before everything else that is done for a request."""

    def error(self, request: web.Request, text: str, status: int) -> web.Response | None:
        """An error for a browser; None: a program asks."""

    async def close(self) -> None:
        """End what would keep the listener from closing."""


class SiteRoute(NamedTuple):
    """A route of the page. Its handler checks who may use it. Other sites' pages may not POST to it."""

    method: Literal["GET", "POST"]
    path: str
    handler: Handler


class Server:
    """One listener, which serves until it is closed."""

    def __init__(self, url: str, connections: Connections) -> None:
        self.url = url
        self.close = connections.close


async def start_admin(
    control: Control,
    access: Access,
    address: Address | Bound,
    bounds: Bounds = DEFAULT_BOUNDS,
    *,
    audit: Audit | None = None,
    site: Callable[[Connections], Site] | None = None,
) -> Server:
    """Serve all routes, and the page that `site` makes. Port 0 takes a free port. The server closes a `Bound`
    that it is given. Raises OSError if the address cannot be bound."""
    connections = Connections("admin", bounds)
    page = None if site is None else site(connections)
    guard = Guard(connections, access, audit, page)
    return await _serve(control, guard, ROUTES, address)


async def start_metrics(
    control: Control,
    address: Address | Bound,
    bounds: Bounds = DEFAULT_BOUNDS,
) -> Server:
    """Serve the routes for scrapers and probes only, without access checks. Raises OSError."""
    connections = Connections("metrics", bounds)
    routes = [route for route in ROUTES if route.on_metrics]
    return await _serve(control, Guard(connections), routes, address)


async def _serve(control: Control, guard: Guard, routes: Iterable[Route], address: Address | Bound) -> Server:
    app = web.Application(middlewares=[guard.middleware], client_max_size=MAX_BODY)
    app.on_response_prepare.append(_headers)
    for route in (
        _index_route(routes, guard.site),
        *(_bound(route, control, guard.site) for route in routes),
    ):
        route.register(app.router)
    if guard.site is not None:
        _add_site(app, guard.site)
    bound = address if isinstance(address, Bound) else bind(address)
    try:
        await guard.connections.serve(app, bound)
    except BaseException:
        bound.close()
        raise
    return Server(url_at(bound), guard.connections)


def _add_site(app: web.Application, site: Site) -> None:
    for one in site.routes:
        make = web.get if one.method == "GET" else web.post  # a GET route serves HEAD too
        make(one.path, one.handler).register(app.router)

    async def close(_: web.Application) -> None:
        await site.close()

    app.on_shutdown.append(close)  # which comes before the wait for requests in progress


def _index_route(routes: Iterable[Route], site: Site | None) -> web.RouteDef:
    text = index(routes)

    async def index_page(_: web.Request) -> web.StreamResponse:
        return web.Response(text=text, headers={"Vary": "Accept"})

    return web.get("/", _for_browsers_too(index_page, "/", site))


def _bound(route: Route, control: Control, site: Site | None) -> web.RouteDef:
    """A route with its `Control`, as aiohttp takes it. A GET route serves HEAD too."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return await route.handler(control, request)

    if route.method == "GET":
        return web.get(route.path, _for_browsers_too(handle, route.path, site))
    return web.route(route.method, route.path, handle)


def _for_browsers_too(handler: Handler, path: str, site: Site | None) -> Handler:
    view = None if site is None else site.view(path)
    if site is None or view is None:
        return handler

    async def handle(request: web.Request) -> web.StreamResponse:
        return await (view if site.wants_page(request) else handler)(request)

    return handle


class Guard:
    """What stands before each handler: the checks of a request, and the form of errors."""

    def __init__(
        self,
        connections: Connections,
        access: Access | None = None,
        audit: Audit | None = None,
        site: Site | None = None,
    ) -> None:
        """`access` is None for the metrics listener: it changes nothing."""
        self.connections = connections
        self.site = site
        self._access = access
        self._audit = audit
        self._of_site = {(one.method, one.path) for one in site.routes} if site is not None else set()

    @property
    def middleware(self) -> Middleware:
        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._guarded(request, handler)

        return guard

    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = self.connections.of(request)
        if connection is None:
            return _gone()
        connection.asked()
        try:
            who = PROGRAM
            if self.site is not None:
                await self.site.get_ready(request)
            if self._access is not None:
                who = self._check(self._access, request) or PROGRAM
            await _take_body(request, self.connections)
            connection.works = True
            with acting_as(who):
                response = await handler(request)
            await self._note(request, connection, response, who)
            return response
        except Refusal as refusal:
            return await self._refuse(refusal, request, connection)
        except BadRequest as fault:
            return self._error(request, str(fault), fault.status)
        except web.HTTPException as answer:
            response = self._error(request, _http_sentence(request, answer), answer.status)
            if "Allow" in answer.headers:
                response.headers["Allow"] = answer.headers["Allow"]
            return response
        except ConnectionError:
            return _gone()
        except Exception:
            _log.exception("%s %s failed", request.method, request.path)
            return self._error(request, "An internal error; see keyfence's own log.", 500)
        finally:
            connection.answered()

    def _check(self, access: Access, request: web.Request) -> str:
        """Hold a request against the table of routes. Returns the name of its token, if it needed one that
        has a name. Raises Refusal."""
        if checks_host(request.path):
            access.check_host(request)
        access.check_site(request)
        route = request.match_info.route.resource
        is_of_site = (request.method, route.canonical if route is not None else "") in self._of_site
        role = needed_role(request.method, request.path)
        return "" if is_of_site or role is None else access.check_operator(request, role)

    async def _note(
        self, request: web.Request, connection: Connection, response: web.StreamResponse, who: str
    ) -> None:
        """Write down a change that came through a route for programs; the page writes down its own."""
        if self._audit is None or request.method in READING or not request.path.startswith("/-/"):
            return
        outcome = "done" if response.status < 400 else f"status {response.status}"
        body = (await request.read()).decode("utf-8", "replace").strip()
        detail = body[:MAX_DETAIL] if body != "{}" else ""
        action = f"{request.method} {request.path}"
        self._audit.note(who, connection.host, action, detail, "", outcome, aloud=False)

    async def _refuse(self, refusal: Refusal, request: web.Request, connection: Connection) -> web.Response:
        self.connections.refused(refusal.reason)
        response = self._error(request, str(refusal), refusal.status)
        if refusal.status == 401:
            response.headers["WWW-Authenticate"] = 'Bearer realm="keyfence"'
        if refusal.reason == "wrong_token":
            notice("admin token", f"a wrong admin token came from {connection.host}")
            connection.works = False  # so that those who guess make room for others
            with suppress(TimeoutError):
                await asyncio.wait_for(connection.gone.wait(), FAILURE_SECONDS)
        return response

    def _error(self, request: web.Request, text: str, status: int) -> web.Response:
        page = None if self.site is None else self.site.error(request, text, status)
        return json_answer({"error": text}, status) if page is None else page


def _gone() -> web.Response:
    """For a connection that has ended: no one reads it."""
    return web.Response(status=503)


async def _take_body(request: web.Request, connections: Connections) -> None:
    """Read the whole body; aiohttp keeps it with the request. Raises BadRequest, HTTPException."""
    try:
        async with asyncio.timeout(connections.bounds.times.body):
            await request.read()
    except TimeoutError:
        connections.refused("body_time")
        raise BadRequest("The body did not arrive in time.", 408) from None
    except web.RequestPayloadError:
        raise BadRequest("The body does not match its header.") from None


async def _headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "keyfence"
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers["X-Content-Type-Options"] = "nosniff"


def _http_sentence(request: web.Request, answer: web.HTTPException) -> str:
    if answer.status == 404:
        return "There is no such page; GET / lists all of them."
    if answer.status == 405:
        return f"{request.method} is not served here."
    if answer.status == 413:
        return f"The body is larger than {MAX_BODY} bytes."
    return f"{answer.reason}."
