from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keyfence.admin.bodies import BadRequest
from keyfence.audit.at_rest import AtRest, write_audit
from keyfence.commands.extract import extract
from keyfence.findings.batch import Batch
from keyfence.findings.finding import DAY, HOUR, State
from keyfence.findings.instances import Compared, Instance
from keyfence.policy.rules import RULES
from keyfence.policy.wording.command_log import as_line
from keyfence.upstream.cluster.state import ClusterState
from keyfence.web.asked_once import WHILE, Questions
from keyfence.web.render import render
from keyfence.web.views import (
    MAX_COLUMNS,
    MAX_COMMAND,
    MENU,
    PAGE_SIZE,
    VIEWS,
    View,
    filter_of,
    view_at,
)
from tests.findings.rows import batch, row
from tests.findings.test_fleet import an_instance, modes
from tests.findings.test_instances import a_comparison, changed
from tests.session.sessions import ROUTE, policy
from tests.upstream.cluster.states import MASTER
from tests.web.person import said
from tests.web.stage import NASTY, Stage, violation

SHELL = {
    "path": "/",
    "here": "/",
    "views": MENU,
    "who": "ann",
    "csrf": "c",
    "may_sign_in": True,
    "notices": [],
    "live": "",
    "now": 1.0,
    "policy": None,
}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def view(path: str) -> View:
    return next(one for one in VIEWS if one.path == path)


def load(stage: Stage, path: str, **parameters: str) -> dict[str, Any]:
    return asyncio.run(view(path).load(Questions(stage), parameters))


def shown(stage: Stage, path: str, **parameters: str) -> str:
    """A view as HTML."""
    values = load(stage, path, **parameters)
    return render(view(path).template, {**values, "page": SHELL, "now": time.time()})


def an_id(stage: Stage) -> str:
    found = load(stage, "/findings")["findings"]
    return str(found[0]["id"])


# -- addresses


@pytest.mark.parametrize(
    ("address", "path", "parameters"),
    [
        ("/", "/", {}),
        ("/findings?rule=ttl.required&text=", "/findings", {"rule": "ttl.required"}),
        ("/findings/f-12", "/findings/{id}", {"id": "f-12"}),
        ("/services/Cube%2FProxy%20x", "/services/{service}", {"service": "Cube/Proxy x"}),
        ("/services", "/services", {}),
        ("/explain?service=a&command=GET+x%26y", "/explain", {"service": "a", "command": "GET x&y"}),
    ],
)
def test_an_address_is_a_view_with_its_parameters(
    address: str, path: str, parameters: dict[str, str]
) -> None:
    found = view_at(address)
    assert found is not None
    assert (found[0].path, found[1]) == (path, parameters)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "/nothing",
        "/findings/",
        "/findings/a/b",
        "/findings?colour=red",
        "/findings?" + "&".join(f"a{n}=1" for n in range(30)),
        "//[",
        "http://[x/",
        "/metrics",
        "\x00",
    ],
)
def test_other_addresses_are_none(address: str) -> None:
    assert view_at(address) is None


def test_the_menu_leads_to_views() -> None:
    assert all(view_at(path) is not None for path, _ in MENU)


# -- filters


def test_a_url_is_a_filter() -> None:
    which = filter_of({"service": "a", "state": "active,quiet", "sort": "last", "offset": "100", "text": "x"})
    assert (which.service, which.sort, which.offset, which.limit) == ("a", "last", 100, PAGE_SIZE)
    assert which.state == (State.NEW, State.OPEN, State.REOPENED, State.QUIET)
    assert filter_of({}).sort == "cause"


@pytest.mark.parametrize(
    ("parameters", "fault"),
    [
        ({"state": "opne"}, "'opne' is not a state; did you mean open?"),
        ({"sort": "size"}, "'size' is not an order"),
        ({"offset": "ten"}, "'offset' must be a number that is not negative"),
        ({"offset": "-7"}, "'offset' must be a number that is not negative"),
        ({"offset": "9" * 5000}, "'offset' must be a number that is not negative"),
    ],
)
def test_a_wrong_filter_is_a_fault_of_the_request(parameters: dict[str, str], fault: str) -> None:
    with pytest.raises(BadRequest, match=fault.replace("?", r"\?")):
        filter_of(parameters)


# -- overview


