from __future__ import annotations

import asyncio
import dataclasses
import datetime
import io
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import aiohttp
import pytest
import uvloop

from keyfence.admin.access import Access
from keyfence.admin.asked import EvidenceSince, Listing, Question, RightsOf, Single, WhatIf
from keyfence.admin.bodies import MAX_BODY
from keyfence.admin.control import Control
from keyfence.admin.routes import ROUTES
from keyfence.admin.server import start_admin
from keyfence.findings.filter import Filter
from keyfence.findings.finding import DAY
from keyfence.net.addresses import Address
from keyfence.policy.compiled.tenants import NOBODY, Caller
from keyfence.policy.diagnostics import Diagnostic, FileError, Place
from keyfence.policy.enforcement.modes import ModeRule
from keyfence.policy.verdict import Mode
from keyfence.telemetry.counters import Counters
from keyfence.telemetry.metrics.exposition import exposition
from tests.loops import own_loop

ANY_PORT = Address("127.0.0.1:0")


class FakeControl(Control):
    """A process that remembers its calls."""

    looks = False

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.known: list[str] = []
        self.aged: list[str] = []
        self.asked: list[tuple[Any, ...]] = []
        self.faults: list[Diagnostic] = []

    async def ready(self) -> tuple[bool, list[str]]:
        return not self.reasons, self.reasons

    async def warnings(self) -> list[str]:
        return self.known

    async def degraded(self) -> list[str]:
        return self.aged

    async def report(self) -> list[dict[str, Any]]:
        return [{"service": "CubeProxy", "count": 3}]

    async def modes(self) -> dict[str, Any]:
        raise RuntimeError("a bug with a secret")

    async def status(self) -> dict[str, Any]:
        return {"ready": not self.reasons}

    async def waivers(self) -> list[dict[str, Any]]:
        return [{"service": "CubeProxy", "rule": "scope.write"}]

    async def addresses(self) -> list[dict[str, str]]:
        return [{"address": "127.0.0.1:6380", "service": "CubeProxy", "whose": "CubeProxy"}]

    async def catch_up(self) -> int:
        return 0

    def reading_seconds(self) -> float:
        return 0.0

    async def ask(self, question: Question) -> Any:
        """Asks the method of the question's name."""
        name = {Listing: "findings", Single: "finding", EvidenceSince: "evidence", RightsOf: "rights"}.get(
            type(question), "what_if" if isinstance(question, WhatIf) else type(question).__name__.lower()
        )
        fields = [getattr(question, one.name) for one in dataclasses.fields(question)]
        return await getattr(self, name)(*fields)

    async def findings(self, which: Filter) -> dict[str, Any]:
        self.asked.append(("findings", which))
        return {"findings": [], "total": 0}

    async def evidence(self, since: float) -> dict[str, Any]:
        self.asked.append(("evidence", since))
        return {"commands": 0, "last": None, "asked": [], "reopened": {}}

    async def finding(self, one: str) -> dict[str, Any]:
        if one != "f-1":
            raise ValueError(f"there is no finding {one!r}")
        return {"id": one}

    async def readiness(self, quiet: float) -> dict[str, Any]:
        self.asked.append(("readiness", quiet))
        return {"ready": False}

    async def news(self, since: float, owner: str) -> dict[str, Any]:
        self.asked.append(("news", (since, owner)))
        return {"text": "nothing new"}

    async def unused(self, seconds: float) -> dict[str, Any]:
        self.asked.append(("unused", seconds))
        return {"unused": []}

    async def summary(self) -> dict[str, Any]:
        raise ValueError("there is no findings store")

    async def commoncause(self) -> dict[str, Any]:
        raise ValueError("there is no findings store")

    async def trend(self, _since: float, _service: str, _commands_since: float) -> dict[str, Any]:
        raise ValueError("there is no findings store")

    async def uses(self, _since: float) -> dict[str, Any]:
        raise ValueError("there is no findings store")

    async def rights(self, _service: str, _since: float) -> dict[str, Any]:
        raise ValueError("there is no findings store")

    async def owners(self) -> list[str]:
        return []

    async def traffic(self) -> list[dict[str, Any]]:
        return []

    async def policy(self) -> dict[str, Any]:
        raise ValueError("there is no policy")

    async def explain_example(self, _line: Mapping[str, Any]) -> dict[str, Any]:
        raise ValueError("this is not a line of the command log")

    async def waiver(self, *_: object) -> dict[str, Any]:
        return {"line": "{service: CubeProxy}", "wide": [], "left": [], "file": "/waivers.yaml"}

    async def waive(self, finding: str, owner: str, reason: str, until: datetime.date) -> dict[str, Any]:
        self.asked.append(("waive", finding, owner, reason, until))
        if self.faults:
            raise FileError(self.faults)
        return await self.waiver() | {"written": True, "why": ""}

    async def set_mode(self, rule: str, service: str, mode: Mode) -> dict[str, Any]:
        self.asked.append(("set_mode", rule, service, mode))
        return {"line": f"{{mode: {mode}}}", "file": "/keyfence.yaml", "written": True, "why": ""}

    async def what_if(self, modes: Sequence[ModeRule], service: str, since: float) -> dict[str, Any]:
        self.asked.append(("what-if", modes, service, since))
        return {"breaks": []}

    async def explain(self, service: str, argv: list[bytes], caller: Caller) -> dict[str, Any]:
        if service != "CubeProxy":
            raise ValueError(f"There is no service {service!r}.")
        self.asked.append(("explain", service, argv, *([caller] if caller != NOBODY else [])))
        return {"allowed": True, "argv": [part.decode("utf-8", "surrogateescape") for part in argv]}

    async def observe(self, seconds: float, rule: str | None, service: str | None) -> dict[str, Any]:
        await asyncio.sleep(0)
        self.asked.append(("observe", seconds, rule, service))
        return {"until": "later"}

    async def end_observe(self) -> dict[str, Any]:
        self.asked.append(("end",))
        return {}

    async def metrics(self) -> bytes:
        return exposition(Counters())

    async def workers(self) -> list[dict[str, Any]]:
        return [{"slot": 0, "pid": 1}]

    async def reload(self) -> dict[str, Any]:
        self.asked.append(("reload",))
        if self.faults:
            raise FileError(self.faults)
        return {"policy": "p", "revision": "r", "needs_restart": []}

    async def candidate(self) -> dict[str, Any]:
        if self.faults:
            raise ValueError("there is no policy")
        return {"candidate": None}

    async def load_candidate(self, file: str) -> dict[str, Any]:
        self.asked.append(("load_candidate", file))
        if self.faults:
            raise FileError(self.faults)
        return {"file": file}

    async def rehearse(self) -> dict[str, Any]:
        self.asked.append(("rehearse",))
        return {"for": "cluster"}

    async def standing(self) -> dict[str, Any]:
        return {"rehearsal": None}

    async def drop_candidate(self) -> dict[str, Any]:
        self.asked.append(("drop_candidate",))
        return {"dropped": None}

    async def promote_candidate(self) -> dict[str, Any]:
        self.asked.append(("promote_candidate",))
        if self.faults:
            raise FileError(self.faults)
        if len(self.asked) > 1:
            raise ValueError("no candidate is loaded")
        return {"policy": "p"}

    async def restart(self) -> dict[str, Any]:
        self.asked.append(("restart",))
        if self.faults:
            raise ValueError("there are no workers")
        return {"restarted": 2}


