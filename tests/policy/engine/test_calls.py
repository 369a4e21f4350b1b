"""Commands with several keys, a script, a pattern or a channel: the decision cache, compared with the
evaluator.

Rule: the cache admits no such command that breaks a rule. It knows the same outcomes for times to live and
sizes, and the same evidence, as the evaluator finds for each of them.
"""

from __future__ import annotations

import random
import re
from array import array
from collections import Counter
from collections.abc import Generator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfence.commands.cache_forms import NO_OPTIONS
from keyfence.commands.call_layouts import CALL_LAYOUTS
from keyfence.commands.effects import effect_of
from keyfence.commands.extract import extract
from keyfence.commands.families.streams import XREAD_OPTIONS
from keyfence.commands.model import MANY
from keyfence.commands.table import COMMANDS
from keyfence.policy.budget import driven
from keyfence.policy.compiled.tenants import Values
from keyfence.policy.engine import decision_cache
from keyfence.policy.engine.answers import Answers, shortened
from keyfence.policy.engine.command_evidence import evidence_of
from keyfence.policy.engine.decision_cache import MAX_CALLS, MAX_MEMBERS, MOST_LOOKED_AT, DecisionCache
from keyfence.policy.engine.evaluation import Evaluation
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.engine.forms import MAX_FORMS, MAX_KINDS, CommandForms, Lookup, places_of
from keyfence.policy.loading.load import load_policy, parse_policy
from keyfence.policy.source import libraries
from keyfence.policy.verdict import Verdict
from keyfence.resp.encode import command
from keyfence.resp.limits import IDENTIFIED
from keyfence.resp.requests import PLACES, RequestReader
from tests.policy.cases import POLICIES
from tests.policy.evaluations import assert_known, begun

