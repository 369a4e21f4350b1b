"""Python's queues and caches in enforce, each as a process that uses all its features."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.applications.application import Fence, python, run, shipped

HUEY = {
    "one": 3,
    "chain": [2, 12],
    "group": [[0, 2, 4]],
    "again": "done",
    "alone": "alone",
    "later": 7,
    "revoked": True,
    "scheduled": 1,
}
DRAMATIQ = {"one": 3, "later": 7, "group": [0, 2, 4], "pipeline": 12, "again": "done", "dead": 1}
ARQ = {
    "one": 3,
    "twice": True,
    "later": 7,
    "again": "done",
    "status": "JobStatus.complete",
    "aborted": True,
    "queued": True,
}
TEXTS = {"texts": ["to all", "to all", "to one", "to the rest"]}
DJANGO = {
    "a": {"n": 1},
    "many": {"b:1": 1, "b:2": 2},
    "counter": 3,
    "has": True,
    "session": {"user": "ada", "seen": 1},
    "or": 7,
    "version": 2,
    "left": 1,
}
FLASK = {
    "pages": ["a", "a"],
    "visits": ["1", "2", "3"],
    "doubled": [8, 8],
    "a": {"n": 1},
    "many": [1, 2, None],
    "has": True,
    "calls": 2,
    "left": None,
}
CASHEWS = {
    "doubled": [4, 4],
    "others": [1] * 8,
    "locked": True,
    "a": {"n": 1},
    "many": [1, 2, None],
    "counted": 3,
    "calls": 2,
    "found": True,
    "left": True,
}
AIOCACHE = {"doubled": [4, 4], "calls": 1, "locked": True, "a": 5, "many": [1, 2, None], "left": 1}

# The module that must be installed, its policy, and the output of its client.
LIBRARIES = [
    ("huey", "huey", {"RedisHuey": HUEY, "PriorityRedisExpireHuey": HUEY}),
    ("dramatiq", "dramatiq", DRAMATIQ),
    ("arq", "arq", ARQ),
    ("channels_redis", "channels-redis", [TEXTS, TEXTS]),
    ("django", "django", DJANGO),
    ("flask_session", "flask", FLASK),
    ("cashews", "cashews", CASHEWS),
    ("aiocache", "aiocache", AIOCACHE),
]


def client_of(policy: str, fence: Fence, *more: str) -> Any:
    """Runs the library's client, and returns its output."""
    host, port = fence.address
    place = (host, str(port)) if policy == "aiocache" else (fence.url,)
    script = python(f"{policy.removesuffix('-redis')}_client.py")
    return json.loads(run(*script, *place, *more).splitlines()[-1])


def skip_without(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")


@pytest.mark.parametrize(("module", "policy", "printed"), LIBRARIES, ids=[one[1] for one in LIBRARIES])
def test_a_library_works_in_enforce(
    fence: Callable[[Path], Fence], module: str, policy: str, printed: Any
) -> None:
    skip_without(module)
    one = fence(shipped(policy))
    clearing = ("keep",) if policy in CLEARING else ()
    assert client_of(policy, one, *clearing) == printed
    one.found_nothing()
    one.refuses("SET", "elsewhere", "1")


CLEARING = {"django": "django", "flask": "flask_session", "aiocache": "aiocache"}


@pytest.mark.parametrize("policy", CLEARING)
def test_a_cache_can_be_cleared_if_its_policy_allows_it(fence: Callable[[str], Fence], policy: str) -> None:
    """Clearing needs a command that affects all services, so the policy file has it only as a comment."""
    skip_without(CLEARING[policy])
    text = shipped(policy).read_text()
    assert text.count("\n# commands: ") == 1
    one = fence(text.replace("\n# commands: ", "\ncommands: "))
    assert client_of(policy, one, "clear")["left"] is None
    one.found_nothing()
