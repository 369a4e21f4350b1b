"""The page over HTTP: its routes, its forms, and which requests get it.

Rule: browsers and programs use the same addresses, and the Accept header decides which answer they get. Every
change needs a session and the form's own secret, and is written to the audit log with who and why.
"""

from __future__ import annotations

import asyncio
import csv
import dataclasses
import io
import time
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from aiohttp import web
from aiohttp.typedefs import Handler

from keyfence.admin.access import Access, check_role
from keyfence.admin.acting import acting_as
from keyfence.admin.asked import Listing
from keyfence.admin.audit import Audit
from keyfence.admin.beside import answers
from keyfence.admin.bodies import BadRequest
from keyfence.admin.connections import Connections
from keyfence.admin.control import Control
from keyfence.admin.queries import query
from keyfence.admin.server import SiteRoute
from keyfence.findings.filter import MAX_LIMIT
from keyfence.policy.diagnostics import FileError
from keyfence.policy.show import cell
from keyfence.policy.units import clock_text

from .actions import ACTIONS, ROLES, Outcome, required
from .asked_once import Questions
from .live import MAX_STREAMS, Live, TooMany
from .render import SECURITY_POLICY, asset, prepare, render
from .sessions import Notice, Session, Sessions, drop_cookie, set_cookie
from .views import FLEET, LOOK, MENU, MENU_OF_LOOK, VIEWS, VIEWS_OF_LOOK, Values, View, filter_of
from .words import inert, sentence

_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_FOREVER = "public, max-age=31536000, immutable"  # the address of an asset changes with its content
_FORM = "application/x-www-form-urlencoded"
MAX_FORM = 1 << 15  # bytes; decoding a form of a MiB would keep all clients waiting for tenths of a second
_COLUMNS = ("id", "state", "service", "rule", "command", "entry", "shape", "severity", "total", "observed")
_MORE_COLUMNS = ("refused", "waived", "late", "first", "last", "owner", "example", "hint")
_SIGN_IN = "/sign-in"


