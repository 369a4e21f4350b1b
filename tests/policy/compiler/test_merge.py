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

from keyfence.authoring.lint import check_policy
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
            'claims: ["a:", "c:"]',
            'claims: ["b:", "c:"]',
            "2:16: error: a.yaml:2 claims 'c:' too; each key belongs to one file, so claim a longer "
            "beginning, or take the claim out of one",
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
    """The claims of two or three files, perhaps inside each other, but never the same."""
    claims = draw(st.lists(st.lists(prefixes, min_size=1, max_size=2), min_size=2, max_size=3))
    every = list(itertools.chain(*claims))
    assume(len(set(every)) == len(every))
    return claims


def write_file(folder: Path, number: int, own: list[str], names: str = "abc") -> None:
    scopes = ", ".join(
        f'"s{number}{index}": {{prefix: "{one}", writers: [me], unregistered: allow}}'
        for index, one in enumerate(own)
    )
    (folder / f"{names[number]}.yaml").write_text(
        f"policy: p{number}\nclaims: {own}\nservices: [me]\nscopes: {{{scopes}}}\n"
        f'legacy: {{keys: {{"<x>": k{number}}}}}\nplaceholders: {{x: "[a-d]{{1,6}}"}}\n'
        f'keys: {{k{number}: {{key: "{own[0]}/k", writers: [me]}}}}\n'
    )


def owner_of(key: str, claims: list[list[str]]) -> int | None:
    """Returns the file whose claim is the longest beginning of the key."""
    found = [(len(one), number) for number, own in enumerate(claims) for one in own if key.startswith(one)]
    return max(found)[1] if found else None


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(claims=files(), key=st.text("abcd", min_size=1, max_size=5))
def test_the_file_with_the_longest_claim_decides_alone_whatever_the_order_of_files(
    claims: list[list[str]], key: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assume(all(owner_of(f"{own[0]}/k", claims) == number for number, own in enumerate(claims)))
    for names in ("abc", "cba"):
        folder = tmp_path_factory.mktemp("claims")
        for number, own in enumerate(claims):
            write_file(folder, number, own, names)
        policy = load_policy(folder)
        target = policy.target(key.encode())
        assert target is not None
        owner = owner_of(key, claims)
        if owner is None:
            assert target.kind == "legacy"
        else:
            assert (target.kind, policy.home(target).policy) == ("scope", f"p{owner}")


HUB = """policy: hub
owner: {team: hub, contact: "#hub"}
claims: ["hb:"]
delegates: ["hb:{dispatch}:"]
services: [web, courier]
placeholders: {id: "[a-z]{1,8}", team: "[a-z{}]{1,12}", rest: ".+"}
scopes: {hub: {prefix: "hb:", writers: [web], deny_write: [courier]}}
keys:
  cart: {key: "hb:cart:<id>", type: hash}
  wide: {key: "hb:<team>:<rest>", type: string, readers: [web, courier]}
grants: {web: {commands: [DEL], keys: ["hb:*"]}}
should: [type.mismatch]
unregistered_scripts: declared
"""
DISPATCH = """policy: dispatch
owner: {team: dispatch, contact: "#dispatch"}
claims: ["hb:{dispatch}:"]
services: [courier]
placeholders: {id: "[a-z]{1,8}"}
scopes: {dispatch: {prefix: "hb:{dispatch}:", writers: [courier]}}
keys: {ride: {key: "hb:{dispatch}:ride:<id>", type: hash}}
unregistered_scripts: declared
"""
# Which rule fires for a claim inside another one, and whom its refusal names.
INSIDE = [
    ("the inner file's entry", "courier", "HSET hb:{dispatch}:ride:a f 1", [], ""),
    ("without the inner file's right", "web", "HSET hb:{dispatch}:ride:a f 1", ["scope.write"], "#dispatch"),
    ("the outer file's wide entry", "web", "GET hb:{dispatch}:other", ["scope.read", "key.unregistered"],
     "#dispatch"),
    ("malformed", "courier", "DEL hb:{dispatch}:ride:A", ["key.format"], "#dispatch"),
    ("the outer file's grant", "web", "DEL hb:{dispatch}:ride:a", ["scope.write"], "#dispatch"),
    ("the outer file's should", "courier", "GET hb:{dispatch}:ride:a", ["type.mismatch"], "#dispatch"),
    ("the outer file's own keys", "web", "HSET hb:cart:a f 1", [], ""),
    ("the inner claim without its colon", "web", "GET hb:{dispatch}", ["key.unregistered"], "#hub"),
    ("a scan of everything", "web", "SCAN 0 MATCH hb:*", ["scan.scope"], ""),
    ("a scan of the outer file's keys", "web", "SCAN 0 MATCH hb:c*", [], ""),
    ("a scan of the inner file's keys", "courier", "SCAN 0 MATCH hb:{dispatch}:*", [], ""),
    ("a script on keys of both", "web", "EVAL x 2 hb:cart:a hb:{dispatch}:ride:a",
     ["scope.read", "scope.write"], "#dispatch"),
]  # fmt: skip


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize(
    ("service", "command", "broken", "contact"), [row[1:] for row in INSIDE], ids=[row[0] for row in INSIDE]
)
def test_a_claim_inside_another_file_s_claim_is_a_part_of_its_own(
    service: str, command: str, broken: list[str], contact: str, names: tuple[str, str], tmp_path: Path
) -> None:
    evaluator = Evaluator(policy_of(tmp_path, **dict(zip(names, (HUB, DISPATCH), strict=True))))
    found = violations(evaluator, service, command)
    assert [one.rule for one in found] == broken
    if contact:
        assert {one.contact for one in found} == {contact}


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_check_warns_of_a_claim_inside_another_one_that_is_not_delegated(
    names: tuple[str, str], tmp_path: Path
) -> None:
    outer, inner = (tmp_path / f"{name}.yaml" for name in names)
    outer.write_text(HUB)
    inner.write_text(DISPATCH)

    def warnings() -> list[str]:
        found = check_policy(tmp_path, datetime.date(2026, 1, 1))[1]
        return [str(one) for one in found if one.code in ("claim-inside", "idle-delegate")]

    assert warnings() == []
    outer.write_text(HUB.replace('delegates: ["hb:{dispatch}:"]', 'delegates: ["hb:{despatch}:"]'))
    assert sorted(warnings()) == sorted(
        [
            f"{inner}:3:10: warning: 'hb:{{dispatch}}:' is inside the claim 'hb:' of {outer}, and its keys "
            "are taken out of that file; if both teams agree, write there: delegates: ['hb:{dispatch}:']",
            f"{outer}:4:13: warning: no file claims 'hb:{{despatch}}:', so its keys still belong to this one",
        ]
    )


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ('keys: {job: {key: "hb:{dispatch}:job:<id>", writers: web}}', "'hb:{dispatch}:job:'"),
        ('scopes: {job: {prefix: "hb:{dispatch}:job:"}}', "'hb:{dispatch}:job:'"),
        (
            'keys: {k: {key: "hb:k", writers: web}}\nlegacy: {keys: {"hb:{dispatch}:old-<id>": k}}',
            "'hb:{dispatch}:old-'",
        ),
    ],
)
def test_what_a_file_says_about_keys_in_another_file_s_claim_is_an_error(
    field: str, told: str, tmp_path: Path
) -> None:
    outer = f'policy: hub\nclaims: ["hb:"]\nservices: [web]\nplaceholders: {{id: "[a-z]+"}}\n{field}\n'
    with pytest.raises(FileError) as caught:
        policy_of(tmp_path, a=outer, b=DISPATCH)
    (fault,) = caught.value.diagnostics
    assert fault.place.file.endswith("a.yaml")
    assert (
        fault.message
        == f"{told} is in the claim 'hb:{{dispatch}}:' of {tmp_path}/b.yaml:3; register it there"
    )


