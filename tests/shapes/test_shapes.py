from __future__ import annotations

import copy
import random
import re
import time
import uuid
from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.policy.loading.load import parse_policy
from keyfence.shapes import shapes as module
from keyfence.shapes.shapes import (
    DISTINCT,
    Placeholder,
    Shapes,
    is_older,
    looks_like_word,
    parsed,
    take_apart,
)

UUID = "7c8fbcd4-5ffe-450f-b8f7-fb223ad45507"
HEX = "7c8fbcd45ffe450fb8f7fb223ad45507"


def learnt(key: str | bytes) -> str:
    """The shape of a key that was seen before."""
    shapes = Shapes()
    key = key.encode() if isinstance(key, str) else key
    for _ in range(2):
        shapes.shape(key)
    return shapes.shape(key)


@pytest.mark.parametrize(
    ("key", "shape"),
    [
        (f"jwt_active:{UUID}:{UUID}", "jwt_active:<uuid>:<uuid>"),
        ("user_roles:17", "user_roles:<int>"),
        (f"cube:v1:shared:sandbox:proxy:{HEX}", "cube:v1:shared:sandbox:proxy:<hex>"),
        ("GVA_Limit10.1.2.3", "GVA_Limit<ip>"),
        ("CAPTCHA_x9ZkqP1v", "CAPTCHA_<id>"),
        ("CAPTCHA_-x9Zk_P1v", "CAPTCHA_<id>"),
        ("sess_x9ZkqP1v_lock", "sess_<id>_lock"),
        ("user17:cart", "user<int>:cart"),
        ("user_17", "user_<int>"),
        ("report:2024-02-29:daily", "report:<date>:daily"),
        ("report:20240229", "report:<date>"),
        ("tick:2024-01-02T03:04:05.123Z:x", "tick:<date>:x"),
        ("dev:00:1b:44:11:3a:b7", "dev:<mac>"),
        ("ip:2001:db8::ff00:42:8329", "ip:<ip>"),
        ("reset:alice@example.com", "reset:<email>"),
        (f"registry:api:{{repository:shop:{HEX}{HEX}}}:pull", "registry:api:{repository:shop:<hex>}:pull"),
        ("cosky-{default}:svc_itc:order@http#10.0.0.1#80", "cosky-{default}:svc_itc:order@http#<ip>#<int>"),
        ("img/7c8fbcd4/thumb.png", "img/<hex>/thumb.png"),
        ("cube:v1:*", "cube:v1:*"),
        ("用户:17", "用户:<int>"),
        (HEX, "<hex>"),
        (UUID, "<uuid>"),
        ("V1StGXR8_Z5jdHi6B-myT", "<id>"),
        ("42", "<int>"),
        ("", ""),
        (b"blob:\x00\xff\x10", "blob:<bytes>"),
        (b"\xff\xfe", "<bytes>"),
    ],
)
def test_a_recurring_key_has_the_shape_that_a_reader_expects(key: str | bytes, shape: str) -> None:
    assert learnt(key) == shape


def test_a_word_is_hidden_until_it_recurs() -> None:
    shapes = Shapes()
    assert shapes.shape(b"hunter:17") == "<*>:<int>"
    assert shapes.shape(b"hunter:18") == "hunter:<int>"


def test_offenders_have_different_shapes() -> None:
    shapes = Shapes()
    for number in range(3):
        shapes.shape(f"jwt_active:{uuid.uuid4()}:{uuid.uuid4()}".encode())
        shapes.shape(f"user_roles:{number}".encode())
    assert shapes.shape(f"jwt_active:{UUID}:{UUID}".encode()) == "jwt_active:<uuid>:<uuid>"
    assert shapes.shape(b"user_roles:99") == "user_roles:<int>"


def _syllables(chance: random.Random) -> str:
    parts = ("al", "bo", "ca", "de", "el", "fi", "gu", "ho")
    return "".join(chance.choice(parts) for _ in range(chance.randint(3, 7)))


