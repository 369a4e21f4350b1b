"""Placeholders bound to the caller: a key belongs to its tenant, with any number of tenants."""

from __future__ import annotations

import pickle
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfence.authoring.diff import Difference
from keyfence.authoring.lint import check_policy
from keyfence.authoring.sequences import explain_sequence, read_sequence
from keyfence.authoring.testing import Runner
from keyfence.commands.extract import extract
from keyfence.commands.table import COMMANDS
from keyfence.policy.compiled.tenants import Caller
from keyfence.policy.diagnostics import FileError
from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.decision_cache import DecisionCache
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import load_policy, parse_policy
from keyfence.policy.patterns.globs import Glob
from keyfence.policy.remedies.explain import explain
from tests.policy.engine.test_decision_cache import admitted, admitted_unread

SHA = "a" * 40
POLICY = f"""
policy: saas
claims: ["t:", "cfg:", "old:", "status:", "n:"]
services: [app, jobs, ops]
placeholders: {{id: "[a-z0-9]{{1,8}}"}}
bind:
  tenant: {{from: user, pattern: "tenant-(.*)"}}
  author: {{write: {{from: user, pattern: "tenant-(.*)"}}}}
  node: {{from: certificate, pattern: "spiffe://acme/node/(.*)"}}
scopes:
  tenant: {{prefix: "t:<tenant>:", writers: [app], readers: [jobs]}}
keys:
  cart: {{key: "t:<tenant>:cart:<id>", type: hash, ttl: {{max: 1h}}}}
  name: {{key: "t:<tenant>:name", type: string}}
  config: {{key: "cfg:<id>", writers: [ops], readers: [app, jobs]}}
  status: {{key: "status:<author>:<id>", type: string, writers: [app], readers: [app, jobs]}}
  last: {{key: "n:<id>:<node>", writers: [app]}}
  both: {{key: "n:at:<node>:<tenant>:x", writers: [app]}}
legacy: {{allow: [read], keys: {{"old:<tenant>:<id>": cart}}}}
channels:
  events: {{channel: "t:<tenant>:events:<id>", publishers: [app], subscribers: [app]}}
scripts:
  put: {{sha1: {SHA}, reads: ["t:<tenant>:name"], writes: ["t:<tenant>:cart:<ARGV.1>"]}}
  move:
    sha1: {"b" * 40}
    keys: ["t:<tenant>:cart:<id>"]
    writes: ["t:<tenant>:cart:<ARGV.1>", "t:<tenant>:*"]
"""
LOADED = parse_policy(POLICY)
ACME = Caller(b"tenant-acme", ("spiffe://acme/node/n1",))
STRANGER = Caller(b"someone")


def rules(service: str, command: str, caller: Caller = ACME) -> list[str]:
    evaluator = Evaluator(LOADED)
    verdict = evaluator.decide(LOADED.number(service), command.encode().split(), LOADED.values(caller))
    return [violation.rule for violation in verdict.violations]


