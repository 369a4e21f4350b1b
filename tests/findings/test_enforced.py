from __future__ import annotations

from itertools import pairwise
from typing import Any

from keyfence.findings.enforced import Enforcement, Stretch, totals
from keyfence.findings.history.book import LOOKED_SECONDS, Book
from keyfence.findings.history.chain import Row
from keyfence.findings.queries import Chained

NOW = 1_780_000_000
RULE = "scope.write"


class Instance:
    """A keyfence that runs from a second on. Times are seconds after NOW."""

    def __init__(self, begin: int = 0, name: str = "here:1") -> None:
        self.now = NOW + begin
        self.book = Book(name, lambda: self.now)
        self.note("policy", name="shop", revision="r1", should=[])
        self.modes("observe")

    def note(self, kind: str, **detail: Any) -> None:
        self.book.note("ann", (kind, detail))

    def modes(self, mode: str, *services: str) -> None:
        found = {mode: {RULE: list(services) or ["*"]}} if mode != "observe" else {}
        self.note("modes", services=["api", "web"], **found)

    def run(self, seconds: int, kind: str = "looking", service: str = "") -> None:
        """Look for this time."""
        for _ in range(0, seconds, 10):
            self.now += 10
            self.book.look(kind, service, self.now - 10, self.now)

    def pause(self, seconds: int) -> None:
        self.now += seconds