class Client:
    def __init__(self, session: aiohttp.ClientSession, base: str, control: FakeControl) -> None:
        self.session = session
        self.base = base
        self.control = control

    async def ask(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        async with self.session.request(method, self.base + path, **options) as response:
            text = await response.text()
            if response.content_type == "application/json":
                return response.status, json.loads(text)
            return response.status, text

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        return await self.ask("POST", path, json=body)


Scenario = Callable[[Client], Awaitable[None]]


@pytest.fixture(params=["asyncio", "uvloop"])
def served(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    """Runs a scenario against a listener that is stopped after it, on either event loop."""

    async def run(scenario: Scenario) -> None:
        control = FakeControl()
        server = await start_admin(control, Access(["keyfence.internal"]), ANY_PORT)
        try:
            async with aiohttp.ClientSession() as session:
                await scenario(Client(session, server.url, control))
        finally:
            await server.close()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))

    def start(scenario: Scenario) -> None:
        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with own_loop(factory) as loop:
            loop.run(run(scenario))

    return start


def test_metrics_are_served_as_prometheus_expects_them(served: Callable[[Scenario], None]) -> None:
    async def scenario(client: Client) -> None:
        async with client.session.get(client.base + "/metrics") as response:
            assert response.status == 200
            assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert response.headers["Server"] == "keyfence"
            assert b"keyfence_break_glass_active 0.0" in await response.read()

    served(scenario)


