"""The decision cache, compared with the evaluator.

Rule: the cache admits no command that breaks a rule, and it knows the same outcome for times to live.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfence.commands.extract import ONE_KEY
from keyfence.commands.table import COMMANDS
from keyfence.policy.budget import driven
from keyfence.policy.compiled.tenants import Values
from keyfence.policy.compiled.ttl import SETTLES
from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.command_evidence import evidence_of
from keyfence.policy.engine.counts import ViolationCounter
from keyfence.policy.engine.decision_cache import MAX_COUNTERS, DecisionCache
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.engine.forms import MAX_FORMS, KeyKind, Lookup, name_bucket
from keyfence.policy.loading.load import load_policy, parse_policy
from keyfence.policy.verdict import Ruling
from keyfence.resp.encode import command
from keyfence.resp.limits import IDENTIFIED
from keyfence.resp.requests import PLACES, RequestReader
from tests.policy.cases import POLICIES, steps_of
from tests.policy.compiler.test_prefixes import FAMILIES
from tests.policy.evaluations import assert_known, begun

ALL = frozenset(row.command.name for row in COMMANDS.values())
NAMES = ("cubesandbox", "cosky", "card-relay", "container-registry", "general")
EVALUATORS = {name: Evaluator(load_policy(POLICIES / f"{name}.yaml")) for name in NAMES}
CASES = {name: [case.argv for case in steps_of(POLICIES / f"{name}.test.yaml")[1]] for name in NAMES}
# Features that no shipped policy uses: `commands` of entries and scopes, and `field_case: exact`.
CONTRACTS = """
policy: contracts
services: [app, reader]
placeholders: {id: "[a-z0-9]{1,8}"}
should: [field.unknown]
scopes:
  all: {prefix: "c:", writers: app, readers: reader, unregistered: allow, commands: {forbid: "@geo"}}
keys:
  payment: {key: "c:payment:<id>", commands: {never: [delete, replace]}, values: integer}
  set: {key: "c:set:<id>", commands: {never: remove}, ttl: {max: 1h}}
  flag: {key: "c:flag:<id>", type: string, commands: {allow: [GET, SET, SETEX, EXPIRE]}}
  route: {key: "c:route:<id>", type: hash, fields: {HostIP: ip, port: integer}, field_case: exact}