@pytest.mark.parametrize(
    ("command", "broken"),
    [
        ("HGETALL t:acme:cart:1", []),
        ("HGETALL t:globex:cart:1", ["scope.read"]),
        ("HDEL t:globex:cart:1 f", ["scope.write"]),
        # A value is compared as a whole, and its case counts.
        ("HGETALL t:acmes:cart:1", ["scope.read"]),
        ("HGETALL t:acm:cart:1", ["scope.read"]),
        ("HGETALL t:ACME:cart:1", ["scope.read"]),
        ("PUBSUB NUMSUB t:acme:events:1", []),
        ("PUBSUB NUMSUB t:acme:events:1 t:globex:events:1", ["channel.read"]),
        ("PUBSUB SHARDNUMSUB t:globex:events:1", ["channel.read"]),
        ("PUBSUB NUMSUB __keyspace@0__:t:globex:name", ["scope.read"]),
        ("GET t:acme:name", []),
        ("GET t:acme", ["key.format"]),
        ("GET t::name", ["key.format"]),
        ("GET t:acme:other", ["key.unregistered"]),
        ("GET t:globex:other", ["scope.read", "key.unregistered"]),
        ("GET t:acme:cart:B", ["key.format"]),
        ("GET t:globex:cart:B", ["scope.read", "key.format"]),
        ("EXISTS t:globex:name", ["scope.read"]),
        ("GET cfg:1", []),
        # Two tenants in one command.
        ("MGET t:acme:name t:globex:name", ["scope.read"]),
        ("RENAME t:acme:name t:globex:name", ["scope.write"]),
        ("COPY t:globex:name t:acme:name", ["scope.read"]),
        # Binding of writing only.
        ("SET status:acme:1 a", []),
        ("SET status:globex:1 a", ["scope.write"]),
        ("GET status:globex:1", []),
        ("MGET status:globex:1 status:acme:1", []),
        # After another placeholder, and two in one key.
        ("GET n:7:n1", []),
        ("GET n:7:n2", ["scope.read"]),
        ("GET n:at:n1:acme:x", []),
        ("GET n:at:n2:acme:x", ["scope.read"]),
        ("GET n:at:n1:globex:x", ["scope.read"]),
        ("HGETALL old:acme:1", []),
        ("HGETALL old:globex:1", ["key.legacy"]),
        # Patterns are decided by inclusion.
        ("SCAN 0 MATCH t:acme:*", []),
        ("SCAN 0 MATCH t:acme:c?rt:*", []),
        ("SCAN 0 MATCH t:acm[e]:*", []),
        ("SCAN 0 MATCH t:acm\\e:*", []),
        ("SCAN 0 MATCH t:acm[ef]:*", ["scan.scope"]),
        ("SCAN 0 MATCH t:acme*", ["scan.scope"]),
        ("SCAN 0 MATCH t:?cme:*", ["scan.scope"]),
        ("SCAN 0 MATCH t:globex:*", ["scan.scope"]),
        ("SCAN 0 MATCH t:*:cart:*", ["scan.scope"]),
        ("SCAN 0", ["scan.scope"]),
        ("KEYS t:acme:name", ["command.forbidden"]),
        (
            "SCAN 0 MATCH n:at:n1:acme:*",
            ["scan.scope"],
        ),  # a pattern that continues differently belongs to no tenant
        ("SCAN 0 MATCH n:at:n1:acme:x", []),
        ("SUBSCRIBE t:acme:events:1", []),
        ("SUBSCRIBE t:globex:events:1", ["channel.read"]),
        ("PUBLISH t:globex:events:1 x", ["channel.write"]),
        ("PSUBSCRIBE t:acme:events:*", []),
        ("PSUBSCRIBE t:globex:events:*", ["channel.read"]),
        ("PSUBSCRIBE t:*:events:1", ["channel.read"]),
        ("SUBSCRIBE __keyspace@0__:t:acme:name", []),
        ("SUBSCRIBE __keyspace@0__:t:globex:name", ["scope.read"]),
        ("PSUBSCRIBE __keyspace@0__:t:acme:*", []),
        ("PSUBSCRIBE __keyspace@0__:t:globex:*", ["channel.read"]),
        ("PSUBSCRIBE __key*__:t:acme:*", ["channel.read"]),
        ("SUBSCRIBE __keyevent@0__:del", ["channel.read"]),
        # Scripts: if no key shows the tenant, it is the caller's.
        (f"EVALSHA {SHA} 0 1", []),
        (f"EVALSHA {SHA} 0 x:y", ["key.format"]),
        (f"EVALSHA {'b' * 40} 1 t:acme:cart:1 2", []),
        (f"EVALSHA {'b' * 40} 1 t:globex:cart:1 2", ["scope.write", "scope.write"]),
    ],
)
def test_a_tenant_has_its_own_keys_and_no_others(command: str, broken: list[str]) -> None:
    assert rules("app", command) == broken


@pytest.mark.parametrize(
    ("command", "broken"),
    [
        ("GET t:acme:name", ["scope.read"]),
        ("GET t:someone:name", ["scope.read"]),
        ("GET t::name", ["key.format"]),
        ("SET status:acme:1 x", ["scope.write"]),
        ("GET status:acme:1", []),
        ("GET cfg:1", []),
        ("SCAN 0 MATCH t:acme:*", ["scan.scope"]),
        ("SCAN 0 MATCH cfg:*", []),
        ("PSUBSCRIBE t:acme:events:*", ["channel.read"]),
        (f"EVALSHA {SHA} 0 1", ["script.keys", "scope.read", "scope.write"]),
    ],
)
@pytest.mark.parametrize("caller", [Caller(), STRANGER, Caller(b"tenant-"), Caller(b"tenant-a:b")])
def test_a_caller_without_a_value_has_no_rights(caller: Caller, command: str, broken: list[str]) -> None:
    assert rules("app", command, caller) == broken


def test_a_caller_needs_its_service_s_rights_too() -> None:
    assert rules("jobs", "GET t:acme:name") == []
    assert rules("jobs", "SET t:acme:name 1") == ["scope.write"]
    assert rules("ops", "GET t:acme:name") == ["scope.read"]


@pytest.mark.parametrize(
    ("user", "value"),
    [
        (b"tenant-acme", b"acme"),
        (b"tenant-tenant-x", b"tenant-x"),
        (b"tenant-" + b"x" * 128, b"x" * 128),
        (b"tenant-" + b"x" * 129, None),
        (b"tenant-", None),
        (b"tenant-a:b", None),
        (b"tenant-a*", None),
        (b"tenant-\xff", None),
        (b"tenant-a\x00", None),
        (b"tenant-a\r\n", None),
        (b"Tenant-acme", None),
        (b"xtenant-acme", None),
        (b"default", None),
        (None, None),
    ],
)
def test_the_group_gives_the_value_if_it_fits_the_placeholder(
    user: bytes | None, value: bytes | None
) -> None:
    assert LOADED.values(Caller(user))[0] == value


