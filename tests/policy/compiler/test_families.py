"""Legacy forms, wrong forms and old versions of families stand for the caller's own member only."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.authoring.lint import check_policy
from keyfence.commands.extract import extract
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.diagnostics import FileError
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy
from tests.policy.remedies_of import remedies

# A regression: each legacy form belonged to the last value, and hints named its keys to all services.
BOUND = """policy: ac
claims: ["ac:"]
services: [a, b, both, ops]
placeholders: {id: "[a-z]+", token: {is: "[a-z]+", secret: yes}}
bind: {stage: {a: stg, b: dev, both: [stg, dev]}}
scopes: {s: {prefix: "ac:<stage>:", writers: [a, b, both]}}
keys:
  cart: {key: "ac:<stage>:cart:<id>"}
  jobs: {key: "ac:<stage>:dev:<id>"}
  session: {key: "ac:<stage>:session:<token>"}
legacy:
  allow: ALLOW
  keys:
    "cart:<id>": cart
    "cart-<stage>:<id>": cart
    "dev.cart:<id>": cart
    "dev:<id>": jobs
    "c:<id>": {entry: cart, member: {stage: stg}}
    "s:<token>": session
instead: {"crt:<id>": cart}
"""
ALL = "[read, write, delete]"


def told(policy: CompiledPolicy, service: str, command: str) -> list[tuple[str, str]]:
    argv = [word.encode() for word in command.split()]
    return [(one.rule, one.hint) for one in Evaluator(policy).decide(policy.number(service), argv).violations]


@pytest.mark.parametrize(
    ("key", "passes"),
    [
        ("cart:x", "a b both"),  # it names no value: each has its own member
        ("cart-stg:x", "a both"),  # a placeholder names it
        ("cart-dev:x", "b both"),
        ("dev.cart:x", "b both"),  # the text names it
        ("dev:x", "a b both"),  # this word is the entry's own, and names no value
        ("c:x", "a both"),  # the policy says it
        ("s:x", "a b both"),
    ],
)
def test_a_legacy_form_stands_for_the_member_it_names_or_the_caller_s_own(key: str, passes: str) -> None:
    policy = parse_policy(BOUND.replace("ALLOW", ALL))
    found = [service for service in policy.services if not told(policy, service, f"SET {key} 1")]
    assert found == passes.split()


@pytest.mark.parametrize(
    ("key", "hints"),
    [
        ("cart:x", "ac:stg:cart:x ac:dev:cart:x ac:<stage>:cart:x ac:<stage>:cart:x"),
        ("cart-stg:x", "ac:stg:cart:x ac:dev:cart:x ac:stg:cart:x ac:<stage>:cart:x"),
        ("dev.cart:x", "ac:stg:cart:x ac:dev:cart:x ac:dev:cart:x ac:<stage>:cart:x"),
        ("dev:x", "ac:stg:dev:x ac:dev:dev:x ac:<stage>:dev:x ac:<stage>:dev:x"),
        ("s:x", "ac:stg:session:<token> ac:dev:session:<token> ac:<stage>:session:<token> "
                "ac:<stage>:session:<token>"),
        ("crt:x", "ac:stg:cart:x ac:dev:cart:x ac:<stage>:cart:x ac:<stage>:cart:x"),
    ],
)  # fmt: skip
def test_a_hint_names_the_caller_s_own_key_or_no_one_s(key: str, hints: str) -> None:
    policy = parse_policy(BOUND.replace("ALLOW", "[]"))
    found = [told(policy, service, f"SET {key} 1")[0][1] for service in ("a", "b", "both", "ops")]
    assert found == [f"use {hint}" for hint in hints.split()]


@pytest.mark.parametrize(
    ("service", "key", "hint"),
    [
        ("a", "ac:nix:cart:x", "a key begins with one of ac:stg:…"),
        ("b", "ac:nix:cart:x", "a key begins with one of ac:dev:…"),
        ("ops", "ac:nix:cart:x", ""),
        ("a", "cart2:x", "every key begins with ac:"),
        ("a", "session:x", "use ac:stg:session:<token>"),
        ("b", "session:x", "use ac:dev:session:<token>"),
        ("ops", "session:x", "every key begins with ac:"),
    ],
)
def test_no_hint_names_another_service_s_prefix(service: str, key: str, hint: str) -> None:
    policy = parse_policy(BOUND.replace("ALLOW", "[]"))
    assert [one for _, one in told(policy, service, f"GET {key}")] == [hint]


def test_an_example_has_the_key_s_own_stage() -> None:
    policy = parse_policy(
        'policy: p\nservices: [a]\nplaceholders: {stage: "stg|dev", id: "[a-z]"}\n'
        'scopes: {s: {prefix: "<stage>:", writers: a}}\nkeys: {k: {key: "<stage>:k:<id>"}}\n'
    )
    assert told(policy, "a", "GET dev:k:X") == [("key.format", "for example dev:k:x")]
    assert told(policy, "a", "GET stg:k:X") == [("key.format", "for example stg:k:x")]


def remedies_of(policy: CompiledPolicy, service: str, command: str) -> list[tuple[str, bytes]]:
    argv = [word.encode() for word in command.split()]
    number = policy.number(service)
    found = Evaluator(policy).decide(number, argv).violations
    made = remedies(policy, number, argv, extract(argv), found)
    for one in made:
        assert not one.command or not Evaluator(policy).decide(number, one.command).violations
    return [(one.text, b" ".join(one.command)) for one in made]


def test_explain_offers_the_caller_s_own_key() -> None:
    policy = parse_policy(BOUND.replace("ALLOW", "[]"))
    assert remedies_of(policy, "b", "SET ac:stg:cart:x 1") == [
        ("<stage> stg belongs to others; bind says whose it is", b""),
        ("use its own key ac:dev:cart:x", b"SET ac:dev:cart:x 1"),
    ]
    assert remedies_of(policy, "b", "SET cart:x 1")[0] == (
        "use the standard key ac:dev:cart:x",
        b"SET ac:dev:cart:x 1",
    )
    assert remedies_of(policy, "b", "GET ac:dev:crt:x")[0] == (
        "the nearest entry is cart: ac:dev:cart:<id>",
        b"GET ac:dev:cart:x",
    )
    assert [text for text, _ in remedies_of(policy, "ops", "SET ac:stg:cart:x 1")] == [
        "<stage> stg belongs to others; bind says whose it is"
    ]


SCOPES = """policy: shop
services: [web, stock, audit]
placeholders: {id: "[a-z]+"}
scopes:
  web: {prefix: "shop:web:", writers: web, readers: audit}
  stock: {prefix: "shop:stock:", writers: stock, readers: [web, audit]}