def stretches(*instances: Instance, since: int = 0, until: int = 1000, service: str = "api") -> list[Any]:
    """Returns status, begin, end and why of each stretch, in seconds after NOW."""
    rows: list[Row] = []
    tails = {}
    for one in instances:
        written, head, tail = one.book.waiting()
        rows += written
        tails[head.instance] = tail
    found = Enforcement(Chained(rows, [], tails), (NOW + since) * 1000, (NOW + until) * 1000)
    said = found.of(RULE, service)
    assert all(one.end == after.begin for one, after in pairwise(said))
    assert sum(totals(said).values()) == found.until - found.since
    return [(one.status, one.begin // 1000 - NOW, one.end // 1000 - NOW, one.why) for one in said]


def test_a_rule_is_enforced_from_the_change_of_its_mode_on() -> None:
    one = Instance()
    one.run(300)
    one.modes("enforce")
    one.run(700)
    assert stretches(one) == [("observed", 0, 300, ""), ("enforced", 300, 1000, "")]
    assert stretches(one, since=400) == [("enforced", 400, 1000, "")]


def test_modes_are_those_of_the_service() -> None:
    one = Instance()
    one.modes("enforce", "web")
    one.run(1000)
    assert stretches(one, service="web") == [("enforced", 0, 1000, "")]
    assert stretches(one, service="api") == [("observed", 0, 1000, "")]
    assert stretches(one, service="other") == [("gap", 0, 1000, "not a service of the policy")]


def test_a_disabled_rule_is_off() -> None:
    one = Instance()
    one.modes("disabled")
    one.run(1000)
    assert stretches(one) == [("off", 0, 1000, "")]


def test_time_without_any_instance_is_a_gap() -> None:
    one = Instance()
    one.modes("enforce")
    one.run(200)
    one.pause(500)
    one.run(300)
    assert stretches(one) == [
        ("enforced", 0, 200, ""),
        ("gap", 200, 700, "no instance looked"),
        ("enforced", 700, 1000, ""),
    ]


def test_time_before_the_history_is_a_gap() -> None:
    one = Instance(300)
    one.modes("enforce")
    one.run(700)
    assert stretches(one)[0] == ("gap", 0, 300, "before the history")


def test_another_instance_that_enforces_fills_the_gap() -> None:
    one, two = Instance(), Instance(name="there:1")
    for each in (one, two):
        each.modes("enforce")
    one.run(400)
    two.pause(300)
    two.run(700)
    assert stretches(one, two) == [("enforced", 0, 1000, "")]


def test_the_worst_instance_counts() -> None:
    one, two = Instance(), Instance(200, "there:1")
    one.modes("enforce")
    one.run(1000)
    two.run(300)
    assert stretches(one, two) == [
        ("enforced", 0, 200, ""),
        ("observed", 200, 500, ""),
        ("enforced", 500, 1000, ""),
    ]


def test_a_break_glass_is_a_gap_of_what_it_covers() -> None:
    one = Instance()
    one.modes("enforce")
    one.run(100)
    glass = {"rule": "", "service": "api", "until": 0, "who": "ann"}
    one.note("break-glass", change="opened", open=[glass])
    one.run(60)
    one.note("break-glass", change="over", open=[])
    one.run(840)
    assert stretches(one)[1] == ("gap", 100, 160, "break-glass by ann")
    assert stretches(one, service="web") == [("enforced", 0, 1000, "")]


def test_commands_that_pass_unread_are_a_gap() -> None:
    one = Instance()
    one.modes("enforce")
    one.run(500)
    one.note("policy", passthrough=True)
    one.run(100, "passthrough")
    one.note("policy", name="shop", revision="r1", should=[])
    one.run(400)
    assert stretches(one)[1] == ("gap", 500, 600, "passthrough")
    two = Instance()
    two.modes("enforce")
    two.book.look("opaque", "api", NOW + 50, NOW + 80)
    two.run(1000)
    assert stretches(two)[1] == ("gap", 50, 80, "commands passed unread")
    assert stretches(two, service="web") == [("enforced", 0, 1000, "")]


def test_a_should_is_never_enforced() -> None:
    one = Instance()
    one.modes("enforce")
    one.note("policy", name="shop", revision="r1", should=[RULE])
    one.run(1000)
    assert stretches(one) == [("observed", 0, 1000, "only a should of the policy")]


def test_waivers_of_an_enforced_rule_are_named() -> None:
    one = Instance()
    one.modes("enforce")
    one.note("waivers", in_force=[{"rule": RULE, "service": "api"}, {"rule": RULE, "service": "web"}])
    one.run(1000)
    assert stretches(one) == [("enforced", 0, 1000, "waivers: 1")]


def test_the_last_seconds_may_not_be_written_yet() -> None:
    one = Instance()
    one.modes("enforce")
    one.run(990)
    assert stretches(one)[-1] == ("enforced", 0, 990, "")
    assert stretches(one, until=1100)[-1] == ("gap", 990, 1100, "no instance looked")


def test_the_time_that_no_hash_covers_is_believed_for_an_hour_after_the_last_row() -> None:
    one = Instance()
    one.modes("enforce")
    rows, head, _ = one.book.waiting()
    begin, hour = NOW * 1000, int(LOOKED_SECONDS * 1000)
    chained = Chained(rows, [], {head.instance: f'[["looking","",{begin - hour},{begin + 9 * hour}]]'})
    found = Enforcement(chained, begin - hour, begin + 9 * hour).of(RULE, "api")
    assert [(each.status, each.end - each.begin) for each in found] == [
        ("gap", hour),
        ("enforced", hour + 60_000),
        ("gap", 8 * hour - 60_000),
    ]


def test_a_tail_that_is_not_one_says_nothing() -> None:
    one = Instance()
    rows, head, _ = one.book.waiting()
    for tail in ("", "[", "{}", "[1]", '[["looking"]]'):
        found = Enforcement(Chained(rows, [], {head.instance: tail}), NOW * 1000, NOW * 1000 + 1)
        assert [each.status for each in found.of(RULE, "api")] == ["gap"]


def test_a_store_without_a_history_is_one_gap() -> None:
    assert stretches() == [("gap", 0, 1000, "before the history")]


def test_services_are_those_of_the_time() -> None:
    one = Instance()
    one.run(100)
    one.note("modes", services=["api", "new"])
    one.run(900)
    written, head, tail = one.book.waiting()
    chained = Chained(written, [], {head.instance: tail})
    for since, until, expected in ((0, 50, ["api", "web"]), (0, 1000, ["api", "new", "web"])):
        found = Enforcement(chained, (NOW + since) * 1000, (NOW + until) * 1000)
        assert found.services() == expected
    assert Stretch(1000, 2000, "gap", "x").as_object()["begin"] == 1.0
