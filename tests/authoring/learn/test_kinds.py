"""Which keys are of one kind."""

from __future__ import annotations

import json
import random

import pytest

from keyfence.authoring.learn.kinds import DEPTHS, Kind, Slot, Ways, kinds_of
from keyfence.authoring.learn.naming import name_slots
from keyfence.authoring.learn.seen import WRITES, Facts


def facts(kind: str = "string", writer: str = "app") -> Facts:
    found = Facts(times=1)
    found.types.written[(kind,)] += 1
    found.uses[writer] = WRITES
    return found


def named(keys: dict[str, Facts], ways: Ways | None = None) -> list[Kind]:
    kinds = kinds_of(keys, ways or Ways())
    name_slots(kinds, lambda _: "")
    return kinds


def patterns(*keys: str) -> list[str]:
    return [kind.pattern for kind in named({key: facts() for key in keys})]


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        (["order:1", "order:2:items"], ["order:<order>", "order:<order>:items"]),
        (["orders:17", "orders:204"], ["orders:<order>"]),
        (["user:1:cart", "user:7c8fbcd4:cart"], ["user:<user>:cart"]),
        (["{user:1}:a", "{user:2}:b"], ["{user:<user>}:a", "{user:<user>}:b"]),
        (["a:9:b:8"], ["a:<a>:b:<b>"]),
        (["user:profile:id:12345"], ["user:profile:id:<profile_id>"]),
        (["rl:10.0.0.7", "rl:2001:db8::1"], ["rl:<rl>"]),
        (["blobs::sha256:" + "9f86d081" * 8], ["blobs::sha256:<sha256>"]),
        (["user_1", "user_2", "user_30"], ["user_<user>"]),
        (["session", "sessions"], ["session", "sessions"]),
    ],
)
def test_keys_that_differ_in_values_are_of_one_kind(keys: list[str], found: list[str]) -> None:
    assert patterns(*keys) == found


def test_few_words_stay_and_many_that_are_used_alike_become_a_placeholder() -> None:
    assert patterns("role:ann", "role:bob") == ["role:ann", "role:bob"]
    names = ("ann", "bob", "carol", "dora", "emil", "fritz", "gerda", "hanna")
    found = named({f"role:{name}": facts() for name in names})
    assert [kind.pattern for kind in found] == ["role:<role>"]
    assert found[0].slots[0].guessed


def test_kinds_stay_apart_although_their_keys_are_used_alike() -> None:
    words = (
        "cart",
        "order",
        "session",
        "level",
        "user",
        "page",
        "stat",
        "flag",
        "lock",
        "visit",
        "rate",
        "tax",
        "fee",
    )
    found = named({f"shop:{word}:{number}": facts() for word in words for number in range(20)})
    assert [kind.pattern for kind in found] == [f"shop:{word}:<{word}>" for word in sorted(words)]


def test_words_that_are_used_in_different_ways_stay() -> None:
    kinds = ("string", "hash", "list", "set", "zset", "stream")
    assert len(named({f"stats:{kind}s": facts(kind) for kind in kinds})) == 6


def test_words_with_writers_of_their_own_stay_because_they_say_whose_the_keys_are() -> None:
    names = ("alpha", "beta", "gamma", "delta", "omega")
    found = named({f"app:{name}:{number}": facts(writer=name) for name in names for number in range(3)})
    assert [kind.pattern for kind in found] == [f"app:{name}:<{name}>" for name in sorted(names)]


def test_places_with_the_same_ids_have_one_placeholder() -> None:
    ids = [f"{number * 7919:08x}f" for number in range(1, 20)]
    keys = {f"sandbox:route:{one}": facts() for one in ids} | {f"lock:sandbox:{one}": facts() for one in ids}
    assert [kind.pattern for kind in named(keys)] == ["lock:sandbox:<sandbox>", "sandbox:route:<sandbox>"]


def test_in_the_coarse_way_no_key_is_of_two_kinds() -> None:
    keys = {"a:x1:b": facts(), "a:x2:b": facts(), "a:own:b": facts("hash")}
    assert [kind.pattern for kind in named(keys)] == ["a:<a>:b", "a:own:b"]
    assert [kind.pattern for kind in named(keys, Ways(stems=False, coarse=True))] == ["a:<a>:b"]