ALL = frozenset(row.command.name for row in COMMANDS.values())
SHA1S = {
    name: f"{number:02x}" * 20 for number, name in enumerate(("plain", "reads", "made", "formed", "loose"), 1)
}
SHOP = f"""
policy: shop
services: [app, other, runner]
placeholders: {{id: "[a-zA-Z0-9]{{1,6}}", few: "[a-z]{{1,2}}"}}
names: {{max_length: 12, hash_tag: any}}
scopes:
  all: {{prefix: "s:", writers: [app, runner], readers: [other]}}
  free: {{prefix: "f:", writers: [app], unregistered: allow, commands: {{forbid: [SUNIONSTORE]}}}}
keys:
  text: {{key: "s:t:<id>", type: string}}
  brief: {{key: "s:b:<id>", type: string, ttl: {{max: 1h}}}}
  once: {{key: "s:o:<id>", type: string, ttl: {{max: 1h, at: write}}}}
  small: {{key: "s:v:<id>", type: string, values: integer, max_value: 4b}}
  kept: {{key: "s:k:<id>", type: [string, list], commands: {{never: [delete, remove]}}}}
  tagged: {{key: "s:h:{{<id>}}", hash_tag: required}}
  set: {{key: "s:s:<id>", type: set}}
  limited: {{key: "s:m:<id>", type: set, max_members: 5, ttl: {{max: 1h}}}}
  zset: {{key: "s:z:<id>", type: zset}}
  queue: {{key: "s:q:<id>", type: list}}
  events: {{key: "s:e:<id>", type: stream, consumers: [other], writers: [app]}}
  secret: {{key: "s:p:<id>", type: [set, string], readers: [], writers: [app]}}
  lock: {{key: "s:l:<id>", type: string, ttl: {{max: 1m}}, written_by: [plain]}}
legacy: {{allow: [read, delete], keys: {{"old:<id>": text}}}}
channels:
  news: {{channel: "n:<id>", publishers: [app], subscribers: [other]}}
unregistered_scripts: load_only
scripts:
  plain: {{sha1: {SHA1S["plain"]}, keys: any}}
  reads: {{sha1: {SHA1S["reads"]}, keys: 1, declared: read, shared: yes}}
  made: {{sha1: {SHA1S["made"]}, keys: 1, writes: ["s:t:<ARGV.1>"]}}
  formed: {{sha1: {SHA1S["formed"]}, keys: ["s:t:<id>"]}}
  loose: {{sha1: {SHA1S["loose"]}, keys: ["s:t:<few>"]}}
functions: {{bump: {{keys: 2}}}}
"""
TENANTS = """
policy: saas
services: [api, worker]
placeholders: {id: "[a-z0-9]{1,8}", tenant: "[a-z]{1,8}", author: "[a-z]{1,8}"}
bind:
  tenant: {from: user}
  author: {write: {from: user}}
scopes:
  tenant: {prefix: "s:<tenant>:", writers: [api], readers: [worker], unregistered: allow}
keys:
  cart: {key: "s:<tenant>:cart:<id>", type: string, ttl: {max: 1h}}
  profile: {key: "p:<author>", type: string, writers: [api], readers: [api, worker]}
channels:
  events: {channel: "n:<tenant>", publishers: [api], subscribers: [api]}
"""
FAMILIES = """
policy: families
services: [a, b]
placeholders: {id: "[a-z0-9]{1,8}"}
bind: {ns: {a: [one, two], b: [two]}}
keys:
  text: {key: "<ns>:t:<id>", type: string, writers: [a, b]}
  set: {key: "<ns>:s:<id>", type: set, writers: [a, b]}
"""
CLUSTER = SHOP.replace("policy: shop", "policy: cluster\ncluster: true")
GRANTS = """
policy: grants
services: [app, ops, scanner]
placeholders: {id: "[a-z0-9]{1,8}"}
scopes: {all: {prefix: "s:", writers: [app]}}
keys: {text: {key: "s:t:<id>", type: [string, list]}, set: {key: "s:s:<id>", type: set}}
channels: {news: {channel: "n:<id>", publishers: [app], subscribers: [app]}}
grants:
  ops: {commands: "*", keys: ["s:t:a*"], channels: ["n:a*"]}
  scanner: {commands: [SCAN], keys: ["s:*"]}
"""
LAPSING = GRANTS.replace("policy: grants", "policy: lapsing").replace(
    'keys: ["s:t:a*"]', 'until: 2099-01-01, on_expiry: refuse, keys: ["s:t:a*"]'
)
SCRIPTED = f"""
policy: scripted
services: [app, runner, other]
placeholders: {{id: "[a-z0-9]{{1,8}}"}}
scopes:
  free: {{prefix: "f:", writers: [app, runner, other], unregistered: allow, unregistered_scripts: declared}}
  told: {{prefix: "t:", writers: [app, runner, other], unregistered: allow, unregistered_scripts: report}}
  shut: {{prefix: "s:", writers: [app, runner, other], unregistered: allow, unregistered_scripts: forbid}}
  rest: {{prefix: "r:", writers: [app, runner, other], unregistered: allow}}
keys: {{text: {{key: "f:text:<id>", type: string, writers: [app]}}}}
unregistered_scripts: {{services: {{runner: declared, other: forbid}}}}
scripts:
  plain: {{sha1: {SHA1S["plain"]}, keys: any}}
  lib: {{library: bullmq, prefix: ["f:", "f:text:"]}}
"""
EVALUATORS = {
    **{one.split("\n")[1].split()[1]: Evaluator(parse_policy(one)) for one in (SHOP, TENANTS, FAMILIES)},
    **{
        one.split("\n")[1].split()[1]: Evaluator(parse_policy(one))
        for one in (CLUSTER, GRANTS, LAPSING, SCRIPTED)
    },
    "cubesandbox": Evaluator(load_policy(POLICIES / "cubesandbox.yaml")),
}
CACHES = {
    (name, service): DecisionCache(evaluator, service, ALL)
    for name, evaluator in EVALUATORS.items()
    for service in range(len(evaluator.policy.services))
}
IDS = ["a", "b1", "ab", "toolongid", "A"]
KEYS = {
    name: [f"{prefix}{one}".encode() for prefix in prefixes.split() for one in IDS]
    for name, prefixes in {
        "shop": "s:t: s:b: s:o: s:v: s:k: s:s: s:m: s:z: s:q: s:e: s:p: s:l: s:x: f: old: n: x",
        "saas": "s:acme:cart: s:acme:x s:globex:cart: p: n:",
        "families": "one:t: one:s: two:t: two:s: three:t:",
        "grants": "s:t: s:s: s:x: n: x",
        "scripted": "f:text: f:x: t: s: r: x",
        "cubesandbox": "cube:v1:master:instance:meta: cube:v1:shared:sandbox:proxy: cube:v1:shared:lock:x: x",
    }.items()
}
KEYS["shop"] += [b"s:h:{a}", b"s:h:{b}", b"s:h:a", b"n:acme", b"p:acme", b"STREAMS", b""]
KEYS["saas"] += [b"p:acme", b"n:acme", b"n:globex"]
KEYS["cluster"], KEYS["lapsing"] = KEYS["shop"], KEYS["grants"]
VALUES: list[Values] = [(), (b"acme", b"acme"), (b"globex", b"globex"), (None, None)]
NAMES = sorted({name for name in CALL_LAYOUTS if name.isupper()})
WORDS = [
    *b"1 2 0 3 -1 01 x > $ 0-0 LEFT RIGHT MATCH COUNT TYPE string s:t:* * s:* acme WEIGHTS AGGREGATE".split(),
    *b"GROUP g BLOCK STREAMS streams NOACK CLAIM AND OR DB REPLACE 12345 bump BUMP other 99999999999".split(),
    *(sha1.encode() for sha1 in SHA1S.values()),
    b"STREAMS\0",
    b"",
]