@pytest.mark.parametrize(
    ("pattern", "user", "value"),
    [
        ("(.*)", b"acme", b"acme"),
        ("(?:app|job)-([a-z]+)-[0-9]{1,3}", b"job-acme-17", b"acme"),
        ("(?:app|job)-([a-z]+)-[0-9]{1,3}", b"web-acme-17", None),
        ("([a-z]+(?:-[a-z]+)?)@saas", b"acme-eu@saas", b"acme-eu"),
        ("((?:a|b)+)c", b"abc", b"ab"),
        ("\\(([a-z]+)\\)", b"(acme)", b"acme"),
        ("[(]([a-z]+)[)]", b"(acme)", b"acme"),
    ],
)
def test_the_pattern_is_an_expression_with_one_group(pattern: str, user: bytes, value: bytes | None) -> None:
    loaded = parse_policy(one_entry(f"{{from: user, pattern: '{pattern}'}}"))
    assert loaded.values(Caller(user)) == (value,)


def one_entry(binding: str, key: str = "t:<tenant>:x", rest: str = "") -> str:
    return (
        f"policy: p\nservices: [app]\nbind: {{tenant: {binding}}}\n"
        f"keys: {{k: {{key: '{key}', writers: app}}}}\n{rest}"
    )


def test_values_of_a_wider_class_are_compared_byte_for_byte() -> None:
    loaded = parse_policy(one_entry("{from: user}", rest="placeholders: {tenant: '[^:]+'}\n"))
    evaluator = Evaluator(loaded)
    for name in (b"\xff\x00\r\n", b"*", b"a b", "ü".encode(), b"[a]", b"\\"):
        values = loaded.values(Caller(name))
        assert values == (name,)
        assert evaluator.decide(0, [b"GET", b"t:" + name + b":x"], values).allowed
        assert not evaluator.decide(0, [b"GET", b"t:" + name + b"a:x"], values).allowed
    star = loaded.values(Caller(b"*"))
    assert not evaluator.decide(0, [b"SCAN", b"0", b"MATCH", b"t:*:x"], star).allowed
    assert evaluator.decide(0, [b"SCAN", b"0", b"MATCH", b"t:\\*:x"], star).allowed


def test_the_first_name_of_a_certificate_with_a_value_counts() -> None:
    names = ("https://acme/x", "spiffe://acme/node/n 1", "spiffe://acme/node/n2", "spiffe://acme/node/n3")
    assert LOADED.values(Caller(None, names))[2] == b"n2"
    assert LOADED.values(Caller(b"spiffe://acme/node/n1"))[2] is None


@pytest.mark.parametrize(
    ("caller", "command", "hint"),
    [
        (ACME, "HGETALL t:globex:cart:1", "the caller's own tenant: t:acme:cart:1"),
        (ACME, "GET t:globex:other", "the caller's own tenant: t:acme:other"),
        (ACME, "HGETALL old:globex:1", "use t:acme:cart:1"),
        (ACME, "GET t:acme:cart:B", "for example t:acme:cart:x2"),
        (ACME, "SUBSCRIBE t:globex:events:1", "the caller's own tenant: t:acme:events:1"),
        (ACME, "SCAN 0 MATCH t:globex:*", "SCAN 0 MATCH t:acme:* would pass"),
        (
            STRANGER,
            "GET t:acme:name",
            "the caller has no tenant: it has not logged in as a user of the form tenant-(.*), "
            "with [A-Za-z0-9_.-]{1,128} for <tenant>",
        ),
        (
            Caller(),
            "GET n:7:n1",
            "the caller has no node: its certificate has no name of the form spiffe://acme/node/(.*), "
            "with [A-Za-z0-9_.-]{1,128} for <node>",
        ),
    ],
)
def test_hints_name_the_callers_own_key(caller: Caller, command: str, hint: str) -> None:
    verdict = Evaluator(LOADED).decide(0, command.encode().split(), LOADED.values(caller))
    assert verdict.violations[0].hint == hint