def test_many_names_at_one_position_become_one_shape_and_the_words_around_them_stay() -> None:
    shapes, chance = Shapes(), random.Random(1)
    seen = [shapes.shape(f"user:{_syllables(chance)}:cart".encode()) for _ in range(5_000)]
    assert set(seen[500:]) == {"user:<*>:cart"}
    assert len(set(seen)) < 2 * module.MAX_WORDS


def test_many_bare_keys_do_not_hide_the_prefixes_of_other_keys() -> None:
    shapes, chance = Shapes(), random.Random(2)
    for number in range(5_000):
        shapes.shape(_syllables(chance).encode())
        shapes.shape(f"user_roles:{number}".encode())
    assert shapes.shape(b"user_roles:x17y") == "<*>:<id>"
    assert shapes.shape(b"user_roles:17") == "user_roles:<int>"
    assert shapes.shape(_syllables(chance).encode()) == "<*>"


def test_many_first_words_do_not_hide_an_established_prefix() -> None:
    shapes, chance = Shapes(), random.Random(3)
    for number in range(5_000):
        shapes.shape(f"{_syllables(chance)}:{number}".encode())
        if number % 10 == 0:
            shapes.shape(f"user_roles:{number}".encode())
    assert shapes.shape(b"user_roles:1") == "user_roles:<int>"
    assert shapes.shape(b"newcomer:1") == "<*>:<int>"


def test_any_number_of_different_keys_gives_few_shapes() -> None:
    shapes, chance = Shapes(), random.Random(4)
    makers = (
        lambda: f"jwt_active:{uuid.UUID(int=chance.getrandbits(128))}:{chance.getrandbits(40)}",
        lambda: f"user_roles:{chance.getrandbits(40)}",
        lambda: f"{chance.getrandbits(128):032x}",
        lambda: f"pairing:{urlsafe_b64encode(chance.randbytes(15)).decode()}",
    )
    seen = {shapes.shape(makers[number % 4]().encode()) for number in range(40_000)}
    assert {"user_roles:<int>", "jwt_active:<uuid>:<int>", "<hex>", "pairing:<id>"} <= seen
    assert len(seen) < 20


def test_no_key_takes_long() -> None:
    for piece in ("a-", "a_1", "a.b:", "0:", "aa:bb:", "2024-01-01T", "::", "a@b.", "{", "Aa", "-", "_a1"):
        began = time.process_time()
        Shapes().shape(piece.encode() * 100_000)
        assert time.process_time() - began < 2


@given(st.binary(max_size=300))
def test_any_bytes_have_a_printable_shape(key: bytes) -> None:
    shapes = Shapes()
    for _ in range(3):
        shape = shapes.shape(key)
        assert shape.isprintable()
        assert len(shape) <= 4 * module.MAX_LENGTH


@given(st.lists(st.text("aZ9:_-{@.é", max_size=40), max_size=200))
def test_a_shape_shows_only_letters_of_words_of_the_key(keys: list[str]) -> None:
    shapes = Shapes()
    for key in keys + keys:
        words = take_apart(key.encode()).words
        shown = re.sub(r"<[a-z*]+>", " ", shapes.shape(key.encode()))
        if shown != module.OTHER:
            assert all(any(run in word for word in words) for run in re.findall(r"[^\W_]+", shown))


def test_words_and_tokens_are_distinguished() -> None:
    for word in ("user", "jwt_active", "userRoles", "CAPTCHA", "svc-itc", "HTTPServer", "tx", "Größe"):
        assert looks_like_word(word), word
    for token in ("x9ZkqP", "qWeRtYuIoP", "sdfghjkl", "a" * 21, "a" * 20 + "_" + "b" * 20, "", "42", "_x"):
        assert not looks_like_word(token), token


