"""Policy files of several teams as one policy: each key belongs to one file, and files stay independent."""

from __future__ import annotations

import datetime
import itertools
import re
import string
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from keyfence.policy.analysis.lint import check_policy
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.diagnostics import FileError
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import load_policy
from keyfence.policy.verdict import Violation
from keyfence.session.conversation.refusal import refusal

SHOP = """policy: shop
owner: {team: shop, contact: "#shop"}
claims: ["shop:"]
services: [web, stock]
should: [type.mismatch]
placeholders: {id: "[a-z]{1,8}"}
scopes: {shop: {prefix: "shop:", writers: [web], readers: [stock]}}
keys: {cart: {key: "shop:cart:<id>", type: hash}}
legacy: {allow: [read], keys: {"cart-<id>": cart, "shop:old:<id>": cart}}
channels: {carts: {channel: "shop:carts", publishers: [web], subscribers: [stock]}}
grants: {stock: {commands: [DEL, SCAN], keys: ["*"]}}
"""
BILLS = """policy: bills
owner: {contact: "#bills"}
claims: ["bill:", "cart-x"]
services: [stock, clerk]
cluster: true
names: {lowercase: true}
placeholders: {id: "[a-zA-Z]{1,8}"}
scopes: {bills: {prefix: "bill:", writers: [clerk, web]}}
keys: {bill: {key: "bill:{<id>}:text", type: string}}
"""
REST = """policy: rest
owner: {contact: "#platform"}
should: [key.unregistered]
placeholders: {any: ".*"}
scopes: {tmp: {prefix: "tmp:", writers: [web], unregistered: allow}}
keys: {stray: {key: "bill:<any>", writers: [web]}}
"""


def policy_of(folder: Path, **files: str) -> CompiledPolicy:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return load_policy(folder)


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Evaluator:
    return Evaluator(policy_of(tmp_path_factory.mktemp("all"), shop=SHOP, bills=BILLS, rest=REST))


def violations(evaluator: Evaluator, service: str, command: str) -> tuple[Violation, ...]:
    argv = [word.encode() for word in command.split()]
    return evaluator.decide(evaluator.policy.number(service), argv).violations


# Which rule fires with several files, as in docs/policy.md.
FIRES = [
    ("an entry of the first file", "web", "HGETALL shop:cart:a", [], ""),
    ("of a service from another file", "web", "SET bill:{a}:text x", [], ""),
    ("without the right", "clerk", "HGETALL shop:cart:a", ["scope.read"], "#shop"),
    ("in another's file", "stock", "GET bill:{a}:text", ["scope.read"], "#bills"),
    ("malformed", "web", "HGETALL shop:cart:A", ["key.format"], "#shop"),
    ("in the claim, in no scope", "web", "GET cart-x", ["key.format"], "#bills"),
    ("malformed in another file", "web", "GET bill:{a}", ["key.format"], "#bills"),
    ("in a scope, no entry", "web", "GET shop:x", ["key.unregistered"], "#shop"),
    ("legacy, where nobody claims", "web", "HGETALL cart-a", [], ""),
    ("legacy, written", "web", "HSET cart-a f 1", ["key.legacy"], "#shop"),
    ("legacy, but claimed by another", "web", "HGETALL cart-xa", ["key.format"], "#bills"),
    ("legacy in its own claim", "web", "HGETALL shop:old:a", [], ""),
    ("claimed by nobody, in the catch-all's scope", "web", "SET tmp:x 1", [], ""),
    ("the catch-all's own entry in a claim", "clerk", "GET bill:{a}:text", [], ""),
    ("covered by nobody", "web", "GET elsewhere", ["key.unregistered"], "#platform"),
    ("a should of its file", "web", "GET shop:cart:a", ["type.mismatch"], "#shop"),
    ("no should of another", "clerk", "HGETALL bill:{a}:text", ["type.mismatch"], "#bills"),
    ("an id is no word of a name", "web", "SET bill:{A}:text x", [], ""),
    ("naming rules of its file", "web", "SET bill:A x", ["key.unregistered", "key.format"], "#bills"),
    ("none of another", "web", "SET tmp:UPPER x", [], ""),
    ("slots of its file", "web", "MSET bill:{a}:text 1 bill:{b}:text 1", ["slot.cross"], "#bills"),
    ("none of another's keys", "web", "MSET tmp:a 1 tmp:b 1 bill:{a}:text 1", [], ""),
    ("a grant on its file's keys", "stock", "DEL shop:cart:a", [], ""),
    ("none on another's", "stock", "DEL bill:{a}:text", ["scope.write"], "#bills"),
    ("nor on what nobody claims", "stock", "SCAN 0", ["scan.scope"], "#platform"),
    ("its own keys are within reach", "stock", "SCAN 0 MATCH shop:*", [], ""),
    ("a channel", "stock", "SUBSCRIBE shop:carts", [], ""),
    ("another's channel", "clerk", "SUBSCRIBE shop:carts", ["channel.read"], "#shop"),
    ("a command that nobody may use", "web", "CONFIG GET x", ["command.forbidden"], "#platform"),
]