"""
EVALUATORS["contracts"] = Evaluator(parse_policy(CONTRACTS))
CASES["contracts"] = [
    text.split()
    for text in (
        b"SET c:payment:1 1 NX",
        b"EXPIRE c:payment:1 0",
        b"EXPIREAT c:payment:1 5",
        b"GETDEL c:payment:1",
        b"DEL c:payment:1",
        b"SET c:set:1 1 EX 60",
        b"SREM c:set:1 x",
        b"SADD c:set:1 x",
        b"SET c:flag:1 x",
        b"SETNX c:flag:1 x",
        b"GEOADD c:payment:1 1 1 x",
        b"GEOADD c:other 1 1 x",
        b"HSET c:route:1 HostIP 10.0.0.1 port 5",
        b"HSET c:route:1 hostip 10.0.0.1",
        b"HSET c:route:1 Port x other 1",
        b"HSET c:route:1 other 1",
    )
]
NAMES = (*NAMES, "contracts")
# Scopes by families of prefixes, and entries in no scope.
EVALUATORS["families"] = Evaluator(parse_policy(FAMILIES))
CASES["families"] = [
    [command, key, b"60"]
    for key in (
        *(b"ac:stg:a:item:x ac:dev:a:item:X ac:dev:b:lock:x ac:prod12:a:lock:x ac:prod1234:a:y".split()),
        *(b"ac:stg:a: ac:stg:a ac:stg:c:x ac:nix:a:item:x ac:stg:tmp:y queues rl:10.0.0.7 rl:x".split()),
    )
    for command in (b"GET", b"EXPIRE", b"SADD")
]
NAMES = (*NAMES, "families")
KEYS = {name: sorted({word for argv in CASES[name] for word in argv[1:3]}) for name in NAMES}
CUBE = EVALUATORS["cubesandbox"]
# Shared by all examples: a remembered decision must be right for the next command too.
CACHES = {
    (name, service): DecisionCache(evaluator, service, ALL)
    for name, evaluator in EVALUATORS.items()
    for service in range(len(evaluator.policy.services))
}
WORDS = st.sampled_from(
    [
        *b"HostIP hostip PORT port".split(),
        *b"EX 60 PX 5000 EXAT 99999999999 KEEPTTL GET NX XX ex 0 -1 x PERSIST FIELDS MAXLEN ~ =".split(),
        *b"cube:v1:master:instance:meta:a cube:v1:shared:sandbox:lifecycle:state:b CH INCR 1.5 inf".split(),
        *b"* 5 100000 100001 op create HostIP 10.0.0.1 8080 running paused MINID NOMKSTREAM LIMIT".split(),
        b"INCR\0x",
        b"nx\0",
        b"",
    ]
)
COMMAND = st.sampled_from(
    [
        b"SET",
        b"set",
        b"GETEX",
        b"EXPIRE",
        b"SETEX",
        b"HSET",
        b"HSETNX",
        b"XADD",
        b"SETNX",
        b"HSETEX",
        b"RPUSH",
        b"ZADD",
        b"DEL",
        b"MGET",
        b"PING",
    ]
) | st.sampled_from(sorted(ONE_KEY))


@settings(max_examples=1500)
@given(st.sampled_from(NAMES), st.data())
def test_a_command_that_the_cache_admits_breaks_no_rule(policy: str, data: st.DataObject) -> None:
    evaluator = EVALUATORS[policy]
    service = data.draw(st.integers(0, len(evaluator.policy.services) - 1))
    if data.draw(st.booleans()):
        argv = list(data.draw(st.sampled_from(CASES[policy])))
    else:
        key = data.draw(st.sampled_from(KEYS[policy]))
        argv = [data.draw(COMMAND), key, *data.draw(st.lists(WORDS, max_size=7))]
    agree(evaluator, service, argv, CACHES[policy, service])


def agree(evaluator: Evaluator, service: int, argv: list[bytes], cache: DecisionCache) -> bool:
    """Looks a command up unread, then as a list, then unread again. Returns whether the list was admitted.
    Those with several keys are in test_calls."""
    if cache.find(list(argv)).call is not None:
        return not evaluator.decide(service, argv).violations
    found = (admitted_unread(cache, argv), admitted(cache, argv), admitted_unread(cache, argv))
    for decision in found:
        if decision is not None:
            assert_allowed(evaluator, service, argv, decision)
    return found[1] is not None


def admitted(cache: DecisionCache, argv: list[bytes], values: Values = ()) -> KeyKind | None:
    """Returns the decision by which the cache admits a command; None if it does not."""
    lookup = cache.find(argv, values)
    return lookup.decision if lookup.is_admitted else None


def found_unread(cache: DecisionCache, argv: list[bytes], values: Values = ()) -> Lookup | None:
    """Looks up a command that is second in the reader and not yet taken out."""
    reader = RequestReader(IDENTIFIED)
    reader.feed(command("PING") + command(*argv))
    reader.next()
    if not reader.peek():
        return None
    return cache.find_unread(reader.data(), PLACES, reader.count, values)


def admitted_unread(cache: DecisionCache, argv: list[bytes], values: Values = ()) -> KeyKind | None:
    """Like `admitted`, for a request that is still in the reader."""
    lookup = found_unread(cache, argv, values)
    return lookup.decision if lookup is not None and lookup.is_admitted else None


def assert_allowed(evaluator: Evaluator, service: int, argv: list[bytes], decision: KeyKind) -> None:
    whole = begun(evaluator, service, argv)
    verdict = driven(evaluator.verdict(whole))
    assert verdict.allowed, verdict
    left = [found for found, *_ in whole.left_open]
    assert [decision.outcome] * bool(decision.outcome) == left


@st.composite
def awkward_keys(draw: st.DrawFn, policy: str) -> bytes:
    """A key of the policy's examples, or a variation of one."""
    key = draw(st.sampled_from(KEYS[policy]))
    if draw(st.booleans()):
        key = draw(st.sampled_from([b"bench:", b"cube:", b"7", b"user:", b""])) + key
    if draw(st.booleans()):
        key = key[: draw(st.integers(1, 30))] + draw(
            st.sampled_from([b":", b":x", b"7", b"42", b"", b"{a}", b"A"])
        )
    return key


