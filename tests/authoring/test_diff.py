"""The difference between policies: its sentences, and that it is reported exactly if some key shows it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyfence.authoring.diff import NEEDS, Difference, access_rules
from keyfence.policy.loading.load import load_policy, parse_policy
from tests.policy.cases import POLICIES

BASE = """policy: p
claims: ["a:"]
services: [one, two]
databases: [0]
placeholders: {id: "[a-z]{1,9}", long: "[a-z]{1,99}"}
scopes: {s: {prefix: "a:s:", writers: [one], readers: [two]}}
keys:
  k: {key: "a:s:k:<long>", type: hash, ttl: {max: 1h}}
  l: {key: "a:s:l:<id>", writers: [one]}
legacy: {allow: [read], keys: {"old:<id>": l}}
channels: {c: {channel: "news:<id>", publishers: [one], subscribers: [two]}}
scripts: {f: {sha1: [aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa], keys: 1}}
grants: {two: {commands: [SCAN], keys: ["a:*"]}}
"""


def sentences(old: str, new: str) -> list[str]:
    text = BASE.replace(old, new)
    assert text != BASE
    return [change.sentence for change in Difference(parse_policy(BASE), parse_policy(text)).changes]


CHANGES: list[tuple[str, str, list[str]]] = [
    (
        "publishers: [one], ",
        "publishers: [one], written_by: f, ",
        ["only f may publish to news:<id>, for example news:x"],
    ),
    (
        "writers: [one], readers: [two]",
        "writers: [one]",
        [
            "two loses read on k (a:s:k:<long>), a:s:…, for example a:s:k:x",
        ],
    ),
    (
        "writers: [one], readers: [two]",
        "writers: [one, two]",
        ["two gains write on k (a:s:k:<long>), a:s:…, for example a:s:k:x"],
    ),
    (
        'l: {key: "a:s:l:<id>", writers: [one]}',
        'l: {key: "a:s:l:<id>", writers: [one], readers: [two]}',
        ["two gains read on l (a:s:l:<id>), the legacy form old:<id>, for example a:s:l:x"],
    ),
    (
        "services: [one, two]",
        "services: [one, two, three]",
        ["services now: three"],
    ),
    ("databases: [0]", "databases: [0, 1]", ["databases: 0, 1, was 0"]),
    (
        "databases: [0]",
        'databases: [0]\nowner: {docs: "https://wiki.example/keys"}',
        ["page: https://wiki.example/keys, was none"],
    ),
    (
        "ttl: {max: 1h}",
        "ttl: {max: 2h}",
        [
            "k: ttl is required, max 2h, at refresh, grace 5s, was required, max 1h, at refresh, grace 5s, "
            "for example a:s:k:x"
        ],
    ),
    (
        "type: hash, ",
        "type: hash, max_value: 64kb, max_fields: 9, ",
        [
            "k: max value is required now (64kb), for example a:s:k:x",
            "k: max fields is required now (9), for example a:s:k:x",
        ],
    ),
    ("type: hash", "type: [hash, string]", ["k: types is hash, string, was hash, for example a:s:k:x"]),
    ("type: hash, ", "", ["k: types is no longer required (was hash), for example a:s:k:x"]),
    (
        "publishers: [one], subscribers: [two]",
        "publishers: [one, two]",
        [
            "two may no longer subscribe to news:<id>, for example news:x",
            "two may now publish to news:<id>, for example news:x",
        ],
    ),
    (
        "keys: 1}}",
        "keys: 2}}",
        [f"script {'a' * 40}: name: f, keys: 2, declared: both, was name: f, keys: 1, declared: both"],
    ),
    (
        'keys: ["a:*"]',
        'keys: ["a:s:*"]',
        ["the grant to two: SCAN on a:s:*, was SCAN on a:*"],
    ),
    (
        "commands: [SCAN]",
        "commands: [SCAN, FLUSHDB]",
        ["two may now use FLUSHDB", "the grant to two: FLUSHDB, SCAN on a:*, was SCAN on a:*"],
    ),
    (
        "a:s:k:<long>",
        "a:s:k:<id>",
        [
            "entry k is a:s:k:<id>, was a:s:k:<long>, for example a:s:k:x",
            "one loses read and write on k (a:s:k:<long>), for example a:s:k:aaaaaaaaaa",
            "two loses read on k (a:s:k:<long>); breaks scope.write and key.format in place of scope.write "
            "with write on k (a:s:k:<long>), for example a:s:k:aaaaaaaaaa",
            "unknown breaks scope.read and key.format in place of scope.read with read on k (a:s:k:<long>); "
            "breaks scope.write and key.format in place of scope.write with write on k (a:s:k:<long>), "
            "for example a:s:k:aaaaaaaaaa",
        ],
    ),
]


FULL = """policy: p
claims: ["a:"]
services: [one, two]
placeholders: {id: "[a-z]{1,9}", token: {is: "[a-z]{1,16}", secret: true}}
scopes: {s: {prefix: "a:", writers: [one], readers: [two], unregistered: allow}}
keys:
  k: {key: "a:k:<id>", type: hash}
  l: {key: "a:l:<id>", type: zset, scores: "0..100"}
  x: {key: "a:x", type: stream, maxlen: "~1000"}
  t: {key: "a:t:<token>"}
