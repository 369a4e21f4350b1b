from __future__ import annotations

from keyfence.cli.demo.traffic import EVENTS, META, Minute, new_tag
from keyfence.commands.extract import extract
from keyfence.policy.loading.load import load_policy
from keyfence.policy.remedies.explain import explain
from keyfence.shapes.shapes import Shapes
from tests.policy.cases import POLICIES


def test_exactly_the_mistakes_are_violations() -> None:
    policy = load_policy(POLICIES / "cubesandbox.yaml")
    for step in Minute("t").steps():
        answer = explain(policy, step.service, [word.encode() for word in step.argv])
        assert (answer["verdict"] == "violation") == bool(step.mistake), (step, answer["violations"])


def test_every_key_but_the_two_without_an_id_holds_the_tag() -> None:
    for step in Minute("0a1b2c").steps():
        for access in extract([word.encode() for word in step.argv]).accesses:
            assert b"0a1b2c" in access.key or access.key.decode() in (META, EVENTS)


def test_keys_of_two_minutes_have_the_same_shape() -> None:
    shapes = Shapes(trusting=True)
    assert len({shapes.shape(f"session:{new_tag()}".encode()) for _ in range(100)}) == 1
