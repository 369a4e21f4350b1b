"""The short way never disagrees with the long one, and a decision never raises."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.commands.extract import extract
from proxy.commands.table import COMMANDS
from proxy.policy.decide import Decider
from proxy.policy.load import load_policy, parse_policy
from tests.policy.cases import POLICIES, steps_of
from tests.policy.test_channels_and_scripts import POLICY as MESH

CUBE = Decider(load_policy(POLICIES / "cubesandbox.yaml"))
DECIDERS = [CUBE, Decider(parse_policy(MESH))]
_, CASES = steps_of(POLICIES / "cubesandbox.test.yaml")

NAMES = sorted(name for name in COMMANDS if b" " not in name)
KEYS = [word for case in CASES for word in case.argv if b":" in word] + [
    b"mesh-{default}:cfg:a",
    b"mesh-{system}:role_idx",
    b"x",
]
WORDS = [
    b"1",
    b"0",
    b"EX",
    b"60",
    b"GET",
    b"MATCH",
    b"*",
    b"HostIP",
    b"10.0.0.1",
    b"running",
    b"STREAMS",
    b"",
]
ARGV = st.builds(
    lambda name, arguments: [name, *arguments],
    st.sampled_from(NAMES),
    st.lists(st.sampled_from(KEYS) | st.sampled_from(WORDS) | st.binary(max_size=6), max_size=6),
)


@given(st.sampled_from(DECIDERS), st.data(), ARGV | st.sampled_from([case.argv for case in CASES]))
def test_what_is_admitted_at_a_glance_breaks_nothing(
    decider: Decider, data: st.DataObject, argv: list[bytes]
) -> None:
    service = data.draw(st.integers(0, len(decider.policy.services) - 1))
    touches = extract(argv)
    verdict = decider.judge(service, argv, touches)
    if decider.admits(service, touches):
        assert verdict.allowed


def test_the_everyday_commands_are_admitted_at_a_glance() -> None:
    """Once a command's permission was asked for; else the short way would save nothing."""
    for case in CASES:
        if case.verdict == "allow" and case.argv[0] in (
            b"HGETALL",
            b"HGET",
            b"GET",
            b"DEL",
            b"RPUSH",
            b"PING",
        ):
            service = CUBE.policy.number(case.service)
            touches = extract(case.argv)
            CUBE.judge(service, case.argv, touches)
            legacy = any(CUBE.policy.target(access.key).kind == "legacy" for access in touches.accesses)
            assert CUBE.admits(service, touches) != legacy or case.service == "ops", case
