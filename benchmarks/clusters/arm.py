"""A client in a process of its own: `Arm` starts it, and `python -m benchmarks.clusters.arm JSON` is it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import select
import subprocess
import sys
from typing import NamedTuple

from benchmarks.clusters.speakers import LIBRARIES, Target
from benchmarks.clusters.work import Seen, Work
from keyfence.policy.compiled.hash_slots import hash_slot
from tests.servers import PROJECT

TAGGED = 6
MOVING = "app:{moving}"  # the keys that begin with this are in the hash slot that moves
LOOK, ANEW = "look", "anew"
ANSWER_SECONDS = 30.0


class Load(NamedTuple):
    """How clients work."""

    keys: int = 12  # that a client writes and reads at once, in any hash slots
    pause: float = 0.002  # seconds between two rounds
    quiet: float = 0.2  # seconds of work before each change


class Arm:
    """A library on one path, at work until it is closed."""

    def __init__(self, library: str, path: str, target: Target, load: Load) -> None:
        self.library, self.path = library, path
        name = f"{path}-{library}".replace(" ", "-")
        self._asked = {"library": library, "name": name, "target": target, "load": load}
        self._starts = 0
        self._process = self._started()

    def _started(self) -> subprocess.Popen[str]:
        """Each time it has other keys, because an earlier process may have left a command on its way."""
        self._starts += 1
        asked = self._asked | {"name": f"{self._asked['name']}-{self._starts}"}
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.clusters.arm", json.dumps(asked)],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def restart(self) -> None:
        """Start it anew, as an operator does if a library never recovers."""
        self.close()
        self._process = self._started()

    def seen(self, what: str = LOOK) -> Seen:
        """What it has seen since it was last asked with ANEW."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        readable, _, _ = select.select([self._process.stdout], [], [], ANSWER_SECONDS)
        line = self._process.stdout.readline() if readable else ""
        assert line, f"{self.library}, {self.path}: its process does not answer"
        found = json.loads(line)
        return Seen(**found)

    def close(self) -> None:
        self._process.kill()  # what it has started ends with its standard input
        with contextlib.suppress(BrokenPipeError), self._process:
            pass


def main() -> None:
    asked = json.loads(sys.argv[1])
    target, load = Target(*asked["target"]), Load(*asked["load"])
    speaker = LIBRARIES[asked["library"]](target)
    keys = [f"app:{asked['name']}:{number}" for number in range(load.keys)]
    if asked["library"] == "redis-cli":
        keys.sort(key=lambda one: hash_slot(one.encode()))  # it connects anew for each redirect
    tagged = [f"{MOVING}:{asked['name']}:{number}" for number in range(TAGGED)]
    work = Work(speaker, keys, tagged, load.pause, in_order=not target.is_cluster)
    for line in sys.stdin:
        seen = work.seen(anew=line.strip() == ANEW)
        print(json.dumps(dataclasses.asdict(seen)), flush=True)
    work.end()
    speaker.close()


if __name__ == "__main__":
    main()