keys: {lock: {key: "shop:<scope>:lock:<id>"}}
legacy: {allow: [read, write], keys: {"lock:<id>": lock, "l:<scope>:<id>": lock, "lock-web:<id>": lock}}
"""


@pytest.mark.parametrize(
    ("command", "web", "stock", "audit"),
    [
        ("SET lock:x 1", "", "", "use shop:<scope>:lock:x"),
        ("GET lock:x", "", "", ""),
        ("SET l:web:x 1", "", "use shop:stock:lock:x", "use shop:web:lock:x"),
        ("SET l:stock:x 1", "use shop:stock:lock:x", "", "use shop:stock:lock:x"),
        ("SET lock-web:x 1", "", "use shop:stock:lock:x", "use shop:web:lock:x"),
    ],
)
def test_a_family_of_scopes_has_members(command: str, web: str, stock: str, audit: str) -> None:
    policy = parse_policy(SCOPES)
    hints = [[one for _, one in told(policy, who, command)] for who in ("web", "stock", "audit")]
    assert hints == [[hint] if hint else [] for hint in (web, stock, audit)]


def test_a_replaced_version_s_hint_is_the_caller_s_own() -> None:
    policy = parse_policy(
        'policy: p\nservices: [a, b]\nplaceholders: {id: "[a-z]+"}\nbind: {ns: {a: one, b: two}}\n'
        "writers: [a, b]\n"
        'keys: {old: {key: "old:<id>"}, new: {key: "<ns>:new:<id>", replaces: old},\n'
        '  was: {key: "<ns>:was:<id>"}, is: {key: "<ns>:is:<id>", replaces: was}}\n'
    )
    assert told(policy, "a", "SET old:x 1") == [("key.legacy", "use one:new:<id>")]
    assert told(policy, "b", "SET old:x 1") == [("key.legacy", "use two:new:<id>")]
    assert told(policy, "a", "SET one:was:x 1") == [("key.legacy", "use one:is:<id>")]


# -- ambiguous forms


def warnings(folder: Path, text: str) -> list[str]:
    file = folder / "p.yaml"
    file.write_text(text)
    errors, found, _ = check_policy(file, datetime.date(2026, 6, 15))
    assert not errors
    return [one.message for one in found if "legacy form" in one.message]


def test_an_ambiguous_form_is_reported_with_a_remedy(tmp_path: Path) -> None:
    found = warnings(tmp_path, BOUND.replace("ALLOW", ALL))
    assert found == [
        f"the legacy form '{form}' may mean several keys of both, for example ac:stg:{key} and ac:dev:{key}; "
        "put the value into the form as <stage>, or set it with member: {stage: …}"
        for form, key in (
            ("cart:<id>", "cart:<id>"),
            ("dev:<id>", "dev:<id>"),
            ("s:<token>", "session:<token>"),
        )
    ]
    settled = BOUND.replace("ALLOW", ALL)
    for form, entry in (("cart:<id>", "cart"), ("dev:<id>", "jobs"), ("s:<token>", "session")):
        settled = settled.replace(
            f'"{form}": {entry}\n', f'"{form}": {{entry: {entry}, member: {{stage: dev}}}}\n'
        )
    assert warnings(tmp_path, settled) == []


def test_with_several_own_members_only_the_rights_on_all_of_them_count() -> None:
    policy = parse_policy(
        'policy: p\nservices: [a]\nplaceholders: {id: "[a-z]+"}\n'
        'scopes: {r: {prefix: "r:", readers: a}, q: {prefix: "q:", readers: a, consumers: a}}\n'
        'keys: {k: {key: "<scope>:k:<id>"}}\nlegacy: {allow: [read, write], keys: {"k:<id>": k}}\n'
    )
    assert told(policy, "a", "GET k:x") == []
    assert told(policy, "a", "XACK k:x g 1-1") == [("key.legacy", "use <scope>:k:x")]


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (
            "{entry: cart, member: {stge: stg}}",
            "the key of cart has no bound <stge>; did you mean stage?",
        ),
        ("{entry: cart, member: {stage: stgg}}", "'stgg' is not a value of <stage>; did you mean stg?"),
        ("{entry: plain, member: {stage: stg}}", "the key of plain has no bound <stage>; it is not a family"),
    ],
)
def test_an_unknown_member_is_an_error(form: str, message: str) -> None:
    text = BOUND.replace("ALLOW", ALL).replace("  jobs:", "  plain: {key: 'ac:stg:p'}\n  jobs:")
    with pytest.raises(FileError) as caught:
        parse_policy(text.replace('"cart:<id>": cart', f'"cart:<id>": {form}'))
    assert [one.message for one in caught.value.diagnostics] == [message]


SOME = st.sets(st.sampled_from("abc"), min_size=1)
WHOSE = st.dictionaries(st.sampled_from(["u", "v", "w"]), SOME, min_size=1)


@given(WHOSE, st.sampled_from(["o:<id>", "o-<ns>:<id>", "o.u:<id>"]))
def test_a_hint_is_a_key_that_the_caller_may_use_or_names_no_value(
    whose: dict[str, set[str]], form: str
) -> None:
    owned: dict[str, list[str]] = {}
    for value, services in whose.items():
        for service in services:
            owned.setdefault(service, []).append(value)
    bind = ", ".join(f"{service}: [{', '.join(values)}]" for service, values in owned.items())
    policy = parse_policy(
        f'policy: p\nservices: [a, b, c]\nplaceholders: {{id: "[a-z]+"}}\nbind: {{ns: {{{bind}}}}}\n'
        "writers: [a, b, c]\n"
        f'keys: {{k: {{key: "<ns>:k:<id>"}}}}\nlegacy: {{allow: [], keys: {{"{form}": k}}}}\n'
    )
    for service in "abc":
        for value in whose:
            key = form.replace("<ns>", value).replace("<id>", "x")
            [(rule, hint)] = told(policy, service, f"SET {key} 1") or [("key.unregistered", "")]
            if rule == "key.legacy":
                meant = hint.removeprefix("use ")
                assert meant == "<ns>:k:x" or not told(policy, service, f"SET {meant} 1")
