"""The short way admits nothing that the long one finds fault with, and has the same word on times to live."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfence.commands.extract import ONE_KEY, extract
from keyfence.commands.table import COMMANDS
from keyfence.policy.compiled.tenants import Values
from keyfence.policy.compiled.ttl import SETTLES
from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.counts import Repeat
from keyfence.policy.engine.decision_cache import MAX_FORMS, MAX_REPEATS, CommandForm, DecisionCache
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import load_policy, parse_policy
from keyfence.policy.verdict import Ruling
from keyfence.resp.encode import command
from keyfence.resp.limits import IDENTIFIED
from keyfence.resp.requests import RequestReader
from tests.policy.cases import POLICIES, steps_of
from tests.policy.compiler.test_prefixes import FAMILIES

ALL = frozenset(row.command.name for row in COMMANDS.values())
NAMES = ("cubesandbox", "cosky", "card-relay", "container-registry", "general")
DECIDERS = {name: Evaluator(load_policy(POLICIES / f"{name}.yaml")) for name in NAMES}
CASES = {name: [case.argv for case in steps_of(POLICIES / f"{name}.test.yaml")[1]] for name in NAMES}
# What no shipped policy says: commands on keys, fields whose case is a contract.
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
DECIDERS["contracts"] = Evaluator(parse_policy(CONTRACTS))
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
DECIDERS["families"] = Evaluator(parse_policy(FAMILIES))
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
CUBE = DECIDERS["cubesandbox"]
# They live on from example to example: what they remember must be right for the next command too.
GLANCES = {
    (name, service): DecisionCache(evaluator, service, ALL)
    for name, evaluator in DECIDERS.items()
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
def test_what_is_admitted_at_a_glance_breaks_nothing(policy: str, data: st.DataObject) -> None:
    evaluator = DECIDERS[policy]
    service = data.draw(st.integers(0, len(evaluator.policy.services) - 1))
    if data.draw(st.booleans()):
        argv = list(data.draw(st.sampled_from(CASES[policy])))
    else:
        key = data.draw(st.sampled_from(KEYS[policy]))
        argv = [data.draw(COMMAND), key, *data.draw(st.lists(WORDS, max_size=7))]
    agree(evaluator, service, argv, GLANCES[policy, service])


def agree(evaluator: Evaluator, service: int, argv: list[bytes], cache: DecisionCache) -> None:
    """Three times: as the glance has seen nothing like it, perhaps; as it has; and unread, in a request."""
    for way in (admitted_in(cache, argv), cache.admits(argv), admitted_in(cache, argv)):
        if way is not None:
            breaks_nothing(evaluator, service, argv, cache, way)


def admitted_in(cache: DecisionCache, argv: list[bytes], values: Values = ()) -> CommandForm | None:
    """The way of a command that is read by a glimpse only, behind another one."""
    reader = RequestReader(IDENTIFIED)
    reader.feed(command("PING") + command(*argv))
    reader.next()
    if not reader.peek():
        return None
    places = (reader.name_at, reader.name_end, reader.key_at, reader.key_end, reader.options_at, reader.end)
    return cache.admits_in(reader.data(), reader.count, *places, values)


def breaks_nothing(
    evaluator: Evaluator, service: int, argv: list[bytes], cache: DecisionCache, way: CommandForm
) -> None:
    verdict = evaluator.judge(service, argv, extract(argv))
    assert verdict.allowed, verdict
    left = [found for found, *_ in evaluator.left_open]
    keys = len(argv) - way.index if way.has_more else 1
    assert [cache.found] * keys * bool(cache.found) == left


@st.composite
def awkward_keys(draw: st.DrawFn, policy: str) -> bytes:
    """A key of the policy's examples, or near to one, or to none."""
    key = draw(st.sampled_from(KEYS[policy]))
    if draw(st.booleans()):
        key = draw(st.sampled_from([b"bench:", b"cube:", b"7", b"user:", b""])) + key
    if draw(st.booleans()):
        key = key[: draw(st.integers(1, 30))] + draw(
            st.sampled_from([b":", b":x", b"7", b"42", b"", b"{a}", b"A"])
        )
    return key


# What the short way of a judge who only observes repeats, by policy and service; they live on, as above.
OBSERVING = {
    name: Authorizer(evaluator.policy, Modes([ModeRule("observe")], evaluator.policy.services))
    for name, evaluator in DECIDERS.items()
}


def told(ruling: Ruling) -> list[tuple[str, str, str, str, str]]:
    return [(one.rule, one.severity, one.entry, one.shape, action) for one, action in ruling.findings]


