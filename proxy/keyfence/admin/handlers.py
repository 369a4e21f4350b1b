"""The handlers of the admin listener, one function for each route.

Rule: a handler checks the form of a request and makes one call of `Control`, on findings after `catch_up`. It
decides nothing itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from keyfence.findings.filter import MAX_LIMIT, Filter, sort_by, states
from keyfence.findings.finding import DAY, QUIET_SECONDS
from keyfence.policy.compiled.tenants import Caller
from keyfence.policy.diagnostics import FileError
from keyfence.policy.enforcement.modes import parse_mode
from keyfence.policy.rules import RULES
from keyfence.telemetry.metrics.exposition import CONTENT_TYPE

from .asked import EvidenceSince, Fleet, Listing, News, Question, Readiness, Single, Unused, WhatIf
from .bodies import (
    BadRequest,
    argv_field,
    json_answer,
    long_answer,
    read_fields,
    required_field,
    seconds_field,
    text_field,
)
from .control import Control
from .next_step import next_step
from .queries import number_in, query

_YES, _NO = frozenset({"", "1", "yes", "true"}), frozenset({"0", "no", "false"})
_OF_FINDINGS = {
    *("service", "rule", "state", "owner", "entry", "text", "since"),
    *("sort", "limit", "offset", "format"),  # `format=json` gives a browser what a program gets anyway
}


async def metrics(control: Control, _: web.Request) -> web.Response:
    return web.Response(body=await control.metrics(), headers={"Content-Type": CONTENT_TYPE})


async def healthz(_control: Control, _: web.Request) -> web.Response:
    return json_answer({"status": "alive"})


async def readyz(control: Control, request: web.Request) -> web.Response:
    # Only this parameter is read: probes and proxies may add others.
    strict = request.query.get("strict", "no")
    if strict not in _YES | _NO:
        raise BadRequest(f"'strict' must be yes or no: {strict[:64]!r}.")
    ready, reasons = await control.ready()
    if strict in _YES:
        reasons = [*reasons, *await control.degraded()]
        ready = not reasons
    found = {"ready": ready, "reasons": reasons, "warnings": await control.warnings()}
    return json_answer(found, 200 if ready else 503)


async def status(control: Control, _: web.Request) -> web.Response:
    return json_answer(await control.status())


async def next_(control: Control, _: web.Request) -> web.Response:
    await control.catch_up()
    return json_answer((await next_step(control, await control.traffic()))._asdict())


async def report(control: Control, _: web.Request) -> web.Response:
    return await long_answer(await control.report())


async def modes(control: Control, _: web.Request) -> web.Response:
    return await long_answer(await control.modes())


async def waivers(control: Control, _: web.Request) -> web.Response:
    return await long_answer(await control.waivers())


async def listeners(control: Control, _: web.Request) -> web.Response:
    return json_answer(await control.addresses())


async def workers(control: Control, _: web.Request) -> web.Response:
    return await long_answer(await control.workers())


async def findings(control: Control, request: web.Request) -> web.Response:
    asked = query(request, _OF_FINDINGS)
    if asked.get("format", "json") != "json":
        raise BadRequest(f"'format' must be json or csv: {asked['format'][:64]!r}.")
    with _value_errors_as_answers():
        which = Filter(
            **{name: asked.get(name, "") for name in ("service", "rule", "owner", "entry", "text")},
            state=states(asked.get("state", "")),
            since=number_in(asked, "since", 0.0),
            sort=sort_by(asked.get("sort", "")),
            limit=min(int(number_in(asked, "limit", MAX_LIMIT)), MAX_LIMIT),
            offset=int(number_in(asked, "offset", 0.0)),
        )
    return await _asked(control, Listing(which))


async def _asked(control: Control, question: Question, status: int = 400) -> web.Response:
    """The answer to a question about findings; it takes everything into account that was counted so far."""
    with _value_errors_as_answers(status):
        await control.catch_up()
        return await long_answer(await control.ask(question))


async def evidence(control: Control, request: web.Request) -> web.Response:
    since = number_in(query(request, {"since"}), "since", 0.0)
    return await _asked(control, EvidenceSince(since))


async def finding(control: Control, request: web.Request) -> web.Response:
    return await _asked(control, Single(request.match_info["id"]), 404)


async def readiness(control: Control, request: web.Request) -> web.Response:
    quiet = number_in(query(request, {"quiet"}), "quiet", QUIET_SECONDS)
    return await _asked(control, Readiness(quiet))


async def fleet(control: Control, _: web.Request) -> web.Response:
    return await _asked(control, Fleet())


async def news(control: Control, request: web.Request) -> web.Response:
    asked = query(request, {"since", "owner"})
    since = number_in(asked, "since", time.time() - DAY)
    return await _asked(control, News(since, asked.get("owner", "")))


async def unused(control: Control, request: web.Request) -> web.Response:
    seconds = number_in(query(request, {"for"}), "for", 30 * DAY)
    return await _asked(control, Unused(seconds))


async def what_if(control: Control, request: web.Request) -> web.Response:
    asked = query(request, {"mode", "service", "since"})
    service = asked.get("service", "")
    with _value_errors_as_answers():
        modes = [parse_mode(text, service) for text in request.query.getall("mode", ["*=enforce"])]
    return await _asked(control, WhatIf(modes, service, number_in(asked, "since", 0.0)))


async def explain(control: Control, request: web.Request) -> web.Response:
    body = await read_fields(request, {"service", "argv", "user", "certificate"})
    service = required_field(body, "service")
    argv, user, name = argv_field(body), text_field(body, "user"), text_field(body, "certificate")
    caller = Caller(user.encode("utf-8", "replace") if user else None, (name,) if name else ())
    with _value_errors_as_answers():
        return await long_answer(await control.explain(service, argv, caller))


async def observe(control: Control, request: web.Request) -> web.Response:
    body = await read_fields(request, {"for", "rule", "service"})
    rule = text_field(body, "rule")
    if rule is not None and rule not in RULES:
        raise BadRequest(f'"rule" is not a known rule: {rule[:64]!r}.')
    seconds, service = seconds_field(body), text_field(body, "service")
    with _value_errors_as_answers():
        return json_answer(await control.observe(seconds, rule, service))


async def end_observe(control: Control, _: web.Request) -> web.Response:
    return json_answer(await control.end_observe())


async def reload(control: Control, request: web.Request) -> web.Response:
    await read_fields(request, set())
    try:
        return json_answer(await control.reload())
    except FileError as fault:
        return _faults(fault, "nothing was reloaded")


async def candidate(control: Control, _: web.Request) -> web.Response:
    with _value_errors_as_answers():
        return await long_answer(await control.candidate())


async def standing(control: Control, _: web.Request) -> web.Response:
    with _value_errors_as_answers():
        return await long_answer(await control.standing())


async def load_candidate(control: Control, request: web.Request) -> web.Response:
    body = await read_fields(request, {"file", "for"})
    purpose = text_field(body, "for")
    if purpose is not None and (purpose != "cluster" or "file" in body):
        raise BadRequest('"for" may be "cluster", without a "file".')
    try:
        with _value_errors_as_answers():
            if purpose is not None:
                return json_answer(await control.rehearse())
            return json_answer(await control.load_candidate(required_field(body, "file")))
    except FileError as fault:
        return _faults(fault, "no candidate was loaded")


async def drop_candidate(control: Control, _: web.Request) -> web.Response:
    return json_answer(await control.drop_candidate())


async def promote_candidate(control: Control, request: web.Request) -> web.Response:
    await read_fields(request, set())
    try:
        with _value_errors_as_answers():
            return json_answer(await control.promote_candidate())
    except FileError as fault:
        return _faults(fault, "nothing was promoted")


def _faults(error: FileError, consequence: str) -> web.Response:
    """The answer to a request that faulty files prevent."""
    faults = [str(one) for one in error.diagnostics]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return json_answer({"error": f"{consequence}: {faults[0]}{more}", "diagnostics": faults}, 422)


async def restart(control: Control, request: web.Request) -> web.Response:
    await read_fields(request, set())
    with _value_errors_as_answers():
        return json_answer(await control.restart())


@contextmanager
def _value_errors_as_answers(status: int = 400) -> Iterator[None]:
    """A ValueError of `Control` is about the request, so its text is the answer."""
    try:
        yield
    except ValueError as fault:
        raise BadRequest(str(fault), status) from None