# Authorizers that only observe, shared by all examples as the caches above are.
OBSERVING = {
    name: Authorizer(evaluator.policy, Modes([ModeRule("observe")], evaluator.policy.services))
    for name, evaluator in EVALUATORS.items()
}


def rows_of(ruling: Ruling) -> list[tuple[str, str, str, str, str]]:
    return [(one.rule, one.severity, one.entry, one.shape, action) for one, action in ruling.findings]


def counted_unread(cache: DecisionCache, argv: list[bytes]) -> ViolationCounter | None:
    """Returns the violation counter of a command that is still in the reader."""
    reader = RequestReader(IDENTIFIED)
    reader.feed(command(*argv))
    if not reader.peek():
        return None
    lookup = cache.find_unread(reader.data(), PLACES, reader.count, ())
    if lookup is None or lookup.is_admitted or lookup.decision is None:
        return None
    return lookup.decision.counter(lookup.faults, reader.span(reader.key_at, reader.key_end))


def counter_of(lookup: Lookup, argv: list[bytes]) -> ViolationCounter | None:
    """Returns the violation counter of a command that was looked up."""
    decision = lookup.decision
    return decision.counter(lookup.faults, argv[decision.form.index]) if decision is not None else None


def evaluated_and_counted(authorizer: Authorizer, service: int, argv: list[bytes]) -> bool:
    """Authorizes a command both ways and keeps its counter as a session does. Returns whether it was
    counted."""
    cache = authorizer.cache(service, ALL)
    unread = counted_unread(cache, argv)
    lookup = cache.find(argv, (), found_unread(cache, argv))
    if lookup.is_admitted:
        assert unread is None
        return False
    counter = counter_of(lookup, argv)
    assert unread is None or unread is counter
    ruling, evaluation = authorizer.authorize(Asker(service), argv)
    assert authorizer.authorize(Asker(service), argv, cache.known(lookup, argv))[0] == ruling
    assert_known(argv, cache.known(lookup, argv))
    touches = evaluation.touches
    # On keys of a target, evidence is drawn from the first call, which may lack arguments.
    on_no_target = lookup.decision is not None and lookup.decision.target is None
    if on_no_target and lookup.decision is not None and service not in authorizer.policy.grants:
        assert lookup.decision.evidence == evidence_of(authorizer.policy, service, touches), argv
    if counter is not None:
        assert sorted(rows_of(ruling)) == counter.rows, argv
        left = [found for found, *_ in evaluation.left_open]
        assert [counter.outcome] * bool(counter.outcome) == left
        return True
    if ruling.findings:
        found = authorizer.common_outcome(cache, lookup, argv, evaluation, ruling)
        if found is not None:
            counter = ViolationCounter(sorted(rows_of(ruling)))
            counter.outcome = found
            cache.remember(lookup, argv, counter)
    return False


@settings(max_examples=1500)
@given(st.sampled_from(NAMES), st.data())
def test_a_counted_command_has_the_violations_of_its_counter(policy: str, data: st.DataObject) -> None:
    authorizer = OBSERVING[policy]
    service = data.draw(st.integers(0, len(authorizer.policy.services) - 1))
    if data.draw(st.booleans()):
        argv = list(data.draw(st.sampled_from(CASES[policy])))
    else:
        argv = [data.draw(COMMAND), data.draw(awkward_keys(policy)), *data.draw(st.lists(WORDS, max_size=7))]
    for _ in range(2):
        evaluated_and_counted(authorizer, service, argv)


@pytest.mark.parametrize(
    "key",
    [
        "cube:v1:proxy:bench:{}",  # in another service's scope, no entry
        "bench:user:{}",  # in no scope and no claim
        "cube:v1:master:instance:meta:{}",  # matches an entry
        "cube:v1:master:node:metric:{}:more",  # does not fit the entry's pattern
        "cube:v9:{}",  # in no scope
        "cube_instance_info:{}",  # a legacy form
    ],
)
def test_keys_of_one_shape_share_a_counter(key: str) -> None:
    loaded = CUBE.policy
    authorizer = Authorizer(loaded, Modes([ModeRule("observe")], loaded.services))
    service = loaded.number("CubeProxy")
    repeated = [
        evaluated_and_counted(authorizer, service, [b"SET", key.format(n).encode(), b"v"]) for n in range(5)
    ]
    assert repeated == [False, True, True, True, True]