def test_a_process_lives_before_it_is_ready_and_says_why_it_is_not(
    served: Callable[[Scenario], None],
) -> None:
    async def scenario(client: Client) -> None:
        client.control.reasons = ["upstream redis:6379 does not answer"]
        assert (await client.ask("GET", "/healthz"))[0] == 200
        reasons = ["upstream redis:6379 does not answer"]
        assert await client.ask("GET", "/readyz") == (
            503,
            {"ready": False, "reasons": reasons, "warnings": []},
        )
        client.control.reasons = []
        known = client.control.known = ["upstream redis:6379 is a node of a cluster"]
        assert await client.ask("GET", "/readyz") == (200, {"ready": True, "reasons": [], "warnings": known})

    served(scenario)


def test_a_strict_probe_asks_for_the_policy_too(served: Callable[[Scenario], None]) -> None:
    async def scenario(client: Client) -> None:
        assert (await client.ask("GET", "/readyz?strict"))[0] == 200
        aged = client.control.aged = ["the policy was refused"]
        for path in ("/readyz?strict", "/readyz?strict=1", "/readyz?strict=yes"):
            found = 503, {"ready": False, "reasons": aged, "warnings": []}
            assert await client.ask("GET", path) == found
        for path in ("/readyz", "/readyz?strict=no", "/readyz?from=probe"):
            assert (await client.ask("GET", path))[0] == 200
        assert (await client.ask("GET", "/readyz?strict=perhaps"))[0] == 400

    served(scenario)


def test_the_index_lists_the_routes(served: Callable[[Scenario], None]) -> None:
    async def scenario(client: Client) -> None:
        status, text = await client.ask("GET", "/")
        assert status == 200
        for route in ROUTES:
            assert f"{route.method:<6} {route.path}" in text

    served(scenario)


def test_the_report_is_json(served: Callable[[Scenario], None]) -> None:
    async def scenario(client: Client) -> None:
        assert await client.ask("GET", "/report") == (200, [{"service": "CubeProxy", "count": 3}])

    served(scenario)


def test_the_addresses_of_the_listeners_are_served(served: Callable[[Scenario], None]) -> None:
    async def scenario(client: Client) -> None:
        listeners = [{"address": "127.0.0.1:6380", "service": "CubeProxy", "whose": "CubeProxy"}]
        assert await client.ask("GET", "/status") == (200, {"ready": True})
        waivers = [{"service": "CubeProxy", "rule": "scope.write"}]
        assert await client.ask("GET", "/waivers") == (200, waivers)
        assert await client.ask("GET", "/listeners") == (200, listeners)

    served(scenario)


def test_news_are_asked_for_a_time_and_an_owner(served: Callable[[Scenario], None]) -> None:
    async def scenario(client: Client) -> None:
        assert (await client.ask("GET", "/news?since=5&owner=%23shop"))[0] == 200
        assert client.control.asked.pop() == ("news", (5.0, "#shop"))
        assert (await client.ask("GET", "/news"))[0] == 200
        since, owner = client.control.asked.pop()[1]
        assert (0 <= time.time() - DAY - since < 600, owner) == (True, "")
        assert (await client.ask("GET", "/news?since=yesterday"))[0] == 400

    served(scenario)