def admitted(
    cache: DecisionCache, argv: list[bytes], values: Values = (), unread: Lookup | None = None
) -> Lookup | None:
    """Looks a command up. Returns the answer if the cache admits it as a command of this kind."""
    lookup = cache.find(argv, values, unread)
    assert lookup.is_admitted or lookup.call is None
    assert_known(argv, cache.known(lookup, argv))
    return lookup if lookup.call is not None else None


def assert_same(evaluator: Evaluator, service: int, argv: list[bytes], values: Values, found: Lookup) -> None:
    """The evaluator agrees with the cache's answer about a command."""
    touches = extract(argv)
    whole = begun(evaluator, service, argv, touches, values)
    verdict = driven(evaluator.verdict(whole))
    assert verdict.allowed, (argv, verdict)
    left = [(one.access.position, one.outcome, one.target) for one in whole.left_open]
    opens = [(at, kind.outcome, kind.target) for kind, at in found.opens or () if kind.outcome]
    assert sorted(opens, key=str) == sorted(left, key=str), argv
    assert all(argv[at] == one.access.key for (at, _, _), one in zip(left, whole.left_open, strict=True))
    assert found.call is not None
    assert found.call.name == (touches.command.name if touches.command is not None else "")
    wanted = evidence_of(evaluator.policy, service, touches)
    assert set(found.call.evidence.rules) == set(wanted.rules), argv
    assert set(found.call.evidence.rights) == set(wanted.rights), argv


def looked_at(cache: DecisionCache, argv: list[bytes], values: Values = ()) -> Lookup | None:
    """Looks a command up that is second in the reader and not yet taken out."""
    reader = RequestReader(IDENTIFIED)
    reader.feed(command("PING") + command(*argv))
    reader.next()
    if not reader.peek():
        return None
    return cache.find_unread(reader.data(), PLACES, reader.count, values)


def found_unread(cache: DecisionCache, argv: list[bytes], values: Values = ()) -> Lookup | None:
    """The same; None if `find` may know more."""
    lookup = looked_at(cache, argv, values)
    return lookup if lookup is not None and (lookup.is_admitted or lookup.decision is not None) else None


def is_peeked(argv: list[bytes]) -> bool:
    return len(argv) <= len(PLACES) // 2 and all(len(argument) < 100_000 for argument in argv)


def agree(name: str, service: int, argv: list[bytes], values: Values = ()) -> bool:
    """Looks a command up unread and as a list, twice. Returns whether the cache admits the list the second
    time; then it also admits the command unread. A command that has one key only may be admitted as
    test_decision_cache has it."""
    cache = CACHES[name, service]
    for _ in range(2):
        unread = looked_at(cache, argv, values)
        if unread is not None and unread.call is not None:
            assert_same(EVALUATORS[name], service, argv, values, unread)
        found = admitted(cache, list(argv), values, unread)
        if found is not None:
            assert_same(EVALUATORS[name], service, argv, values, found)
    unread = found_unread(cache, argv, values)
    if found is not None and is_peeked(argv):
        assert unread is not None
        assert (unread.call, unread.opens) == (found.call, found.opens)
    else:
        assert unread is None or unread.call is None
    return cache.find(list(argv), values).is_admitted


@st.composite
def calls(draw: st.DrawFn, policy: str) -> list[bytes]:
    """A command, well-formed or nearly so, with keys of the policy."""
    name = draw(st.sampled_from(NAMES))
    keys = st.sampled_from(KEYS[policy])
    layout = CALL_LAYOUTS[name]
    many = draw(st.lists(keys, min_size=1, max_size=6))
    if draw(st.integers(0, 4)) == 0:
        words = keys | st.sampled_from(WORDS)
        return [draw(st.sampled_from([name, name.lower()])), *draw(st.lists(words, max_size=8))]
    if name in (b"MSET", b"MSETNX"):
        values = st.sampled_from([b"1", b"22", b"55555", b"x", b""])
        return [name, *(word for key in many for word in (key, draw(values)))]
    if layout.keys and layout.keys[0].keyword:
        options = draw(
            st.sampled_from([b"", b"COUNT 5", b"BLOCK 0 COUNT 1", b"NOACK", b"X", b"COUNT STREAMS"])
        )
        group = [b"GROUP", b"g", draw(st.sampled_from([b"c", b"STREAMS"]))] * (name == b"XREADGROUP")
        ids = [b">"] * (len(many) + draw(st.sampled_from([0, 0, 0, 1])))
        return [name, *group, *options.split(), draw(st.sampled_from([b"STREAMS", b"streams"])), *many, *ids]
    argv = [name, *(draw(st.sampled_from(WORDS)) for _ in range(layout.decides[0] and 1))]
    for spec in layout.keys:
        while len(argv) < spec.start:
            argv.append(draw(st.sampled_from(WORDS)))
        if spec.find == "keynum":
            argv += [b"%d" % (len(many) + draw(st.sampled_from([0, 0, 0, 0, 1, -1]))), *many]
        else:
            argv += many if spec.last < 0 else [draw(keys)]
    if layout.channel_at:
        argv.append(draw(keys))
    return argv + draw(st.lists(st.sampled_from(WORDS), max_size=3))