STAGED = """
policy: staged
claims: ["pc:"]
services: [app, hub]
placeholders: {env: "stg|dev", id: "[a-z0-9]{1,8}"}
bind: {tenant: {from: user, pattern: "tenant-(.*)"}}
scopes: {tenant: {prefix: "pc:<env>:{<tenant>}:"}}
keys:
  order: {key: "pc:<env>:{<tenant>}:order:<id>", writers: app}
  seq: {key: "pc:<env>:{<tenant>}:order:seq", writers: app}
  other: {key: "pc:<env>:{<tenant>}:hub:<id>", writers: hub}
  queue: {key: queue, type: list, writers: app}
channels: {events: {channel: "pc:<env>:{<tenant>}:events:<id>", publishers: app, subscribers: app}}
"""


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("SCAN 0 MATCH pc:stg:{acme}:order:*", None),
        ("SCAN 0 MATCH pc:dev:{acme}:order:s*", None),
        ("SCAN 0 MATCH pc:stg:{acme}:order:seq", None),
        ("PSUBSCRIBE pc:stg:{acme}:events:*", None),
        ("PSUBSCRIBE __keyspace@0__:pc:stg:{acme}:order:*", None),
        ("SCAN 0 MATCH pc:stg:{globex}:order:*", "SCAN 0 MATCH pc:stg:{acme}:order:* would pass"),
        ("SCAN 0 MATCH pc:stg:{acme}:hub:*", "SCAN 0 MATCH pc:stg:{acme}:order:* would pass"),
        ("SCAN 0 MATCH pc:stg:{acme}:*", "SCAN 0 MATCH pc:stg:{acme}:order:* would pass"),
        ("SCAN 0 MATCH pc:*:{acme}:order:*", ""),  # the wildcard could stand for another tenant
        ("SCAN 0 MATCH pc:stg:{globex}:{acme}:order:*", "SCAN 0 MATCH pc:stg:{acme}:order:* would pass"),
        ("SCAN 0 MATCH pc:stg:{acme*", "SCAN 0 MATCH pc:stg:{acme}:order:* would pass"),
        ("PSUBSCRIBE pc:stg:{globex}:events:*", "it reaches channels that the service may not use"),
        ("PSUBSCRIBE __keyspace@0__:pc:stg:{globex}:*", "it reaches channels that the service may not use"),
    ],
)
def test_a_pattern_may_have_the_tenant_after_another_placeholder(command: str, hint: str | None) -> None:
    staged = parse_policy(STAGED)
    verdict = Evaluator(staged).decide(0, command.encode().split(), staged.values(ACME))
    assert [violation.hint for violation in verdict.violations] == ([] if hint is None else [hint])


@settings(max_examples=400)
@given(
    st.tuples(
        st.sampled_from(["pc:", "pc", "p?:", "*"]),
        st.sampled_from(["stg:", "dev:", "*:", "s", ""]),
        st.sampled_from(["{acme}:", "{globex}:", "{acme}", "{ac*", "{*}:", ""]),
        st.sampled_from(["order:*", "order:?", "*", "order:seq", "{acme}:order:*", "hub:*"]),
    ).map("".join)
)
def test_a_pattern_that_passes_matches_only_own_keys(glob: str) -> None:
    staged = parse_policy(STAGED)
    evaluator, own = Evaluator(staged), staged.values(ACME)
    if not evaluator.decide(0, [b"SCAN", b"0", b"MATCH", glob.encode()], own).allowed:
        return
    for env, tenant, rest in product(
        ("stg", "dev", "x", "stg:{acme}"),
        ("{acme}", "{globex}", "{acme}:{globex}", "{acmes}"),
        ("order:1", "order:seq", "order:B", "hub:1", "{acme}:order:1"),
    ):
        key = f"pc:{env}:{tenant}:{rest}".encode()
        if Glob(glob.encode()).matches(key):
            broken = evaluator.decide(0, [b"GET", key], own).violations
            assert not any(one.rule in ("scope.read", "key.unregistered") for one in broken), key


def test_remedies_of_patterns_know_the_caller() -> None:
    staged = parse_policy(STAGED)
    foreign = b"SCAN 0 MATCH pc:stg:{globex}:order:*".split()
    told = explain(staged, "app", foreign, ACME)["remedies"]
    assert told[0]["command"] == "SCAN 0 MATCH 'pc:stg:{acme}:order:*'"
    told = explain(staged, "app", b"PSUBSCRIBE pc:stg:{acme}:*".split(), ACME)["remedies"]
    assert not any("also reaches pc:stg:{acme}:events:" in one["text"] for one in told)


def test_a_secret_tenant_is_shown_nowhere() -> None:
    text = one_entry("{from: user}", rest="placeholders: {tenant: {is: '[a-z]{4,8}', secret: true}}\n")
    loaded = parse_policy(text)
    values = loaded.values(Caller(b"acme"))
    (violation,) = Evaluator(loaded).decide(0, [b"GET", b"t:globex:x"], values).violations
    assert "globex" not in violation.message + violation.hint
    assert "acme" not in violation.message + violation.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (one_entry("{from: user, pattern: tenant}"), "put the value in the only plain group"),
        (one_entry("{from: user, pattern: '(a)(b)'}"), "put the value in the only plain group"),
        (one_entry("{from: user, pattern: 'a|(b)'}"), "put alternatives in a group"),
        (one_entry("{from: user, pattern: '([a-z)'}"), ""),
        (one_entry("{from: host}"), "'host' is not admitted here; expected user or certificate"),
        (one_entry("{from: user, patern: '(.*)'}"), "unknown key 'patern'; did you mean pattern?"),
        (
            one_entry("{from: user}", "t:<tenant...>:x"),
            "keys do not show where <tenant...> ends; write <tenant>",
        ),
        (
            one_entry("{from: user}", "t:<tenant><id>", "placeholders: {id: a}\n"),
            "keys do not show where <tenant> ends; write text between it and <id>",
        ),
        (
            one_entry("{from: user}", rest="placeholders: {tenant: '[a-z:]+'}\n"),
            "ends: it may hold ':', which also follows it; exclude that byte from its class",
        ),
        (
            one_entry(
                "{from: user}", "t:shared:x", "scopes: {s: {prefix: 't:<tenant>:', writers: app}}\n"
            ).replace(", writers: app}}\nscopes", "}}\nscopes"),
            "'t:shared:x' is in the scope s, where each <tenant> has its own part; write <tenant>",
        ),
        (
            one_entry("{from: user}", "<id>-<tenant>", "placeholders: {id: '[a-z-]+'}\n"),
            "keys do not show where <id> ends: it may hold '-'",
        ),
    ],
)
def test_a_form_that_does_not_show_the_tenant_is_an_error(text: str, message: str) -> None:
    with pytest.raises(FileError) as caught:
        parse_policy(text)
    assert any(message in one.message for one in caught.value.diagnostics), caught.value.diagnostics