def test_explain_takes_arguments_as_text_and_bytes_as_lone_surrogates(
    served: Callable[[Scenario], None],
) -> None:
    async def scenario(client: Client) -> None:
        body = '{"service": "CubeProxy", "argv": ["SET", "k\\u00e9", "\\udcff\\u0000"]}'
        headers = {"Content-Type": "application/json; charset=utf-8"}
        status, answer = await client.ask("POST", "/explain", data=body, headers=headers)
        assert status == 200
        assert answer["argv"] == ["SET", "ké", "\udcff\x00"]
        assert client.control.asked == [("explain", "CubeProxy", [b"SET", "ké".encode(), b"\xff\x00"])]

    served(scenario)


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        ("/explain", b"{", "The body is not JSON: Expecting property name"),
        ("/explain", b"\xff", "The body is not UTF-8."),
        ("/explain", b"[]", "The body must be a JSON object."),
        ("/explain", b"[" * 200_000, "The body is"),
        ("/explain", b"{}", '"service" is missing.'),
        ("/explain", b'{"service": 7}', '"service" must be a string'),
        ("/explain", b'{"service": "CubeProxy"}', '"argv" must be a list of strings'),
        ("/explain", b'{"service": "CubeProxy", "argv": []}', '"argv" must be a list of strings'),
        ("/explain", b'{"service": "CubeProxy", "argv": ["GET", 1]}', '"argv" must be a list of strings'),
        ("/explain", b'{"service": "CubeProxy", "argv": ["\\ud800"]}', '"argv" holds a surrogate'),
        ("/explain", b'{"service": "nobody", "argv": ["GET"]}', "There is no service 'nobody'."),
        ("/explain", b'{"service": "a", "service": "b", "argv": ["GET"]}', "A field is given twice."),
        (
            "/explain",
            b'{"service": "a", "argv": ["GET"], "x": 1}',
            "Unknown field 'x'; known fields are argv, certificate, service, user.",
        ),
        ("/-/observe", b"{}", '"for" must be a number of seconds.'),
        ("/-/observe", b'{"for": true}', '"for" must be a number of seconds.'),
        ("/-/observe", b'{"for": "1h"}', '"for" must be a number of seconds.'),
        ("/-/observe", b'{"for": 0}', '"for" must be more than 0'),
        ("/-/observe", b'{"for": NaN}', '"for" must be more than 0'),
        ("/-/observe", b'{"for": 1e400}', '"for" must be more than 0'),
        ("/-/observe", b'{"for": 86401}', '"for" must be more than 0 and at most 86400 seconds.'),
        ("/-/observe", b'{"for": ' + b"9" * 5_000 + b"}", "The body holds a number that is too long."),
        ("/-/observe", b'{"for": 60, "rule": "scope.wriet"}', "\"rule\" is not a known rule: 'scope.wriet'."),
        ("/-/observe", b'{"for": 60, "service": ""}', '"service" must be a string, and not empty.'),
    ],
)
def test_a_bad_body_gets_one_clear_sentence(
    served: Callable[[Scenario], None], path: str, body: bytes, sentence: str
) -> None:
    async def scenario(client: Client) -> None:
        headers = {"Content-Type": "application/json"}
        status, answer = await client.ask("POST", path, data=body, headers=headers)
        assert status == 400
        assert list(answer) == ["error"]
        assert answer["error"].startswith(sentence)
        assert client.control.asked == []

    served(scenario)


def test_enforcement_can_be_stopped_for_a_while_and_resumed(served: Callable[[Scenario], None]) -> None:
    async def scenario(client: Client) -> None:
        assert await client.post("/-/observe", {"for": 3600}) == (200, {"until": "later"})
        body = {"for": 0.5, "rule": "scope.write", "service": "CubeProxy"}
        assert (await client.post("/-/observe", body))[0] == 200
        assert (await client.post("/-/observe", {"for": 1, "rule": None}))[0] == 200
        assert (await client.ask("DELETE", "/-/observe"))[0] == 200
        assert client.control.asked == [
            ("observe", 3600.0, None, None),
            ("observe", 0.5, "scope.write", "CubeProxy"),
            ("observe", 1.0, None, None),
            ("end",),
        ]

    served(scenario)