@pytest.mark.timeout(600)  # it compares two thousand commands
@settings(max_examples=1000, deadline=None)
@given(st.sampled_from(sorted(EVALUATORS)), st.data())
def test_the_evaluator_agrees_with_each_admitted_command(policy: str, data: st.DataObject) -> None:
    service = data.draw(st.integers(0, len(EVALUATORS[policy].policy.services) - 1))
    values = data.draw(st.sampled_from(VALUES)) if policy == "saas" else ()
    agree(policy, service, data.draw(calls(policy)), values)


# Well-formed commands that the shop's service `app` may use. `{tb}` is a key of one of these kinds, `{tb}+`
# some of them; `#` puts their number before them, `=` a value behind each, `>` as many IDs behind all.
FORMS = [
    *("DEL {tbsz}+", "MGET {tb}+", "EXISTS {tbszq}+", "SUNION {sm}+", "UNLINK {tszqm}+", "TOUCH {tq}+"),
    *("MSET {tv}+=", "ZUNIONSTORE {z} #{z}+", "ZUNION #{zs}+", "SUNIONSTORE {s} {s}+", "SINTERCARD #{sm}+"),
    *("LMOVE {q} {q} L R", "BLPOP {q}+ 5", "BZPOPMIN {z}+ 0", "LMPOP #{q}+ LEFT", "RENAME {t} {t}"),
    *("COPY {t} {t} REPLACE", "BITOP AND {t} {t}+", "PFMERGE {t} {t}+", "SMOVE {s} {s} x"),
    *("XREADGROUP GROUP g c COUNT 5 STREAMS {e}+>", "XREAD BLOCK 0 STREAMS {e}+>", "PUBLISH {n} hello"),
    *("SCAN 0 MATCH s:t:*", "SCAN 17 MATCH s:*", f"EVALSHA {SHA1S['plain']} #{{tsl}}+ x y"),
    *(f"evalsha_ro {SHA1S['reads']} #{{t}} x", "fcall bump 2 {t} {s} x", "mget {h}+"),
]
_TOKEN = re.compile(r"(#?)\{(\w+)\}(\+?)(=?)(>?)")


def random_call(choose: random.Random, form: str) -> list[bytes]:
    """A command of this form with random keys."""
    argv = []
    for word in form.split():
        token = _TOKEN.fullmatch(word)
        if token is None:
            argv.append(word.encode())
            continue
        counted, kinds, several, valued, streams = token.groups()
        keys = [key_of(choose.choice(kinds), choose) for _ in range(choose.randrange(1, 5) if several else 1)]
        argv += [b"%d" % len(keys)] if counted else []
        argv += [part for key in keys for part in ((key, b"7") if valued else (key,))]
        argv += [b">"] * len(keys) if streams else []
    return argv


def key_of(kind: str, choose: random.Random) -> bytes:
    name = choose.choice(["a", "b", "c1"])
    return {"h": f"s:h:{{{name}}}", "n": f"n:{name}"}.get(kind, f"s:{kind}:{name}").encode()


@pytest.mark.parametrize("policy", ["shop", "cluster"])
def test_the_cache_admits_what_the_evaluator_allows(policy: str) -> None:
    """Otherwise the comparison of cache and evaluator would be empty."""
    choose = random.Random(5)
    asked: Counter[str] = Counter()
    known: Counter[str] = Counter()
    for _ in range(3000):
        form = choose.choice(FORMS)
        argv = random_call(choose, form)
        if EVALUATORS[policy].decide(0, argv).allowed:
            asked[form] += 1
            known[form] += agree(policy, 0, argv)
    unasked = {form for form in FORMS if not asked[form]}
    assert len(unasked) < len(FORMS) / 2 if policy == "cluster" else unasked == set()  # slots differ
    assert {form: known[form] / asked[form] for form in FORMS if known[form] < asked[form]} == {}


