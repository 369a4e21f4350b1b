from __future__ import annotations

import json

from keyfence.audit.judge import Judge
from keyfence.audit.sums import MAX_EXAMPLES, Group, Sums
from keyfence.policy.loading.load import parse_policy
from tests.audit.shop import facts, judge

DAY = 86_400
OPEN = "policy: p\nservices: [a]\nclaims: ['mine:']\nkeys: {k: {key: 'mine:k', writers: [a]}}\n"


def counted(*keys: str, by: Judge | None = None, **found: object) -> Sums:
    """The sums over some keys, of which Redis has said the same."""
    by = by or judge()
    sums = Sums(by)
    for key in keys:
        look = by.look(key.encode())
        said = facts(**found)  # type: ignore[arg-type]
        sums.add(key.encode(), look, said, by.of_facts(key.encode(), look.target, said))
    sums.settle()
    return sums


def only(sums: Sums) -> Group:
    (group,) = sums
    return group


def test_the_keys_of_an_entry_are_one_group() -> None:
    group = only(counted("shop:main:order:1", "shop:main:order:2", size=50))
    assert (group.kind, group.name, group.scope, group.shape) == ("entry", "order", "main", "")
    assert (group.keys, group.asked, group.size, group.without_ttl) == (2, 2, 100, 2)
    assert group.types == {"hash": 2}
    assert group.broken == {}


def test_broken_rules_have_counts_and_a_few_examples() -> None:
    group = only(counted(*(f"shop:main:order:{number}" for number in range(9)), kind="string", ttl=1000))
    assert {rule: one.keys for rule, one in group.broken.items()} == {"type.mismatch": 9, "ttl.forbidden": 9}
    assert len(group.broken["type.mismatch"].examples) == MAX_EXAMPLES
    assert group.broken["type.mismatch"].severity == "must"


def test_idle_times_are_counted_by_days() -> None:
    sums = counted("shop:main:order:1", idle=31 * DAY)
    assert only(sums).idle == [1, 1, 0]
    assert only(counted("shop:main:order:1", idle=-1)).idle == [0, 0, 0]


def test_keys_of_no_entry_are_grouped_by_shape_with_extremes() -> None:
    by = Judge(parse_policy(OPEN))
    sums = Sums(by)
    for number, (size, idle) in enumerate([(10, 5), (900, 1), (20, 900)]):
        key = f"user:{number}:name".encode()
        sums.add(key, by.look(key), facts("string", -1, size, idle))
    sums.settle()
    group = only(sums)
    assert group.shape == "user:<int>:name"
    assert group.biggest is not None
    assert group.oldest is not None
    assert (group.biggest.key, group.biggest.number) == ("user:1:name", 900)
    assert (group.oldest.key, group.oldest.number) == ("user:2:name", 900)


def test_a_key_that_redis_was_not_asked_about_counts_by_its_name() -> None:
    by = judge()
    sums = Sums(by)
    for number in range(10):
        key = b"shop:main:order:%d" % number
        sums.add(key, by.look(key), facts(size=100) if number < 2 else None)
    group = only(sums)
    assert (group.keys, group.asked) == (10, 2)
    assert group.estimate(group.size) == 1000


def test_names_that_turn_out_to_be_ids_join_one_shape() -> None:
    """The first words at a place look like words; with too many of them, they are names."""
    words = [f"{one}{two}{three}" for one in "bdfgk" for two in "aeiou" for three in ("rta", "lno", "mpu")]
    sums = counted(*(f"cache:{word}" for word in words), by=Judge(parse_policy(OPEN)))
    assert {group.shape: group.keys for group in sums} == {"cache:<*>": len(words)}


def test_a_word_that_may_be_a_secret_shows_only_once_it_is_common() -> None:
    text = OPEN + "placeholders: {t: {is: '[a-z]{8,64}', secret: true}}\n"
    by = Judge(parse_policy(text.replace("keys: {k:", "keys: {s: {key: 'mine:s:<t>', writers: [a]}, k:")))
    few = counted("user:1:settings", by=by)
    assert [group.shape for group in few] == ["<*>:<int>:<*>"]
    many = counted(*(f"user:{number}:settings" for number in range(40)), by=by)
    assert {group.shape: group.keys for group in many} == {"user:<int>:settings": 40}


def test_sums_go_on_where_they_were_kept() -> None:
    keys = ["shop:main:order:1", "user:7:name", "user:8:name", "order-7", "shop:main:cart:1"]
    first = counted(*keys, idle=40 * DAY)
    kept = json.loads(json.dumps(first.as_object()))
    again = Sums(judge())
    again.take(kept)
    assert [group.as_object() for group in again] == kept
    assert sum(group.keys for group in again) == len(keys)
    assert "user:7" not in json.dumps(kept)  # it may be a secret


def test_groups_that_become_one_add_up() -> None:
    one, two = only(counted("shop:main:cart:1")), only(counted("shop:main:cart:2", size=300))
    one.merge(two)
    assert (one.keys, one.asked, one.size, one.without_ttl) == (2, 2, 400, 2)
    assert one.broken["ttl.required"].keys == 2
    assert one.broken["ttl.required"].examples == ["shop:main:cart:1", "shop:main:cart:2"]
    assert one.biggest is not None
    assert one.biggest.key == "shop:main:cart:2"
