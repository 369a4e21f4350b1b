"""A policy is handed to another process whole, and unpacked there without a long stop."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from keyfence.config.settings import Overrides
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.enforcement.modes import Modes
from keyfence.policy.enforcement.waiver_keys import waived_keys
from keyfence.policy.loading.load import load_policy
from keyfence.process.serving import packing
from keyfence.process.serving.packing import Packed, pack, unpack, unpack_beside
from keyfence.process.serving.reload import Origin
from tests.policy.cases import POLICIES

ENTRIES = 200
LARGE = f"""
policy: large
claims: ["a:"]
services: [CubeMaster]
placeholders: {{word: "[a-z]+"}}
scopes: {{s: {{prefix: "a:", writers: [CubeMaster]}}}}
keys:
{"".join(f'  many-{at}: {{key: "a:many{at}:<word>", type: string}}{chr(10)}' for at in range(ENTRIES))}
"""


def own_policies() -> list[str]:
    return sorted(str(path) for path in POLICIES.glob("*.yaml") if not path.name.endswith(".test.yaml"))


def packed_from(folder: Path, policy: str, waivers: str = "waivers: []\n") -> Packed:
    (folder / "policy.yaml").write_text(policy)
    (folder / "waivers.yaml").write_text(waivers)
    config = folder / "keyfence.yaml"
    config.write_text("policy: policy.yaml\nwaivers: waivers.yaml\n")
    origin = Origin(str(config), Overrides())
    return pack(*origin.load())


def both(packed: Packed) -> tuple[CompiledPolicy, CompiledPolicy]:
    """The policy as a start unpacks it, and as a process does that serves clients."""
    at_start, beside = unpack(packed), asyncio.run(unpack_beside(packed))
    assert at_start is not None
    assert beside is not None
    return at_start, beside


@pytest.mark.parametrize("path", own_policies(), ids=os.path.basename)
def test_a_policy_survives_being_handed_to_another_process(path: str) -> None:
    policy = load_policy(path)
    settings, _ = Origin("", Overrides(policy=path)).load()
    for handed in both(pack(settings, policy)):
        assert (handed.revision, handed.services) == (policy.revision, policy.services)
        assert [one.pattern for one in handed.targets] == [one.pattern for one in policy.targets]
        for target in policy.targets:
            key = target.pattern.example()
            found, expected = handed.target(key), policy.target(key)
            assert (found and found.name) == (expected and expected.name)
            if expected is not None and expected.entry is not None and expected.entry.fields is not None:
                for name, form in expected.entry.fields.named.items():
                    assert found is not None
                    assert found.entry is not None
                    assert found.entry.fields is not None
                    accepts = found.entry.fields.named[name].accepts
                    assert bool(accepts(b"10.0.0.1")) is bool(form.accepts(b"10.0.0.1"))


def test_the_policy_and_its_table_of_keys_share_their_targets(tmp_path: Path) -> None:
    """The targets come before the policy, which refers to them."""
    for policy in both(packed_from(tmp_path, LARGE)):
        kinds = Counter(target.kind for target in policy.targets)
        assert kinds["entry"] == ENTRIES
        entries = {id(target.entry) for target in policy.targets if target.name == "many-7"}
        assert len(entries) == 1


def test_a_process_that_serves_unpacks_a_policy_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = packed_from(tmp_path, LARGE)
    pauses: list[float] = []
    collected: list[int] = []
    monkeypatch.setattr(packing.time, "sleep", pauses.append)
    monkeypatch.setattr(packing, "PIECE_SECONDS", -1.0)  # after each part, however fast the machine is

    def note(_phase: str, info: dict[str, int]) -> None:
        if threading.current_thread() is not threading.main_thread():
            collected.append(info["generation"])

    gc.callbacks.append(note)
    thresholds = gc.get_threshold()
    try:
        policy = asyncio.run(unpack_beside(packed))
    finally:
        gc.callbacks.pop()
    assert policy is not None
    automata = 4  # and classifiers
    assert pauses == [packing.PAUSE_SECONDS] * (len(policy.targets) + automata)
    assert gc.get_threshold() == thresholds
    assert collected
    assert 2 not in collected


def test_a_piece_without_much_work_is_followed_by_no_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = packed_from(tmp_path, LARGE)
    pauses: list[float] = []
    monkeypatch.setattr(packing, "PIECE_SECONDS", 3600.0)
    monkeypatch.setattr(packing.time, "sleep", pauses.append)
    assert asyncio.run(unpack_beside(packed)) is not None
    assert pauses == []


_COUNT = """
import gc, pickle, sys
from keyfence.process.serving.packing import unpack
gc.disable()
packed = pickle.load(sys.stdin.buffer)
before = len(gc.get_objects())
policy = unpack(packed)
gc.collect()
print(len(gc.get_objects()) - before)
"""
MOST_OBJECTS = 15  # of an entry, all of its targets included; a collection looks at each


def test_an_entry_takes_few_objects(tmp_path: Path) -> None:
    packed = packed_from(tmp_path, LARGE)
    counted = subprocess.run(
        [sys.executable, "-c", _COUNT], input=pickle.dumps(packed), capture_output=True, check=True
    )
    assert int(counted.stdout) < ENTRIES * MOST_OBJECTS


def test_the_automata_of_waivers_are_made_before_a_policy_is_put_in_force(tmp_path: Path) -> None:
    waiver = "service: CubeMaster, rule: scope.write, owner: me, reason: later, until: 2999-01-01"
    listed = f"waivers: [{{{waiver}, keys: 'a:once-{tmp_path.name}-{time.time_ns()}:*'}}]\n"
    packed = packed_from(tmp_path, LARGE, listed)
    before = waived_keys.cache_info().misses
    policy = asyncio.run(unpack_beside(packed))
    assert policy is not None
    made = waived_keys.cache_info().misses
    assert made > before
    Modes(packed.settings.modes, policy.services, packed.settings.waived())
    assert waived_keys.cache_info().misses == made