@pytest.mark.parametrize(
    ("policy", "service", "text", "values", "is_known"),
    [
        # Keys of the caller's own tenant, of another one, of both.
        ("saas", "api", "MGET s:acme:cart:1 s:acme:x", (b"acme", b"acme"), True),
        ("saas", "api", "MGET s:acme:cart:1 s:globex:x", (b"acme", b"acme"), False),
        ("saas", "api", "MGET s:acme:cart:1", (), False),
        ("saas", "api", "BLPOP s:acme:x s:acme:y 0", (b"acme", b"acme"), True),
        ("saas", "api", "BLPOP s:acme:x s:globex:y 0", (b"acme", b"acme"), False),
        ("saas", "api", "PUBLISH n:acme x", (b"acme", b"acme"), False),  # left to the evaluator
        ("saas", "api", "SCAN 0 MATCH s:acme:*", (b"acme", b"acme"), False),
        ("saas", "api", "SCAN 0 MATCH s:*", (), False),
        # Rules about several keys together.
        ("families", "a", "BLPOP one:s:1 0", (), False),  # another type
        ("families", "a", "RENAME one:t:1 two:t:1", (), False),
        ("families", "a", "MGET one:t:1 one:t:2", (), True),
        ("families", "a", "MGET one:t:1 two:t:2", (), False),
        ("cluster", "app", "MGET s:t:a s:t:a", (), True),
        ("cluster", "app", "MGET s:t:a s:t:b", (), False),
        ("cluster", "app", "SCAN 0 MATCH s:t:*", (), True),
        # Grants.
        ("grants", "app", "MGET s:t:a s:t:b", (), True),
        ("grants", "ops", "MGET s:t:a1 s:t:a2", (), False),
        ("grants", "ops", "PUBLISH n:a x", (), False),
        ("grants", "app", "PUBLISH n:a x", (), True),
        ("grants", "scanner", "SCAN 0 MATCH s:*", (), True),
        ("lapsing", "app", "MGET s:t:a s:t:b", (), True),
        ("lapsing", "ops", "MGET s:t:a s:t:a1", (), False),
        ("lapsing", "app", "PUBLISH n:a x", (), False),
        # Scripts that touch more than their declared keys, or keys of one form only.
        ("shop", "app", f"EVALSHA {SHA1S['made']} 1 s:t:a b", (), False),
        ("shop", "app", f"EVALSHA {SHA1S['formed']} 1 s:t:a", (), True),
        ("shop", "app", f"EVALSHA {SHA1S['formed']} 1 s:q:a", (), False),
        ("shop", "app", f"EVALSHA {SHA1S['loose']} 1 s:t:a", (), False),
        ("shop", "app", "EVALSHA " + 40 * "9" + " 1 s:t:a", (), False),
        ("shop", "app", "FCALL bump 1 s:t:a s:t:b", (), False),
        ("shop", "app", "FCALL bump 02 s:t:a s:t:b", (), False),
        ("shop", "app", f"EVALSHA {SHA1S['plain']} 0", (), False),
        # Calls that Redis refuses, or reads otherwise.
        ("shop", "app", "MSET s:t:a 1 s:t:b", (), False),
        ("shop", "app", "BLPOP s:q:a", (), False),
        ("shop", "app", "ZUNION 3 s:z:a s:z:b", (), False),
        ("shop", "app", "XREAD STREAMS s:e:a s:e:b >", (), False),
        ("shop", "app", "XREAD X 1 STREAMS s:e:a >", (), False),
        ("shop", "app", "SCAN 0 MATCH s:t:* X", (), False),
        # Content, names and rights.
        ("shop", "app", "MSET s:v:a 17 s:t:a x", (), True),
        ("shop", "app", "MSET s:v:a x", (), False),
        ("shop", "app", "MSET s:v:a 12345", (), False),
        ("shop", "app", "DEL s:t:a s:k:a", (), False),
        ("shop", "app", "MGET s:t:a s:t:toolong", (), False),
        ("shop", "app", "SUNIONSTORE s:s:a s:p:a", (), False),  # more services may read it there
        ("shop", "app", "SUNIONSTORE s:p:a s:s:a", (), True),
        ("shop", "app", "MSET s:b:a 1", (), True),  # an EXPIRE may follow
        ("shop", "app", "MSET s:o:a 1", (), False),  # a time to live is required
        ("shop", "other", "XREADGROUP GROUP g c STREAMS s:e:a >", (), True),
        ("shop", "other", "MSET s:t:a 1", (), False),
        ("shop", "app", "MGET old:a old:b", (), False),
        ("shop", "app", "COPY s:t:a s:t:b DB 1", (), False),
    ],
)
def test_what_the_cache_admits(policy: str, service: str, text: str, values: Values, is_known: bool) -> None:
    number = EVALUATORS[policy].policy.number(service)
    assert agree(policy, number, text.encode().split(), values) == is_known


# -- the layouts


