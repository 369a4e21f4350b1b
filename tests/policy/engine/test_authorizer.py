"""An authorizer that is replaced waits for no garbage collection, which would stop all clients."""

from __future__ import annotations

import gc
import weakref

import pytest

from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.loading.load import load_policy
from keyfence.process.serving.garbage import without_collections
from keyfence.session.fastpath import KNOWN
from tests.policy.cases import POLICIES

COMMANDS = {
    "plain": [b"GET", b"cube:v1:master:instance:meta:a"],
    "unknown key": [b"SET", b"nobody:1", b"x"],
    "several keys": [b"MSET", b"cube:v1:master:instance:meta:a", b"x", b"nobody:1", b"x"],
    "scan": [b"SCAN", b"0", b"MATCH", b"cube:v1:*"],
    "subscription to a pattern": [b"PSUBSCRIBE", b"__keyspace@0__:cube:v1:*"],
    "subscription": [b"SUBSCRIBE", b"__keyevent@0__:expired"],
    "unregistered script": [b"EVAL", b"return redis.call('GET', KEYS[1])", b"1", b"nobody:1"],
}


@pytest.mark.parametrize("argv", COMMANDS.values(), ids=COMMANDS)
def test_a_used_authorizer_goes_with_its_last_reference(argv: list[bytes]) -> None:
    policy = load_policy(POLICIES / "cubesandbox.yaml")
    gc.collect()
    with without_collections():
        authorizer = Authorizer(policy, Modes((ModeRule("enforce"),), policy.services))
        for service in range(len(policy.services)):
            for _ in range(2):
                authorizer.cache(service, KNOWN).find(argv)
                authorizer.authorize(Asker(service), argv)
        seen = weakref.ref(authorizer), weakref.ref(authorizer.evaluator)
        del authorizer
        assert [one() for one in seen] == [None, None]