class Page:
    """The page of one admin listener."""

    def __init__(self, control: Control, access: Access, audit: Audit, connections: Connections) -> None:
        self._control = control
        self._audit = audit
        self._connections = connections
        self._questions = Questions(control)
        self._sessions = Sessions(access)
        self._live = Live(self._questions, min(MAX_STREAMS, connections.bounds.connections // 2))
        self._views = {view.path: view for view in VIEWS}
        self._has_fleet = False  # as far as it is known
        self._are_templates_compiled = False

    # -- for the admin listener

    @property
    def routes(self) -> Sequence[SiteRoute]:
        own = ("/services", "/services/{service}", "/policy", "/explain", LOOK)
        return [
            *(SiteRoute("GET", path, self._shown(path)) for path in own),
            SiteRoute("GET", "/live", self._stream),
            SiteRoute("GET", "/assets/{name}", self._asset),
            SiteRoute("GET", _SIGN_IN, self._sign_in_form),
            SiteRoute("POST", _SIGN_IN, self._sign_in),
            SiteRoute("POST", "/sign-out", self._sign_out),
            SiteRoute("POST", "/do/{action}", self._do),
        ]

    def view(self, path: str) -> Handler | None:
        return self._shown(path) if path in self._views else None

    def wants_page(self, request: web.Request) -> bool:
        wanted = request.query.get("format", "")
        # The list for spreadsheets is the page's too.
        return _is_csv(request) or (not wanted and _takes_html(request))

    async def get_ready(self, request: web.Request) -> None:
        """Compile the templates for the first browser, whatever it gets: a view, a form, an error."""
        if _takes_html(request):
            await self._compile_templates()

    async def _compile_templates(self) -> None:
        if not self._are_templates_compiled:
            await answers.do(prepare)
            self._are_templates_compiled = True

    def error(self, request: web.Request, text: str, status: int) -> web.Response | None:
        if not _takes_html(request):
            return None
        if request.path == _SIGN_IN and request.method == "POST":
            return self._ask_to_sign_in(request, text, status)
        title = "There is no such page" if status == 404 else "That did not work"
        lines = [] if text.startswith(title) else [text]
        values = {"title": title, "lines": lines, "code": "", "back": "/"}
        return self._answer(request, "outcome.html", values, status)

    async def close(self) -> None:
        self._live.end()

    # -- views

    def _shown(self, path: str) -> Handler:
        view = self._views[path]

        async def show(request: web.Request) -> web.StreamResponse:
            if self._control.looks and path not in VIEWS_OF_LOOK:
                return _see_other(LOOK)
            if path == LOOK and not self._control.looks:
                raise web.HTTPNotFound
            if _is_csv(request):
                return await self._csv(query(request, {*view.parameters, "format"}))
            parameters = query(request, set(view.parameters)) | request.match_info
            await self._compile_templates()  # some views have no answer for programs
            try:
                values = await view.load(self._questions, parameters)
            except BadRequest as exc:
                if exc.status != 400 or (await self._questions.status())["policy"] is not None:
                    raise
                # Without a policy some views are empty. The menu leads there all the same.
                shown = {"title": "Nothing to show", "lines": [str(exc)], "code": "", "back": "/"}
                return self._answer(request, "outcome.html", shown)
            self._has_fleet = await self._questions.has_fleet()
            shell = self._shell(request, view)
            return _html(await answers.do(render, view.template, {**values, **shell}))

        return show

    def _answer(
        self, request: web.Request, template: str, values: Mapping[str, Any], status: int = 200
    ) -> web.Response:
        """A short page."""
        return _html(render(template, {**values, **self._shell(request)}), status)

    def _shell(self, request: web.Request, view: View | None = None) -> Values:
        """What every page shows, beside its own values."""
        session = self._sessions.find(request)
        now = time.time()
        shell = {
            "path": request.path,
            "here": request.path_qs,
            "views": self._menu(),
            "who": session.who if session is not None else "",
            "csrf": session.csrf if session is not None else "",
            "may_sign_in": self._sessions.possible,
            "notices": _taken(session),
            "live": request.path_qs if view is not None and view.regions else "",
            "now": now,
        }
        return {"page": shell, "now": now}

    def _menu(self) -> Sequence[tuple[str, str]]:
        if self._control.looks:
            return MENU_OF_LOOK
        return [one for one in MENU if one[0] != FLEET or self._has_fleet]

    async def _csv(self, parameters: Mapping[str, str]) -> web.Response:
        """The findings of a filter, all of them, for a spreadsheet."""
        which = dataclasses.replace(filter_of(parameters), limit=MAX_LIMIT, offset=0)
        try:
            found = await self._control.ask(Listing(which))
        except ValueError as exc:
            raise BadRequest(str(exc)) from None
        # In a thread, because there may be thousands, and clients wait for this one.
        text = await answers.do(_as_csv, found["findings"])
        headers = {"Content-Disposition": 'attachment; filename="findings.csv"'}
        return web.Response(text=text, content_type="text/csv", charset="utf-8", headers=headers)

    async def _asset(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        content = asset(name)
        if content is None:
            raise web.HTTPNotFound
        headers = {"Cache-Control": _FOREVER, "Content-Security-Policy": SECURITY_POLICY}
        return web.Response(body=content, content_type=_TYPES[name.rpartition(".")[2]], headers=headers)

    # -- the stream

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        if request.method == "HEAD":
            return web.Response(content_type="text/event-stream")
        try:
            stream = self._live.open(query(request, {"view"}).get("view", ""))
        except TooMany:
            raise BadRequest("Too many pages are open; this one is not refreshed.", 503) from None
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        gone: asyncio.Task[Literal[True]] | None = None
        try:
            await response.prepare(request)
            connection = self._connections.of(request)
            if connection is not None:
                connection.works = False  # so that it makes room for others: the browser connects again
                gone = asyncio.create_task(connection.gone.wait())
                gone.add_done_callback(lambda _: stream.end())
            await response.write(b"retry: 3000\n\n")  # milliseconds
            while event := await stream.next():
                await response.write(event)
        except ConnectionError:
            pass  # the page was closed
        finally:
            if gone is not None:
                gone.cancel()
            self._live.close(stream)
        return response

    # -- signing in

    async def _sign_in_form(self, request: web.Request) -> web.Response:
        return self._ask_to_sign_in(request)

    def _ask_to_sign_in(self, request: web.Request, fault: str = "", status: int = 200) -> web.Response:
        values = {"fault": fault, "back": _own_path(request.query.get("back", "/"))}
        return self._answer(request, "sign_in.html", values, status)

    async def _sign_in(self, request: web.Request) -> web.Response:
        form = await _form(request)
        name = required(form, "name")[:100]
        one = self._sessions.sign_in(name, form.get("token", ""))
        response = _see_other(_own_path(form.get("back", "/")))
        set_cookie(request, response, one)
        self._audit.note(self._sessions.who(one), self._host(request), "sign in", "", "", "done")
        return response

    async def _sign_out(self, request: web.Request) -> web.Response:
        self._sessions.check(request, (await _form(request)).get("csrf", ""))
        self._sessions.sign_out(request)
        response = _see_other("/")
        drop_cookie(request, response)
        return response

    # -- actions

    async def _do(self, request: web.Request) -> web.Response:
        form = await _form(request)
        session = self._sessions.check(request, form.get("csrf", ""))
        name = request.match_info["action"]
        action = ACTIONS.get(name)
        if action is None:
            raise web.HTTPNotFound
        check_role(session.token, ROLES.get(name, "operate"))
        why = required(form, "why")[:500]
        try:
            with acting_as(session.who):
                outcome = await action(self._control, form)
        except (BadRequest, ValueError, FileError) as exc:
            said = _sentence(exc)
            self._note(request, session, name, "", why, said)
            session.notices.append(Notice("bad", said))
            return _see_other(_own_path(form.get("back", "/")))
        except Exception as exc:
            self._note(request, session, name, "", why, f"an internal error: {exc!r}")
            raise
        self._questions.forget()
        self._note(request, session, name, outcome.detail, why, "by hand" if outcome.code else "done")
        return self._said(request, session, outcome, _own_path(form.get("back", "/")))

    def _said(self, request: web.Request, session: Session, outcome: Outcome, back: str) -> web.Response:
        if outcome.code:
            values: Values = {"title": outcome.text, "lines": outcome.lines, "code": outcome.code}
            return self._answer(request, "outcome.html", values | {"back": back})
        session.notices.append(Notice("good", " ".join((outcome.text, *outcome.lines))))
        return _see_other(back)

    def _note(
        self, request: web.Request, session: Session, name: str, detail: str, why: str, outcome: str
    ) -> None:
        self._audit.note(session.who, self._host(request), name, detail, why, outcome)

    def _host(self, request: web.Request) -> str:
        connection = self._connections.of(request)
        return "" if connection is None else connection.host


def _takes_html(request: web.Request) -> bool:
    """Whether a browser asks: programs accept anything, and do not name HTML."""
    return "text/html" in request.headers.get("Accept", "")


def _is_csv(request: web.Request) -> bool:
    return request.path == "/findings" and request.query.get("format") == "csv"


def _html(text: str, status: int = 200) -> web.Response:
    response = web.Response(text=text, content_type="text/html", status=status)
    response.headers["Content-Security-Policy"] = SECURITY_POLICY
    # Not "no-referrer": with it, browsers send `Origin: null` with the page's own forms.
    response.headers["Referrer-Policy"] = "same-origin"
    response.headers["Vary"] = "Accept, Cookie"
    return response


def _taken(session: Session | None) -> list[Notice]:
    """The notices of a session, which are shown once."""
    if session is None:
        return []
    notices, session.notices = session.notices, []
    return notices


async def _form(request: web.Request) -> dict[str, str]:
    """The fields of a form. Raises BadRequest."""
    if request.content_type != _FORM:
        raise BadRequest(f"Content-Type must be {_FORM}.", 415)
    body = await request.read()
    if len(body) > MAX_FORM:
        raise BadRequest(f"The form is larger than {MAX_FORM} bytes.", 413)
    try:
        fields = urllib.parse.parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=50)
    except ValueError:
        raise BadRequest("The form cannot be read.") from None
    return dict(fields)


def _own_path(back: str) -> str:
    """A path of this page to go back to; "/" for everything else."""
    is_own = back.startswith("/") and not back.startswith(("//", "/\\")) and back.isprintable()
    return back if is_own else "/"


def _see_other(path: str) -> web.Response:
    return web.Response(status=303, headers={"Location": path})


def _sentence(exc: Exception) -> str:
    """Why an action failed."""
    if isinstance(exc, FileError):
        faults = [str(one) for one in exc.diagnostics]
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        return f"Nothing has changed: {faults[0]}{more}"
    return sentence(str(exc))


def _as_csv(findings: Iterable[Mapping[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow((*_COLUMNS, *_MORE_COLUMNS))
    writer.writerows(map(_cells, findings))
    return file.getvalue()


def _cells(one: Mapping[str, Any]) -> list[str]:
    """A finding as cells of a spreadsheet."""
    examples = one["examples"]
    more = {
        **{action: one["counts"].get(action, 0) for action in ("observed", "refused", "waived", "late")},
        "first": clock_text(one["first"]),
        "last": clock_text(one["last"]),
        "example": examples[0]["key"] if examples else "",
    }
    return [cell(inert({**one, **more}[name])) for name in (*_COLUMNS, *_MORE_COLUMNS)]