def test_what_a_key_s_scope_and_the_service_say_of_unknown_scripts_holds_in_the_cache() -> None:
    """An answer is kept only for scripts whose keys are in scopes that let them run without a finding."""
    choose = random.Random(7)
    admitted: Counter[tuple[int, frozenset[bytes]]] = Counter()
    library = choose.sample([one.sha1 for one in libraries.scripts_of("bullmq", ["6.7.0"])], 6)
    for _ in range(6000):
        service = choose.randrange(4)
        keys = choose.choices(KEYS["scripted"], k=choose.choice([0, 1, 1, 2, 3]))
        name = choose.choice([b"EVAL", b"EVALSHA", b"EVALSHA_RO", b"FCALL"])
        script = choose.choice([b"9" * 40, SHA1S["plain"].encode(), *library])
        argv = [name, script, b"%d" % len(keys), *keys, b"x"]
        if agree("scripted", service, argv) and script == b"9" * 40:
            admitted[service, frozenset(key[:2] for key in keys)] += 1
    assert {service for service, _ in admitted} == {0, 1}
    assert {begins for service, begins in admitted if service == 0} == {frozenset({b"f:"})}
    kept = {begin for service, begins in admitted if service == 1 for begin in begins}
    assert kept == {b"f:", b"r:"}


def in_place(argv: list[bytes]) -> tuple[bytes, array[int], int]:
    """A command's bytes, where its arguments lie in them, and their number."""
    return b"".join(argv), places_of(argv), len(argv)


def command_of(argv: list[bytes]) -> CommandForms:
    """What the cache knows of a command before it has looked one up."""
    command = Answers(EVALUATORS["shop"], 0, ALL).command(argv[0])
    assert command is not None
    return command


@pytest.mark.parametrize("name", NAMES)
def test_only_deciding_arguments_decide_about_effects(name: bytes) -> None:
    layout = CALL_LAYOUTS[name]
    row = COMMANDS[name]
    assert row.facts.rights is None
    options = [role for role in range(len(row.specs)) if effect_of(row, role).ttl_of is not None]
    assert layout.decides != (0, 0) or not options


def test_the_words_before_keys_are_told_apart_by_their_letters() -> None:
    """As numbers of seven bytes, in which only letters are the same in capitals (`runs._folded`)."""
    keywords = {spec.keyword for layout in CALL_LAYOUTS.values() for spec in layout.keys if spec.keyword}
    assert keywords == {b"STREAMS"}
    assert [word for word in keywords | XREAD_OPTIONS.keys() if not word.isalpha() or len(word) > 7] == []


@pytest.mark.parametrize(
    "option", [b"COUNT", b"count", b"CoUnT", b"COUN", b"COUNTS", b"COUN\x14", b"COUN4", b""]
)
def test_only_a_known_option_may_stand_before_the_keyword(option: bytes) -> None:
    argv = [b"XREAD", option, b"5", b"STREAMS", b"s:e:a", b">"]
    assert agree("shop", 0, argv) == (option.upper() == b"COUNT")


@pytest.mark.parametrize(
    "keyword", [b"STREAMS", b"streams", b"sTREAMs", b"STREAM", b"STREAMSS", b"STREAM\x13"]
)
def test_keys_follow_the_keyword_in_whatever_case(keyword: bytes) -> None:
    assert agree("shop", 0, [b"XREAD", keyword, b"s:e:a", b">"]) == (keyword.upper() == b"STREAMS")


@settings(max_examples=600, deadline=None)
@given(st.data())
def test_a_layout_finds_the_keys_that_the_command_touches(data: st.DataObject) -> None:
    argv = data.draw(calls("shop"))
    command = command_of(argv)
    touches = extract(argv)
    if not all(run.place(*in_place(argv)) for run in command.runs):
        return
    found = [at for run in command.runs for at in range(run.at, run.stop, run.step)]
    assert found == [one.position for one in (*touches.accesses, *touches.channels)]
    for run in command.runs:
        here = [one for one in touches.accesses if one.position in range(run.at, run.stop, run.step)]
        effects = {(one.needs, one.types, one.ttl, one.losses) for one in here}
        assert len(effects) <= 1


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_shortened_command_has_the_chosen_keys(data: st.DataObject) -> None:
    argv = data.draw(calls("shop"))
    command = command_of(argv)
    if (
        not command.runs
        or not all(run.place(*in_place(argv)) for run in command.runs)
        or command.options != NO_OPTIONS
    ):
        return
    run = command.runs[-1]
    places = list(range(run.at, run.stop, run.step))
    chosen = data.draw(st.lists(st.sampled_from(places), min_size=1, unique=True).map(sorted))
    wanted = [argv[at] for one in command.runs[:-1] for at in range(one.at, one.stop, one.step)]
    wanted += [argv[at] for at in chosen]
    short = shortened(command, list(argv), chosen)
    touches = extract(short)
    found = [*(one.key for one in touches.accesses), *(one.name for one in touches.channels)]
    assert found == wanted


# -- what is kept


class Asked(Evaluator):
    """Counts how often it is asked."""

    times = 0

    def verdict(self, evaluation: Evaluation) -> Generator[None, None, Verdict]:
        self.times += 1
        return super().verdict(evaluation)