def tenants(*names: str, kinds: tuple[str, ...] = ("cart:1", "order:1", "order:next", "flags")) -> list[str]:
    return [f"hb:{{{name}}}:{kind}" for name in names for kind in kinds]


@pytest.mark.parametrize(
    "names", [("acme", "globex"), ("acme", "globex", "hooli", "t-800", "stark-freight", "x1")]
)
def test_names_in_hash_tags_are_one_placeholder_however_many_they_are(names: tuple[str, ...]) -> None:
    assert patterns(*tenants(*names)) == [
        "hb:{<tag>}:cart:<cart>",
        "hb:{<tag>}:flags",
        "hb:{<tag>}:order:<order>",
        "hb:{<tag>}:order:next",
    ]


def test_a_tenant_that_uses_few_kinds_is_one_too() -> None:
    keys = [*tenants("acme", "globex"), *tenants("hooli", kinds=("cart:7",))]
    assert all("{<tag>}" in pattern for pattern in patterns(*keys))


def test_a_hash_tag_that_other_keys_follow_stays_a_word() -> None:
    found = patterns(*tenants("acme", "globex"), *tenants("global", kinds=("rates", "leader", "cart")))
    assert "hb:{global}:rates" in found


def test_names_of_hash_tags_are_names_elsewhere_too() -> None:
    keys = [*tenants("acme", "globex"), "old:acme:1", "old:globex:1"]
    assert "old:<tag>:<id>" in patterns(*keys)


def test_capital_letters_at_the_end_of_keys_are_codes() -> None:
    assert patterns("rate:EUR", "rate:USD", "rate:GBP") == ["rate:<rate>"]
    assert patterns("rate:eur", "rate:usd", "rate:gbp") == ["rate:eur", "rate:gbp", "rate:usd"]


def test_letters_after_a_word_such_as_token_are_no_words() -> None:
    assert patterns("reset:xamzxqzeqyrgnb", "reset:pumzgdpamntyya") == ["reset:<reset>"]
    assert patterns("session:index", "session:9f86d081884c7d65") == ["session:<session>", "session:index"]


def json_keys(number: int) -> list[str]:
    """Keys that hold JSON: words, values and braces at many places."""
    draw = random.Random(number)
    keys = []
    for _ in range(number):
        names = draw.sample(["id", "name", "page", "sort", "filter", "q2", "x1"], 5)
        held = {
            one: draw.choice([draw.randrange(10**6), "bob", True, {"a": draw.randrange(9)}]) for one in names
        }
        keys.append(f"cache:user:{json.dumps(held)}")
    return keys


@pytest.mark.timeout(60)
def test_keys_with_very_many_parts_do_not_take_forever() -> None:
    keys = json_keys(60)
    found = named({key: facts() for key in keys})
    assert sorted(key for kind in found for key in kind.keys) == sorted(keys)
    for kind in found:
        for key in kind.keys:
            values = kind.values_in(key)
            assert values is not None
            assert all(
                slot.value_class.matches(value) for slot, value in zip(kind.slots, values, strict=True)
            )


@pytest.mark.parametrize("last", ["x:y", "é:{1}", "::"])
def test_what_is_behind_the_parts_that_are_compared_is_one_value(last: str) -> None:
    beginning = ":".join(["part"] * DEPTHS[0])
    found = named({f"{beginning}:{rest}": facts() for rest in (last, "7", "10.0.0.7:80", "")})
    assert [kind.pattern for kind in found] == [f"{beginning}:", f"{beginning}:<part>"]
    assert found[1].slots[0].value_class.matches(last)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("a:1:b:2", ["1", "2"]),
        ("a:b:b:b:", ["b", "b:"]),
        ("a:1:b", None),
        ("x:a:1:b:2", None),
        ("a::b:", ["", ""]),
    ],
)
def test_the_values_of_a_key_are_those_of_its_placeholders(key: str, values: list[str] | None) -> None:
    assert Kind(["a:", Slot(set()), ":b:", Slot(set())], [], facts()).values_in(key) == values
    assert Kind(["a:", Slot(set()), ":z"], [], facts()).values_in("a:1:z:z") == ["1:z"]