def test_shapes_kinds_and_nodes_are_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SHAPES", 20)
    shapes, chance = Shapes(), random.Random(5)
    seen = {shapes.shape(":".join(["7"] * (number + 1)).encode()) for number in range(23)}
    assert len(seen) == 21
    assert module.OTHER in seen
    monkeypatch.setattr(module, "MAX_NODES", 50)
    monkeypatch.setattr(module, "MAX_KINDS", 10)
    shapes = Shapes()
    for _ in range(2_000):
        words = [_syllables(chance) for _ in range(chance.randint(1, 12))]
        shapes.shape(":".join(words).encode())
    assert shapes._nodes <= 50
    assert len(shapes._roots) <= 10
    assert len(shapes._shapes) <= 20


def test_the_number_of_nodes_is_right_after_widening() -> None:
    shapes, chance = Shapes(), random.Random(6)
    for _ in range(3_000):
        shapes.shape(f"{_syllables(chance)}:{_syllables(chance)}:{_syllables(chance)}".encode())
    assert shapes._nodes == sum(root.size() - 1 for root in shapes._roots.values())


def test_only_hashes_and_shapes_are_kept_between_calls() -> None:
    shapes = Shapes()
    shapes.shape(b"secretword:alpha")
    assert "secretword" not in repr(_contents(shapes))


def _contents(thing: object) -> object:
    if isinstance(thing, dict):
        return [(_contents(key), _contents(value)) for key, value in thing.items()]
    slots = getattr(type(thing), "__slots__", None)
    if isinstance(thing, Shapes):
        return _contents(vars(thing))
    if slots and not isinstance(thing, int | str):
        return [_contents(getattr(thing, slot)) for slot in slots]
    return thing


def test_trusting_shapes_show_the_words_of_the_first_key() -> None:
    shapes = Shapes(trusting=True)
    assert shapes.shape(b"jwt_active:5b6962dd-3f90-4c93-8f61-eabfa4a803e2:1") == "jwt_active:<uuid>:<int>"
    assert shapes.shape(b"ac:stg:auth:session:7c8fbcd45ffe450f") == "ac:stg:auth:session:<hex>"
    assert shapes.shape(b"session:tok1") == "session:tok<int>"
    assert shapes.shape(b"rq:groups") == "rq:groups"
    assert shapes.shape(b"hunter") == "hunter"


def test_a_frequent_static_key_stays_visible_among_names() -> None:
    shapes, chance = Shapes(trusting=True), random.Random(7)
    for _ in range(module.ESTABLISHED):
        assert shapes.shape(b"rq:groups") == "rq:groups"
    for _ in range(1_000):
        shapes.shape(f"rq:{_syllables(chance)}".encode())
    assert shapes.shape(b"rq:groups") == "rq:groups"
    assert shapes.shape(f"rq:{_syllables(chance)}".encode()) == "rq:<*>"


def test_a_uuid_after_a_word_is_never_split() -> None:
    chance = random.Random(8)
    seen = set()
    for _ in range(3_000):
        one = uuid.UUID(int=chance.getrandbits(128), version=4)
        for key in (f"meta-{one}", f"a:{one}-lock", f"CAPTCHA_{one}:x", f"x.{one}_{one}"):
            seen.add(Shapes(trusting=True).shape(key.encode()))
    assert seen == {"meta-<uuid>", "a:<uuid>-lock", "CAPTCHA_<uuid>:x", "x.<uuid>_<uuid>"}


SECRETS = parse_policy(
    """
    policy: p
    services: [a]
    placeholders: {token: {is: "[a-z]{6,12}", secret: true}}
    scopes: {shop: {prefix: "shop:v1:", writers: [a]}}
    keys: {session: {key: "shop:v1:session:<token>"}}
    """
).secrecy


@pytest.mark.parametrize(
    "key",
    ["sesion:secretword", "secretword:cart", "x:secretword:y", "secretword-1:a", "a_secretword"],
)
def test_a_single_recurring_key_shows_no_secret(key: str) -> None:
    shapes = Shapes(trusting=True, secrecy=SECRETS)
    assert not [shape for _ in range(100) if "secretword" in (shape := shapes.shape(key.encode()))]
    assert shapes.settled(key.encode()) is not None


