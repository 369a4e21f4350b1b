from __future__ import annotations

import pytest

from keyfence.audit.judge import Facts, Fault, type_name
from keyfence.policy.compiled.sizes import Question
from keyfence.policy.loading.load import parse_policy
from tests.audit.shop import facts, judge

SHOP = judge()
MINUTE = 60_000


def rules(key: str) -> list[tuple[str, str]]:
    return [tuple(one) for one in SHOP.look(key.encode()).faults]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("key", "kind", "name", "scope"),
    [
        ("shop:main:order:7", "entry", "order", "main"),
        ("shop:free:anything", "scope", "", "free"),
        ("order-7", "legacy", "order", ""),
        ("shop:main:lost:7", "unregistered", "", "main"),
        ("shop:nowhere", "unregistered", "", ""),
        ("user:7", "unregistered", "", ""),
        ("shop:main:order:UPPER", "malformed", "order", "main"),
    ],
)
def test_a_key_has_its_place_in_the_policy(key: str, kind: str, name: str, scope: str) -> None:
    place = SHOP.look(key.encode()).place
    assert (place.kind, place.name, place.scope) == (kind, name, scope)
    assert place.owner == "#shop"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("shop:main:order:7", []),
        ("shop:free:anything", []),
        ("shop:main:lost:7", [("key.unregistered", "must")]),
        ("user:7", [("key.unregistered", "must")]),
        ("shop:nowhere", [("key.format", "must")]),
        ("shop:main:order:UPPER", [("key.format", "must")]),
        ("order-7", [("key.legacy", "should")]),  # services may still read and delete it
        ("page-7", [("key.legacy", "must")]),  # nobody may use it any more
        ("shop:main:stock:7", [("key.legacy", "should")]),  # another entry replaces it
        ("shop:main:stock:v2:7", []),
    ],
)
def test_a_name_breaks_the_rules_that_the_evaluator_finds(key: str, expected: list[tuple[str, str]]) -> None:
    assert rules(key) == expected


def test_naming_rules_are_judged_too() -> None:
    names = 'policy: p\nservices: [a]\nnames: {max_length: 8}\nkeys: {k: {key: "k:<x>", writers: [a]}}\n'
    one = type(SHOP)(parse_policy(names + 'placeholders: {x: "[a-z]+"}\n'))
    assert one.look(b"k:abc").faults == ()
    assert one.look(b"k:abcdefghi").faults == (Fault("key.length", "must"),)


def of_facts(key: str, found: Facts) -> list[str]:
    return [one.rule for one in SHOP.of_facts(key.encode(), SHOP.look(key.encode()).target, found)]


@pytest.mark.parametrize(
    ("key", "found", "expected"),
    [
        ("shop:main:order:7", facts(), []),
        ("shop:main:order:7", facts("string"), ["type.mismatch"]),
        ("shop:main:order:7", facts(ttl=MINUTE), ["ttl.forbidden"]),
        ("shop:main:cart:7", facts(), ["ttl.required"]),
        ("shop:main:cart:7", facts(ttl=1), []),  # it has run down; nobody knows how long it was
        ("shop:main:cart:7", facts(ttl=61 * MINUTE), ["ttl.range"]),
        ("shop:main:order:7", facts(fields=(b"state", b"total")), []),
        ("shop:main:order:7", facts(fields=(b"state", b"colour", b"size")), ["field.unknown"]),
        ("shop:main:page:7", facts("string", MINUTE, sizes=((Question(b"STRLEN", "value", 10), 10),)), []),
        (
            "shop:main:page:7",
            facts("string", MINUTE, sizes=((Question(b"STRLEN", "value", 10), 11),)),
            ["value.size"],
        ),
        ("shop:free:anything", facts("set"), ["ttl.required"]),
        ("order-7", facts("string"), []),  # its name says enough
        ("user:7", facts("string"), []),
    ],
)
def test_what_redis_says_breaks_rules(key: str, found: Facts, expected: list[str]) -> None:
    assert of_facts(key, found) == expected


def test_an_unknown_field_is_a_should_where_the_policy_says_so() -> None:
    target = SHOP.look(b"shop:main:order:7").target
    found = facts(fields=(b"colour",))
    assert list(SHOP.of_facts(b"", target, found)) == [Fault("field.unknown", "should")]


def test_only_what_the_policy_limits_is_asked_for() -> None:
    def target(key: str) -> object:
        return SHOP.look(key.encode()).target

    assert SHOP.has_fields(target("shop:main:order:7"), "hash")  # type: ignore[arg-type]
    assert not SHOP.has_fields(target("shop:main:order:7"), "string")  # type: ignore[arg-type]
    assert not SHOP.has_fields(target("shop:main:cart:7"), "hash")  # type: ignore[arg-type]
    asked = SHOP.questions(b"shop:main:queue", SHOP.look(b"shop:main:queue").target, "list")
    assert [(one.command, one.most) for one in asked] == [(b"LLEN", 3)]
    assert SHOP.questions(b"user:7", None, "list") == ()


def test_types_of_modules_have_the_policy_s_names() -> None:
    assert [type_name(one) for one in ("ReJSON-RL", "TSDB-TYPE", "hash")] == ["json", "timeseries", "hash"]


def test_secrets_are_masked() -> None:
    key = b"shop:main:session:abcdefgh1234"
    assert SHOP.shown(key, SHOP.look(key).target) == "shop:main:session:<token>"