def test_one_answer_holds_for_all_keys_of_a_target_and_any_number() -> None:
    evaluator = Asked(parse_policy(SHOP))
    cache = DecisionCache(evaluator, 0, ALL)
    scan = [b"SCAN", b"0", b"MATCH", b"s:t:*"]
    assert admitted(cache, scan) is None  # evaluated in the session's turn, as it may take long
    assert evaluator.decide(0, scan).allowed
    evaluator.times = 0
    for size in range(2, 300):
        keys = [b"s:t:%d" % number for number in range(size)]
        assert admitted(cache, [b"MGET", *keys]) is not None
        assert (
            admitted(cache, [b"EVALSHA", SHA1S["plain"].encode(), b"1", keys[-1], b"%d" % size]) is not None
        )
        assert admitted(cache, [b"SCAN", b"%d" % size, b"MATCH", b"s:t:*"]) is not None
        assert (
            admitted(cache, [b"XREADGROUP", b"GROUP", b"g", keys[-1], b"STREAMS", b"s:e:a", b">"]) is not None
        )
        assert admitted(cache, [b"PUBLISH", b"n:%d" % size, keys[-1]]) is not None
    assert evaluator.times == 5


def test_commands_of_several_kinds_take_turns_and_stay_known_unread() -> None:
    cache = DecisionCache(EVALUATORS["shop"], 0, ALL)
    texts = [
        *(f"SCAN 0 MATCH s:t:{letter}*" for letter in "abcd"),
        *(f"EVALSHA {SHA1S[name]} 1 s:t:a" for name in ("plain", "reads", "formed")),
        *(
            "DEL s:t:a s:s:a",
            "DEL s:s:b s:t:b",
            "DEL s:t:c s:t:d",
            "MSET s:v:a 17 s:t:a x",
            "MGET s:t:a s:t:b",
        ),
        *("XREADGROUP GROUP g c STREAMS s:e:a >", "PUBLISH n:a x", "FCALL bump 2 s:t:a s:s:b"),
    ]
    commands = [text.encode().split() for text in texts]
    for argv in commands * 2:
        assert EVALUATORS["shop"].decide(0, argv).allowed
        cache.find(list(argv))
    for text, argv in zip(texts * 3, commands * 3, strict=True):
        found = found_unread(cache, argv)
        assert found is not None, text
        assert_same(EVALUATORS["shop"], 0, argv, (), found)


def test_what_differs_between_keys_of_one_kind_is_checked_unread() -> None:
    cache = DecisionCache(EVALUATORS["shop"], 0, ALL)
    right = b"MSET s:v:a 17 s:v:b 18".split()
    assert admitted(cache, right) is not None
    wrong = (b"x", b"12345", b"", b"1.5", b"-")
    assert [found_unread(cache, [*right[:4], value]) for value in wrong] == [None] * len(wrong)
    assert [found_unread(cache, [*right[:2], value, *right[3:]]) for value in wrong] == [None] * len(wrong)
    others = (b"s:v:toolong", b"s:o:a", b"s:v:", b"x")  # a key of no entry, one that needs a time to live …
    assert [found_unread(cache, [*right[:3], key, b"18"]) for key in others] == [None] * len(others)
    assert found_unread(cache, right) is not None


def test_a_command_with_a_violation_is_asked_about_once() -> None:
    evaluator = Asked(parse_policy(SHOP))
    cache = DecisionCache(evaluator, 0, ALL)
    evaluator.decide(0, [b"SCAN", b"0", b"MATCH", b"*"])
    evaluator.times = 0
    for _ in range(5):
        assert admitted(cache, [b"MSET", b"s:o:a", b"1"]) is None
        assert admitted(cache, [b"SCAN", b"0", b"MATCH", b"*"]) is None
    assert evaluator.times == 2


@pytest.mark.parametrize("size", [MANY, MANY + 1, 5 * MANY])
def test_a_command_with_very_many_keys_shows_the_evidence_of_the_first_ones(size: int) -> None:
    keys = [b"s:t:%d" % (number % 1000) for number in range(size)]
    assert agree("shop", 0, [b"MGET", *keys])
    assert agree("shop", 0, [b"MGET", b"s:q:a", *keys[1:]]) is False  # another type
    assert agree("shop", 0, [b"EXISTS", b"s:q:a", *keys[1:]])
    assert agree("shop", 0, [b"EXISTS", *keys[1:], b"s:z:a"]) == (size <= MANY)


def test_a_command_with_one_key_and_one_with_several_have_the_same_kinds() -> None:
    cache = DecisionCache(EVALUATORS["shop"], 0, ALL)
    for argv in ([b"UNLINK", b"s:b:a"], [b"UNLINK", b"s:b:a", b"s:b:b"]):
        assert EVALUATORS["shop"].decide(0, argv).allowed
    one = cache.find([b"UNLINK", b"s:b:a"]).decision
    opens = cache.find([b"UNLINK", b"s:b:b", b"s:b:c"]).opens
    assert one is not None
    assert opens == [(one, 1), (one, 2)]


