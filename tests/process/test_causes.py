from __future__ import annotations

from typing import Any

from keyfence.findings.filter import Filter
from keyfence.process.causes import BLOCK, Causes, by_cause
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


def test_findings_of_one_service_alone_have_no_common_cause_and_keep_their_order() -> None:
    rows = [finding("shop" if n % 2 else "pricing", "scope.write", n=n) for n in range(7)]
    found = Causes(POLICY).grouped(rows)
    assert [(one["n"], one["cause"]) for one in found] == [(n, "") for n in range(7)]


def test_without_a_policy_nothing_is_meant() -> None:
    (one,) = Causes(None).grouped([finding("shop", "key.unregistered", "bh:session:<int>")])
    assert (one["meant"], one["cause"]) == ("", "")


class _Views:
    """Findings of two services in turn."""

    def __init__(self, number: int) -> None:
        self.all = [finding(("shop", "pricing")[n % 2], "scope.write", n=n) for n in range(number)]

    def listing(self, which: Filter, _now: float) -> dict[str, Any]:
        return {"findings": self.all[which.offset : which.offset + which.limit], "total": len(self.all)}


def test_the_pages_of_a_list_have_each_finding_once() -> None:
    views, causes, seen = _Views(3 * BLOCK + 7), Causes(POLICY), []
    for offset in range(0, 3 * BLOCK + 7, 70):
        page = by_cause(views, causes, Filter(sort="cause", offset=offset, limit=70))  # type: ignore[arg-type]
        seen += [one["n"] for one in page["findings"]]
    assert sorted(seen) == list(range(3 * BLOCK + 7))
    assert seen[:3] == [0, 1, 2]