def repeated_in(cache: DecisionCache, argv: list[bytes]) -> Repeat | None:
    """What a command that is read by a glimpse only is found to repeat."""
    reader = RequestReader(IDENTIFIED)
    reader.feed(command(*argv))
    if not reader.peek():
        return None
    places = (reader.name_at, reader.name_end, reader.key_at, reader.key_end, reader.options_at, reader.end)
    if cache.admits_in(reader.data(), reader.count, *places, ()) is not None:
        return None
    return cache.repeat_in(reader.data(), reader.key_at, reader.key_end)


def judged_and_repeated(judge: Authorizer, service: int, argv: list[bytes]) -> bool:
    """Judge a command both ways, and remember it as the relay does. Whether it was a repeat."""
    cache = judge.cache(service, ALL)
    peeked = repeated_in(cache, argv)
    if cache.admits(argv) is not None:
        assert peeked is None
        return False
    repeat = cache.repeat(argv)
    assert peeked is None or peeked is repeat
    ruling, touches = judge.authorize(service, argv)
    if repeat is not None:
        assert sorted(told(ruling)) == repeat.rows, argv
        assert [cache.found] * bool(cache.found) == [found for found, *_ in judge.evaluator.left_open]
        return True
    if cache.missed is not None and ruling.findings:
        found = judge.repeats(service, cache, argv, touches, ruling)
        if found is not None:
            repeat = Repeat(sorted(told(ruling)))
            repeat.found = found
            cache.remember(argv, repeat)
    return False


@settings(max_examples=1500)
@given(st.sampled_from(NAMES), st.data())
def test_what_is_repeated_is_what_would_be_found(policy: str, data: st.DataObject) -> None:
    judge = OBSERVING[policy]
    service = data.draw(st.integers(0, len(judge.policy.services) - 1))
    if data.draw(st.booleans()):
        argv = list(data.draw(st.sampled_from(CASES[policy])))
    else:
        argv = [data.draw(COMMAND), data.draw(awkward_keys(policy)), *data.draw(st.lists(WORDS, max_size=7))]
    for _ in range(2):
        judged_and_repeated(judge, service, argv)


@pytest.mark.parametrize(
    "key",
    [
        "cube:v1:proxy:bench:{}",  # of another's scope, and of no entry there
        "bench:user:{}",  # of nothing
        "cube:v1:master:instance:meta:{}",  # an entry's
        "cube:v1:master:node:metric:{}:more",  # not of the entry's form
        "cube:v9:{}",  # in no scope
        "cube_instance_info:{}",  # of an old form
    ],
)
def test_what_a_service_may_not_do_is_found_out_once_for_all_keys_alike(key: str) -> None:
    loaded = CUBE.policy
    judge = Authorizer(loaded, Modes([ModeRule("observe")], loaded.services))
    service = loaded.number("CubeProxy")
    repeated = [judged_and_repeated(judge, service, [b"SET", key.format(n).encode(), b"v"]) for n in range(5)]
    assert repeated == [False, True, True, True, True]


def test_what_repeats_is_known_again_by_a_glimpse() -> None:
    loaded = CUBE.policy
    judge = Authorizer(loaded, Modes([ModeRule("observe")], loaded.services))
    service = loaded.number("CubeProxy")
    for key in (b"bench:user:%d", b"cube:v1:proxy:x:%d", b"cube:v1:master:instance:meta:%d"):
        for number in range(3):
            judged_and_repeated(judge, service, [b"SET", key % number, b"v"])
        argv = [b"SET", key % 4, b"v"]
        is_admitted = judge.cache(service, ALL).admits(argv) is not None
        assert (repeated_in(judge.cache(service, ALL), argv) is not None) != is_admitted, key


def test_no_more_repeats_are_kept_than_there_is_room_for() -> None:
    loaded = CUBE.policy
    judge = Authorizer(loaded, Modes([ModeRule("observe")], loaded.services))
    service = loaded.number("CubeProxy")
    letters = "abcdefghijklmnop"
    words = [f"bench:{a}{b}{c}".encode() for a in letters for b in letters for c in letters]
    assert len(words) == MAX_REPEATS
    keys = [*words, b"other:1", b"other:2"]
    repeated = [judged_and_repeated(judge, service, [b"SET", key, b"v"]) for key in keys]
    assert repeated == [False] * MAX_REPEATS + [False, True]
    assert not judged_and_repeated(judge, service, [b"SET", keys[0], b"v"])  # forgotten


@pytest.mark.parametrize("policy", NAMES)
def test_every_example_of_a_policy_gets_the_same_answer_both_ways(policy: str) -> None:
    for (name, service), cache in GLANCES.items():
        for argv in CASES[policy] if name == policy else ():
            agree(DECIDERS[policy], service, list(argv), cache)


def test_everyday_commands_are_admitted_at_a_glance() -> None:
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
        assert cache.admits(argv) is not None, argv