def test_the_overview_says_what_is_new_and_what_happened(stage: Stage) -> None:
    stage.see(violation(3), asked=10)
    values = load(stage, "/")
    assert values["summary"]["states"]["new"] == 1
    assert sum(one["observed"] for one in values["trend"]["violations"]) == 3
    text = shown(stage, "/")
    assert "1 new finding since yesterday" in text
    assert "<strong>1</strong> new" in text
    assert "when the store was made" in text


def test_the_matrix_has_the_rules_and_services_that_had_traffic(stage: Stage) -> None:
    stage.see(violation(3), asked=10)
    matrix = load(stage, "/")["matrix"]
    assert matrix["services"] == ["CubeProxy"]
    rows = {one["rule"]: one["cells"] for one in matrix["by_rule"]}
    assert {one["rule"] for one in matrix["silent"]} | set(rows) == set(RULES)
    silent = {one["rule"]: one["cells"] for one in matrix["silent"]}
    assert [one["readiness"] for one in silent["type.mismatch"]] == ["enforced"]
    assert "scope.write" in rows
    assert list(matrix["gaps"].values()) in ([], [["CubeProxy"]])


def test_a_rule_that_is_enforced_without_traffic_is_folded(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    standings = [
        {"rule": rule, "service": "a", "readiness": readiness, "why": why, "asked": asked, "wait": 1.0}
        for rule, readiness, why, asked in (
            ("scope.write", "enforced", "", 9),
            ("ttl.required", "enforced", "", 0),
            ("key.format", "gap", "observe for another 2d", 0),
            ("type.mismatch", "no traffic", "", 0),
        )
    ]

    async def readiness(_quiet: float) -> dict[str, Any]:
        return {"standings": standings, "modes": []}

    monkeypatch.setattr(stage, "readiness", readiness)
    matrix = load(stage, "/")["matrix"]
    assert [one["rule"] for one in matrix["by_rule"]] == ["scope.write", "key.format"]
    assert [one["rule"] for one in matrix["silent"]] == ["ttl.required", "type.mismatch"]
    text = shown(stage, "/")
    assert "2 more rules without traffic or violations" in text
    assert "keyfence has not been looking for long enough. What is left:" in text
    assert "<li>a: observe for another 2d.</li>" in text


def test_the_overview_begins_with_the_next_step(stage: Stage) -> None:
    stage.see(violation(3), asked=10)
    values = load(stage, "/")
    assert values["step"].name == "findings"
    text = shown(stage, "/")
    assert text.index("1 finding is active. Begin with scope.write by CubeProxy.") < text.index("<h1>")
    assert f"keyfence findings {values['step'].link.removeprefix('/findings/')}" in said(text)


def test_the_next_step_is_text_whatever_a_client_has_written(stage: Stage) -> None:
    stage.see(violation(service=NASTY), asked=1)
    assert NASTY not in shown(stage, "/")


def test_the_trend_begins_with_the_store_and_goes_back_thirty_days(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    trend = load(stage, "/")["trend"]
    assert trend["end"] - trend["begin"] == pytest.approx(DAY)
    assert "when the store was made" in shown(stage, "/")
    assert stage.store is not None
    monkeypatch.setattr("keyfence.findings.queries.Reader.began", lambda _: time.time() - 90 * DAY)
    trend = load(stage, "/")["trend"]
    assert trend["end"] - trend["begin"] == pytest.approx(30 * DAY)
    assert "Violations over the last 30 days" in shown(stage, "/")


def test_the_days_before_today_are_asked_for_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.see(violation(2, at=time.time() - 3 * DAY), asked=10)
    stage.see(violation(3), asked=10)
    asked: list[float] = []
    trend = stage.trend

    async def counted(since: float, service: str, commands_since: float) -> dict[str, Any]:
        asked.append(since)
        return await trend(since, service, commands_since)

    monkeypatch.setattr(stage, "trend", counted)
    clock = [1000.0]
    questions = Questions(stage, lambda: clock[0])

    async def shown_twice() -> list[int]:
        numbers = []
        for _ in range(2):
            rows = (await questions.trend())["violations"]
            numbers.append(sum(one["observed"] for one in rows))
            assert [one["hour"] for one in rows] == sorted({one["hour"] for one in rows})
            clock[0] += WHILE + 1
        return numbers

    assert asyncio.run(shown_twice()) == [5, 5]
    today = max(asked)
    assert len(asked) == 3
    assert asked.count(today) == 2


def test_quiet_is_explained_where_it_is_counted(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "It is open again" not in shown(stage, "/")
    now = {**asyncio.run(stage.summary())}
    now["states"] = {**now["states"], "quiet": 2}

    async def summary() -> dict[str, Any]:
        return now

    monkeypatch.setattr(stage, "summary", summary)
    assert "quiet: not seen for 7 days in which keyfence was looking." in shown(stage, "/")


def test_many_services_are_rows_with_counts_instead_of_columns(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    standings = [
        {"rule": rule, "service": f"s{number}", "readiness": "ready", "why": "", "asked": 1}
        for rule in RULES
        for number in range(MAX_COLUMNS + 1)
    ]

    async def readiness(_quiet: float) -> dict[str, Any]:
        return {"standings": standings, "modes": []}

    monkeypatch.setattr(stage, "readiness", readiness)
    matrix = load(stage, "/")["matrix"]
    assert matrix["by_rule"] == []
    assert [one["service"] for one in matrix["by_service"]] == [f"s{n}" for n in range(MAX_COLUMNS + 1)]
    assert matrix["by_service"][0]["counts"] == {"ready": len(RULES)}
    assert f'<td class="number">{len(RULES)}</td>' in shown(stage, "/")


def test_without_a_store_the_overview_shows_modes_and_traffic_and_says_why() -> None:
    stage = Stage(None)
    values = load(stage, "/")
    assert values["summary"] is values["trend"] is None
    assert "without a findings store" in shown(stage, "/")


def test_an_empty_store_has_nothing_new(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def readiness(_quiet: float) -> dict[str, Any]:
        return {"standings": [], "modes": []}

    monkeypatch.setattr(stage, "readiness", readiness)
    text = shown(stage, "/")
    assert "Nothing new since yesterday" in text
    assert "No command has been evaluated yet." in text


def upstream_that(stage: Stage, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    """The upstream's state is as ever, except for this."""
    as_ever = asyncio.run(stage.status())

    async def status() -> dict[str, Any]:
        return as_ever | {"upstream": as_ever["upstream"] | more}

    monkeypatch.setattr(stage, "status", status)


def test_the_overview_says_how_long_the_last_failover_took(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(None)
    failover = {"node": "10.0.0.2:6379", "why": "the Sentinels", "at": 1e9, "seconds": 2.34}
    upstream_that(stage, monkeypatch, last_failover=failover)
    text = shown(stage, "/")
    assert "10.0.0.2:6379" in text
    assert "known from the Sentinels, 2.3 s without service" in text


def test_the_overview_says_of_each_replica_whether_it_is_read_from(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(None)
    assert "Replicas" not in shown(stage, "/")
    replicas = [
        {"address": "redis://a:6379", "reason": "", "behind": 1},
        {"address": "redis://b:6379", "reason": "it is a <primary>", "behind": None},
    ]
    upstream_that(stage, monkeypatch, replicas=replicas)
    text = shown(stage, "/")
    assert "redis://a:6379</bdi></code> read from, 1 byte behind</li>" in text
    assert '<strong class="bad">not read from</strong> (it is a &lt;primary&gt;)</li>' in text


@pytest.mark.parametrize(("age", "said"), [(3.2, "topology known"), (None, "topology not known yet")])
def test_the_overview_names_the_nodes_of_a_cluster(
    age: float | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(None)
    status = asyncio.run(stage.status())
    rows = [MASTER, MASTER._replace(node="10.0.0.2:6379", announced="", up=False, slots=0)]
    cluster = ClusterState(rows, 16384, age, [], Counter()).as_json()

    async def clustered() -> dict[str, Any]:
        return status | {"upstream": status["upstream"] | {"cluster": cluster}}

    monkeypatch.setattr(stage, "status", clustered)
    page = shown(stage, "/")
    for text in (
        said,
        "2 nodes",
        "10.0.0.1:6379",
        "hash slots, up",
        "proxy:7201",
        "10.0.0.2:6379",
        "not served",
    ):
        assert text in page


# -- findings


def test_findings_are_listed_by_filter_in_pages(stage: Stage) -> None:
    stage.see(*(violation(number + 1, entry="", shape=f"tmp{number}:<hex>") for number in range(120)))
    first = load(stage, "/findings")
    assert (len(first["findings"]), first["total"]) == (PAGE_SIZE, 120)
    totals = [one["total"] for one in first["findings"]]
    assert totals == sorted(totals, reverse=True)
    text = shown(stage, "/findings", offset="50", rule="scope.write")
    assert "51 to 100 are shown" in text
    assert 'href="?rule=scope.write&amp;sort=cause&amp;offset=100"' in text
    assert 'href="?rule=scope.write&amp;sort=cause"' in text
    assert load(stage, "/findings", text="tmp7:")["total"] == 1
    assert "None." in shown(stage, "/findings", offset="5000")
    assert '<option value="#cube-redis">' in text


# -- a finding


def test_a_finding_shows_examples_remedy_waiver_and_history(stage: Stage) -> None:
    stage.see(violation(3))
    values = load(stage, "/findings/{id}", id=an_id(stage)[:6])
    assert values["verdict"]["rule"] == "scope.write"
    assert values["waiver"].startswith("  - {")
    text = shown(stage, "/findings/{id}", id=an_id(stage))
    for part in (ROUTE.decode(), "its writers: CubeMaster", "redis-py 5.0.1", "d-1", "#cube-redis", "HSET"):
        assert part in text, part
    assert "it breaks scope.write" in text


def test_an_example_that_cannot_be_explained_says_why(stage: Stage) -> None:
    broken = violation()
    broken["examples"][0]["command"] |= {"service": "gone"}
    stage.see(broken)
    values = load(stage, "/findings/{id}", id=an_id(stage))
    assert values["verdict"] is None
    assert "cannot be explained: " in shown(stage, "/findings/{id}", id=an_id(stage))


def test_an_example_without_its_command_is_shown_without_a_verdict(stage: Stage) -> None:
    masked = violation()
    masked["examples"][0]["command"] = {}
    stage.see(masked)
    assert load(stage, "/findings/{id}", id=an_id(stage))["verdict"] is None
    assert ROUTE.decode() in shown(stage, "/findings/{id}", id=an_id(stage))


def test_a_finding_that_no_waiver_can_cover_says_so(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.see(violation())

    async def waiver(*_: object) -> dict[str, Any]:
        return {"line": "", "wide": [], "left": ["CubeProxy, scope.write: 1 time"], "file": ""}

    monkeypatch.setattr(stage, "waiver", waiver)
    text = shown(stage, "/findings/{id}", id=an_id(stage))
    assert "CubeProxy, scope.write: 1 time" in text
    assert "names no waivers file" in text


def test_a_finding_at_rest_is_of_keys_and_of_no_service(stage: Stage) -> None:
    assert stage.store is not None
    lost = AtRest("key.unregistered", "must", "", "user:<int>", 40, "#shop", "register it", ["user:7"])
    write_audit(stage.store.database, [lost], "redis://h:1", "r1", time.time(), whole=True)
    listed = shown(stage, "/findings")
    assert '<a href="/findings?service=at+rest">at rest</a>' in listed
    text = shown(stage, "/findings/{id}", id=an_id(stage))
    for part in ("An audit found it on", "40 at rest", "user:7", "redis://h:1", "nothing changes"):
        assert part in text, part
    assert "Who sends it" not in text
    assert "waiver" not in text.lower()


@pytest.mark.parametrize("one", ["f-nothing", "", "%", "_", "'; DROP TABLE keyfence_findings; --"])
def test_a_finding_that_is_not_there_is_a_404(stage: Stage, one: str) -> None:
    stage.see(violation(), violation(entry="sandbox-info"))
    with pytest.raises(BadRequest) as caught:
        load(stage, "/findings/{id}", id=one)
    assert caught.value.status == 404


def test_the_chart_of_a_finding_begins_with_it_or_a_month_ago(stage: Stage) -> None:
    now = time.time()
    assert stage.store is not None
    stage.store.write(batch(violation(at=now - 90 * DAY), at=now - 90 * DAY))
    stage.see(violation())
    trend = load(stage, "/findings/{id}", id=an_id(stage))["trend"]
    assert trend["end"] - trend["begin"] == pytest.approx(30 * DAY, abs=60)


# -- services, policy


def test_the_services_are_those_with_traffic_and_the_silent_ones(stage: Stage) -> None:
    stage.counters.commands["CubeProxy", "HSET", "forwarded"] = 7
    stage.counters.took("request", "CubeProxy", 3e-4)
    values = load(stage, "/services")
    (one,) = values["traffic"]
    assert (one["service"], one["commands"], one["request_99"], one["upstream_50"]) == (
        *("CubeProxy", 7),
        *(5e-4, None),
    )
    assert "CubeProxy" not in values["silent"]
    assert "CubeMaster" in values["silent"]


def test_the_last_day_of_a_service_is_by_hour(stage: Stage) -> None:
    stage.counters.commands["CubeProxy", "HSET", "forwarded"] = 1
    assert stage.store is not None
    for back, times in ((30, 9), (23, 3), (0, 5)):
        at = time.time() - back * HOUR
        stage.store.write(batch(at=at, asked=times, service="CubeProxy"))
    day = load(stage, "/services")["traffic"][0]["day"]
    assert len(day) == 24
    assert (day[0], day[-1], sum(day)) == (3, 5, 8)


def test_a_service_shows_what_it_may_uses_and_breaks(stage: Stage) -> None:
    stage.see(violation(3), asked=10)
    assert stage.store is not None
    used = batch()
    used.add_uses([("CubeProxy", "read", "sandbox-route", 4)], time.time())
    stage.store.write(used)
    values = load(stage, "/services/{service}", service="CubeProxy")
    assert [one["rule"] for one in values["findings"]] == ["scope.write"]
    uses = {(one["kind"], one["name"]): one["times"] for one in values["rights"]}
    assert uses["read", "sandbox-route"] == 4
    assert set(uses.values()) == {0, 4}
    assert values["standings"][0]["readiness"] not in ("no traffic", "disabled")
    assert "Set the mode" in shown(stage, "/services/{service}", service="CubeProxy")


def test_a_service_that_the_policy_lacks_is_a_404(stage: Stage) -> None:
    with pytest.raises(BadRequest) as caught:
        load(stage, "/services/{service}", service="CubeProxi")
    assert caught.value.status == 404


def test_the_policy_has_its_entries_with_uses_and_findings(stage: Stage) -> None:
    stage.see(violation(3))
    assert stage.store is not None
    used = batch()
    used.add_uses([(one, "read", "sandbox-route", 4) for one in ("CubeProxy", "CubeMaster")], time.time())
    stage.store.write(used)
    values = load(stage, "/policy")
    assert values["used"]["sandbox-route"] == {"read": 8, "write": 0}
    assert values["found"] == {"sandbox-route": 1}
    text = shown(stage, "/policy")
    assert all(f'id="entry-{one["name"]}"' in text for one in values["policy"]["entries"])


def test_the_entries_of_a_policy_stand_by_scope_and_can_be_searched(stage: Stage) -> None:
    groups = load(stage, "/policy")["groups"]
    names = [one["name"] for group in groups for one in group["entries"]]
    assert sorted(names) == sorted(one["name"] for one in load(stage, "/policy")["policy"]["entries"])
    scopes = [one["name"] for one in load(stage, "/policy")["policy"]["scopes"]]
    order = [group["scope"] for group in groups]
    assert len(order) == len(set(order)) > 1
    assert [one for one in order if one in scopes] == [one for one in scopes if one in order]
    (several,) = [group for group in groups if group["scope"] is None]
    assert "lock" in [one["name"] for one in several["entries"]]
    found = load(stage, "/policy", text=" NODE-metric ")["groups"]
    assert [one["name"] for group in found for one in group["entries"]] == ["node-metric"]
    by_service = shown(stage, "/policy", text="cubeproxy")
    assert 'id="entry-sandbox-route"' in by_service
    assert 'id="entry-node-metric"' not in by_service
    assert "No entry has “\\u001b”" in shown(stage, "/policy", text="\x1b")


def test_a_long_policy_is_folded_until_one_searches(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert '<details class="scope" open>' in shown(stage, "/policy")
    monkeypatch.setattr("keyfence.web.views.MAX_UNFOLDED", 3)
    text = shown(stage, "/policy")
    assert '<details class="scope">' in text
    assert '<details class="scope" open>' not in text
    assert ", folded by scope" in text
    assert '<details class="scope">' not in shown(stage, "/policy", text="node")


def test_the_policy_is_shown_without_a_store_too() -> None:
    values = load(Stage(None), "/policy")
    assert values["used"]["sandbox-route"] == {"read": None, "write": None}
    assert "sandbox-route" in shown(Stage(None), "/policy")


# -- explain, candidate


def test_a_command_is_explained(stage: Stage) -> None:
    text = shown(stage, "/explain", service="CubeProxy", command=f"HSET {ROUTE.decode()} HostIP '10.0.0.7'")
    assert "scope.write" in text
    assert "Allowed" in shown(stage, "/explain", service="CubeProxy", command=f"HGETALL {ROUTE.decode()}")
    assert "placeholder" in shown(stage, "/explain")


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("GET 'a", "No closing quotation."),
        ("''", ""),
        ("  ", "This is not a command; its name comes first."),
        ("GET " + "x" * MAX_COMMAND, f"The command is longer than {MAX_COMMAND} characters."),
    ],
)
def test_what_is_no_command_is_a_sentence(stage: Stage, command: str, fault: str) -> None:
    assert load(stage, "/explain", service="CubeProxy", command=command)["fault"] == fault


def test_a_command_of_an_unknown_service_is_a_sentence(stage: Stage) -> None:
    fault = load(stage, "/explain", service="Cube", command="GET a")["fault"]
    assert fault.startswith("'Cube' is not a service")


def test_a_candidate_is_shown_with_what_it_would_change(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "None is loaded." in shown(stage, "/candidate")
    found = {
        "candidate": {"file": "/new.yaml", "for": "", "policy": "p", "revision": "r2", "since": 1e9},
        "in_force": "r1",
        "commands": {"CubeProxy": 7, "CubeAPI": 0},
        "rows": [{**violation(), "change": "new", "count": 3}],
    }

    async def candidate() -> dict[str, Any]:
        return found

    monkeypatch.setattr(stage, "candidate", candidate)
    text = shown(stage, "/candidate")
    assert "Compared: 7 of CubeProxy." in text
    assert 'class="badge new"' in text


def test_a_rehearsal_is_shown_with_what_a_cluster_would_break(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {
        "candidate": {"file": "x", "for": "cluster", "policy": "p", "revision": "r1", "since": 1e9},
        "in_force": "r1",
        "commands": {"CubeProxy": 7},
        "rows": [],
    }
    service = {"service": "CubeProxy", "readiness": "not ready", "commands": 7, "share_slots": 2}
    row = {
        "service": "CubeProxy",
        "obstacle": "slots.script",
        "level": "breaks",
        "command": "EVALSHA",
        "meaning": "runs a script with keys in different hash slots",
        "script": "f" * 40,
        "keys": [{"name": "route", "is_entry": True}, {"name": "<b>:<int>", "is_entry": False}],
        "times": 5,
        "works": 2,
        "links": [],
        "change": "write a:{<id>} and b",
    }

    async def candidate() -> dict[str, Any]:
        return found

    async def standing() -> dict[str, Any]:
        return {"rehearsal": {}, "in_force": "r1", "services": [service], "rows": [row]}

    monkeypatch.setattr(stage, "candidate", candidate)
    monkeypatch.setattr(stage, "standing", standing)
    text = shown(stage, "/candidate")
    assert "runs a script with keys in different hash slots" in text
    assert "f" * 40 in text
    assert "not ready" in text
    assert "<b>:" not in text


# -- hostile text


def test_a_command_of_which_only_a_part_is_kept_says_how_long_it_was(stage: Stage) -> None:
    argv = [b"MGET", *[b"cube:v1:shared:%d" % number for number in range(1000)]]
    long = violation(entry="", shape="x:<int>", command="MGET")
    long["examples"][0]["command"] = as_line(policy(), "CubeProxy", argv, extract(argv), 1)
    stage.see(long)
    (one,) = load(stage, "/findings")["findings"]
    text = shown(stage, "/findings/{id}", id=one["id"])
    assert "1\N{NARROW NO-BREAK SPACE}001 arguments" in text or "1,001 arguments" in text
    assert "only a part of the command is kept" in text.lower()
    assert "command=MGET" not in text


def test_whatever_clients_send_is_shown_inert_on_every_view(stage: Stage) -> None:
    client = dict.fromkeys(("address", "library", "version", "name", "user"), NASTY)
    nasty = violation(entry="", shape=NASTY, command=NASTY, hint=NASTY, clients=[client])
    one = nasty["examples"][0]
    one |= {"key": NASTY + "x" * 8192, "decision": NASTY, "client": client}
    one["command"] = {**one["command"], "argv": ["HSET", NASTY + "\udcff"]}
    stage.see(nasty, row(service=NASTY))
    stage.counters.commands[NASTY, "GET", "forwarded"] = 1
    ids = [one["id"] for one in load(stage, "/findings")["findings"]]
    pages = [shown(stage, path) for path in ("/", "/findings", "/services", "/policy")]
    pages += [shown(stage, "/findings/{id}", id=one) for one in ids]
    pages.append(shown(stage, "/services/{service}", service="CubeProxy"))
    for text in pages:
        assert "<b onload" not in text
        assert {char for char in text if not char.isprintable()} <= {"\n", "\N{NARROW NO-BREAK SPACE}"}
        text.encode()


# -- fleet


def report(stage: Stage, *instances: Instance) -> None:
    """Instances report to the store."""
    assert stage.store is not None
    for one in instances:
        made = Batch()
        made.instance = dataclasses.replace(one, last=time.time())
        stage.store.write(made)


def test_the_fleet_shows_each_instance_and_what_differs(stage: Stage) -> None:
    report(
        stage,
        an_instance("web-1:9464", "staging", modes=modes(scope_write="enforce"), sequence=12),
        an_instance("web-2:9464", source="refused", reason="it is not signed", sequence=11),
    )
    text = shown(stage, "/fleet")
    assert '<p class="notice bad">web-2:9464 (prod): it is not signed</p>' in text
    assert '<p class="notice">staging enforces scope.write, prod observes it</p>' in text
    assert "prod: observe, staging: enforce" in text
    assert text.count('data-label="Sequence"') == 2


def test_a_fleet_without_signed_policies_has_no_sequences(stage: Stage) -> None:
    report(stage, an_instance("web-1:9464", ""))
    text = shown(stage, "/fleet")
    assert "web-1:9464" in text
    assert "Sequence" not in text
    assert "Modes side by side" not in text


def test_the_fleet_shows_what_its_candidate_would_change(stage: Stage) -> None:
    assert stage.store is not None
    made, refusing = Batch(), an_instance("web-2:9464")
    made.instance = dataclasses.replace(an_instance("web-1:9464"), last=time.time())
    signed = {"message": NASTY}
    said = a_comparison("web-1:9464", signed=signed, last=time.time())
    made.compared = Compared(said, lambda: [changed(times=7, key=NASTY), changed("gone", 2)])
    stage.store.write(made)
    report(stage, refusing)
    text = shown(stage, "/fleet")
    assert "<h2>Candidate 3 of shop</h2>" in text
    assert "1 of 2 instances compare it: 100 commands of shop" in text
    assert '<p class="notice bad">web-2:9464 (prod) does not compare it: ' in text
    assert text.count('data-label="Violations"') == 2
    assert "<b onload" not in text


def test_a_fleet_that_is_not_known_says_so(stage: Stage) -> None:
    assert "No instance has reported yet." in shown(stage, "/fleet")
    with pytest.raises(BadRequest, match="without a findings store"):
        load(Stage(None), "/fleet")


def test_what_instances_say_is_shown_inert(stage: Stage) -> None:
    report(stage, an_instance(NASTY, NASTY, policy=NASTY, revision=NASTY, version=NASTY, reason=NASTY))
    report(stage, an_instance("b", policy=NASTY, modes=modes(**{NASTY: "enforce"})))
    assert "<b onload" not in shown(stage, "/fleet")


@pytest.mark.parametrize(
    ("instances", "has_fleet"),
    [
        ((), False),
        ((an_instance("a", ""),), False),
        ((an_instance("a", "prod"),), True),
        ((an_instance("a", ""), an_instance("b", "")), True),
    ],
)
def test_several_instances_or_an_environment_are_a_fleet(
    stage: Stage, instances: tuple[Instance, ...], has_fleet: bool
) -> None:
    report(stage, *instances)
    assert asyncio.run(Questions(stage).has_fleet()) is has_fleet
    assert not asyncio.run(Questions(Stage(None)).has_fleet())


def test_what_a_reader_types_comes_back_escaped(stage: Stage) -> None:
    stage.see(violation())
    for text in (
        shown(stage, "/findings", text=NASTY, service=NASTY, state="new,open"),
        shown(stage, "/explain", service="CubeProxy", command=f"SET '{NASTY}' 1"),
    ):
        assert "<b onload" not in text
        assert 'value="' in text
        assert "&lt;b onload=&#34;x&#34;&gt;" in text


def test_no_service_of_the_policy_has_an_address_of_its_own_that_is_another_view() -> None:
    for service in policy().services:
        found = view_at(f"/services/{service}")
        assert found is not None
        assert found[1] == {"service": service}
