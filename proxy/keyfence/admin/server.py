"""The admin listener: metrics, health, the report, and the switch that stops enforcement for a while; and the
metrics listener, which has the first two alone.

Rule: nothing here decides anything; a request is checked for who asks (`admin_access`) and for its form, and
handed to `Control`. What changes or judges something takes `Content-Type: application/json` only, which a web
page can't send to another origin without a preflight, and preflights are never granted; DELETE needs one
anyway.

`/metrics`, `/healthz` and `/readyz` are answered under any name: they name no key and change nothing, and
scrapers and probes call by all sorts of names.

All errors are JSON: `{"error": "one sentence"}`. Arguments of a command are JSON strings in UTF-8; a byte
that isn't UTF-8 is the lone surrogate U+DC80…U+DCFF that Python's `surrogateescape` makes of it (0xFF is
`\\udcff`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from keyfence.net.addresses import Address, bind
from keyfence.net.host_port import host_port
from keyfence.policy.compiled.tenants import Caller
from keyfence.policy.diagnostics import FileError
from keyfence.policy.rules import RULES
from keyfence.telemetry.metrics import CONTENT_TYPE
from keyfence.telemetry.operator_log import notice

from .access import FAILURE_SECONDS, Access, Refusal
from .connections import DEFAULT_BOUNDS, Bounds, Connection, Connections

MAX_BODY = 1 << 20  # bytes
MAX_OBSERVE = 86_400.0  # seconds: what must last longer belongs into the configuration

_OPEN_PATHS = frozenset({"/metrics", "/healthz", "/readyz"})
_INDEX = """keyfence

GET    /metrics     counters in Prometheus' text format
GET    /healthz     200 while the process lives
GET    /readyz      200 once clients can be served, else 503 with the reasons
GET    /status      what runs: policy, revision, modes, upstream, workers, clients, since when
GET    /report      violations so far: service, rule, command, entry or key shape, counts
GET    /modes       which rule is observed, enforced or disabled for which service
GET    /waivers     the violations that are tolerated
GET    /listeners   the addresses that clients connect to, and whose they are
POST   /explain     {"service": "...", "argv": ["GET", "key"]}: how the policy in force judges a command;
                    "user" and "certificate" say who sends it, where the policy asks for that
POST   /-/observe   {"for": seconds, "rule": "...", "service": "..."}: observe in place of enforcing; rule and
                    service may be left out, which means all of them
DELETE /-/observe   enforce again
GET    /workers     the processes that serve clients
POST   /-/reload    {}: read policy, configuration and waivers again; 422 with all faults where one is wrong
POST   /-/restart   {}: replace the workers one by one; answers when that is done
"""

_METRICS_INDEX = "\n".join(_INDEX.splitlines()[:5]) + "\n"

_log = logging.getLogger("keyfence.admin")

Value = TypeVar("Value")


class Control(Protocol):
    """What the admin listener asks of the process. Where several workers must be asked, a method may be a
    coroutine. ValueError means that what was asked for is wrong (an unknown service), and its text is the
    answer."""

    def ready(self) -> tuple[bool, list[str]] | Awaitable[tuple[bool, list[str]]]:
        """Whether clients can be served: listeners are up and the upstream answers. If not, why."""

    def report(self) -> Sequence[Mapping[str, Any]] | Awaitable[Sequence[Mapping[str, Any]]]:
        """The tally's rows, of all workers."""

    def modes(self) -> Mapping[str, Any] | Awaitable[Mapping[str, Any]]:
        """The matrix of rules and services."""

    def status(self) -> Mapping[str, Any] | Awaitable[Mapping[str, Any]]:
        """What runs, and since when."""

    def waivers(self) -> Sequence[Mapping[str, Any]] | Awaitable[Sequence[Mapping[str, Any]]]:
        """The waivers in force."""

    def addresses(self) -> Sequence[Mapping[str, Any]] | Awaitable[Sequence[Mapping[str, Any]]]:
        """Where clients connect: `{"address": "HOST:PORT", "service": …}`, service empty where none is
        named."""

    def explain(
        self, service: str, argv: list[bytes], caller: Caller
    ) -> Mapping[str, Any] | Awaitable[Mapping[str, Any]]:
        """How the policy, modes and waivers in force judge a command."""

    def observe(
        self, seconds: float, rule: str | None, service: str | None
    ) -> Mapping[str, Any] | Awaitable[Mapping[str, Any]]:
        """Observe in place of enforcing for a while: a rule, a service, both, or (None) all of them."""

    def end_observe(self) -> Mapping[str, Any] | Awaitable[Mapping[str, Any]]:
        """End what `observe` began."""

    def workers(self) -> Sequence[Mapping[str, Any]] | Awaitable[Sequence[Mapping[str, Any]]]:
        """The processes that serve clients: slot, pid, state, when each was started, policies' revisions."""

    def reload(self) -> Mapping[str, Any] | Awaitable[Mapping[str, Any]]:
        """Read policy, configuration and waivers again. FileError: something is wrong, and nothing
        changes."""

    def restart(self) -> Mapping[str, Any] | Awaitable[Mapping[str, Any]]:
        """Replace the workers one by one."""

    def metrics(self) -> bytes | Awaitable[bytes]:
        """The counters of all workers in Prometheus' text format."""


