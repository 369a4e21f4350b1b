"""The next step is the first row whose condition holds, and everything that it says is true."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keyfence.admin.asked import CommonCause, Question
from keyfence.admin.next_step import ROWS, Facts, Step, next_step, step_of
from keyfence.policy.services import UNKNOWN
from keyfence.upstream.standing import KINDS, Standing

AT = 1_796_000_000.0  # 2026-11-30 00:53:20
POLICY = {"name": "shop", "refused": None, "server": None, "describes_keys": True}
STATUS = {
    "started": AT,
    "ready": True,
    "reasons": [],
    "warnings": [],
    "policy": POLICY,
    "candidate": None,
    "modes": {"web": {}, "billing": {}, UNKNOWN: {}},
    "break_glass": [],
    "waivers_due": {"lapsed": 0, "ending": 0, "first": None},
    "upstream": None,
    "listeners": [{"address": "127.0.0.1:6380", "service": "web"}],
    "record": "",
    "admin": "http://127.0.0.1:9464",
}
NONE = {"findings": 0, "looked_at": 0, "first": None, "cause": "", "number": 0, "filter": {}}
FIRST = {"id": "f-1", "rule": "scope.write", "service": "web"}
WAIVER = {"service": "web", "rule": "scope.write", "until": "2026-12-04"}


def standing(readiness: str, rule: str = "ttl.required", service: str = "web", **more: Any) -> dict[str, Any]:
    return {
        "rule": rule,
        "service": service,
        "readiness": readiness,
        "why": "",
        "asked": 9,
        "wait": 0.0,
        **more,
    }


def readiness(*standings: dict[str, Any], modes: tuple[dict[str, str], ...] = ()) -> dict[str, Any]:
    return {"quiet": 7 * 86400.0, "standings": list(standings), "modes": list(modes)}


def facts(**more: Any) -> Facts:
    """Clients of two services keep the policy, which is enforced. `more` are other facts, or parts of the
    status."""
    given = {
        "commands": {"web": 90, UNKNOWN: 10},
        "active": NONE,
        "readiness": readiness(standing("enforced")),
        "standing": None,
        "fleet": None,
    }
    status = STATUS | {name: value for name, value in more.items() if name not in given}
    return Facts(status, **{name: more.get(name, value) for name, value in given.items()})


def active(number: int, cause: str = "", of: int = 0, **filter_: str) -> dict[str, Any]:
    """Active findings, of which so many (`of`) have one cause."""
    return NONE | {
        "findings": number,
        "looked_at": min(number, 500),
        "first": FIRST,
        "cause": cause,
        "number": of,
        "filter": filter_,
    }


def instance(name: str, health: str = "ok", ago: float = 1.0, reason: str = "") -> dict[str, Any]:
    return {"name": name, "health": health, "last": AT - ago, "reason": reason}


def fleet(*instances: dict[str, Any]) -> dict[str, Any]:
    return {"now": AT, "instances": list(instances)}


CASES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    # The name of the row: facts, sentence, command, link.
    "refused": (
        {
            "policy": POLICY
            | {"refused": {"at": AT, "faults": ["p.yaml:3:1: error: no such key.", "another"]}}
        },
        "What was read at 2026-11-30 00:53:20Z was refused, so it is not in force: p.yaml:3:1: error: no "
        "such key (and 1 more fault). Correct it, then reload.",
        "keyfence reload",
        "/policy",
    ),
    "stale": (
        {"policy": POLICY | {"server": {"url": "https://p/x", "confirmed": AT, "is_stale": True}}},
        "The policy is stale: https://p/x has confirmed it last at 2026-11-30 00:53:20Z. Find out why, then "
        "reload.",
        "keyfence reload",
        "/#process",
    ),
    "not ready": (
        {"ready": False, "reasons": ["redis://r:6379: connection refused"]},
        "Clients cannot be served: redis://r:6379: connection refused.",
        "keyfence status",
        "/#process",
    ),
    "break-glass": (
        {"break_glass": [{"rule": "scope.write", "service": "web", "until": AT}]},
        "Break-glass is open until 2026-11-30 00:53:20Z: violations of scope.write pass. After that, the "
        "configured modes are in force again.",
        "keyfence observe --end",
        "/findings?state=active",
    ),
    "lapsed": (
        {"waivers_due": {"lapsed": 1, "ending": 1, "first": WAIVER}},
        "1 waiver has lapsed, on 2026-12-04 (web, scope.write). What it covers still passes; mend it, or "
        "give a later date.",
        "keyfence waivers",
        "/findings?state=waived",
    ),
    "ending": (
        {"waivers_due": {"lapsed": 0, "ending": 3, "first": WAIVER}},
        "The waiver for web and scope.write ends on 2026-12-04, and 2 others end soon after. Mend what it "
        "covers before.",
        "keyfence waivers",
        "/findings?state=waived",
    ),
    "upstream": (
        {"warnings": ["upstream redis://r:6379 is a replica, which refuses writes"]},
        "Upstream redis://r:6379 is a replica, which refuses writes.",
        "keyfence status",
        "/#process",
    ),
    "instance refuses": (
        {"fleet": fleet(instance("a:1"), instance("b:1", "refused", reason="p.yaml:3:1: no such key."))},
        "The policy of b:1 is not what it should be: p.yaml:3:1: no such key.",
        "keyfence fleet",
        "/fleet",
    ),
    "instance silent": (
        {
            "fleet": fleet(
                instance("a:1", "silent", 90.0),
                instance("b:1"),
                instance("c:1", "silent", 60.0),
                instance("d:1", "silent", 90_000.0),
            )
        },
        "a:1 and c:1 have not reported for 1m. See whether they still run.",
        "keyfence fleet",
        "/fleet",
    ),
    "spliced": (
        {"policy": None, "active": None, "readiness": None},
        "keyfence runs with --splice: it passes every command unread. Start it without, and it sees what "
        "services do.",
        "",
        "",
    ),
    "silent": (
        {"commands": {}, "readiness": readiness(standing("no traffic"))},
        "No client has used a key since keyfence began, 2026-11-30 00:53:20Z. Have one connect to "
        "127.0.0.1:6380.",
        "redis-cli -p 6380",
        "/services",
    ),
    "not told apart": (
        {"commands": {UNKNOWN: 1200}},
        "No service is told apart: nothing identifies the clients of all 1,200 commands. Give each service a "
        "listener, or say under identify: who is who. Each client can ask who it is:",
        "redis-cli -p 6380 KEYFENCE WHOAMI",
        "/services",
    ),
    "no policy": (
        {"policy": POLICY | {"describes_keys": False}, "active": active(7, "the service web breaks x", of=7)},
        "The policy describes no keys yet, so each use of a key is a finding: 7 findings so far. Draft a "
        "policy of what was seen.",
        "keyfence draft -o policy.yaml",
        "/findings?state=active",
    ),
    "fleet candidate": (
        {
            "fleet": fleet(instance("a:1"))
            | {
                "candidates": [
                    {
                        "candidate": {"sequence": 3},
                        "commands": {"web": 1200, "billing": 0},
                        "comparing": 2,
                        "instances": [{}, {}, {}],
                        "totals": {"new": 16, "stricter": 1},
                    }
                ]
            }
        },
        "2 of 3 instances compare the fleet's candidate 3, on 1,200 commands so far: it would refuse, or "
        "newly find, 17 violations.",
        "keyfence fleet diff",
        "/fleet",
    ),
    "one cause": (
        {"active": active(17, "keys that begin with ordr: (did you mean order:?)", of=11, text="ordr: x")},
        "11 of 17 findings have one cause: keys that begin with ordr: (did you mean order:?).",
        "keyfence findings --state active --text 'ordr: x'",
        "/findings?state=active&text=ordr%3A+x",
    ),
    "enforceable": (
        {
            "active": active(9, "keys that begin with a:", of=2),
            "readiness": readiness(
                modes=(
                    {"rule": "ttl.required"},
                    {"rule": "scope.write", "service": "web"},
                    {"rule": "key.format", "service": UNKNOWN},
                )
            ),
        },
        "2 rules can be enforced: scope.write for web and ttl.required. keyfence was looking for 7d, and no "
        "command broke them.",
        "keyfence ready --write-modes",
        "/#enforcement",
    ),
    "findings": (
        {"active": active(9)},
        "9 findings are active. Begin with scope.write by web.",
        "keyfence findings f-1",
        "/findings/f-1",
    ),
    "cluster": (
        {
            "standing": {
                "services": [
                    {"service": "web", "readiness": "not ready"},
                    {"service": "billing", "readiness": "ready"},
                ]
            }
        },
        "A cluster would break 1 of 2 services: web.",
        "keyfence ready --for cluster",
        "/candidate",
    ),
    "warned": (
        {"warnings": ["the files of the policy cannot change"]},
        "The files of the policy cannot change.",
        "keyfence status",
        "/#process",
    ),
    "no store": (
        {"readiness": None},
        "No finding is active. Which rules can be enforced is not known: that needs a findings store. Set "
        "findings: in the configuration, and restart keyfence.",
        "",
        "/#enforcement",
    ),
    "waiting": (
        {
            "readiness": readiness(
                standing("gap", why="observe for another 6d 23h", wait=6e5),
                standing("gap", "scope.write", why="observe for another 2d", wait=2e5),
            )
        },
        "No finding is active, and 2 rules cannot be enforced yet. The first is scope.write for web: observe "
        "for another 2d.",
        "keyfence ready",
        "/#enforcement",
    ),
    "nothing": (
        {},
        "Nothing to do: no finding is active, and 1 rule with traffic is enforced.",
        "",
        "/#enforcement",
    ),
}


def test_the_rows_stand_in_the_order_of_their_importance() -> None:
    assert [row.name for row in ROWS] == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_row_says_what_to_do(name: str) -> None:
    more, sentence, command, link = CASES[name]
    step = step_of(facts(**more))
    assert (step.name, step.sentence, step.command, step.link) == (name, sentence, command, link)
    assert bool(step.label) == bool(link)


@pytest.mark.parametrize(("first", "second"), list(zip(CASES, list(CASES)[1:], strict=False)))
def test_of_two_rows_the_more_important_one_is_the_step(first: str, second: str) -> None:
    given = CASES[second][0] | CASES[first][0]
    assert step_of(facts(**given)).name == first


def test_commands_name_a_keyfence_that_is_not_at_the_usual_address() -> None:
    given = {"admin": "http://127.0.0.1:40001", "active": active(2)}
    assert step_of(facts(**given)).command == "keyfence findings f-1 --admin http://127.0.0.1:40001"


def test_a_draft_is_made_of_the_command_log_if_there_is_one() -> None:
    given = CASES["no policy"][0] | {"record": "/tmp/a look/commands.log", "admin": "http://127.0.0.1:40001"}
    assert step_of(facts(**given)).command == "keyfence draft '/tmp/a look/commands.log' -o policy.yaml"


def test_a_policy_that_describes_nothing_waits_for_keys_and_not_for_pings() -> None:
    given = {"policy": POLICY | {"describes_keys": False}, "readiness": None}
    assert step_of(facts(**given)).name == "silent"


def test_after_a_restart_what_the_store_knows_counts_without_traffic() -> None:
    assert step_of(facts(commands={}, active=active(1))).name == "findings"
    waiting = CASES["waiting"][0]
    assert step_of(facts(commands={}, **waiting)).name == "waiting"


def test_few_findings_of_one_cause_among_many_are_no_step() -> None:
    assert step_of(facts(active=active(9, "the client library a 1", of=2))).name == "findings"
    assert step_of(facts(active=active(1, "the client library a 1", of=1))).name == "findings"


def test_of_very_many_findings_those_with_most_violations_are_looked_at() -> None:
    found = step_of(facts(active=active(900, "the client library a 1", of=300, text="a"))).sentence
    assert found == "300 of the 500 findings with most violations have one cause: the client library a 1."


def test_of_many_names_some_are_named() -> None:
    lines = tuple({"rule": f"r{number}"} for number in range(9))
    assert (
        "9 rules can be enforced: r0, r1, r2 and 6 more."
        in step_of(facts(readiness=readiness(modes=lines))).sentence
    )


@pytest.mark.parametrize(
    ("address", "command"),
    [
        ("unix:/run/k.sock", "redis-cli -s /run/k.sock"),
        ("10.0.0.9:6380", "redis-cli -h 10.0.0.9 -p 6380"),
        ("0.0.0.0:7000", "redis-cli -p 7000"),
    ],
)
def test_a_client_connects_to_a_listener_for_clients(address: str, command: str) -> None:
    listeners = [{"address": "127.0.0.1:26379", "sentinel": "main"}, {"address": address}]
    step = step_of(facts(**CASES["silent"][0], listeners=listeners))
    assert step.command == command


def test_a_node_of_a_cluster_as_upstream_is_told_with_the_remedy() -> None:
    seen = Standing()
    seen.mode = KINDS[0]
    (concern,) = seen.concerns()
    step = step_of(facts(warnings=[f"upstream redis://r:6379 {concern.text}"]))
    assert step.name == "upstream"
    assert step.sentence.endswith("To serve all nodes, write upstream: {cluster: [HOST:PORT]}.")


def test_what_is_wrong_with_a_cluster_comes_before_findings() -> None:
    cluster = {"troubles": [{"kind": "slots", "text": "3 hash slots of the cluster have no node"}]}
    assert step_of(facts(upstream={"cluster": {"troubles": []}}, active=active(2))).name == "findings"
    step = step_of(facts(upstream={"cluster": cluster}, active=active(2)))
    assert (step.name, step.sentence) == ("upstream", "3 hash slots of the cluster have no node.")


class Answers:
    """A keyfence without a findings store, before a cluster that is rehearsed or not."""

    def __init__(self, **status: Any) -> None:
        self.given = STATUS | status

    async def status(self) -> dict[str, Any]:
        return self.given

    async def ask(self, question: Question) -> Any:
        if isinstance(question, CommonCause):
            return NONE
        raise ValueError("keyfence runs without a findings store")

    async def standing(self) -> dict[str, Any]:
        return {"services": [{"service": "web", "readiness": "not ready"}]}


def step_from(answers: Answers) -> Step:
    row = {"service": "web", "forwarded": 3, "refused": 0, "local": 0}
    return asyncio.run(next_step(answers, [row]))


def test_what_has_no_answer_is_left_out() -> None:
    assert step_from(Answers()).name == "no store"


def test_only_a_rehearsal_says_what_a_cluster_would_break() -> None:
    assert step_from(Answers(candidate={"for": ""})).name == "no store"
    assert step_from(Answers(candidate={"for": "cluster"})).name == "cluster"
