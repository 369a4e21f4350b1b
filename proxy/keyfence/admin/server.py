"""The admin listener, for operators, and the metrics listener, for scrapers and probes.

Rule: a request is checked first (who sends it, see `access`; its form, see `bodies`) and then handed to
`Control`; nothing here decides anything. A request that changes or evaluates something takes `Content-Type:
application/json` only. A web page cannot send that to another origin without a preflight, and preflights are
never granted. DELETE needs a preflight in any case.

All errors are JSON: `{"error": "one sentence"}`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from keyfence.net.addresses import Address, bind
from keyfence.net.host_port import host_port
from keyfence.telemetry.operator_log import notice

from .access import FAILURE_SECONDS, Access, Refusal
from .bodies import MAX_BODY, BadRequest, json_answer
from .connections import DEFAULT_BOUNDS, Bounds, Connection, Connections
from .control import Control
from .routes import ROUTES, Route, checks_host, index, needs_operator

_log = logging.getLogger("keyfence.admin")


class Server:
    """One listener, which serves until it is closed."""

    def __init__(self, address: str, connections: Connections) -> None:
        self.url = f"http://{address}"
        self.close = connections.close


async def start_admin(
    control: Control,
    access: Access,
    address: Address,
    bounds: Bounds = DEFAULT_BOUNDS,
) -> Server:
    """Serve all routes. Port 0 takes a free port. Raises OSError if the address cannot be bound."""
    connections = Connections("admin", bounds)
    return await _serve(control, access, ROUTES, address, connections)


async def start_metrics(
    control: Control,
    address: Address,
    bounds: Bounds = DEFAULT_BOUNDS,
) -> Server:
    """Serve the routes for scrapers and probes only, without access checks. Raises OSError."""
    connections = Connections("metrics", bounds)
    routes = [route for route in ROUTES if route.on_metrics]
    return await _serve(control, None, routes, address, connections)


async def _serve(
    control: Control,
    access: Access | None,
    routes: Iterable[Route],
    address: Address,
    connections: Connections,
) -> Server:
    app = web.Application(middlewares=[_guard(connections, access)], client_max_size=MAX_BODY)
    app.on_response_prepare.append(_headers)
    for route in (web.get("/", _index_page(routes)), *(_bound(route, control) for route in routes)):
        route.register(app.router)
    bound = bind(address)
    try:
        await connections.serve(app, bound)
    except BaseException:
        bound.close()
        raise
    return Server(host_port(*bound.sockets[0].getsockname()[:2]), connections)


def _index_page(routes: Iterable[Route]) -> Handler:
    text = index(routes)

    async def index_page(_: web.Request) -> web.StreamResponse:
        return web.Response(text=text)

    return index_page


def _bound(route: Route, control: Control) -> web.RouteDef:
    """A route with its `Control`, as aiohttp takes it. A GET route serves HEAD too."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return await route.handler(control, request)

    if route.method == "GET":
        return web.get(route.path, handle)
    return web.route(route.method, route.path, handle)


def _guard(connections: Connections, access: Access | None) -> Middleware:
    """The middleware before each handler. `access` is None for the metrics listener: it changes nothing."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = connections.of(request)
        if connection is None:
            return _gone()
        connection.asked()
        try:
            if access is not None:
                _check(access, request)
            await _take_body(request, connections)
            connection.works = True
            return await handler(request)
        except Refusal as refusal:
            return await _refuse(refusal, connections, connection)
        except BadRequest as fault:
            return json_answer({"error": str(fault)}, fault.status)
        except web.HTTPException as answer:
            response = json_answer({"error": _http_sentence(request, answer)}, answer.status)
            if "Allow" in answer.headers:
                response.headers["Allow"] = answer.headers["Allow"]
            return response
        except ConnectionError:
            return _gone()
        except Exception:
            _log.exception("%s %s failed", request.method, request.path)
            return json_answer({"error": "An internal error; see keyfence's own log."}, 500)
        finally:
            connection.answered()

    return guard


def _check(access: Access, request: web.Request) -> None:
    """Hold a request against the table of routes. Raises Refusal."""
    if checks_host(request.path):
        access.check_host(request)
    if needs_operator(request.method, request.path):
        access.check_operator(request)


def _gone() -> web.Response:
    """For a connection that has ended: no one reads it."""
    return web.Response(status=503)


async def _refuse(refusal: Refusal, connections: Connections, connection: Connection) -> web.Response:
    connections.refused(refusal.reason)
    response = json_answer({"error": str(refusal)}, refusal.status)
    if refusal.status == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="keyfence"'
    if refusal.reason == "wrong_token":
        notice("admin token", f"a wrong admin token came from {connection.host}")
        with suppress(TimeoutError):
            await asyncio.wait_for(connection.gone.wait(), FAILURE_SECONDS)
    return response


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
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"


def _http_sentence(request: web.Request, answer: web.HTTPException) -> str:
    if answer.status == 404:
        return "There is no such page; GET / lists all of them."
    if answer.status == 405:
        return f"{request.method} is not served here."
    if answer.status == 413:
        return f"The body is larger than {MAX_BODY} bytes."
    return f"{answer.reason}."