def test_a_word_that_may_be_a_secret_is_shown_after_many_different_keys() -> None:
    shapes = Shapes(trusting=True, secrecy=SECRETS)
    seen = [shapes.shape(f"invoices:{number}".encode()) for number in range(DISTINCT + 1)]
    assert seen[DISTINCT - 2 :] == ["<*>:<int>", "invoices:<int>", "invoices:<int>"]


def test_no_word_is_shown_at_the_position_of_a_secret() -> None:
    shapes = Shapes(trusting=True, secrecy=SECRETS)
    keys = [f"acme:session:secretword:{number}".encode() for number in range(100)]
    assert {shapes.shape(key) for key in keys} == {"acme:session:<id>:<int>"}


def test_words_of_the_policy_and_words_that_cannot_be_secrets_are_shown() -> None:
    shapes = Shapes(secrecy=SECRETS)
    assert [shapes.shape(b"shop:v1:cart:17") for _ in range(2)][1] == "shop:v1:cart:<int>"


def random_key(chance: random.Random) -> bytes:
    name = _syllables(chance)
    ends = [name, f"{name}@example.org", str(chance.randrange(99)), f"{name}:cart", "x9ZkqP1v", UUID]
    return f"{chance.choice(['user', 'session', 'job'])}:{chance.choice(ends)}".encode()


@pytest.mark.parametrize("with_secrets", [False, True])
@pytest.mark.parametrize("trusting", [False, True])
def test_a_final_shape_is_the_one_that_learning_gives(trusting: bool, with_secrets: bool) -> None:
    chance = random.Random(7)
    shapes = Shapes(trusting=trusting, secrecy=SECRETS if with_secrets else None)
    found = 0
    for number in range(2_000):
        key = random_key(chance)
        before = _contents(shapes)
        final = shapes.final(key)
        assert _contents(shapes) == before
        if number % 20 == 0:
            twin = copy.deepcopy(shapes)
            assert final in (None, twin.shape(key))
            assert final is None or not twin.is_open
        assert final in (None, shapes.shape(key)), key
        found += final is not None
    assert found > 800


def test_a_key_has_no_final_shape_while_its_words_are_learnt() -> None:
    shapes = Shapes(trusting=True)
    assert shapes.final(b"user:17") is None
    for number in range(40):
        shapes.shape(b"user:%d" % number)
    assert shapes.final(b"user:4711") == "user:<int>"
    assert shapes.final(b"user:4711:x") is None
    assert shapes.final(b"other:17") is None


@pytest.mark.parametrize("kind", ["more", "ip", "int", "*", "uuid", "bytes", "masked", "other"])
def test_text_of_a_key_that_looks_like_a_placeholder_is_none(kind: str) -> None:
    assert learnt(f"user:<{kind}>:cart") == rf"user:\x3c{kind}>:cart"
    shape = learnt(f"user:<{kind}>:42")
    assert [part for part in parsed(shape) if isinstance(part, Placeholder)] == [Placeholder("int")]


@given(st.lists(st.sampled_from(["<", ">", "\\", "x3c", "more", "int", "<ip>", ":", "<more>", "7", "é"])))
def test_the_placeholders_of_a_shape_are_those_that_were_made(parts: list[str]) -> None:
    key = "".join(parts)
    frame = take_apart(key.encode()).frame
    made = [Placeholder(part[1:-1]) for part in frame if part[:1] == "<" and part[-1:] == ">"]
    shape = Shapes(trusting=True).shape(key.encode())
    found = parsed(shape)
    assert [part for part in found if isinstance(part, Placeholder)] == made
    assert all(part in key for part in found if isinstance(part, str))


def test_a_shape_of_an_older_version_is_known_by_its_keys() -> None:
    assert is_older("user:<more>", ["user:<more>"])
    assert is_older("user:<ip>:<int>", ["", "user:<ip>:7"])
    assert not is_older("user:<int>", ["user:7"])
    assert not is_older(r"user:\x3cmore>:<int>", ["user:<more>:7"])
    assert not is_older("user:<id>", ["user:<masked>"])
