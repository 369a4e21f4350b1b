"""A test in a loop of its own fails if its servers cannot be set up, and does not hang."""

from __future__ import annotations

import subprocess
import sys

from tests.servers import PATIENCE_SECONDS, PROJECT

CANNOT_BE_SET_UP = """
import pytest
from keyfence.downstream.listeners import Listeners
from tests.downstream.test_client import Stage, answer_all, in_loop

def fails(*_):
    raise OSError("no such address")

@in_loop
async def test():
    async with Stage(answer_all):
        raise AssertionError

Listeners.open = fails
with pytest.raises(OSError, match="no such address"):
    test(pytest.MonkeyPatch())
"""
LEAVES_SOMETHING_OPEN = """
import asyncio
import pytest
from tests.loops import in_loop

left = []

@in_loop
async def test():
    left.append(await asyncio.start_server(lambda *_: None, "127.0.0.1", 0))

with pytest.raises(ResourceWarning, match="unclosed"):
    test()
"""


def run_alone(code: str) -> None:
    """Runs it in a process of its own, because no time limit within a process would end what it tests."""
    words = [sys.executable, "-W", "error", "-c", code]
    ran = subprocess.run(words, cwd=PROJECT, timeout=PATIENCE_SECONDS, capture_output=True, check=False)
    assert (ran.returncode, ran.stderr.decode()) == (0, "")


def test_a_stage_that_cannot_be_set_up_fails_its_test() -> None:
    """Its upstream listens already."""
    run_alone(CANNOT_BE_SET_UP)


def test_what_a_test_leaves_open_is_told_once_the_loop_is_closed() -> None:
    run_alone(LEAVES_SOMETHING_OPEN)