def test_reload_and_restart_answer_once_they_are_done(served: Callable[[Scenario], None]) -> None:
    async def scenario(client: Client) -> None:
        assert await client.ask("GET", "/workers") == (200, [{"slot": 0, "pid": 1}])
        done = {"policy": "p", "revision": "r", "needs_restart": []}
        assert await client.post("/-/reload", {}) == (200, done)
        assert await client.post("/-/restart", {}) == (200, {"restarted": 2})
        assert client.control.asked == [("reload",), ("restart",)]

    served(scenario)


def test_a_candidate_is_loaded_shown_promoted_and_dropped(served: Callable[[Scenario], None]) -> None:
    async def scenario(client: Client) -> None:
        assert await client.ask("GET", "/candidate") == (200, {"candidate": None})
        assert await client.post("/-/candidate/promote", {}) == (200, {"policy": "p"})
        assert await client.post("/-/candidate", {"file": "/new.yaml"}) == (200, {"file": "/new.yaml"})
        assert await client.ask("DELETE", "/-/candidate") == (200, {"dropped": None})
        refused = (400, {"error": "no candidate is loaded"})
        assert await client.post("/-/candidate/promote", {}) == refused
        assert await client.post("/-/candidate", {}) == (400, {"error": '"file" is missing.'})
        asked = [name for name, *_ in client.control.asked]
        assert asked == ["promote_candidate", "load_candidate", "drop_candidate", "promote_candidate"]

    served(scenario)


def test_a_rehearsal_is_begun_and_shown(served: Callable[[Scenario], None]) -> None:
    async def scenario(client: Client) -> None:
        assert await client.post("/-/candidate", {"for": "cluster"}) == (200, {"for": "cluster"})
        assert await client.ask("GET", "/rehearsal") == (200, {"rehearsal": None})
        refused = (400, {"error": '"for" may be "cluster", without a "file".'})
        assert await client.post("/-/candidate", {"for": "sentinel"}) == refused
        assert await client.post("/-/candidate", {"for": "cluster", "file": "/new.yaml"}) == refused
        assert client.control.asked == [("rehearse",)]

    served(scenario)


def test_faults_of_a_candidate_are_reported_together(served: Callable[[Scenario], None]) -> None:
    async def scenario(client: Client) -> None:
        client.control.faults = [Diagnostic(Place("new.yaml", line, 1), "error", "no") for line in (3, 9)]
        told = ["new.yaml:3:1: error: no", "new.yaml:9:1: error: no"]
        for path, body, what in (
            ("/-/candidate", {"file": "/new.yaml"}, "no candidate was loaded"),
            ("/-/candidate/promote", {}, "nothing was promoted"),
        ):
            error = f"{what}: {told[0]} (and 1 more)"
            assert await client.post(path, body) == (422, {"error": error, "diagnostics": told})
        assert await client.ask("GET", "/candidate") == (400, {"error": "there is no policy"})

    served(scenario)


def test_all_faults_of_the_files_are_reported_together(served: Callable[[Scenario], None]) -> None:
    async def scenario(client: Client) -> None:
        places = [Place("p.yaml", line, 1) for line in (1, 2)]
        client.control.faults = [Diagnostic(place, "error", "wrong") for place in places]
        told = ["p.yaml:1:1: error: wrong", "p.yaml:2:1: error: wrong"]
        error = f"nothing was reloaded: {told[0]} (and 1 more)"
        assert await client.post("/-/reload", {}) == (422, {"error": error, "diagnostics": told})
        assert await client.post("/-/restart", {}) == (400, {"error": "there are no workers"})

    served(scenario)