class _Fault(Exception):
    """What is wrong with a request, in a sentence, and the status that says so."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


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
    """Serve everything; port 0 takes a free one. Raises OSError where the address can't be taken."""
    connections = Connections("admin", bounds)
    app = web.Application(middlewares=[_guard(connections, access)], client_max_size=MAX_BODY)
    handlers = _Handlers(control, _INDEX)
    _add_open(app, handlers)
    app.router.add_get("/status", handlers.status)
    app.router.add_get("/report", handlers.report)
    app.router.add_get("/waivers", handlers.waivers)
    app.router.add_get("/modes", handlers.modes)
    app.router.add_get("/listeners", handlers.listeners)
    app.router.add_post("/explain", handlers.explain)
    app.router.add_post("/-/observe", handlers.observe)
    app.router.add_delete("/-/observe", handlers.end_observe)
    app.router.add_get("/workers", handlers.workers)
    app.router.add_post("/-/reload", handlers.reload)
    app.router.add_post("/-/restart", handlers.restart)
    return await _serve(app, address, connections)


async def start_metrics(
    control: Control,
    address: Address,
    bounds: Bounds = DEFAULT_BOUNDS,
) -> Server:
    """Serve what a scraper and a probe need, and nothing else. Raises OSError."""
    connections = Connections("metrics", bounds)
    app = web.Application(middlewares=[_guard(connections, None)], client_max_size=MAX_BODY)
    _add_open(app, _Handlers(control, _METRICS_INDEX))
    return await _serve(app, address, connections)


def _add_open(app: web.Application, handlers: _Handlers) -> None:
    app.router.add_get("/", handlers.index)
    app.router.add_get("/metrics", handlers.metrics)
    app.router.add_get("/healthz", handlers.healthz)
    app.router.add_get("/readyz", handlers.readyz)
    app.on_response_prepare.append(_headers)


async def _serve(app: web.Application, address: Address, connections: Connections) -> Server:
    bound = bind(address)
    try:
        await connections.serve(app, bound)
    except BaseException:
        bound.close()
        raise
    return Server(host_port(*bound.sockets[0].getsockname()[:2]), connections)


