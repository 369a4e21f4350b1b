from __future__ import annotations

from typing import Any

from keyfence.findings.filter import Filter
from keyfence.findings.finding import AT_REST
from keyfence.process.causes import BLOCK, Causes, by_cause, common_cause
from tests.policy.remedies.test_nearest import POLICY


def finding(service: str, rule: str, shape: str = "", library: str = "", **more: Any) -> dict[str, Any]:
    clients = [{"address": "10.0.0.7", **({"library": library, "version": "5"} if library else {})}]
    return {"service": service, "rule": rule, "shape": shape, "clients": clients, **more}


def test_findings_of_one_slip_stand_together_whatever_their_service() -> None:
    found = Causes(POLICY).grouped(
        [
            finding("shop", "key.unregistered", "bh:session:<int>", n=1),
            finding("pricing", "scope.write", n=2),
            finding("pricing", "key.unregistered", "bh:price:<int>", n=3),
            finding("pricing", "key.unregistered", "metrics:cpu", n=4),
        ]
    )
    assert [(one["n"], one["cause"]) for one in found] == [
        (1, "keys that begin with bh: (did you mean hb:?)"),
        (3, "keys that begin with bh: (did you mean hb:?)"),
        (2, ""),
        (4, ""),
    ]
    assert [one["meant"] for one in found] == ["did you mean hb:?", "did you mean hb:?", "", ""]


def test_what_one_library_does_stands_together_and_what_has_no_common_cause_stands_alone() -> None:
    found = Causes(POLICY).grouped(
        [
            finding("shop", "script.unregistered", library="bullmq", n=1),
            finding("pricing", "command.forbidden", library="jedis", n=2),
            finding("pricing", "command.unknown", library="bullmq", n=3),
            finding("pricing", "scope.write", library="bullmq", n=4),
        ]
    )
    assert [(one["n"], one["cause"]) for one in found] == [
        (1, "the client library bullmq 5"),
        (3, "the client library bullmq 5"),
        (2, ""),
        (4, ""),
    ]


def test_a_service_that_breaks_one_rule_in_several_ways_is_a_cause() -> None:
    rows = [finding("shop" if n % 3 else "pricing", "scope.write", n=n) for n in range(5)]
    found = Causes(POLICY).grouped([*rows, finding("shop", "ttl.required", n=5)])
    cause = "the service shop breaks scope.write"
    assert [(one["n"], one["cause"]) for one in found] == [
        *((0, ""), (1, cause), (2, cause), (4, cause), (3, ""), (5, "")),
    ]


def test_what_an_audit_found_in_keys_at_rest_is_no_services() -> None:
    rows = [finding(AT_REST, "ttl.required", n=n) for n in range(9)]
    assert {one["cause"] for one in Causes(POLICY).grouped(rows)} == {""}


def test_the_common_cause_is_the_one_of_most_active_findings() -> None:
    rows = [
        finding("shop", "key.unregistered", "bh:session:<int>", id="1"),
        *(finding("pricing", "scope.write", id=str(n)) for n in range(3)),
        finding("shop", "ttl.required", id="9"),
    ]
    found = common_cause(_Active(rows), Causes(POLICY))  # type: ignore[arg-type]
    assert (found["findings"], found["looked_at"], found["number"]) == (5, 5, 3)
    assert found["cause"] == "the service pricing breaks scope.write"
    assert found["filter"] == {"service": "pricing", "rule": "scope.write"}
    assert found["first"] == {"id": "1", "service": "shop", "rule": "key.unregistered"}


def test_a_slip_and_a_library_are_found_by_their_text() -> None:
    causes = Causes(POLICY).of(
        [
            finding("shop", "key.unregistered", "bh:session:<int>"),
            *(finding(name, "command.unknown", library="bullmq") for name in ("shop", "pricing")),
        ]
    )
    assert [dict(one.fields) for one in causes] == [{"text": "bh:"}, {"text": "bullmq"}, {"text": "bullmq"}]


def test_without_findings_there_is_no_common_cause() -> None:
    found = common_cause(_Active([]), Causes(POLICY))  # type: ignore[arg-type]
    assert (found["findings"], found["number"], found["first"]) == (0, 0, None)


class _Active:
    """Active findings."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def active(self, limit: int) -> tuple[list[dict[str, Any]], int]:
        return self.rows[:limit], len(self.rows)


def test_without_a_policy_nothing_is_meant() -> None:
    (one,) = Causes(None).grouped([finding("shop", "key.unregistered", "bh:session:<int>")])
    assert (one["meant"], one["cause"]) == ("", "")


class _Views:
    """Findings of two services in turn."""

    def __init__(self, number: int) -> None:
        self.all = [finding(f"s{n // 2}", "scope.write", n=n) for n in range(number)]

    def listing(self, which: Filter, _now: float) -> dict[str, Any]:
        return {"findings": self.all[which.offset : which.offset + which.limit], "total": len(self.all)}


def test_the_pages_of_a_list_have_each_finding_once() -> None:
    views, causes, seen = _Views(3 * BLOCK + 7), Causes(POLICY), []
    for offset in range(0, 3 * BLOCK + 7, 70):
        page = by_cause(views, causes, Filter(sort="cause", offset=offset, limit=70))  # type: ignore[arg-type]
        seen += [one["n"] for one in page["findings"]]
    assert sorted(seen) == list(range(3 * BLOCK + 7))
    assert seen[:3] == [0, 1, 2]
