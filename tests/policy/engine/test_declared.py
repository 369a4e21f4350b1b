"""How the decision cache checks each requirement of an entry (`written.DECLARED`).

Rule: the cache gives up on a command if it has not been told how to check one of the requirements. It never
admits such a command unchecked.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from keyfence.commands.cache_forms import LENGTH
from keyfence.commands.extract import extract
from keyfence.commands.families import FACTS
from keyfence.policy.compiled.requirements import ON_CONTENT
from keyfence.policy.compiled.written import BY_THE_FORM, DECLARED, IN_THE_BYTES, UNTOUCHED
from keyfence.policy.engine.checks import Standing, Standings
from keyfence.policy.engine.content import FINDERS
from keyfence.policy.engine.decision_cache import DecisionCache
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy

from .test_decision_cache import ALL, admitted, admitted_unread
from .test_written_content import ALLOWED, CONTENTS

POLICY = parse_policy(CONTENTS)

# For each check that is declared: a command that only this check stops.
WRONG = {
    ("values", "SET"): b"SET c:state:1 maybe EX 60",
    ("fields", "HSET"): b"HSET c:route:1 ip here",
    ("members", "SADD"): b"SADD c:tags:1 1",
    ("scores", "ZADD"): b"ZADD c:board:1 101 a",
    ("max_value", "SET"): b"SET c:blob:1 123456789",
    ("max_value", "HSET"): b"HSET c:plain:1 x 12345",
    ("max_value", "LPUSH"): b"LPUSH c:queue:1 [1,2,3,4,5,6,7,8,9,10,11,12,13]",
    ("max_fields", "HSET"): b"HSET c:plain:1 x 1 y 1 z 1",
    ("max_members", "SADD"): b"SADD c:tags:1 a b c d",
    ("maxlen", "XADD"): b"XADD c:events:1 MAXLEN ~ 5000 * op create",
}
# The same for commands with several keys, which write values only.
SEVERAL = [b"MSET c:blob:1 1 c:blob:2 123456789", b"MSET c:any:1 1 c:any:2 x"]


def content_of(argv: list[bytes]) -> int:
    return FACTS[argv[0].decode().upper()].layout.content


def admits(argv: list[bytes], evaluator: Evaluator) -> bool:
    """Whether a new cache admits a command, as a list or unread. The first look-up learns."""
    cache = DecisionCache(evaluator, 0, ALL)
    found = cache.find(argv)
    unread = admitted_unread(cache, argv)
    return admitted(cache, argv) is not None or unread is not None or found.is_admitted


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[int, str]]:
    """What the cache has been told, to be changed by a test."""
    copy = {item: dict(ways) for item, ways in DECLARED.items()}
    live: Mapping[str, Mapping[int, str]] = DECLARED
    assert isinstance(live, dict)
    for item, ways in copy.items():
        monkeypatch.setitem(live, item, ways)
    return copy


def test_every_requirement_on_content_has_a_finder_and_a_declaration() -> None:
    assert set(ON_CONTENT) == FINDERS.keys() == DECLARED.keys()


@pytest.mark.parametrize("item", ON_CONTENT)
def test_the_cache_gives_up_on_a_requirement_that_it_was_not_told_of(
    item: str, declared: dict[str, dict[int, str]]
) -> None:
    evaluator = Evaluator(POLICY)
    having = [
        argv
        for argv in ALLOWED
        for target in [POLICY.target(argv[1])]
        if target is not None and target.entry is not None and item in target.entry.on_content
        if extract(argv).accesses[0].content is not None
    ]
    before = [argv for argv in having if admits(argv, evaluator)]
    assert before
    declared[item].clear()
    assert [argv for argv in before if admits(argv, evaluator)] == []


@pytest.mark.parametrize(("item", "name"), WRONG, ids="-".join)
def test_each_declared_check_stops_a_command_that_nothing_else_stops(
    item: str, name: str, declared: dict[str, dict[int, str]]
) -> None:
    evaluator = Evaluator(POLICY)
    argv = WRONG[item, name].split(b" ")
    content = content_of(argv)
    assert declared[item][content] in (IN_THE_BYTES, BY_THE_FORM)
    assert evaluator.decide(0, argv).violations
    assert not admits(argv, evaluator)
    declared[item][content] = UNTOUCHED
    assert admits(argv, evaluator), "the twins would not notice that this check is missing"


def test_a_command_breaks_each_check_that_is_declared() -> None:
    checked = {
        (item, content)
        for item, ways in DECLARED.items()
        for content, way in ways.items()
        if way in (IN_THE_BYTES, BY_THE_FORM)
    }
    assert {(item, content_of([name.encode()])) for item, name in WRONG} == checked


@pytest.mark.parametrize("line", SEVERAL)
def test_commands_with_several_keys_are_checked_by_the_same_declarations(
    line: bytes, declared: dict[str, dict[int, str]]
) -> None:
    evaluator = Evaluator(POLICY)
    argv = line.split(b" ")
    right = [*argv[:4], b"1"]
    assert evaluator.decide(0, argv).violations
    assert not admits(argv, evaluator)
    assert admits(right, evaluator)
    for ways in declared.values():
        ways.clear()
    assert not admits(right, evaluator)


def test_the_cache_does_not_admit_what_only_the_evaluator_can_measure() -> None:
    """SETRANGE makes a string of any length."""
    assert LENGTH not in DECLARED["max_value"]
    assert not admits([b"SETRANGE", b"c:blob:1", b"5", b"x"], Evaluator(POLICY))
    assert admits([b"SETRANGE", b"c:any:1", b"5", b"x"], Evaluator(POLICY))


@pytest.mark.parametrize("argv", [*ALLOWED, *(line.split(b" ") for line in SEVERAL)], ids=repr)
def test_the_cache_gives_up_on_a_doubt_that_it_was_not_told_of(
    argv: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Standings.of

    def with_a_new_doubt(self: Standings, *arguments: object) -> Standing:
        doubts, outcome = whole(self, *arguments)  # type: ignore[arg-type]
        return Standing(doubts | 1 << 20, outcome)

    monkeypatch.setattr(Standings, "of", with_a_new_doubt)
    assert not admits([*argv[:4], *argv[4:]], Evaluator(POLICY))
