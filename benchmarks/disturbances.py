"""What happens to a target while its latency is measured: the rows of `DISTURBANCES`.

Rule: it goes on for the whole measurement, and ends with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping

from benchmarks import paced
from benchmarks.targets import Field, Target
from keyfence.process.serving.loader import NICER
from keyfence.resp.encode import command

VIOLATIONS = 20_000  # per second
BIG_KEY = "cube:v1:master:instance:meta:big"
BIG = 100_000_000  # bytes
PIECE = 1 << 16
BETWEEN_RELOADS = 3.0  # seconds
COMPUTING = 1.0  # of these, about as long as keyfence's process takes that loads the policy

# What a reload does to any proxy, because its process needs a processor, with the same priority.
_COMPUTE = f"""
import os, time
os.nice({NICER})
while True:
    ends = time.monotonic() + {COMPUTING}
    while time.monotonic() < ends:
        pass
    time.sleep({BETWEEN_RELOADS - COMPUTING})
"""


@contextlib.contextmanager
def disturbance(kind: str, field: Field, target: Target, seconds: float) -> Iterator[None]:
    """Does this for `seconds`; "": nothing."""
    with contextlib.ExitStack() as stack:
        if kind:
            DISTURBANCES[kind](stack, field, target, seconds)
        yield


def _violations(stack: contextlib.ExitStack, _field: Field, target: Target, seconds: float) -> None:
    """One client sends keys that the policy does not know."""
    task = paced.Task(target.port("CubeMaster"), VIOLATIONS, seconds + 1, 1, "bench:user:", pipeline=16)
    child = paced.start(task)
    stack.callback(child.communicate)
    stack.callback(child.terminate)


def _reloads(stack: contextlib.ExitStack, field: Field, target: Target, _seconds: float) -> None:
    """The policy changes again and again."""
    done = threading.Event()

    def reload() -> None:
        while not done.is_set():
            with field.policy_of_many.open("a") as policy:
                policy.write("# changed\n")
            os.kill(target.pid, signal.SIGHUP)
            done.wait(BETWEEN_RELOADS)

    _in_thread(stack, reload, done.set)


def _computing(stack: contextlib.ExitStack, _field: Field, _target: Target, _seconds: float) -> None:
    """Another process computes, as often and as long as one that loads the policy for a reload."""
    child = subprocess.Popen([sys.executable, "-c", _COMPUTE])
    stack.callback(child.wait)
    stack.callback(child.kill)


def _slow_reader(stack: contextlib.ExitStack, field: Field, target: Target, seconds: float) -> None:
    """One client gets a large value and reads it slowly."""
    with field.redis.client() as client:
        client.set(BIG_KEY, b"x" * BIG)
    reader = stack.enter_context(socket.create_connection(("127.0.0.1", target.port("CubeMaster"))))
    reader.sendall(command("GET", BIG_KEY))
    done, pause = threading.Event(), seconds * PIECE / BIG

    def read() -> None:
        left = BIG  # then no more comes, and the connection stays open
        while left > 0 and not done.wait(pause):
            left -= len(reader.recv(PIECE)) or left

    _in_thread(stack, read, done.set)


def _in_thread(stack: contextlib.ExitStack, work: Callable[[], None], end: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    stack.callback(thread.join)
    stack.callback(end)


DISTURBANCES: Mapping[str, Callable[[contextlib.ExitStack, Field, Target, float], None]] = {
    "violations": _violations,
    "reloads": _reloads,
    "computing": _computing,
    "slow reader": _slow_reader,
}