class _Handlers:
    def __init__(self, control: Control, index: str) -> None:
        self._control = control
        self._index = index

    async def index(self, _: web.Request) -> web.Response:
        return web.Response(text=self._index)

    async def metrics(self, _: web.Request) -> web.Response:
        body = await _settled(self._control.metrics())
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def healthz(self, _: web.Request) -> web.Response:
        return _json({"status": "alive"})

    async def readyz(self, _: web.Request) -> web.Response:
        ready, reasons = await _settled(self._control.ready())
        return _json({"ready": ready, "reasons": reasons}, 200 if ready else 503)

    async def status(self, _: web.Request) -> web.Response:
        return _json(await _settled(self._control.status()))

    async def waivers(self, _: web.Request) -> web.Response:
        return _json(await _settled(self._control.waivers()))

    async def report(self, _: web.Request) -> web.Response:
        return _json(await _settled(self._control.report()))

    async def modes(self, _: web.Request) -> web.Response:
        return _json(await _settled(self._control.modes()))

    async def listeners(self, _: web.Request) -> web.Response:
        return _json(await _settled(self._control.addresses()))

    async def explain(self, request: web.Request) -> web.Response:
        body = await _body(request, {"service", "argv", "user", "certificate"})
        service = _text(body, "service")
        if service is None:
            raise _Fault('"service" is missing.')
        argv, user, name = _argv(body), _text(body, "user"), _text(body, "certificate")
        caller = Caller(user.encode("utf-8", "replace") if user else None, (name,) if name else ())
        with _asked_for():
            answer = await _settled(self._control.explain(service, argv, caller))
        return _json(answer)

    async def observe(self, request: web.Request) -> web.Response:
        body = await _body(request, {"for", "rule", "service"})
        rule = _text(body, "rule")
        if rule is not None and rule not in RULES:
            raise _Fault(f'"rule" is no known rule: {rule[:64]!r}.')
        seconds, service = _seconds(body), _text(body, "service")
        with _asked_for():
            answer = await _settled(self._control.observe(seconds, rule, service))
        return _json(answer)

    async def end_observe(self, _: web.Request) -> web.Response:
        return _json(await _settled(self._control.end_observe()))

    async def workers(self, _: web.Request) -> web.Response:
        return _json(await _settled(self._control.workers()))

    async def reload(self, request: web.Request) -> web.Response:
        await _body(request, set())
        try:
            return _json(await _settled(self._control.reload()))
        except FileError as fault:
            told = [str(one) for one in fault.diagnostics]
            more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
            error = f"nothing was reloaded: {told[0]}{more}"
            return _json({"error": error, "diagnostics": told}, 422)

    async def restart(self, request: web.Request) -> web.Response:
        await _body(request, set())
        with _asked_for():
            answer = await _settled(self._control.restart())
        return _json(answer)


@contextmanager
def _asked_for() -> Iterator[None]:
    """Control's ValueError is about what was asked for."""
    try:
        yield
    except ValueError as fault:
        raise _Fault(str(fault)) from None