def test_beyond_a_number_of_kinds_of_keys_all_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_cache, "MAX_KINDS", 3)
    cache = DecisionCache(EVALUATORS["shop"], 0, ALL)
    known = [cache.find([b"GET", key]).decision for key in (b"s:t:a", b"s:b:a", b"s:v:a")]
    assert cache.find([b"GET", b"s:t:b"]).decision is known[0]
    assert agree_in(cache, [b"MGET", b"s:t:a", b"s:v:a"])  # needs two more
    assert cache.find([b"GET", b"s:t:a"]).decision is not known[0]


def agree_in(cache: DecisionCache, argv: list[bytes]) -> bool:
    """Whether a cache of the shop's first service admits a command, which the evaluator allows."""
    return EVALUATORS["shop"].decide(0, argv).allowed and cache.find(argv).is_admitted


def test_tables_are_bounded() -> None:
    evaluator = Asked(parse_policy(SHOP))
    cache = DecisionCache(evaluator, 0, ALL)
    for number in range(3 * MAX_FORMS):
        argv = [b"SCAN", b"0", b"MATCH", b"s:t:%d*" % number]
        assert evaluator.decide(0, argv).allowed
        assert [admitted(cache, argv) is not None for _ in range(2)] == [False, True]
    assert evaluator.times == 6 * MAX_FORMS
    assert admitted(cache, argv) is not None
    assert evaluator.times == 6 * MAX_FORMS  # the last ones are still known
    assert admitted(cache, [b"SCAN", b"0", b"MATCH", b"s:" + 2000 * b"t"]) is None
    assert cache.find([b"SCAN", b"0", *([b"COUNT", b"5"] * 20)]).reason == "form"
    assert MAX_CALLS < MAX_KINDS


def policy_of_many(number: int) -> str:
    entries = "".join(f"  e{at}: {{key: 's:{at}:<id>', type: string}}\n" for at in range(number))
    scopes = "scopes: {s: {prefix: 's:', writers: a}}"
    return f"policy: p\nservices: [a]\nplaceholders: {{id: '[a-z]+'}}\n{scopes}\nkeys:\n{entries}"


def test_a_script_with_very_many_arguments_is_left_to_the_evaluator() -> None:
    """Each kind of key would be learned from all arguments: seconds, for thousands of keys."""
    evaluator = Asked(parse_policy(SHOP))
    cache = DecisionCache(evaluator, 0, ALL)
    script, keys = [b"EVALSHA", SHA1S["plain"].encode()], [b"s:t:%d" % at for at in range(MOST_LOOKED_AT)]
    most = MOST_LOOKED_AT - 3
    assert admitted(cache, [*script, b"%d" % most, *keys[:most]]) is not None
    assert evaluator.times == 1
    assert cache.find([*script, b"%d" % (most + 1), *keys[: most + 1]]).reason == "form"
    assert cache.find([*script, b"1", *keys]).reason == "form"
    assert evaluator.times == 1


def test_sets_of_very_many_kinds_are_forgotten_together() -> None:
    cache = DecisionCache(Evaluator(parse_policy(policy_of_many(1100))), 0, ALL)
    choose = random.Random(1)
    highest = 0
    for _ in range(MAX_MEMBERS // 900 + 2):
        keys = [b"s:%d:x" % number for number in choose.sample(range(1100), 950)]
        assert cache.find([b"MGET", *keys]).is_admitted
        assert cache.members <= MAX_MEMBERS + MANY
        highest = max(highest, cache.members)
    assert cache.members < highest


def test_a_policy_with_very_many_targets_forgets_and_finds_anew() -> None:
    cache = DecisionCache(Evaluator(parse_policy(policy_of_many(400))), 0, ALL)
    choose = random.Random(1)
    for _ in range(2 * MAX_CALLS):
        keys = [b"s:%d:x" % choose.randrange(400) for _ in range(5)]
        assert admitted(cache, [b"MGET", *keys]) is not None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("MSET s:t:a 1 s:t:b", "command"),
        ("NOSUCH s:t:a s:t:b", "command"),
        ("MGET s:t:a x", "keys"),
        ("SUNION s:s:a s:t:a", "keys"),
        ("MGET s:t:a " + 9000 * "x", "key"),
        ("MSET s:v:a x", "content"),
        ("DEL old:a s:t:a", "rule"),
    ],
)
def test_the_lookup_says_why(text: str, reason: str) -> None:
    lookup = CACHES["shop", 0].find(text.encode().split())
    assert (lookup.is_admitted, lookup.reason) == (False, reason)