@pytest.mark.parametrize(
    ("service", "command", "broken", "contact"), [row[1:] for row in FIRES], ids=[row[0] for row in FIRES]
)
def test_which_rule_fires_with_several_files(
    evaluator: Evaluator, service: str, command: str, broken: list[str], contact: str
) -> None:
    found = violations(evaluator, service, command)
    assert [one.rule for one in found] == broken
    assert [one.contact for one in found] == [contact] * len(found)


@pytest.mark.parametrize(
    ("service", "command", "severity"),
    [
        ("web", "GET shop:cart:a", "should"),
        ("clerk", "HGETALL bill:{a}:text", "must"),
        ("web", "GET elsewhere", "should"),
        ("web", "GET shop:x", "must"),
    ],
)
def test_each_file_says_which_rules_are_should(
    evaluator: Evaluator, service: str, command: str, severity: str
) -> None:
    assert [one.severity for one in violations(evaluator, service, command)] == [severity]


def test_a_refusal_names_the_owner_of_the_key_s_file(evaluator: Evaluator) -> None:
    (violation,) = violations(evaluator, "stock", "GET bill:{a}:text")
    assert b" Ask #bills. (d-1)" in refusal(violation, evaluator.policy.contact, "d-1")


def test_entries_of_one_name_get_their_policy_s_name(tmp_path: Path) -> None:
    evaluator = Evaluator(policy_of(tmp_path, shop=SHOP, bills=BILLS.replace("{bill:", "{cart:")))
    (violation,) = violations(evaluator, "stock", "GET bill:{a}:text")
    assert violation.entry == "bills/cart"
    assert [one.entry for one in violations(evaluator, "clerk", "HGETALL shop:cart:a")] == ["shop/cart"]


def test_a_hint_names_only_the_scopes_of_the_key_s_file(evaluator: Evaluator) -> None:
    (violation,) = violations(evaluator, "web", "GET cart-x")
    assert violation.hint == "a key begins with one of bill:…"


def test_without_a_catch_all_file_the_strictest_settings_apply(tmp_path: Path) -> None:
    evaluator = Evaluator(policy_of(tmp_path, shop=SHOP, bills=BILLS))
    (violation,) = violations(evaluator, "web", "GET elsewhere")
    assert (violation.rule, violation.severity) == ("key.unregistered", "must")
    assert violation.contact == "#bills or #shop"


def test_a_folder_s_policy_has_the_folder_s_name_all_services_and_one_revision(tmp_path: Path) -> None:
    folder = tmp_path / "teams"
    folder.mkdir()
    policy = policy_of(folder, shop=SHOP, bills=BILLS)
    assert policy.name == "teams"
    assert policy.services == ("stock", "clerk", "web", "unknown")
    (folder / "shop.yaml").write_text(SHOP + "# changed\n")
    assert load_policy(folder).revision != policy.revision
    (folder / "notes.txt").write_text("no policy")
    (folder / "shop.test.yaml").write_text("policy: shop.yaml\ntests: []\n")
    (folder / ".hidden.yaml").write_text("no policy")
    assert load_policy(folder).revision != policy.revision


def test_a_script_s_text_is_part_of_the_revision(tmp_path: Path) -> None:
    (tmp_path / "unlock.lua").write_text("return 1")
    text = SHOP + "scripts: {unlock: {source: unlock.lua, keys: 1}}\n"
    before = policy_of(tmp_path, shop=text).revision
    (tmp_path / "unlock.lua").write_text("return 2")
    assert load_policy(tmp_path).revision != before