def test_a_violation_counter_is_found_before_the_request_is_read() -> None:
    loaded = CUBE.policy
    authorizer = Authorizer(loaded, Modes([ModeRule("observe")], loaded.services))
    service = loaded.number("CubeProxy")
    for key in (b"bench:user:%d", b"cube:v1:proxy:x:%d", b"cube:v1:master:instance:meta:%d"):
        for number in range(3):
            evaluated_and_counted(authorizer, service, [b"SET", key % number, b"v"])
        argv = [b"SET", key % 4, b"v"]
        is_admitted = admitted(authorizer.cache(service, ALL), argv) is not None
        assert (counted_unread(authorizer.cache(service, ALL), argv) is not None) != is_admitted, key


def test_violation_counters_are_bounded() -> None:
    loaded = CUBE.policy
    authorizer = Authorizer(loaded, Modes([ModeRule("observe")], loaded.services))
    service = loaded.number("CubeProxy")
    letters = "abcdefghijklmnop"
    words = [f"bench:{a}{b}{c}".encode() for a in letters for b in letters for c in letters]
    assert len(words) == MAX_COUNTERS
    keys = [*words, b"other:1", b"other:2"]
    repeated = [evaluated_and_counted(authorizer, service, [b"SET", key, b"v"]) for key in keys]
    assert repeated == [False] * MAX_COUNTERS + [False, True]
    assert not evaluated_and_counted(authorizer, service, [b"SET", keys[0], b"v"])  # its counter was dropped


def test_the_cache_admits_examples_that_break_no_rule() -> None:
    """Otherwise the comparisons of cache and evaluator would be empty."""
    rates = {}
    for name in NAMES:
        evaluator = EVALUATORS[name]
        allowed = [
            (service, argv)
            for service in range(len(evaluator.policy.services))
            for argv in CASES[name]
            if argv[0].upper() in ONE_KEY and not evaluator.decide(service, argv).violations
        ]
        hits = sum(agree(evaluator, service, list(argv), CACHES[name, service]) for service, argv in allowed)
        rates[name] = hits / len(allowed)
    assert min(rates.values()) > 0.6
    assert min(rates[name] for name in ("cosky", "container-registry", "general")) > 0.8
    assert rates["contracts"] == rates["families"] == 1


def test_the_cache_counts_a_repeated_violation() -> None:
    rates = {}
    for name in NAMES:
        policy = EVALUATORS[name].policy
        authorizer = Authorizer(policy, Modes([ModeRule("observe")], policy.services))
        broken = [
            (service, argv)
            for service in range(len(policy.services))
            for argv in CASES[name]
            if argv[0].upper() in ONE_KEY and authorizer.rule(Asker(service), argv).findings
        ]
        for service, argv in broken:
            evaluated_and_counted(authorizer, service, list(argv))
        counted = sum(evaluated_and_counted(authorizer, service, list(argv)) for service, argv in broken)
        rates[name] = counted / len(broken)
    assert min(rates.values()) > 0.7
    assert rates["cubesandbox"] > 0.9


@pytest.mark.parametrize("policy", NAMES)
def test_cache_and_evaluator_agree_on_every_example(policy: str) -> None:
    for (name, service), cache in CACHES.items():
        for argv in CASES[policy] if name == policy else ():
            agree(EVALUATORS[policy], service, list(argv), cache)