def test_check_has_no_warning_about_tenants(tmp_path: Path) -> None:
    (tmp_path / "saas.yaml").write_text(POLICY)
    errors, warnings, summary = check_policy(tmp_path / "saas.yaml")
    assert errors == []
    assert [one.message for one in warnings if "tenant" in one.message] == []
    assert "SCAN 0 MATCH t:*:cart:*  (a caller's own: t:<tenant>:cart:*)" in summary


def test_explain_asks_who_sends_a_command() -> None:
    told = explain(LOADED, "app", [b"GET", b"t:globex:name"], ACME)
    assert (told["verdict"], told["rule"]) == ("violation", "scope.read")
    (remedy,) = told["remedies"]
    assert remedy["command"] == "GET t:acme:name"
    assert explain(LOADED, "app", [b"GET", b"t:acme:name"], ACME)["verdict"] == "allow"
    assert explain(LOADED, "app", [b"GET", b"t:acme:name"])["verdict"] == "violation"


def test_a_sequence_may_continue_as_another_user() -> None:
    text = "GET t:acme:name\n@app user=tenant-globex\nGET t:acme:name\nGET t:globex:name\n"
    told = explain_sequence(LOADED, read_sequence(text, "app", ACME), now=0)
    assert [one["verdict"] for one in told] == ["allow", "violation", "allow"]


def test_policy_tests_say_who_sends_a_command(tmp_path: Path) -> None:
    (tmp_path / "saas.yaml").write_text(POLICY)
    (tmp_path / "saas.test.yaml").write_text(
        """
policy: saas.yaml
tests:
  - {service: app, user: tenant-acme, command: GET t:acme:name, entry: name}
  - {service: app, user: tenant-acme, command: GET t:globex:name, rule: scope.read}
  - {service: app, command: GET t:acme:name, rule: scope.read}
  - {service: app, certificate: spiffe://acme/node/n1, command: GET n:7:n1}
  - service: app
    user: tenant-acme
    sequence:
      - {command: GET t:acme:name}
      - {user: tenant-globex, command: GET t:acme:name, rule: scope.read}
      - {command: GET t:globex:name}
      - {user: "", command: GET t:globex:name, rule: scope.read}
      - {user: tenant-globex, command: GET t:globex:name}
      - {command: reset}
      - {command: GET t:globex:name, rule: scope.read}
"""
    )
    result = Runner().run(tmp_path / "saas.test.yaml")
    assert [one.failures for one in result.results] == [[]] * 5


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (('tenant-(.*)"}\n  author', 't-(.*)"}\n  author'), "placeholders bound to callers"),
        (("[jobs]}", "[jobs, ops]}"), "ops gains read on"),
    ],
)
def test_diff_reports_what_changes_for_tenants(change: tuple[str, str], told: str) -> None:
    new = parse_policy(POLICY.replace(*change))
    sentences = [one.sentence for one in Difference(LOADED, new).changes]
    assert any(told in one for one in sentences), sentences
    assert not Difference(LOADED, LOADED).changes


# Forms from before there were tenants.
BEFORE = """
policy: saas
services: [app, jobs, all]
claims: ["t:", "pub:"]
placeholders: {id: "[a-z0-9]{1,8}"}
bind:
  tenant: {from: user, pattern: "tenant-(.*)", across: [all]}
  author: {write: {from: user, pattern: "tenant-(.*)"}}
keys:
  cart: {key: "t:<tenant>:cart:<id>", writers: [app, all], readers: jobs}
  page: {key: "pub:<author>:<id>", writers: app, readers: jobs}
  both: {key: "t:<tenant>:by:<author>", writers: [app, all], readers: jobs}
legacy:
  allow: [read, write, delete]
  keys:
    "cart:<id>": cart
    "page:<id>": page
    "by:<author>": both
    "open:<id>": {entry: cart, allow: []}
"""