def test_one_file_in_a_folder_compiles_like_the_file_alone(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, shop=SHOP)
    alone = load_policy(tmp_path / "shop.yaml")
    assert (policy.name, policy.revision) == (alone.name, alone.revision) == ("shop", alone.revision)


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (
            'claims: ["a:"]',
            'claims: ["b:", "a:b:"]',
            "2:16: error: the claim 'a:b:' overlaps 'a:' of a.yaml:2; divide them",
        ),
        (
            'claims: ["a:b:"]',
            'claims: ["a:"]',
            "2:10: error: the claim 'a:' overlaps 'a:b:' of a.yaml:2; divide them",
        ),
        (
            "about: x",
            "about: y",
            "1:9: error: no claims, and a.yaml has none either: only one file can own the unclaimed keys",
        ),
        (
            'claims: ["a:"]\ndatabases: [0]',
            'claims: ["b:"]\ndatabases: [1]',
            "3:12: error: a.yaml:3 lists other databases; all files are for one Redis",
        ),
        (
            'claims: ["a:"]\nchannels: {k: {channel: "a:k"}}',
            'claims: ["b:"]\nchannels: {k: {channel: "b:k"}}',
            "3:12: error: k is also a name under channels in a.yaml:3; reports could not tell them apart",
        ),
        (
            'claims: ["a:"]\ncommands: {allow: [KEYS]}',
            'claims: ["b:"]\ncommands: {forbid: [keys]}',
            "3:21: error: keys is under commands.allow in a.yaml:3; it cannot be both",
        ),
        (
            'claims: ["a:"]\ncommands: {forbid: [KEYS]}',
            'claims: ["b:"]\ncommands: {allow: [keys]}',
            "3:20: error: keys is under commands.forbid in a.yaml:3; it cannot be both",
        ),
    ],
)
def test_a_contradiction_of_two_files_is_reported_with_both_places(
    one: str, other: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text(f"policy: a\n{one}\nservices: [x]\n")
    (tmp_path / "b.yaml").write_text(f"policy: b\n{other}\nservices: [x]\n")
    with pytest.raises(FileError) as caught:
        load_policy(tmp_path)
    found = str(caught.value).replace(f"{tmp_path}/", "")
    found = found.replace(", so that each key belongs to one file", "")
    assert found == f"b.yaml:{told}"


def test_faults_of_all_files_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("policy: a\nclaims: [x]\nservice: [x]\n")
    (tmp_path / "b.yaml").write_text("policy: b\n\tservices: [y]\n")
    errors, _, summary = check_policy(tmp_path)
    assert [Path(one.place.file).name for one in errors] == ["a.yaml", "b.yaml"]
    assert summary == f"{tmp_path}: 2 errors"


def test_a_folder_without_a_policy_is_an_error(tmp_path: Path) -> None:
    errors, _, _ = check_policy(tmp_path)
    assert [one.message for one in errors] == ["no policy in this folder; a policy is a file *.yaml"]


def test_check_warns_about_each_file(tmp_path: Path) -> None:
    policy_of(tmp_path, shop=SHOP, bills=BILLS.replace("[stock, clerk]", "[stock, clerk, idle]"), rest=REST)
    errors, warnings, summary = check_policy(tmp_path, datetime.date(2026, 6, 15))
    assert errors == []
    told = [re.sub(r"^.*/", "", str(one)) for one in warnings]
    assert "bills.yaml:4:26: warning: the service idle has no rights on any key or channel" in told
    assert not [one for one in told if one.startswith("shop.yaml")]
    assert ": 0 errors, " in summary
    assert "policy " in summary
    assert " of 3 files, 4 services, 3 scopes, 3 entries, 2 legacy forms, " in summary


SHA1 = "c3f8721cbb97f72bc19e972846bd7aaf91901658"
LOCKED = """policy: {name}
claims: ["{name}:"]
services: [app]
placeholders: {{id: "[a-z]{{1,8}}"}}
keys: {{lock: {{key: "{name}:lock:<id>", writers: [app]{more}}}}}
scripts: {{{script}: {{sha1: {sha1}, keys: {keys}}}}}
"""


def locked(name: str, script: str, keys: str = "1", more: str = "") -> str:
    return LOCKED.format(name=name, script=script, keys=keys, more=more, sha1=SHA1)


def test_a_script_registered_alike_in_two_files_works_on_the_keys_of_both(tmp_path: Path) -> None:
    policy_of(tmp_path, a=locked("a", "a-unlock"), b=locked("b", "b-unlock"))
    evaluator = Evaluator(load_policy(tmp_path))
    for key in ("a:lock:x", "b:lock:x"):
        assert violations(evaluator, "app", f"EVALSHA {SHA1} 1 {key} token") == ()
    (violation,) = violations(evaluator, "app", f"EVALSHA {SHA1} 1 c:lock:x token")
    assert violation.rule == "key.unregistered"


@pytest.mark.parametrize(
    ("later", "told"),
    [
        (locked("b", "b-unlock", '["b:lock:<id>"]'), "a.yaml:6"),
        (locked("b", "b-unlock", "2"), "says something else about its keys"),
        (locked("b", "b-unlock", more=", written_by: b-unlock"), "is under written_by"),
    ],
)
def test_one_script_with_two_meanings_is_an_error(tmp_path: Path, later: str, told: str) -> None:
    (tmp_path / "a.yaml").write_text(locked("a", "a-unlock"))
    (tmp_path / "b.yaml").write_text(later)
    errors, _, _ = check_policy(tmp_path)
    (error,) = errors
    assert "b.yaml:6" in str(error)
    assert "b-unlock" in str(error)
    assert "the same SHA-1 as a-unlock" in str(error)
    assert told in str(error)


def test_the_shipped_policies_with_claims_compile_together(tmp_path: Path) -> None:
    shipped = Path(__file__).parents[3] / "policies"
    for name in ("cubesandbox", "cosky", "container-registry"):
        (tmp_path / f"{name}.yaml").write_text((shipped / f"{name}.yaml").read_text())
    errors, _, _ = check_policy(tmp_path, datetime.date(2026, 6, 15))
    assert errors == []
    evaluator = Evaluator(load_policy(tmp_path))
    assert violations(evaluator, "cosky-app", "HGETALL cosky-{default}:cfg:a") == ()
    (violation,) = violations(evaluator, "cosky-app", "HGETALL cube:v1:master:node:metric:n1")
    assert (violation.rule, violation.contact) == ("scope.read", "#cube-redis")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'keys: {k: {key: "b:<id>"}}',
            "2:17: error: 'b:<id>': placeholder <id> is not declared (at offset 2)",
        ),
        (
            'keys: {k: {key: "b:<no>"}}',
            "2:17: error: 'b:<no>': placeholder <no> is not declared (at offset 2)",
        ),
        (
            'scopes: {s: {prefix: "b:<id>:"}}',
            "2:22: error: 'b:<id>:': placeholder <id> is not declared (at offset 2); declare it under "
            "placeholders, or its values under bind",
        ),
        (
            'keys: {k: {key: "b:x", values: "<id>"}}',
            "2:32: error: <id> is not declared here",
        ),
        ('keys: {k: {key: "b:x", fields: {"<id>": any}}}', "2:33: error: <id> is not declared here"),
        ('channels: {c: {channel: "b:<id>"}}', "'b:<id>': placeholder <id> is not declared (at offset 2)"),
        ('names: {level: "<id>"}', "2:16: error: <id> is not declared under placeholders"),
    ],
)
def test_a_placeholder_of_another_file_is_reported_with_its_place(
    text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text(
        "policy: a\nservices: [x]\nclaims: ['a:']\nplaceholders:\n  other|id: '[a-z]'\n"
        "bind:\n  no: {x: [y]}\n"
    )
    (tmp_path / "b.yaml").write_text(f"policy: b\n{text}\nclaims: ['b:']\n")
    with pytest.raises(FileError) as caught:
        load_policy(tmp_path)
    (told,) = (str(one) for one in caught.value.diagnostics if "is not declared" in one.message)
    line = 7 if "<no>" in text else 5
    where = f"; {tmp_path}/a.yaml:{line} declares it, but only for itself: declare it in this file too"
    assert message in told
    assert where in told


prefixes = st.text(string.ascii_lowercase[:3], min_size=1, max_size=3)


@st.composite
def files(draw: st.DrawFn) -> list[list[str]]:
    """The claims of two or three files; claims of one file do not overlap."""
    claims = draw(st.lists(st.lists(prefixes, min_size=1, max_size=2), min_size=2, max_size=3))
    assume(all(not one.startswith(other) for own in claims for one, other in itertools.permutations(own, 2)))
    return claims


def write_file(folder: Path, number: int, own: list[str]) -> None:
    scopes = ", ".join(
        f'"s{number}{index}": {{prefix: "{one}", writers: [me], unregistered: allow}}'
        for index, one in enumerate(own)
    )
    (folder / f"{number}.yaml").write_text(
        f"policy: p{number}\nclaims: {own}\nservices: [me]\nscopes: {{{scopes}}}\n"
        f'legacy: {{keys: {{"<x>": k{number}}}}}\nplaceholders: {{x: "[a-d]{{1,6}}"}}\n'
        f'keys: {{k{number}: {{key: "{own[0]}/k", writers: [me]}}}}\n'
    )


def overlapping(claims: list[list[str]]) -> bool:
    return any(
        one.startswith(other) or other.startswith(one)
        for left, right in itertools.combinations(claims, 2)
        for one, other in itertools.product(left, right)
    )


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(claims=files(), key=st.text("abcd", min_size=1, max_size=5))
def test_the_file_that_claims_a_key_decides_alone(
    claims: list[list[str]], key: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("claims")
    for number, own in enumerate(claims):
        write_file(folder, number, own)
    if overlapping(claims):
        with pytest.raises(FileError, match="overlaps"):
            load_policy(folder)
        return
    target = load_policy(folder).target(key.encode())
    assert target is not None
    owners = [number for number, own in enumerate(claims) if key.startswith(tuple(own))]
    assert (target.kind, [target.home]) == ("scope", owners) if owners else target.kind == "legacy"