def test_the_cache_admits_everyday_commands() -> None:
    master = DecisionCache(CUBE, CUBE.policy.number("CubeMaster"), ALL)
    sidecar = DecisionCache(CUBE, CUBE.policy.number("cube-proxy-sidecar"), ALL)
    events = b"cube:v1:shared:sandbox:lifecycle:events"
    state = b"cube:v1:shared:sandbox:lifecycle:state:7c8f"
    for cache, text in (
        (master, b"SET cube:v1:master:instance:meta:a v"),
        (master, b"hgetall cube:v1:shared:sandbox:proxy:7c8f"),
        (master, b"HSET cube:v1:shared:sandbox:proxy:7c8f HostIP 10.0.0.1 8080 40000"),
        (master, b"EXPIRE cube:v1:master:node:metric:n1 600"),
        (master, b"XADD " + events + b" MAXLEN ~ 100000 * op create sandbox_id 7c8f ts 1"),
        (sidecar, b"set " + state + b" paused ex 60 nx"),
        (sidecar, b"DEL " + state),
        (master, b"DEL cube:v1:shared:sandbox:proxy:7c8f"),
    ):
        argv = text.split()
        assert admitted(cache, argv) is not None, argv


def test_a_known_command_form_is_admitted_before_the_request_is_read() -> None:
    master = DecisionCache(CUBE, CUBE.policy.number("CubeMaster"), ALL)
    for text in (
        b"SET cube:v1:master:instance:meta:%d v",
        b"GET cube:v1:master:instance:meta:%d",
        b"get cube:v1:master:instance:meta:%d",
        b"EXPIRE cube:v1:master:node:metric:n%d 600",
        b"DEL cube:v1:shared:sandbox:proxy:%d",
    ):
        first, second = (text % number for number in (1, 2))
        assert admitted_unread(master, first.split()) is None
        assert admitted(master, first.split()) is not None
        assert admitted_unread(master, second.split()) is not None, second


def test_new_options_are_checked_before_they_are_admitted_unread() -> None:
    sidecar = DecisionCache(CUBE, CUBE.policy.number("CubeMaster"), ALL)
    metric = b"cube:v1:master:node:metric:n1"
    assert admitted(sidecar, [b"EXPIRE", metric, b"600"]) is not None
    assert admitted_unread(sidecar, [b"EXPIRE", metric, b"600"]) is not None
    assert admitted_unread(sidecar, [b"EXPIRE", metric, b"601"]) is None
    assert admitted_unread(sidecar, [b"EXPIRE", metric, b"600", b"NX"]) is None


def test_values_and_fields_are_checked_each_time() -> None:
    master = DecisionCache(CUBE, CUBE.policy.number("CubeMaster"), ALL)
    route = b"cube:v1:shared:sandbox:proxy:7c8f"
    assert admitted(master, [b"HSET", route]) is not None  # Redis refuses it and writes nothing
    assert admitted(master, [b"HSET", route, b"HostIP", b"10.0.0.1"]) is not None
    assert admitted(master, [b"HSET", route, b"HostIP", b"no address"]) is None
    assert admitted(master, [b"HSET", route, b"Other", b"1"]) is None
    sidecar = DecisionCache(CUBE, CUBE.policy.number("cube-proxy-sidecar"), ALL)
    state = b"cube:v1:shared:sandbox:lifecycle:state:7c8f"
    assert admitted(sidecar, [b"SET", state, b"running", b"EX", b"60"]) is not None
    assert admitted(sidecar, [b"SET", state, b"walking", b"EX", b"60"]) is None


@pytest.mark.parametrize("field", ["mvm_num", "quota_cpu_usage"])  # an integer, a number
@pytest.mark.parametrize(
    "value",
    [
        b"0",
        b"007",
        b"-5",
        b"1.5",
        b"9" * 20,
        b"9" * 21,
        b"9" * 64,
        b"9" * 65,
        b"",
        b"5a",
        b"/",
        b":",
        b"\xb2",
    ],
)
def test_a_number_is_admitted_exactly_if_the_evaluator_allows_it(field: str, value: bytes) -> None:
    service = CUBE.policy.number("CubeMaster")
    argv = [b"HSET", b"cube:v1:master:node:metric:n1", field.encode(), value]
    is_admitted = DecisionCache(CUBE, service, ALL).find(argv).is_admitted
    assert is_admitted == (not CUBE.decide(service, argv).violations)