legacy: {allow: [read], until: 2099-06-30, keys: {"old:<id>": k}}
instead: {"bad:<id>": k}
grants: {two: {commands: [SET], keys: ["a:*"], owner: o, reason: r, until: 2099-06-30}}
scripts: {f: {sha1: [aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa], keys: 1}}
"""
SETTINGS: list[tuple[str, str, str]] = [
    ("type: hash", "type: hash, should: [scope.write]", "k: rules that only report: scope.write, was none"),
    (
        "unregistered: allow",
        "unregistered: allow, should: [scope.write]",
        "rules that only report: scope.write",
    ),
    ("type: hash", "type: hash, hash_tag: required", "k: hash tag: required, was none"),
    ("type: hash", "type: hash, written_by: f", "k: only these scripts write: f, was none"),
    ("secret: true", "secret: false", "t: secret placeholders: none, was token"),
    ("secret: true", "secret: true, secret_from: 4", "secrets masked from: 4 bytes, was "),
    (
        "2099-06-30}}",
        "2099-06-30, on_expiry: refuse}}",
        "the grant to two: SET on a:*, refused from 2099-07-01",
    ),
    (
        "2099-06-30, keys",
        "2099-06-30, on_expiry: refuse, keys",
        "legacy forms refused from: 2099-07-01, was none",
    ),
    ('instead: {"bad:<id>": k}\n', "", "the form to use instead of bad:<id> is gone: a:k:<id>"),
    ('"bad:<id>": k', '"bad:<id>": l', "the form to use instead of bad:<id> is a:l:<id>, was a:k:<id>"),
    ("readers: [two],", "readers: [two], deny_write: [two],", "no grant gives: write to two, was none"),
    ('"0..100"', '"0..100.5"', "l: scores is 0..100.5, was 0..100"),
    ('"~1000"', '"1000"', "x: maxlen is 1000, was ~1000"),
]


@pytest.mark.parametrize(("old", "new", "expected"), SETTINGS, ids=[row[2] for row in SETTINGS])
def test_a_change_of_a_setting_is_reported_in_both_directions(old: str, new: str, expected: str) -> None:
    assert old in FULL
    before, after = parse_policy(FULL), parse_policy(FULL.replace(old, new, 1))
    found = [change.sentence for change in Difference(before, after).changes]
    assert [one for one in found if expected in one], found
    assert Difference(after, before).changes


def test_a_should_of_the_whole_file_is_reported_once() -> None:
    new = FULL.replace("services:", "should: [scope.write]\nservices:")
    found = [change.sentence for change in Difference(parse_policy(FULL), parse_policy(new)).changes]
    assert found == ["only a should now: scope.write"]


OF_CALLERS = """policy: p
claims: ["a:"]
services: [one, two]
placeholders: {id: "[a-z]{1,9}", tenant: "[a-z]{1,9}"}
bind: {tenant: {write: {from: user}}}
scopes: {s: {prefix: "a:<tenant>:", writers: [one, two]%s, unregistered: allow}}
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", ", readers: two", "two gains read on other callers' keys of a:<tenant>:…, for example a:x:x2"),
        (
            ", readers: two",
            ", consumers: two",
            "two gains consumer groups on other callers' keys of a:<tenant>:…, for example a:x:x2",
        ),
        (
            ", readers: two",
            ", readers: two, deny_read: two",
            "two loses read on a:<tenant>:…; loses read on other callers' keys of a:<tenant>:…, "
            "for example a:x:x2",
        ),
    ],
)
def test_a_right_on_the_keys_of_other_callers_is_reported(old: str, new: str, expected: str) -> None:
    before, after = parse_policy(OF_CALLERS % old), parse_policy(OF_CALLERS % new)
    found = [one.sentence for one in Difference(before, after).changes if one.section == "rights"]
    assert found == [expected]