@pytest.mark.parametrize(
    ("command", "passes"),
    [
        ("GET cart:7", ["all"]),  # it may be any tenant's: only for a service with rights on all
        ("SET cart:7 v", ["all"]),
        ("SCAN 0 MATCH cart:[a-z]", ["all"]),
        ("GET page:7", ["jobs"]),  # a service reads all values and writes its own
        ("SET page:7 v", []),
        ("SCAN 0 MATCH page:7", ["jobs"]),
        ("GET by:acme", ["all"]),
        ("SET by:acme v", ["all"]),
        ("GET open:7", []),
    ],
)
def test_a_legacy_form_without_the_tenant_needs_rights_on_all_tenants(
    command: str, passes: list[str]
) -> None:
    policy = parse_policy(BEFORE)
    argv, values = command.encode().split(), policy.values(ACME)
    found = {
        name: Evaluator(policy).decide(policy.number(name), argv, values).violations
        for name in policy.services
    }
    assert [name for name, broken in found.items() if not broken] == passes
    authorizer = Authorizer(policy, Modes([ModeRule("enforce")], policy.services))
    for number, name in enumerate(policy.services):
        cache = authorizer.cache(number, frozenset({"GET", "SET"}))
        assert name in passes or not cache.find(argv, values).is_admitted
        assert (authorizer.rule(Asker(number, values), argv).refused_by is None) == (name in passes)
    for one in found["app"]:
        assert one.rule == ("scan.scope" if argv[0] == b"SCAN" else "key.legacy")
        assert one.rule != "key.legacy" or ":acme:" in one.hint or one.hint.endswith("by:acme")


def test_check_warns_about_a_legacy_form_that_no_one_may_use(tmp_path: Path) -> None:
    file = tmp_path / "saas.yaml"
    file.write_text(BEFORE)
    assert check_policy(file)[:2] == ([], [])
    file.write_text(BEFORE.replace(", across: [all]", ""))
    errors, warnings, _ = check_policy(file)
    assert errors == []
    assert [one.code for one in warnings] == ["unowned-form"] * 2
    assert str(warnings[0]).endswith(
        "warning: no service may use the legacy form 'cart:<id>': it lacks the <tenant> that cart is "
        "bound by, so its keys show no owner; put <tenant> into the form, list a service under across, or "
        "grant its keys"
    )


HINTED = """
policy: saas
services: [app, jobs, ops]
claims: ["t:", "shared:"]
placeholders: {id: "[a-z0-9]{1,8}"}
bind:
  tenant: {from: user, pattern: "tenant-(.*)", across: [jobs]}
  stage: {app: dev, jobs: [dev, stg]}
keys:
  cart: {key: "t:<tenant>:cart:<id>", writers: [app, jobs]}
  lock: {key: "t:<stage>-<tenant>:<id>", writers: [app, jobs]}
  list: {key: "t:list:<id>", writers: app}
  rows: {key: "t:rows:<tenant>:<id>", writers: app, replaces: list, allow: []}
legacy: {allow: [], keys: {"old:<tenant>:<id>": cart}}
instead: {"crt:<id>": cart, "lck:<id>": lock, "their:<tenant>:<id>": cart}
"""


@pytest.mark.parametrize(
    ("service", "command", "caller", "hint"),
    [
        ("app", "GET crt:7", ACME, "use t:acme:cart:7"),
        ("app", "GET crt:7", STRANGER, "use t:<tenant>:cart:7"),
        ("app", "GET lck:7", ACME, "use t:dev-acme:7"),
        ("app", "GET their:globex:7", ACME, "use t:acme:cart:7"),
        ("app", "GET their:globex:7", STRANGER, "use t:<tenant>:cart:7"),
        ("jobs", "GET their:globex:7", ACME, "use t:globex:cart:7"),  # it works across the tenants
        ("jobs", "GET crt:7", ACME, "use t:<tenant>:cart:7"),
        ("jobs", "GET lck:7", STRANGER, "use t:<stage>-<tenant>:7"),
        ("app", "GET old:acme:7", ACME, "use t:acme:cart:7"),
        ("app", "GET old:globex:7", STRANGER, "use t:<tenant>:cart:7"),
        ("app", "GET t:list:7", ACME, "use t:rows:acme:<id>"),
        ("app", "GET t:list:7", STRANGER, "use t:rows:<tenant>:<id>"),
    ],
)
def test_a_hint_names_the_callers_own_key(service: str, command: str, caller: Caller, hint: str) -> None:
    policy = parse_policy(HINTED)
    argv, number = command.encode().split(), policy.number(service)
    (found, *_) = Evaluator(policy).decide(number, argv, policy.values(caller)).violations
    assert found.hint == hint
    told = explain(policy, service, argv, caller)
    assert any(hint.removeprefix("use ").replace("<id>", "7") in one["text"] for one in told["remedies"])


def test_a_hint_shows_no_secret_value_of_the_caller() -> None:
    secret = '{id: "[a-z0-9]{1,8}", tenant: {is: "[a-z]{4,}", secret: true}}'
    policy = parse_policy(HINTED.replace('{id: "[a-z0-9]{1,8}"}', secret))
    for command in (
        "GET crt:7",
        "GET lck:7",
        "GET their:acme:7",
        "GET old:acme:7",
        "GET t:list:7",
        "GET t:x",
    ):
        told = explain(policy, "app", command.encode().split(), ACME)
        assert "acme" not in str(told).replace("GET their:acme:7", "")