def test_each_set_of_options_has_its_own_decision() -> None:
    sidecar = DecisionCache(CUBE, CUBE.policy.number("cube-proxy-sidecar"), ALL)
    state = b"cube:v1:shared:sandbox:lifecycle:state:7c8f"
    assert admitted(sidecar, [b"SET", state, b"running", b"EX", b"60"]) is not None
    assert admitted(sidecar, [b"SET", state, b"running"]) is None
    assert admitted(sidecar, [b"SET", state, b"running", b"EX", b"7200"]) is None
    assert admitted(sidecar, [b"SET", state, b"running", b"EXAT", b"99999999999"]) is None


def test_a_command_with_several_keys_is_admitted_if_each_key_is() -> None:
    master = DecisionCache(CUBE, CUBE.policy.number("CubeMaster"), ALL)
    key, route = b"cube:v1:master:instance:meta:a", b"cube:v1:shared:sandbox:proxy:7c8f"
    assert master.find([b"MGET", key, key]).is_admitted
    assert master.find([b"DEL", key, route]).is_admitted
    lookup = master.find([b"DEL", key, b"cube:v1:proxy:x"])
    assert (lookup.is_admitted, lookup.reason, lookup.decision) == (False, "keys", None)
    assert not master.find([b"MGET", key, b"stray:s"]).is_admitted


def test_keys_may_have_different_outcomes() -> None:
    policy = load_policy(POLICIES / "cubesandbox.yaml")
    sidecar = DecisionCache(Evaluator(policy), policy.number("cube-proxy-sidecar"), ALL)
    state, lock = b"cube:v1:shared:sandbox:lifecycle:state:a", b"cube:v1:shared:lock:x:a"
    lookup = sidecar.find([b"UNLINK", state, lock])  # both keys are removed
    assert [(kind.outcome, at) for kind, at in lookup.opens or ()] == [(SETTLES, 1), (SETTLES, 2)]
    lookup = sidecar.find([b"EXISTS", state, lock])
    assert (lookup.is_admitted, [kind.outcome for kind, _ in lookup.opens or () if kind.outcome]) == (
        True,
        [],
    )


def test_a_command_without_keys_is_admitted_if_it_is_allowed() -> None:
    proxy = DecisionCache(CUBE, CUBE.policy.number("CubeProxy"), ALL)
    for argv in ([b"PING"], [b"ping", b"text"], [b"ECHO", b"x"], [b"TIME"]):
        assert admitted(proxy, argv) is not None, argv
    for argv in ([b"FLUSHALL"], [b"DBSIZE"], [b"NOSUCH"]):
        assert admitted(proxy, argv) is None, argv


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("EVAL x 1 cube:v1:master:instance:meta:a", "rule"),
        ("SORT cube:v1:master:instance:meta:a", "command"),
        ("GET", "command"),
        ("SET cube:v1:master:instance:meta:a v a b c d e f g", "form"),
        ("DEL cube:v1:master:instance:meta:a other:b", "keys"),
        ("GET " + 9000 * "x", "key"),
        ("HSET cube:v1:shared:sandbox:proxy:7c8f Other 1", "content"),
        ("SET bench:user:1 v", "rule"),
    ],
)
def test_the_lookup_says_why_a_command_takes_the_slow_path(text: str, reason: str) -> None:
    master = DecisionCache(CUBE, CUBE.policy.number("CubeMaster"), ALL)
    lookup = master.find(text.encode().split())
    assert (lookup.is_admitted, lookup.reason) == (False, reason)