RULES_OF_NAMES = """policy: p
claims: ["a:"]
services: [one]
placeholders: {v: "[a-y:]", w: "[a-y]+"}
scopes: {s: {prefix: "a:", writers: [one]}}
names:
  {levels: {min: 2, max: 4}, after: {day: date}, avoid: {usr: user, k: key}, charset: "<v>", level: "<w>"}
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("min: 2", "min: 1", "levels min: 1, max: 4 (must)"),
        (", max: 4", "", "levels min: 2 (must)"),
        ("date", "epoch", "after day: epoch (must)"),
        (", k: key", "", "avoid usr: user (must)"),
        ("[a-y:]", "[a-z:]", "charset [a-z:] (must)"),
        ("[a-y]+", "[a-z]+", "level [a-z]+ (must)"),
    ],
)
def test_a_change_of_a_naming_rule_is_reported(old: str, new: str, expected: str) -> None:
    before, after = parse_policy(RULES_OF_NAMES), parse_policy(RULES_OF_NAMES.replace(old, new, 1))
    (change,) = Difference(before, after).changes
    assert change.sentence.startswith("naming rules: "), change
    assert expected in change.after
    assert expected not in change.before


FORMS = """policy: p
claims: ["a:"]
services: [one]
placeholders: {id: "[a-z]{1,9}", v: "[0-9]+"}
scopes: {s: {prefix: "a:", writers: [one]}}
keys: {k: {key: "a:k:<id>"%s}}
functions: {f: {keys: %s}}
"""


@pytest.mark.parametrize(
    ("requirement", "declared", "expected"),
    [
        (', values: "<v>"', "0", "k: values is a v ([0-9]{4}), was a v ([0-9]+), for example a:k:x"),
        (', members: "<v>"', "0", "k: members is a v ([0-9]{4}), was a v ([0-9]+), for example a:k:x"),
        (
            ', fields: {n: "<v>"}',
            "0",
            "k: fields is n: a v ([0-9]{4}), was n: a v ([0-9]+), for example a:k:x",
        ),
        (
            ', fields: {"x_<v>": any}',
            "0",
            "k: fields is (of the form x_<v> ([0-9]{4})): anything, "
            "was (of the form x_<v> ([0-9]+)): anything, for example a:k:x",
        ),
        (
            "",
            '["a:<v>"]',
            "function f: name: f, keys: 1, patterns: a:<v> ([0-9]{4}), declared: both, "
            "was name: f, keys: 1, patterns: a:<v> ([0-9]+), declared: both",
        ),
    ],
)
def test_a_placeholder_that_holds_something_else_changes_what_it_stands_in(
    requirement: str, declared: str, expected: str
) -> None:
    old = FORMS % (requirement, declared)
    new = old.replace('"[0-9]+"', '"[0-9]{4}"')
    assert [one.sentence for one in Difference(parse_policy(old), parse_policy(new)).changes] == [expected]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("type: hash", "type: string", "a:k:<ARGV.1> as string for <ARGV.2>s by HSET"),
        ("<ARGV.2>s", "<ARGV.2>ms", "a:k:<ARGV.1> as hash for <ARGV.2>ms by HSET"),
        ("<ARGV.2>s", "1h", "a:k:<ARGV.1> as hash for 1h by HSET"),
        ("HSET", "HDEL", "a:k:<ARGV.1> as hash for <ARGV.2>s by HDEL"),
    ],
)
def test_a_change_of_what_a_script_makes_of_a_key_is_reported(old: str, new: str, expected: str) -> None:
    made = "{keys: 0, writes: [{key: 'a:k:<ARGV.1>', type: hash, ttl: <ARGV.2>s, commands: [HSET]}]}"
    before = (FORMS % ("", "0")).replace("{keys: 0}", made)
    (change,) = Difference(parse_policy(before), parse_policy(before.replace(old, new, 1))).changes
    assert change.section == "scripts"
    assert f"writes: {expected}" in change.after


@pytest.mark.parametrize(("old", "new", "expected"), CHANGES, ids=[new[:40] for _, new, _ in CHANGES])
def test_a_change_is_reported_with_an_example(old: str, new: str, expected: list[str]) -> None:
    assert sentences(old, new) == expected


def test_a_policy_does_not_differ_from_itself() -> None:
    for path in [*POLICIES.glob("*[a-z].yaml")]:
        if ".test." not in path.name:
            policy = load_policy(path)
            assert Difference(policy, load_policy(path)).changes == []


# -- compared with brute force

SERVICES = ["one", "two"]
CLASSES = {"id": "[ab]{1,2}", "n": "[ab]{1,12}", "any": "[ab:]{1,2}"}
PATTERNS = ["a:<id>", "a:<n>", "a:b:<id>", "a:b:<n>", "a:<id...>", "a:b", "a:<any>", "a:<id>:b", "a:a:<n>:b"]
some = st.lists(st.sampled_from(SERVICES), max_size=2, unique=True)
RIGHTS = st.fixed_dictionaries({}, optional={"writers": some, "readers": some, "consumers": some})


@st.composite
def policies(draw: st.DrawFn) -> str:
    prefixes = draw(st.lists(st.sampled_from(["a:", "a:b:", "a:a"]), min_size=1, max_size=2, unique=True))
    scopes: dict[str, Any] = {
        f"s{number}": {
            "prefix": prefix,
            "unregistered": draw(st.sampled_from(["forbid", "allow"])),
            **draw(RIGHTS),
            **draw(st.fixed_dictionaries({}, optional={"deny_write": some, "deny_read": some})),
        }
        for number, prefix in enumerate(prefixes)
    }
    keys = {
        f"k{number}": {"key": text, "writers": draw(some), "readers": ["one"], **draw(RIGHTS)}
        for number, text in enumerate(draw(st.lists(st.sampled_from(PATTERNS), max_size=3, unique=True)))
    }
    legacy: dict[str, Any] = {"allow": draw(st.lists(st.sampled_from(["read", "delete", "write"])))}
    if keys:
        legacy["keys"] = dict.fromkeys(
            draw(st.lists(st.sampled_from(["b:<id>", "<n>", "a:<n>:b"]), max_size=2, unique=True)), "k0"
        )
    return json.dumps(
        {
            "policy": "p",
            "claims": ["a:"],
            "services": draw(st.sampled_from([SERVICES, ["one"], ["two", "one"]])),
            "placeholders": CLASSES,
            "scopes": scopes,
            "keys": keys,
            "legacy": legacy,
        }
    )


KEYS = st.text("ab:", max_size=16) | st.sampled_from(
    ["a:" + "a" * 12, "a:" + "a" * 13, "a:b:" + "b" * 13, "a:a:" + "a" * 13 + ":b", "c", "", "a:a:b:a"]
)


def compiled(text: str) -> Any:
    from keyfence.policy.diagnostics import FileError

    try:
        return parse_policy(text)
    except FileError:  # a service that this draw does not have
        return None


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(policies(), policies(), st.booleans(), st.lists(KEYS, min_size=1, max_size=25))
def test_a_verdict_changes_exactly_where_a_change_is_reported(
    one: str, other: str, near: bool, keys: list[str]
) -> None:
    if near:  # near to one another, as revisions are
        other = one.replace('"readers": ["one"]', '"readers": []', 1).replace('"forbid"', '"allow"', 1)
    old, new = compiled(one), compiled(other)
    if old is None or new is None:
        return
    difference = Difference(old, new)
    before, after = access_rules(old), access_rules(new)
    for key in map(str.encode, keys):
        for service in difference.services:
            changes = any(
                before(service, key, needs) != after(service, key, needs) for needs in NEEDS.values()
            )
            assert difference.covers(service, key) == changes, (service, key)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(policies(), policies())
def test_every_example_shows_its_change(one: str, other: str) -> None:
    old, new = compiled(one), compiled(other)
    if old is None or new is None:
        return
    difference = Difference(old, new)
    before, after = access_rules(old), access_rules(new)
    for change in difference.changes:
        if change.section == "rights":
            for service in change.services:
                key = change.example.encode()
                assert any(before(service, key, n) != after(service, key, n) for n in NEEDS.values()), change


def test_a_new_binding_before_a_script_s_own_changes_no_script() -> None:
    old = """
policy: p
services: [a]
bind: {tenant: {from: user}}
keys: {k: {key: "k:<tenant>", writers: a}}
scripts: {f: {sha1: 9e6a55cff378f0e77ccf141b5cf64605b2f850a0, keys: ["k:<tenant>"], declared: write}}
"""
    new = old.replace("{tenant: {from: user}}", "{node: {from: certificate}, tenant: {from: user}}")
    new = new.replace("keys: {", 'keys: {n: {key: "n:<node>", writers: a}, ', 1)
    sentences = [one.sentence for one in Difference(parse_policy(old), parse_policy(new)).changes]
    assert not [one for one in sentences if one.startswith("script")], sentences