@pytest.mark.parametrize(
    ("claim", "told"),
    [
        ("hb:", "this file claims 'hb:' itself; take it out of claims or of delegates"),
        ("other:", "'other:' is not inside this file's claims (hb:); remove it"),
        ("hb:<id>:", "'hb:<id>:': a claim is plain text, so <id> means just this text"),
    ],
)
def test_a_delegated_claim_that_is_not_inside_the_file_s_claims_is_an_error(
    claim: str, told: str, tmp_path: Path
) -> None:
    with pytest.raises(FileError) as caught:
        policy_of(tmp_path, a=HUB.replace('"hb:{dispatch}:"', f'"{claim}"'))
    (fault,) = caught.value.diagnostics
    assert told in fault.message
    assert fault.place.line == 4


def test_a_part_of_a_file_inside_another_file_s_part_needs_a_scope_of_its_own(tmp_path: Path) -> None:
    text = "policy: {}\nservices: [x]\nclaims: {}\nscopes: {}\n"
    one = text.format("one", "['k:', 'k:a:b:']", "{one: {prefix: 'k:', writers: x, unregistered: allow}}")
    two = text.format("two", "['k:a:']", "{two: {prefix: 'k:a:', writers: x, unregistered: allow}}")
    policy = policy_of(tmp_path, one=one, two=two)
    owners = {}
    for key in ("k:x", "k:a:x", "k:a:b:x"):
        target = policy.target(key.encode())
        owners[key] = (policy.home(target).policy, target.kind if target is not None else "")
    assert owners == {"k:x": ("one", "scope"), "k:a:x": ("two", "scope"), "k:a:b:x": ("one", "claim")}