@pytest.mark.parametrize("path", ["/-/reload", "/-/restart", "/-/candidate/promote"])
def test_reload_and_restart_accept_no_fields_and_no_form_of_a_web_page(
    path: str, served: Callable[[Scenario], None]
) -> None:
    async def scenario(client: Client) -> None:
        answer = {"error": "Unknown field 'policy'; this request takes no fields."}
        assert await client.post(path, {"policy": "mine"}) == (400, answer)
        headers = {"Content-Type": "text/plain"}
        assert (await client.ask("POST", path, data=b"{}", headers=headers))[0] == 415
        assert client.control.asked == []

    served(scenario)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None]
)
def test_a_form_that_a_web_page_can_post_is_rejected(
    served: Callable[[Scenario], None], kind: str | None
) -> None:
    async def scenario(client: Client) -> None:
        headers = {"Content-Type": kind} if kind else {}
        status, answer = await client.ask(
            "POST", "/-/observe", data=b'{"for": 60}', headers=headers, skip_auto_headers=["Content-Type"]
        )
        assert (status, answer) == (415, {"error": "Content-Type must be application/json."})
        assert client.control.asked == []

    served(scenario)


def test_a_preflight_is_never_granted(served: Callable[[Scenario], None]) -> None:
    async def scenario(client: Client) -> None:
        headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "DELETE"}
        async with client.session.options(client.base + "/-/observe", headers=headers) as response:
            assert response.status == 403
            assert not any(name.lower().startswith("access-control") for name in response.headers)

    served(scenario)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:80",
        "127.0.0.1:9",
        "[::1]:80",
        "[fe80::1]",
        "10.0.0.1",
        "keyfence.internal",
        "Keyfence.Internal.:80",
    ],
)
def test_own_names_and_addresses_are_answered(served: Callable[[Scenario], None], host: str) -> None:
    async def scenario(client: Client) -> None:
        assert (await client.ask("GET", "/report", headers={"Host": host}))[0] == 200

    served(scenario)


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "[x]", ""]
)
def test_under_a_foreign_host_name_only_health_and_metrics_are_served(
    served: Callable[[Scenario], None], host: str
) -> None:
    async def scenario(client: Client) -> None:
        headers = {"Host": host}
        for method, path in (("GET", "/report"), ("GET", "/"), ("GET", "/none"), ("DELETE", "/-/observe")):
            status, answer = await client.ask(method, path, headers=headers)
            assert status == 403, path
            assert answer["error"].startswith("The Host header must be")
        assert client.control.asked == []
        for path in ("/metrics", "/healthz", "/readyz"):
            assert (await client.ask("GET", path, headers=headers))[0] == 200

    served(scenario)


def test_errors_of_the_protocol_are_json_too(served: Callable[[Scenario], None]) -> None:
    async def scenario(client: Client) -> None:
        status, answer = await client.ask("GET", "/nothing")
        assert (status, answer) == (404, {"error": "There is no such page; GET / lists all of them."})
        status, answer = await client.ask("GET", "/explain")
        assert (status, answer) == (405, {"error": "GET is not served here."})
        headers = {"Content-Type": "application/json"}
        status, answer = await client.ask(
            "POST", "/explain", data=io.BytesIO(b"x" * (MAX_BODY + 1)), headers=headers
        )
        assert (status, answer) == (413, {"error": f"The body is larger than {MAX_BODY} bytes."})

    served(scenario)


def test_a_bug_behind_it_is_an_answer_without_details_and_a_record_with_them(
    served: Callable[[Scenario], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(client: Client) -> None:
        status, answer = await client.ask("GET", "/modes")
        assert status == 500
        assert "secret" not in answer["error"]

    with caplog.at_level(logging.ERROR, logger="keyfence.admin"):
        served(scenario)
    assert "a bug with a secret" in caplog.text


def test_requests_leave_no_lines_in_the_log(
    served: Callable[[Scenario], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(client: Client) -> None:
        await client.ask("GET", "/healthz")
        await client.ask("GET", "/nothing")

    with caplog.at_level(logging.INFO):
        served(scenario)
    assert [record for record in caplog.records if not record.name.startswith("asyncio")] == []


def test_an_address_in_use_is_an_os_error_and_leaves_nothing_behind() -> None:
    async def run() -> None:
        server = await start_admin(FakeControl(), Access(), ANY_PORT)
        try:
            with pytest.raises(OSError):
                await start_admin(FakeControl(), Access(), Address(server.url.removeprefix("http://")))
        finally:
            await server.close()

    asyncio.run(run())