def test_a_violation_of_one_caller_is_not_counted_for_another() -> None:
    authorizer = Authorizer(
        LOADED_HINTS := parse_policy(HINTED), Modes([ModeRule("enforce")], ("app", "jobs", "ops"))
    )
    cache = authorizer.cache(0, frozenset({"GET"}))
    for caller, own in ((ACME, b"acme"), (Caller(b"tenant-globex"), b"globex")):
        for command in (b"GET crt:7", b"GET t:list:7"):
            argv, values = command.split(), LOADED_HINTS.values(caller)
            lookup = cache.find(argv, values)
            assert not lookup.is_admitted
            ruling, evaluation = authorizer.authorize(Asker(0, values), argv)
            assert ruling.refused_by is not None
            assert own.decode() in ruling.refused_by.hint
            assert authorizer.common_outcome(cache, lookup, argv, evaluation, ruling) is None


def test_a_lapsed_legacy_form_is_closed_to_its_own_tenant_too() -> None:
    text = POLICY.replace("allow: [read], keys", "allow: [read], until: 2020-01-01, on_expiry: refuse, keys")
    loaded = parse_policy(text)
    verdict = Evaluator(loaded).decide(0, [b"HGETALL", b"old:acme:1"], loaded.values(ACME))
    assert [one.rule for one in verdict.violations] == ["key.legacy"]


def test_files_of_several_teams_have_bindings_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "teams"
    folder.mkdir()
    for team, form in (("a", "a-(.*)"), ("b", "b-(.*)")):
        (folder / f"{team}.yaml").write_text(
            f"policy: {team}\nclaims: ['{team}:']\nservices: [app]\n"
            f"bind: {{tenant: {{from: user, pattern: '{form}'}}}}\n"
            f"keys: {{k: {{key: '{team}:<tenant>:x', writers: app}}}}\n"
        )
    loaded = load_policy(folder)
    values = loaded.values(Caller(b"b-acme"))
    assert values == (None, b"acme")
    evaluator = Evaluator(loaded)
    app = loaded.number("app")
    assert evaluator.decide(app, [b"GET", b"b:acme:x"], values).allowed
    assert not evaluator.decide(app, [b"GET", b"a:acme:x"], values).allowed


def test_a_policy_with_tenants_survives_pickling() -> None:
    loaded = pickle.loads(pickle.dumps(LOADED))
    verdict = Evaluator(loaded).decide(0, [b"GET", b"t:acme:name"], loaded.values(ACME))
    assert verdict.allowed


# -- the decision cache

ALL = frozenset(row.command.name for row in COMMANDS.values())
EVALUATOR = Evaluator(LOADED)
# One for each service, not for each caller: a cached decision must be right for the next tenant too.
CACHES = [DecisionCache(EVALUATOR, service, ALL) for service in range(len(LOADED.services))]
TENANTS = st.sampled_from([b"a", b"ab", b"abc", b"b", b"acme", b"acme:", b"", b"A", b"a\xff", b"x" * 129])
KEYS = st.builds(
    lambda prefix, tenant, rest: prefix + tenant + rest,
    st.sampled_from([b"t:", b"status:", b"old:", b"n:", b"n:at:", b"n:at:n1:", b"n:7:", b"t", b""]),
    TENANTS,
    st.sampled_from([b":name", b":cart:1", b":cart:B", b":1", b"", b":", b":x", b":acme:x", b"::name"]),
)


@settings(max_examples=1500)
@given(st.integers(0, len(LOADED.services) - 1), TENANTS, TENANTS, st.data())
def test_a_decision_cached_for_one_tenant_admits_nothing_for_another(
    service: int, tenant: bytes, node: bytes, data: st.DataObject
) -> None:
    names = (f"spiffe://acme/node/{node.decode('latin-1')}",)
    values = LOADED.values(Caller(b"tenant-" + tenant, names))
    cache = CACHES[service]
    command = data.draw(st.sampled_from([b"GET", b"SET", b"HGETALL", b"DEL", b"EXPIRE", b"MGET", b"EXISTS"]))
    keys = data.draw(st.lists(KEYS, min_size=1, max_size=3 if command in (b"DEL", b"MGET") else 1))
    argv = [command, *keys, *{b"SET": [b"v"], b"EXPIRE": [b"60"]}.get(command, [])]
    for _ in range(2):
        for way in (admitted(cache, list(argv), values), admitted_unread(cache, argv, values)):
            if way is not None:
                assert EVALUATOR.evaluate(Asker(service, values), argv, extract(argv)).allowed


