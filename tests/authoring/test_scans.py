"""The SCAN commands that `check` prints find the keys of their entries."""

from __future__ import annotations

import shlex
from itertools import groupby
from pathlib import Path

import pytest
import redis

from keyfence.authoring.lint import check_policy
from keyfence.policy.loading.load import load_policy
from tests.policy.cases import POLICIES
from tests.servers import running_redis

POLICY = """policy: p
claims: ["hb:"]
services: [a, b]
placeholders: {id: "[0-9]{1,8}", n: "[0-9]{1,8}", odd: "[a-z]+"}
bind: {tenant: {from: user, pattern: "t-(.*)"}, stage: {a: [dev], b: [prod]}}
scopes:
  tenants: {prefix: "hb:t:<tenant>:", writers: [a]}
  stages: {prefix: "hb:z:<stage>:", writers: [a, b]}
  parts: {prefix: "hb:q:<id>:", writers: [a]}
keys:
  order: {key: "hb:t:<tenant>:k:<id>"}
  tagged: {key: "hb:{<id>}:k", writers: [a]}
  staged: {key: "hb:z:<stage>:k:<id>"}
  part: {key: "hb:q:<id>:k:<n>"}
  signs: {key: 'hb:[x]*?<id>', writers: [a]}
  own: {key: "hb:{<tenant>}:v", writers: [a]}
  config: {key: "hb:q:<id>:c"}
  spaced: {key: "hb: a <odd>", writers: [a]}
"""


def scans(file: Path) -> dict[str, list[bytes]]:
    """Returns the globs by entry, as redis-cli and a shell read the printed commands."""
    lines = [line.partition("  (")[0].split(None, 1) for line in check_policy(file)[2].splitlines()[1:]]
    found: dict[str, list[bytes]] = {}
    for name, command in lines:
        scan, zero, match, glob = shlex.split(command)
        assert (scan, zero, match) == ("SCAN", "0", "MATCH")
        found.setdefault(name, []).append(glob.encode())
    return found


@pytest.mark.parametrize(
    "shipped", ["", *sorted(one.name for one in POLICIES.glob("*.yaml") if ".test" not in one.name)]
)
def test_each_command_finds_the_keys_of_its_entry(shipped: str, tmp_path: Path) -> None:
    file = POLICIES / shipped if shipped else tmp_path / "p.yaml"
    if not shipped:
        file.write_text(POLICY)
    found = scans(file)
    entries = [one for one in load_policy(file).targets if one.kind == "entry" and not one.pattern.is_literal]
    assert found.keys() == {one.name for one in entries}
    with running_redis() as server, redis.Redis.from_url(server.url) as client:
        for name, targets in groupby(sorted(entries, key=lambda one: one.name), key=lambda one: one.name):
            keys = {target.pattern.example() for target in targets}
            client.mset(dict.fromkeys(keys, 1))
            listed = {key for glob in found[name] for key in client.scan_iter(match=glob, count=1000)}
            assert keys <= listed
            client.flushall()