def test_what_was_seen_once_is_admitted_unread() -> None:
    master = DecisionCache(CUBE, CUBE.policy.number("CubeMaster"), ALL)
    for text in (
        b"SET cube:v1:master:instance:meta:%d v",
        b"GET cube:v1:master:instance:meta:%d",
        b"get cube:v1:master:instance:meta:%d",
        b"EXPIRE cube:v1:master:node:metric:n%d 600",
        b"DEL cube:v1:shared:sandbox:proxy:%d",
    ):
        first, second = (text % number for number in (1, 2))
        assert admitted_in(master, first.split()) is None
        assert master.admits(first.split()) is not None
        assert admitted_in(master, second.split()) is not None, second


def test_other_options_are_looked_at_before_they_are_admitted_unread() -> None:
    sidecar = DecisionCache(CUBE, CUBE.policy.number("CubeMaster"), ALL)
    metric = b"cube:v1:master:node:metric:n1"
    assert sidecar.admits([b"EXPIRE", metric, b"600"]) is not None
    assert admitted_in(sidecar, [b"EXPIRE", metric, b"600"]) is not None
    assert admitted_in(sidecar, [b"EXPIRE", metric, b"601"]) is None
    assert admitted_in(sidecar, [b"EXPIRE", metric, b"600", b"NX"]) is None


def test_a_value_and_a_field_are_looked_at_each_time() -> None:
    master = DecisionCache(CUBE, CUBE.policy.number("CubeMaster"), ALL)
    route = b"cube:v1:shared:sandbox:proxy:7c8f"
    assert master.admits([b"HSET", route]) is not None  # Redis refuses it, and nothing is written
    assert master.admits([b"HSET", route, b"HostIP", b"10.0.0.1"]) is not None
    assert master.admits([b"HSET", route, b"HostIP", b"no address"]) is None
    assert master.admits([b"HSET", route, b"Other", b"1"]) is None
    sidecar = DecisionCache(CUBE, CUBE.policy.number("cube-proxy-sidecar"), ALL)
    state = b"cube:v1:shared:sandbox:lifecycle:state:7c8f"
    assert sidecar.admits([b"SET", state, b"running", b"EX", b"60"]) is not None
    assert sidecar.admits([b"SET", state, b"walking", b"EX", b"60"]) is None


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
def test_digits_are_told_fast_and_nothing_else_is_taken_for_them(field: str, value: bytes) -> None:
    service = CUBE.policy.number("CubeMaster")
    argv = [b"HSET", b"cube:v1:master:node:metric:n1", field.encode(), value]
    admitted = DecisionCache(CUBE, service, ALL).admits(argv) is not None
    assert admitted == (not CUBE.decide(service, argv).violations)


def test_options_decide_anew_for_each_form() -> None:
    sidecar = DecisionCache(CUBE, CUBE.policy.number("cube-proxy-sidecar"), ALL)
    state = b"cube:v1:shared:sandbox:lifecycle:state:7c8f"
    assert sidecar.admits([b"SET", state, b"running", b"EX", b"60"]) is not None
    assert sidecar.admits([b"SET", state, b"running"]) is None
    assert sidecar.admits([b"SET", state, b"running", b"EX", b"7200"]) is None
    assert sidecar.admits([b"SET", state, b"running", b"EXAT", b"99999999999"]) is None


def test_a_command_with_several_keys_is_admitted_if_each_of_them_is() -> None:
    master = DecisionCache(CUBE, CUBE.policy.number("CubeMaster"), ALL)
    key, route = b"cube:v1:master:instance:meta:a", b"cube:v1:shared:sandbox:proxy:7c8f"
    assert master.admits([b"MGET", key, key]) is not None
    assert master.admits([b"DEL", key, route]) is not None
    assert master.admits([b"DEL", key, b"cube:v1:proxy:x"]) is None
    assert (master.why, master.missed) == ("keys", None)
    assert master.admits([b"MGET", key, b"nobody:s"]) is None


def test_keys_that_mean_different_things_for_times_to_live_take_the_long_way() -> None:
    policy = load_policy(POLICIES / "cubesandbox.yaml")
    sidecar = DecisionCache(Evaluator(policy), policy.number("cube-proxy-sidecar"), ALL)
    state, lock = b"cube:v1:shared:sandbox:lifecycle:state:a", b"cube:v1:shared:lock:x:a"
    assert sidecar.admits([b"UNLINK", state, lock]) is not None  # both are gone
    assert sidecar.found == SETTLES
    master = DecisionCache(Evaluator(policy), policy.number("CubeMaster"), ALL)
    assert master.admits([b"UNLINK", b"cube:v1:shared:lock:x:a", b"cube_instance_info:a"]) is None