def test_the_decision_cache_admits_a_tenants_own_keys() -> None:
    cache = DecisionCache(EVALUATOR, 0, ALL)
    for tenant in (b"acme", b"globex"):
        values = LOADED.values(Caller(b"tenant-" + tenant))
        key = b"t:" + tenant + b":name"
        assert cache.find([b"GET", key], values).is_admitted
        assert admitted_unread(cache, [b"GET", key], values) is not None
        assert admitted_unread(cache, [b"GET", b"t:other:name"], values) is None
        assert not cache.find([b"GET", b"t:other:name"], values).is_admitted


def test_cached_answers_about_patterns_do_not_grow_with_tenants() -> None:
    evaluator = Evaluator(LOADED)
    for number in range(3000):
        tenant = b"%d" % number
        values = LOADED.values(Caller(b"tenant-" + tenant))
        assert evaluator.decide(0, [b"SCAN", b"0", b"MATCH", b"t:" + tenant + b":*"], values).allowed
    reach = evaluator.checks.patterns.keys
    assert len(reach._key_sets) < 10
    assert len(reach._known._young) + len(reach._known._old) <= 1000


def test_check_suggests_a_scan_that_passes_if_a_caller_has_one_key(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        "policy: p\nservices: [app]\nbind: {tenant: {from: user}}\n"
        'keys: {one: {key: "k:<tenant>", writers: app}, many: {key: "m:<tenant>:<id>", writers: app}}\n'
        'placeholders: {id: "[a-z]+"}\n'
    )
    _, _, summary = check_policy(path)
    assert [line.split("MATCH ")[1] for line in summary.splitlines()[1:]] == [
        "m:*:*  (a caller's own: m:<tenant>:*)",
        "k:*  (a caller's own: k:<tenant>)",
    ]
    evaluator = Evaluator(load_policy(path))
    values = evaluator.policy.values(Caller(b"acme"))
    for pattern in (b"m:acme:*", b"k:acme"):
        verdict = evaluator.decide(evaluator.policy.number("app"), [b"SCAN", b"0", b"MATCH", pattern], values)
        assert not verdict.violations


ACROSS = parse_policy("""
policy: p
services: [app, dispatch, audit]
placeholders: {id: "[a-z0-9]{1,8}", tenant: "[a-z]+"}
bind:
  tenant: {from: user, pattern: "tenant-(.*)", across: [dispatch, audit]}
scopes:
  tenant: {prefix: "t:<tenant>:", writers: [app, dispatch], readers: [audit]}
keys:
  label: {key: "t:<tenant>:label:<id>", type: string, ttl: {max: 1h, at: write}, max_value: 8b}
channels:
  events: {channel: "t:<tenant>:events", publishers: [app, dispatch], subscribers: [audit]}
""")


@pytest.mark.parametrize(
    ("service", "command", "rules"),
    [
        ("dispatch", "SET t:acme:label:1 x EX 60", []),
        ("dispatch", "MGET t:acme:label:1 t:globex:label:1", []),
        ("dispatch", "SET t:globex:label:1 x", ["ttl.required"]),
        ("dispatch", "SET t:globex:label:1 123456789 EX 60", ["value.size"]),
        ("dispatch", "SCAN 0 MATCH t:globex:label:*", []),
        ("dispatch", "COPY t:acme:label:1 t:globex:label:1", []),
        ("dispatch", "PUBLISH t:globex:events x", []),
        ("audit", "GET t:globex:label:1", []),
        ("audit", "PSUBSCRIBE t:globex:events", []),
        ("audit", "SET t:globex:label:1 x EX 60", ["scope.write"]),
        ("app", "GET t:globex:label:1", ["scope.read"]),
        ("app", "SCAN 0 MATCH t:globex:label:*", ["scan.scope"]),
        ("app", "PUBLISH t:globex:events x", ["channel.write"]),
        ("app", "GET t:acme:label:1", []),
    ],
)
@pytest.mark.parametrize("caller", [ACME, STRANGER, Caller()])
def test_a_service_across_tenants_keeps_all_other_limits(
    service: str, command: str, rules: list[str], caller: Caller
) -> None:
    evaluator, argv = Evaluator(ACROSS), command.encode().split()
    number, values = ACROSS.number(service), ACROSS.values(caller)
    if service == "app" and caller is not ACME and not rules:
        rules = ["scope.read"]
    for _ in range(2):
        found = [one.rule for one in evaluator.decide(number, argv, values).violations]
        assert found == rules
    decision = admitted(DecisionCache(evaluator, number, ALL), argv, values)
    assert decision is None or not rules


def test_diff_reports_changes_of_services_across_tenants() -> None:
    text = """
policy: p
services: [app, dispatch]
bind: {tenant: {from: user, pattern: "tenant-(.*)", across: [WHO]}}
scopes: {tenant: {prefix: "t:<tenant>:", writers: [app, dispatch], unregistered: allow}}
"""
    old, new = (parse_policy(text.replace("WHO", who)) for who in ("app", "dispatch"))
    assert "not for dispatch" in "\n".join(one.sentence for one in Difference(old, new).changes)
    with pytest.raises(FileError, match="'nobody' is not listed under services"):
        parse_policy(text.replace("WHO", "nobody"))
