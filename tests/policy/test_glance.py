"""The short way admits nothing that the long one finds fault with, and has the same word on times to live."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.commands.extract import ONE_KEY, extract
from proxy.commands.table import COMMANDS
from proxy.policy.decide import Decider
from proxy.policy.glance import MAX_FORMS, Glance
from proxy.policy.load import load_policy
from tests.policy.cases import POLICIES, steps_of

ALL = frozenset(row.command.name for row in COMMANDS.values())
NAMES = ("cubesandbox", "cosky", "card-relay", "container-registry", "general")
DECIDERS = {name: Decider(load_policy(POLICIES / f"{name}.yaml")) for name in NAMES}
CASES = {name: [case.argv for case in steps_of(POLICIES / f"{name}.test.yaml")[1]] for name in NAMES}
KEYS = {name: sorted({word for argv in CASES[name] for word in argv[1:3]}) for name in NAMES}
CUBE = DECIDERS["cubesandbox"]
# They live on from example to example: what they remember must be right for the next command too.
GLANCES = {
    (name, service): Glance(decider, service, ALL)
    for name, decider in DECIDERS.items()
    for service in range(len(decider.policy.services))
}
WORDS = st.sampled_from(
    [
        *b"EX 60 PX 5000 EXAT 99999999999 KEEPTTL GET NX XX ex 0 -1 x PERSIST FIELDS MAXLEN ~ =".split(),
        *b"* 5 100000 100001 op create HostIP 10.0.0.1 8080 running paused MINID NOMKSTREAM LIMIT".split(),
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
    ]
) | st.sampled_from(sorted(ONE_KEY))


@settings(max_examples=1500)
@given(st.sampled_from(NAMES), st.data())
def test_what_is_admitted_at_a_glance_breaks_nothing(policy: str, data: st.DataObject) -> None:
    decider = DECIDERS[policy]
    service = data.draw(st.integers(0, len(decider.policy.services) - 1))
    if data.draw(st.booleans()):
        argv = list(data.draw(st.sampled_from(CASES[policy])))
    else:
        key = data.draw(st.sampled_from(KEYS[policy]))
        argv = [data.draw(COMMAND), key, *data.draw(st.lists(WORDS, max_size=7))]
    agree(decider, service, argv, GLANCES[policy, service])


def agree(decider: Decider, service: int, argv: list[bytes], glance: Glance) -> None:
    way = glance.admits(argv)
    if way is None:
        return
    verdict = decider.judge(service, argv, extract(argv))
    assert verdict.allowed, verdict
    left = [found for found, *_ in decider.left_open]
    assert [glance.found] * bool(glance.found) == left


@pytest.mark.parametrize("policy", NAMES)
def test_every_example_of_a_policy_gets_the_same_answer_both_ways(policy: str) -> None:
    for (name, service), glance in GLANCES.items():
        for argv in CASES[policy] if name == policy else ():
            agree(DECIDERS[policy], service, list(argv), glance)


def test_everyday_commands_are_admitted_at_a_glance() -> None:
    master = Glance(CUBE, CUBE.policy.number("CubeMaster"), ALL)
    sidecar = Glance(CUBE, CUBE.policy.number("cube-proxy-sidecar"), ALL)
    events = b"cube:v1:shared:sandbox:lifecycle:events"
    state = b"cube:v1:shared:sandbox:lifecycle:state:7c8f"
    for glance, text in (
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
        assert glance.admits(argv) is not None, argv


def test_a_value_and_a_field_are_looked_at_each_time() -> None:
    master = Glance(CUBE, CUBE.policy.number("CubeMaster"), ALL)
    route = b"cube:v1:shared:sandbox:proxy:7c8f"
    assert master.admits([b"HSET", route]) is not None  # Redis refuses it, and nothing is written
    assert master.admits([b"HSET", route, b"HostIP", b"10.0.0.1"]) is not None
    assert master.admits([b"HSET", route, b"HostIP", b"no address"]) is None
    assert master.admits([b"HSET", route, b"Other", b"1"]) is None
    sidecar = Glance(CUBE, CUBE.policy.number("cube-proxy-sidecar"), ALL)
    state = b"cube:v1:shared:sandbox:lifecycle:state:7c8f"
    assert sidecar.admits([b"SET", state, b"running", b"EX", b"60"]) is not None
    assert sidecar.admits([b"SET", state, b"walking", b"EX", b"60"]) is None


def test_options_decide_anew_for_each_form() -> None:
    sidecar = Glance(CUBE, CUBE.policy.number("cube-proxy-sidecar"), ALL)
    state = b"cube:v1:shared:sandbox:lifecycle:state:7c8f"
    assert sidecar.admits([b"SET", state, b"running", b"EX", b"60"]) is not None
    assert sidecar.admits([b"SET", state, b"running"]) is None
    assert sidecar.admits([b"SET", state, b"running", b"EX", b"7200"]) is None
    assert sidecar.admits([b"SET", state, b"running", b"EXAT", b"99999999999"]) is None


def test_a_command_with_several_keys_takes_the_long_way() -> None:
    master = Glance(CUBE, CUBE.policy.number("CubeMaster"), ALL)
    key = b"cube:v1:master:instance:meta:a"
    assert master.admits([b"DEL", key, b"cube:v1:proxy:x"]) is None
    assert master.admits([b"MGET", key, key]) is None


def test_no_more_forms_are_remembered_than_there_is_room_for() -> None:
    master = Glance(CUBE, CUBE.policy.number("CubeMaster"), ALL)
    key = b"cube:v1:master:node:metric:n1"
    admitted = [master.admits([b"EXPIRE", key, b"%d" % (600 + number)]) for number in range(2 * MAX_FORMS)]
    assert sum(way is not None for way in admitted) == MAX_FORMS


def test_only_commands_that_are_asked_for_are_admitted() -> None:
    master = Glance(CUBE, CUBE.policy.number("CubeMaster"), {"GET"})
    key = b"cube:v1:master:instance:meta:a"
    assert master.admits([b"GET", key]) is not None
    assert master.admits([b"SET", key, b"v"]) is None
