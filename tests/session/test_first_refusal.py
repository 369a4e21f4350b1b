"""What the first refusal of its kind costs, counted in interpreted functions and not timed.

Rule: a single key of a refused command is classified once and extracted once. Each of several keys is
classified once by the evaluation. Evidence, findings and the words of the refusal use what is known of the
keys.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

import pytest

import keyfence
from keyfence import _compiled
from keyfence.commands.extract import extract
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.enforcement.modes import BreakGlass, ModeRule, Modes
from keyfence.policy.engine.authorizer import Authorizer, InForce
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.patterns.automaton import Classifier
from tests.session.sessions import Session, cmd, session

if any(_compiled.status().values()):
    pytest.skip("compiled functions cannot be counted", allow_module_level=True)

PACKAGE = Path(keyfence.__file__).parent
POLICY = """
policy: p
services: [app, ops]
placeholders: {id: "[a-z0-9]+"}
keys:
  own: {key: "own:<id>", writers: app, readers: app}
  other: {key: "other:<id>", writers: ops, readers: ops}
"""
OWN, OTHER, STRAY = cmd("SET", "own:a", "v"), cmd("SET", "other:a", "v"), cmd("SET", "stray:a", "v")
SEVERAL = cmd("MSET", "own:a", "v", "other:b", "v", "stray:c", "v")


def called(run: Callable[[], object]) -> list[FrameType]:
    """The frames of keyfence's interpreted functions that run."""
    frames: list[FrameType] = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and Path(frame.f_code.co_filename).is_relative_to(PACKAGE):
            frames.append(frame)

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return frames


def serving() -> Session:
    """A session in a process that has admitted and refused other commands."""
    policy = parse_policy(POLICY)
    authorizer = Authorizer(policy, Modes([ModeRule("enforce")], policy.services), clock=lambda: 1e9)
    it = session("app", in_force=InForce(authorizer), sharing=True)
    for request in (OWN, cmd("GET", "other:a"), cmd("GET", "stray:a"), cmd("MGET", "own:a", "own:b")):
        it.from_client(request)
    it.to_client.clear()
    it.to_upstream.clear()
    return it


def times(frames: list[FrameType], *codes: CodeType) -> int:
    return sum(frame.f_code in codes for frame in frames)


def growing(run: Callable[[int], object]) -> set[str]:
    """The files with functions that run more often for more requests."""
    few, many = (Counter(one.f_code.co_filename for one in called(lambda n=n: run(n))) for n in (5, 50))
    return {Path(name).name for name in many if many[name] >= few[name] + 45}


LOOKS = (Classifier.first.__code__, Classifier.first_in.__code__)


@pytest.mark.parametrize("refused", [OTHER, STRAY], ids=["of another service", "of no entry"])
def test_only_the_decision_cache_classifies_a_refused_key(refused: bytes) -> None:
    it = serving()
    frames = called(lambda: it.from_client(refused))
    assert it.to_upstream == []
    assert times(frames, *LOOKS, CompiledPolicy.target.__code__) == 1
    assert times(frames, extract.__code__) == 1


def test_each_of_several_refused_keys_is_classified_once_by_the_evaluation() -> None:
    it = serving()
    frames = called(lambda: it.from_client(SEVERAL))
    assert times(frames, CompiledPolicy.target.__code__) == 3


def test_a_refused_key_of_a_known_kind_is_classified_once() -> None:
    """Of a repeated violation that is not refused from the cache, here because break-glass is open."""
    it = serving()
    it.from_client(OTHER)
    it.current_authorizer().glass.append(BreakGlass(2e9))
    frames = called(lambda: it.from_client(OTHER))
    assert it.to_upstream != []
    assert times(frames, *LOOKS, CompiledPolicy.target.__code__) == 1


def test_a_first_refusal_takes_few_steps() -> None:
    it = serving()
    assert len(called(lambda: it.from_client(OTHER))) <= 250


def test_an_admitted_set_runs_the_code_of_few_files() -> None:
    it = serving()
    assert len(growing(lambda count: it.from_client(OWN * count))) <= 8
