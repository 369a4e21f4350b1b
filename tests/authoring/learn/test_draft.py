"""What a draft says of what was seen, and that it is always a policy that loads."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from keyfence.authoring.learn.draft import Draft, DraftError, draft
from keyfence.authoring.learn.seen import Evidence
from keyfence.authoring.lint import check_text
from keyfence.commands.extract import extract
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.source.model import PolicyModel
from keyfence.policy.source.validate import validate
from keyfence.policy.source.yaml import Source
from keyfence.policy.wording.command_log import as_line
from tests.authoring.learn.traffic import BLANK


def evidence_of(*commands: str, service: str = "web") -> Evidence:
    """Evidence of commands; `stock> GET a` is of another service."""
    found = Evidence()
    for command in commands:
        who, _, rest = command.rpartition("> ")
        argv = rest.encode().split()
        found.add_command(as_line(BLANK, who or service, argv, extract(argv), 1))
    return found


def parsed_model(found: Draft) -> PolicyModel:
    assert check_text(found.text) == ([], [])
    return validate(PolicyModel, Source("<draft>", found.text))


def drafted(*commands: str) -> tuple[Draft, PolicyModel]:
    found = draft(evidence_of(*commands))
    return found, parsed_model(found)


def entry(*commands: str) -> Any:
    _, model = drafted(*commands)
    (only,) = model.keys.values()
    return only


@pytest.mark.parametrize(
    ("commands", "ttl"),
    [
        (["SET a:1 x EX 60", "SET a:2 x PX 60000"], {"default": 60_000, "max": 60_000, "at": "write"}),
        (["SET a:1 x EX 60", "SET a:2 x EX 47"], {"max": 60_000, "at": "write"}),
        (["SET a:1 x EX 61"], {"default": 61_000, "max": 61_000, "at": "write"}),
        (["SET a:1 x EX 61", "SET a:2 x EX 3"], {"max": 120_000, "at": "write"}),
        (["HSET a:1 f x", "EXPIRE a:1 60"], {"default": 60_000, "max": 60_000, "at": "refresh"}),
        (["SET a:1 x EX 60", "SET a:1 x"], {"default": 60_000, "max": 60_000, "or_none": True}),
        (["INCR a:1", "EXPIRE a:1 60"], {"default": 60_000, "max": 60_000, "at": "refresh"}),
        (["HSET a:1 f x"], {"none": True}),
        (["SET a:1 x"], {"none": True}),
    ],
)
def test_the_time_to_live_is_what_was_seen(commands: list[str], ttl: dict[str, Any]) -> None:
    found = entry(*commands).ttl.model_dump(exclude_defaults=True)
    assert found == {name: value for name, value in ttl.items() if (name, value) != ("at", "refresh")}


def test_nothing_is_said_of_a_time_to_live_that_nothing_shows() -> None:
    assert entry("GET a:1").ttl is None
    assert entry("GET a:1", "EVAL x 1 a:1").ttl is None


@pytest.mark.parametrize(
    "commands",
    [
        [*("HSET a:1 f x",) * 3, "stock> GET a:1"],  # of another service
        [*("HSET a:1 f x",) * 3, "stock> GET a:2"],  # on a key that nothing else was seen of
        [*("HSET a:1 f x",) * 9, "GET a:1"],  # once, of the service itself
        [*("HSET a:1 f x",) * 3, "LPUSH a:1 x"],  # a write
        ["HGETALL a:1"] * 9 + ["GET a:1"],  # of keys that are only read
    ],
)
def test_a_command_that_redis_answered_with_wrongtype_adds_no_type(commands: list[str]) -> None:
    assert entry(*commands).type == ["hash"]
    assert [one.mistake for one in drafted(*commands)[0].refused] == ["Redis answers WRONGTYPE"]


def test_a_service_whose_every_command_is_for_another_type_gets_no_right_and_is_named() -> None:
    commands = [*("HSET a:1 f x",) * 40, "stock> GET a:1", "audit> GET a:1", "audit> EXISTS a:1"]
    found, _ = drafted(*commands)
    assert (found.plan.rights["a"].writers, found.plan.rights["a"].readers) == (("web",), ("audit",))
    said = (
        "stock gets no right on a: the keys are of the type hash, and all its commands there are for another"
    )
    assert [note for note in found.notes if said in note]
    assert not [note for note in found.notes if "rare" in note and "stock" in note]
    assert [(one.rule, one.service) for one in found.refused] == [
        ("type.mismatch", "audit"), ("type.mismatch", "stock"),
    ]  # fmt: skip


def test_commands_for_another_type_give_rights_if_there_are_no_others() -> None:
    evidence = evidence_of("GET a:1")
    evidence.add_key(b"a:1", 0, "hash", -1, [b"f"])
    assert "web" in draft(evidence).plan.rights["a"].readers


def test_keys_of_several_types_have_them_all() -> None:
    assert entry("HSET a:1 f x", "SET a:2 x").type == ["hash", "string"]


def test_keys_that_are_there_show_their_type_whatever_commands_say() -> None:
    evidence = evidence_of(*["SET a:1 x"] * 5, "GET a:2")
    for number in range(9):
        evidence.add_key(b"a:%d" % number, 0, "hash", -1, [b"f"])
    text = draft(evidence).text
    assert "type: hash" in text


def test_a_forbidden_command_is_listed_and_not_granted() -> None:
    found, model = drafted("SET a:1 x", "stock> SET b:1 x", "stock> KEYS a:*")
    assert not model.grants
    assert [(one.rule, one.command, one.what) for one in found.refused] == [
        ("command.forbidden", "KEYS", "a:*")
    ]


SECRETS = ("9f86d081884c7d659a2feaa0", "eyJhbGciOi.JIUzI1NiJ9-x_Q", "kzsjhkdrtsztch", "sk_live_7AIehleEBKYk")


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("word", ["session", "token", "reset", "order"])
def test_what_may_be_a_secret_stands_nowhere_in_a_draft(secret: str, word: str) -> None:
    if word == "order" and secret.isalpha():
        pytest.skip("only the word before it tells such a secret from a word")
    commands = [
        f"SET a:{word}:{secret} x EX 60",
        f"HSET a:{word}s {secret} x",
        f"PUBLISH a:{word}:{secret} x",
        f"EVAL x 1 a:{word}:{secret}",
        f"stock> SCAN 0 MATCH a:{word}:{secret}*",
        f"KEYS *{word}:{secret[:14]}*",
        f"DEL a:{word}:{secret}:x:{secret}",
    ]
    found = draft(evidence_of(*commands, "stock> SET b:1 x"))
    texts = [found.text, *found.notes, *found.widenings, *(one.sentence() for one in found.refused)]
    assert not [text for text in texts if secret in text or secret[:12] in text]


def test_rights_are_what_each_service_did() -> None:
    found = entry("XADD log:1 MAXLEN ~ 100 * f 1", "stock> XREADGROUP GROUP g c STREAMS log:1 >",
                  "audit> XRANGE log:1 - +", "ops> EXISTS log:1")  # fmt: skip
    scope = drafted("web> SET a:1 x", "ops> EXISTS a:1")[1].scopes["a"]
    assert (found.writers, found.consumers, found.readers) == ([], [], [])  # they are those of its scope
    assert (scope.writers, scope.readers) == (["web"], ["ops"])
    assert found.maxlen == "~100"


def test_parts_with_several_kinds_and_other_writers_are_scopes() -> None:
    commands = [f"{who}> SET s:{who}:{kind}:1 x" for who in ("web", "ops") for kind in ("a", "b")]
    assert {one.prefix for one in drafted(*commands)[1].scopes.values()} == {"s:web:", "s:ops:"}


def test_words_of_single_kinds_are_no_scopes() -> None:
    commands = [
        "web> SET s:cart:1 x",
        "ops> SET s:order:1 x",
        "web> SET s:seen:1 x",
        "ops> SET s:order:next 1",
    ]
    model = drafted(*commands)[1]
    assert {one.prefix for one in model.scopes.values()} == {"s:"}
    assert list(model.keys) == ["cart", "order", "order-next", "seen"]
    assert (model.keys["cart"].writers, model.keys["order"].writers) == (["web"], ["ops"])


def test_different_entries_of_a_scope_have_rights_of_their_own() -> None:
    _, model = drafted("SET a:x:1 1", "stock> GET a:x:1", "SET a:y:1 1", "audit> GET a:y:1")
    assert model.keys["x"].readers == ["stock"]
    assert model.keys["y"].readers == ["audit"]


def test_fields_are_listed_and_ids_among_them_become_a_pattern() -> None:
    found = entry("HSET a:1 host 10.0.0.7 port 80 8080 32001 8081 32002", "HSET a:2 host 10.0.0.8")
    assert found.fields == {"host": "ip", "port": "integer", "<field>": "integer"}


def test_forms_of_values_are_required_if_all_have_them() -> None:
    assert entry("SET a:1 17", "INCR a:1").values == "integer"
    assert entry("SET a:1 17", "SET a:2 1.5").values == "number"
    assert entry("SET a:1 17", "SET a:2 x").values is None
    assert entry("SADD a:1 7 8").members == "integer"


def test_a_script_is_registered_with_the_kinds_of_its_keys() -> None:
    _, model = drafted("EVAL x 2 a:1 b:1", "EVAL x 2 a:2 b:2", "SET a:1 x", "SET b:1 x")
    (script,) = model.scripts.values()
    assert script.keys == ["a:<a>", "b:<b>"]
    assert model.unregistered_scripts.default == "forbid"


def test_scripts_with_different_numbers_of_keys_may_have_any() -> None:
    _, model = drafted("EVAL x 1 a:1", "EVAL x 2 a:1 a:2")
    (script,) = model.scripts.values()
    assert script.keys == "any"


def test_channels_have_publishers_and_subscribers() -> None:
    _, model = drafted("PUBLISH news:1 x", "stock> SUBSCRIBE news:2")
    (channel,) = model.channels.values()
    assert (channel.channel, channel.publishers, channel.subscribers) == ("news:<news>", ["web"], ["stock"])


def test_a_scan_beyond_the_own_keys_is_granted_as_it_was_sent() -> None:
    _, model = drafted("SET a:1 x", "stock> SCAN 0 MATCH a:*", "stock> SET b:1 x")
    assert (model.grants["stock"].commands, model.grants["stock"].keys) == (["SCAN"], ["a:*"])
    assert not drafted("SET a:1 x", "SCAN 0 MATCH a:*")[1].grants


def test_hash_tags_are_required_if_every_key_has_one() -> None:
    _, model = drafted("SET {a:1}:x 1", "MGET {a:1}:x {a:1}:y")
    assert (model.names.hash_tag, model.cluster) == ("required", True)
    _, model = drafted("SET {a:1}:x 1", "MGET {a:1}:x {a:2}:x")
    assert (model.names.hash_tag, model.cluster) == ("required", False)


IDS = [f"{number * 7919:08x}f" for number in range(1, 12)]


def test_keys_that_are_only_read_and_hold_the_same_ids_are_guessed_to_be_older_names() -> None:
    new = [f"HSET app:v1:route:{one} host x" for one in IDS]
    old = [f"HGETALL route_of:{one}" for one in IDS] + [f"DEL route_of:{one}" for one in IDS]
    found, model = drafted(*new, *old)
    assert model.legacy.keys["route_of:<route>"].entry == "route"
    assert model.legacy.allow == ["read", "delete"]
    assert "# guess: 22 commands; 11 of its values also stand in route" in found.text


TAGGED = ("HSET cart:{17}:items a 1", "SET cart:{18}:total 1", "HSET cart:{19}:items a 1")


def test_keys_that_begin_with_the_same_hash_tag_get_a_scope_so_that_malformed_ones_are_told_apart() -> None:
    found, model = drafted(*TAGGED, "SET cart:next 1")
    assert [scope.prefix for scope in model.scopes.values()] == ["cart:", "cart:{<cart>}:"]
    policy = parse_policy(found.text)
    targets = [policy.target(key) for key in (b"cart:{1}:totl", b"cart:{1}:items:x", b"cart:{1}:total")]
    found_targets = [(one.kind, one.name) for one in targets if one is not None]
    assert found_targets == [("scope", "tag"), ("scope", "tag"), ("entry", "total")]


def test_one_kind_of_keys_with_a_hash_tag_needs_no_scope_of_its_own() -> None:
    _, model = drafted(TAGGED[0], TAGGED[2], "SET cart:next 1")
    assert [scope.prefix for scope in model.scopes.values()] == ["cart:"]


def test_older_names_may_lack_the_hash_tag() -> None:
    new = [f"HSET app:{{{tenant}}}:cart:{one} f x" for tenant in ("acme", "globex") for one in IDS]
    _, model = drafted(*new, *[f"HGETALL cart:{one}" for one in IDS])
    assert {text: one.entry for text, one in model.legacy.keys.items()} == {"cart:<cart>": "cart"}


def test_older_names_may_begin_as_the_new_ones_do() -> None:
    new = [f"HSET app:{{{tenant}}}:cart:{one} f x" for tenant in ("acme", "globex") for one in IDS]
    old = [f"HGETALL app:cart:{tenant}:{one}" for tenant in ("acme", "globex") for one in IDS]
    _, model = drafted(*new, *old)
    assert list(model.legacy.keys) == ["app:cart:<tag>:<cart>"]


def test_names_without_the_beginning_are_older_ones_even_if_they_are_written() -> None:
    new = [f"HSET app:cart:{one} f x" for one in IDS]
    found, model = drafted(*new, *[f"HSET cart:{one} f x" for one in IDS])
    assert list(model.legacy.keys) == ["cart:<cart>"]
    assert found.refused == []


def test_keys_that_are_still_written_are_no_older_names() -> None:
    new = [f"HSET app:v1:route:{one} host x" for one in IDS]
    old = [f"HSET route_of:{one} host x" for one in IDS]
    assert not drafted(*new, *old)[1].legacy.keys


def test_numbers_that_are_the_same_by_chance_make_no_older_names() -> None:
    commands = [f"SET app:order:{number} x" for number in range(20)]
    commands += [f"GET visits:{number}" for number in range(20)]
    assert not drafted(*commands)[1].legacy.keys


def test_a_row_of_a_report_shows_its_shape_and_its_clients() -> None:
    evidence = Evidence()
    evidence.add_row(
        {
            "service": "unknown", "rule": "key.unregistered", "command": "HSET", "entry": "", "hint": "",
            "shape": "user:<int>:cart", "example": "user:17:cart", "count": 5, "first": 1772445600.0,
            "last": 1772532000.0, "actions": {"observed": 5},
            "clients": [{"address": "10.0.0.7", "library": "redis-py", "version": "5.0"}],
        }
    )  # fmt: skip
    found = draft(evidence)
    assert 'key: "user:<user>:cart"' in found.text
    assert "They were: 10.0.0.7 (redis-py 5.0)." in " ".join(found.notes)
    assert "seen: only as a shape" in found.widenings[0]


def test_nothing_comes_of_nothing() -> None:
    with pytest.raises(DraftError, match="the source is empty"):
        draft(Evidence())


def test_keys_cannot_write_into_the_draft() -> None:
    text = 'a:"}\nevil: x # guess\\'
    evidence = Evidence()
    argv = [b"SET", text.encode(), b"1"]
    evidence.add_command(json.loads(json.dumps(as_line(BLANK, "web", argv, extract(argv), 1))))
    found = draft(evidence)
    assert check_text(found.text) == ([], [])
    assert parse_policy(found.text).target(text.encode()).kind == "entry"  # type: ignore[union-attr]


# Keys of any form, as no convention has them.
WORDS = ("user", "cart", "v1", "oauth2", "fooBar", "id", "meta", "<x>", "a", "élan", "na\\me")
COMMANDS = (
    "GET {}", "SET {} 1", "SET {} 1 EX 60", "HSET {} f 1 g x", "DEL {}", "EXPIRE {} 60", "INCR {}",
    "XADD {} MAXLEN ~ 9 * a b", "EXISTS {}", "PUBLISH {} x", "SUBSCRIBE {}", "EVAL x 1 {}", "SCAN 0",
)  # fmt: skip


def part(draw: random.Random) -> str:
    kinds = [
        str(draw.randrange(10**6)),
        f"{draw.getrandbits(64):016x}",
        f"usr_{draw.randrange(99)}",
        "".join(draw.choice("abXY01_-.~") for _ in range(draw.randrange(1, 9))),
        f"10.0.0.{draw.randrange(255)}",
        draw.choice(("ann", "bob", "carl")),
        f"a@b.c{draw.randrange(9)}",
        f"2001:db8::{draw.randrange(9999):x}",
    ]
    return draw.choice(kinds)


def shape(draw: random.Random) -> list[str]:
    """Returns separators and words; "" stands for a value."""
    size = draw.randrange(1, 8)
    return [draw.choice(":::{}|/" if at % 2 else ("", draw.choice(WORDS))) for at in range(size)]


@pytest.mark.parametrize("seed", range(16))
def test_whatever_keys_there_are_the_draft_passes_check(seed: int) -> None:
    draw = random.Random(seed)
    shapes = [shape(draw) for _ in range(draw.randrange(1, 8))]
    evidence = Evidence()
    for _ in range(draw.randrange(1, 80)):
        key = "".join(one or part(draw) for one in draw.choice(shapes)) or "x"
        argv = [word.replace("{}", key).encode() for word in draw.choice(COMMANDS).split()]
        evidence.add_command(as_line(BLANK, draw.choice("ab"), argv, extract(argv), 1))
    found = draft(evidence)
    assert check_text(found.text) == ([], [])
    rules = {one.rule.partition(".")[0] for one in found.refused if not one.mistake}
    assert rules.isdisjoint(("key", "ttl", "type", "field"))


def test_fields_that_a_record_hides_leave_an_entry_without_a_list_of_fields() -> None:
    found = Evidence()
    for argv in ([b"HSET", b"a:1", b"name", b"x"], [b"HSET", b"a:2", b"first name", b"x"]):
        found.add_command(as_line(BLANK, "web", argv, extract(argv), 1))
    written = draft(found)
    (only,) = parsed_model(written).keys.values()
    assert only.fields is None
    assert any(note.startswith("1 command had names that are too long") for note in written.notes)


def test_a_stream_that_some_commands_do_not_trim_has_no_maxlen_although_their_fields_are_hidden() -> None:
    found = Evidence()
    trimmed = [b"XADD", b"a", b"MAXLEN", b"10", b"*", b"name", b"x"]
    for argv in (trimmed, [b"XADD", b"a", b"*", b"first name", b"x"]):
        found.add_command(as_line(BLANK, "web", argv, extract(argv), 1))
    (only,) = parsed_model(draft(found)).keys.values()
    assert only.maxlen is None


def test_a_channel_without_a_name_gets_no_entry() -> None:
    found = Evidence()
    for argv in ([b"PUBLISH", b"", b"x"], [b"PUBLISH", b"a\0b", b"x"], [b"PUBLISH", b"news", b"x"]):
        found.add_command(as_line(BLANK, "web", argv, extract(argv), 1))
    written = draft(found)
    assert [one.channel for one in parsed_model(written).channels.values()] == ["news"]
    assert (
        "2 uses of masked, cut, empty or very long names left out. Write their entries by hand."
        in written.notes
    )


def test_very_long_keys_that_are_there_get_no_entry() -> None:
    found = Evidence()
    for key in (b"a:1", b"a:2", b"a:" + b"y" * 3000):
        found.add_key(key, 0, "string", -1, ())
    written = draft(found)
    assert [one.key for one in parsed_model(written).keys.values()] == ["a:<a>"]
    assert any(note.startswith("1 use of masked, cut, empty or very long names") for note in written.notes)


def test_scripts_whose_hashes_begin_alike_are_told_apart() -> None:
    _, model = drafted(*(f"EVALSHA {'0' * 39}{number} 1 a:{number}" for number in (1, 2)))
    assert [*model.scripts] == [f"script_{'0' * 39}{number}" for number in (1, 2)]