def _guard(connections: Connections, access: Access | None) -> Middleware:
    """What stands before each handler. Without `access` nothing changes anything, so all may ask."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = connections.of(request)
        if connection is None:
            return _gone()
        connection.asked()
        try:
            if access is not None:
                if request.path not in _OPEN_PATHS:
                    access.check_host(request)
                access.check_change(request)
            await _take_body(request, connections)
            connection.works = True
            return await handler(request)
        except Refusal as refusal:
            return await _refuse(refusal, connections, connection)
        except _Fault as fault:
            return _json({"error": str(fault)}, fault.status)
        except web.HTTPException as answer:
            response = _json({"error": _http_sentence(request, answer)}, answer.status)
            if "Allow" in answer.headers:
                response.headers["Allow"] = answer.headers["Allow"]
            return response
        except ConnectionError:
            return _gone()
        except Exception:
            _log.exception("%s %s failed", request.method, request.path)
            return _json({"error": "An internal error; the proxy's own log tells more."}, 500)
        finally:
            connection.answered()

    return guard


def _gone() -> web.Response:
    """For a connection that has ended; nobody reads it."""
    return web.Response(status=503)


async def _refuse(refusal: Refusal, connections: Connections, connection: Connection) -> web.Response:
    connections.refused(refusal.reason)
    response = _json({"error": str(refusal)}, refusal.status)
    if refusal.status == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="keyfence"'
    if refusal.reason == "wrong_token":
        notice("admin token", f"a wrong admin token came from {connection.host}")
        with suppress(TimeoutError):
            await asyncio.wait_for(connection.gone.wait(), FAILURE_SECONDS)
    return response


async def _take_body(request: web.Request, connections: Connections) -> None:
    """Read the body as a whole, which stays with the request. Raises _Fault, HTTPException."""
    try:
        async with asyncio.timeout(connections.bounds.times.body):
            await request.read()
    except TimeoutError:
        connections.refused("body_time")
        raise _Fault("The body didn't come in time.", 408) from None
    except web.RequestPayloadError:
        raise _Fault("The body isn't what its header says.") from None


async def _headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "keyfence"
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"


def _http_sentence(request: web.Request, answer: web.HTTPException) -> str:
    if answer.status == 404:
        return "There is no such page; GET / lists what there is."
    if answer.status == 405:
        return f"{request.method} isn't served here."
    if answer.status == 413:
        return f"The body is larger than {MAX_BODY} bytes."
    return f"{answer.reason}."


async def _settled(value: Value | Awaitable[Value]) -> Value:
    if isinstance(value, Awaitable):
        awaited: Value = await value
        return awaited
    return value


def _json(value: object, status: int = 200) -> web.Response:
    return web.json_response(value, status=status, dumps=_dumps)


def _dumps(value: object) -> str:
    # ASCII only: a lone surrogate of an argument goes back as it came.
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False) + "\n"


async def _body(request: web.Request, known: set[str]) -> dict[str, Any]:
    """The JSON object that a request carries, with no other fields than the known ones."""
    if request.content_type != "application/json":
        raise _Fault("Content-Type must be application/json.", 415)
    try:
        body = json.loads((await request.read()).decode("utf-8"), object_pairs_hook=_without_doubles)
    except UnicodeDecodeError:
        raise _Fault("The body isn't UTF-8.") from None
    except json.JSONDecodeError as fault:
        raise _Fault(
            f"The body isn't JSON: {fault.msg} at line {fault.lineno}, column {fault.colno}."
        ) from None
    except ValueError:  # a number of thousands of digits
        raise _Fault("The body holds a number that is too long.") from None
    except RecursionError:
        raise _Fault("The body is nested too deeply.") from None
    if not isinstance(body, dict):
        raise _Fault("The body must be a JSON object.")
    unknown = sorted(body.keys() - known)
    if unknown:
        there = f"there are {', '.join(sorted(known))}" if known else "there are none"
        raise _Fault(f"Unknown field {unknown[0][:64]!r}; {there}.")
    return body


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise _Fault("A field is given twice.")
    return fields


def _text(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and (not isinstance(value, str) or not value):
        raise _Fault(f'"{name}" must be a text, and not empty.')
    return value


def _argv(body: Mapping[str, Any]) -> list[bytes]:
    argv = body.get("argv")
    if not isinstance(argv, list) or not argv or not all(isinstance(part, str) for part in argv):
        raise _Fault('"argv" must be a list of texts, the command\'s name first.')
    try:
        return [part.encode("utf-8", "surrogateescape") for part in argv]
    except UnicodeEncodeError:
        raise _Fault(
            '"argv" holds a surrogate that stands for no byte; bytes are U+DC80 to U+DCFF.'
        ) from None


def _seconds(body: Mapping[str, Any]) -> float:
    value = body.get("for")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Fault('"for" must be a number of seconds.')
    if not 0 < value <= MAX_OBSERVE:
        raise _Fault(f'"for" must be more than 0 and at most {MAX_OBSERVE:.0f} seconds.')
    return float(value)