def test_a_command_without_keys_is_admitted_where_it_is_allowed() -> None:
    proxy = DecisionCache(CUBE, CUBE.policy.number("CubeProxy"), ALL)
    for argv in ([b"PING"], [b"ping", b"text"], [b"ECHO", b"x"], [b"TIME"]):
        assert proxy.admits(argv) is not None, argv
    for argv in ([b"FLUSHALL"], [b"DBSIZE"], [b"NOSUCH"]):
        assert proxy.admits(argv) is None, argv


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("EVAL x 1 cube:v1:master:instance:meta:a", "command"),
        ("GET", "command"),
        ("SET cube:v1:master:instance:meta:a v a b c d e f g", "form"),
        ("DEL cube:v1:master:instance:meta:a other:b", "keys"),
        ("GET " + 9000 * "x", "key"),
        ("HSET cube:v1:shared:sandbox:proxy:7c8f Other 1", "content"),
        ("SET bench:user:1 v", "rule"),
    ],
)
def test_it_says_why_a_command_takes_the_long_way(text: str, why: str) -> None:
    master = DecisionCache(CUBE, CUBE.policy.number("CubeMaster"), ALL)
    assert master.admits(text.encode().split()) is None
    assert master.why == why


@pytest.mark.parametrize(
    ("service", "text"),
    [
        ("cube-proxy-sidecar", "SET cube:v1:shared:sandbox:lifecycle:state:{} running"),  # without its EX
        ("cube-proxy-sidecar", "SET cube:v1:shared:sandbox:lifecycle:state:{} walking EX 60"),
        ("cube-proxy-sidecar", "SET cube:v1:shared:sandbox:lifecycle:state:{} running EX 7200"),
        ("CubeMaster", "HSET cube:v1:shared:sandbox:proxy:{} HostIP 10.0.0.1 Other x More y"),
        ("CubeMaster", "HSET cube:v1:shared:sandbox:proxy:{} HostIP nowhere"),
        ("CubeMaster", "EXPIRE cube:v1:shared:sandbox:proxy:{} 60"),  # it must have none
        ("CubeProxy", "HSET cube:v1:master:node:metric:{} mvm_num 1"),  # no right, and an EXPIRE to come
        ("CubeMaster", "XADD cube:v1:shared:sandbox:lifecycle:events * op create"),
        ("CubeProxy", "ZADD cube:v1:master:z:{} NX CH 1 x"),
    ],
)
def test_what_is_wrong_with_what_is_written_is_found_out_once_too(service: str, text: str) -> None:
    loaded = CUBE.policy
    judge = Authorizer(loaded, Modes([ModeRule("observe")], loaded.services))
    number = loaded.number(service)
    repeated = [judged_and_repeated(judge, number, text.format(at).encode().split()) for at in range(4)]
    assert repeated == [False, True, True, True]


def test_more_that_is_wrong_is_another_repeat() -> None:
    loaded = CUBE.policy
    judge = Authorizer(loaded, Modes([ModeRule("observe")], loaded.services))
    number = loaded.number("CubeMaster")
    route = b"cube:v1:shared:sandbox:proxy:7c8f"
    one, two, bad = [b"A", b"1"], [b"A", b"1", b"B", b"2"], [b"A", b"1", b"HostIP", b"nowhere"]
    for pairs, is_known in ((one, 0), (one, 1), (two, 0), (bad, 0), (two, 1), (bad, 1), (one, 1)):
        assert judged_and_repeated(judge, number, [b"HSET", route, *pairs]) == bool(is_known)


def test_no_more_forms_are_remembered_than_there_is_room_for() -> None:
    master = DecisionCache(CUBE, CUBE.policy.number("CubeMaster"), ALL)
    key = b"cube:v1:master:node:metric:n1"
    admitted = [master.admits([b"EXPIRE", key, b"%d" % (600 + number)]) for number in range(2 * MAX_FORMS)]
    assert sum(way is not None for way in admitted) == MAX_FORMS


def test_only_commands_that_are_asked_for_are_admitted() -> None:
    master = DecisionCache(CUBE, CUBE.policy.number("CubeMaster"), {"GET"})
    key = b"cube:v1:master:instance:meta:a"
    assert master.admits([b"GET", key]) is not None
    assert master.admits([b"SET", key, b"v"]) is None


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
def test_an_option_that_makes_zadd_answer_a_score_is_seen_however_it_is_written(
    first: bytes, options: bytes
) -> None:
    cache = DecisionCache(WRITE_ONLY, 0, ALL)
    for _ in range(2):
        agree(WRITE_ONLY, 0, [b"ZADD", b"k:a", *first.split(), b"1", b"m"], cache)
        agree(WRITE_ONLY, 0, [b"ZADD", b"k:a", *options.split(b" "), b"1", b"m"], cache)