@pytest.mark.parametrize(
    ("service", "text"),
    [
        ("cube-proxy-sidecar", "SET cube:v1:shared:sandbox:lifecycle:state:{} running"),  # EX is required
        ("cube-proxy-sidecar", "SET cube:v1:shared:sandbox:lifecycle:state:{} walking EX 60"),
        ("cube-proxy-sidecar", "SET cube:v1:shared:sandbox:lifecycle:state:{} running EX 7200"),
        ("CubeMaster", "HSET cube:v1:shared:sandbox:proxy:{} HostIP 10.0.0.1 Other x More y"),
        ("CubeMaster", "HSET cube:v1:shared:sandbox:proxy:{} HostIP nowhere"),
        ("CubeMaster", "EXPIRE cube:v1:shared:sandbox:proxy:{} 60"),  # must not expire
        (
            "CubeProxy",
            "HSET cube:v1:master:node:metric:{} mvm_num 1",
        ),  # no right, and a time to live is pending
        ("CubeMaster", "XADD cube:v1:shared:sandbox:lifecycle:events * op create"),
        ("CubeProxy", "ZADD cube:v1:master:z:{} NX CH 1 x"),
    ],
)
def test_repeated_violations_of_content_are_counted(service: str, text: str) -> None:
    loaded = CUBE.policy
    authorizer = Authorizer(loaded, Modes([ModeRule("observe")], loaded.services))
    number = loaded.number(service)
    repeated = [
        evaluated_and_counted(authorizer, number, text.format(at).encode().split()) for at in range(4)
    ]
    assert repeated == [False, True, True, True]


def test_another_number_of_faults_has_another_counter() -> None:
    loaded = CUBE.policy
    authorizer = Authorizer(loaded, Modes([ModeRule("observe")], loaded.services))
    number = loaded.number("CubeMaster")
    route = b"cube:v1:shared:sandbox:proxy:7c8f"
    one, two, bad = [b"A", b"1"], [b"A", b"1", b"B", b"2"], [b"A", b"1", b"HostIP", b"nowhere"]
    for pairs, is_known in ((one, 0), (one, 1), (two, 0), (bad, 0), (two, 1), (bad, 1), (one, 1)):
        assert evaluated_and_counted(authorizer, number, [b"HSET", route, *pairs]) == bool(is_known)


def test_frequent_commands_have_places_of_their_own_among_the_recent_names() -> None:
    """Otherwise commands that take turns are found as lists only."""
    single = (
        "GET SET HGET HSET HGETALL HMGET HMSET HDEL EXPIRE TTL INCR SETEX LPUSH RPUSH LPOP RPOP SADD SREM"
    )
    single += " SMEMBERS ZADD ZREM ZRANGE ZSCORE XADD XACK EXISTS DEL UNLINK"
    others = "DEL UNLINK EXISTS MGET MSET SINTER EVAL EVALSHA FCALL XREAD XREADGROUP BLPOP BRPOP SCAN PUBLISH"
    for names in (single, single.lower(), others, others.lower()):
        buckets = {name_bucket(name, 0, len(name)): name for name in names.encode().split()}
        assert len(buckets) == len(names.split())


def test_the_number_of_command_forms_is_bounded() -> None:
    master = DecisionCache(CUBE, CUBE.policy.number("CubeMaster"), ALL)
    key = b"cube:v1:master:node:metric:n1"
    found = [admitted(master, [b"EXPIRE", key, b"%d" % (600 + number)]) for number in range(2 * MAX_FORMS)]
    assert sum(decision is not None for decision in found) == MAX_FORMS


def test_only_the_named_commands_are_admitted() -> None:
    master = DecisionCache(CUBE, CUBE.policy.number("CubeMaster"), {"GET"})
    key = b"cube:v1:master:instance:meta:a"
    assert admitted(master, [b"GET", key]) is not None
    assert admitted(master, [b"SET", key, b"v"]) is None


WRITE_ONLY = Evaluator(
    parse_policy(
        """
policy: board
services: [writer]
placeholders: {id: "[a-z]+"}
scopes: {s: {prefix: "k:", writers: [writer], deny_read: [writer]}}
keys: {board: {key: "k:<id>", type: zset}}
"""
    )
)


@pytest.mark.parametrize("options", [b"INCR", b"incr\0", b"INCR\0x", b"NX INCR\0", b"CH CH CH CH CH CH INCR"])
@pytest.mark.parametrize("first", [b"", b"NX", b"CH CH CH CH CH CH"])
def test_every_spelling_of_incr_makes_zadd_a_read(first: bytes, options: bytes) -> None:
    cache = DecisionCache(WRITE_ONLY, 0, ALL)
    for _ in range(2):
        agree(WRITE_ONLY, 0, [b"ZADD", b"k:a", *first.split(), b"1", b"m"], cache)
        agree(WRITE_ONLY, 0, [b"ZADD", b"k:a", *options.split(b" "), b"1", b"m"], cache)
