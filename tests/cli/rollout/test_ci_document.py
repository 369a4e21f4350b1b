"""Every command in docs/ci.md with an output is run, and prints this output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.servers import PATIENCE_SECONDS, PROJECT

pytestmark = pytest.mark.slow
DOCUMENT = (PROJECT / "docs" / "ci.md").read_text()
# What differs from run to run: decision ids, and what the client library sends when it connects.
_VARYING = {
    r"\bd-[0-9a-f]{8}\b": "d-82b2029b",
    r"\b\d+ commands evaluated": "9 commands evaluated",
    r"redis-py [0-9.]+": "redis-py 8.1.0",
}
SUITE = """
import os, redis
client = redis.from_url(os.environ["REDIS_URL"])
client.set("order:7", "paid")
client.hset("cart:7", "milk", "2")
print("2 passed in 0.05s", flush=True)
"""


class Example(NamedTuple):
    command: str
    output: str


def examples() -> list[Example]:
    """The commands of the document, `    $ …`, each with what follows it in its block."""
    found: list[Example] = []
    for block in re.findall(r"(?:^    .*\n|^\n(?=    \S))+", DOCUMENT, re.MULTILINE):
        lines = [line.removeprefix("    ") for line in block.strip("\n").split("\n")]
        for line in lines:
            if line.startswith("$ "):
                found.append(Example(line.removeprefix("$ "), ""))
            elif found and lines[0].startswith("$ "):
                found[-1] = found[-1]._replace(output=f"{found[-1].output}{line}\n")
    return found


def settled(text: str) -> str:
    for pattern, fixed in _VARYING.items():
        text = re.sub(pattern, fixed, text)
    return text.strip("\n")


def test_the_document_has_commands_with_outputs() -> None:
    assert len(examples()) >= 7
    assert all(one.output for one in examples())


def test_every_command_of_the_document_prints_what_the_document_says(tmp_path: Path) -> None:
    policy = re.search(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
    assert policy is not None
    (tmp_path / "shop.yaml").write_text(policy[1])
    (tmp_path / "suite.py").write_text(SUITE)
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name, line in (("keyfence", '-m keyfence "$@"'), ("pytest", "suite.py")):
        (bin_ / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {line}\n')
        (bin_ / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{bin_}:{os.environ['PATH']}",
        "PYTHONPATH": str(PROJECT / "proxy"),
        # The store that the section on formats reads.
        "KEEP": "--findings sqlite:///findings.db",
    }
    made = "keyfence exec --policy shop.yaml --service shop $KEEP -- pytest -q"
    subprocess.run(["sh", "-c", made], cwd=tmp_path, env=environment, capture_output=True, check=False)
    printed = []
    for one in examples():
        run = subprocess.run(
            ["sh", "-c", one.command],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_SECONDS * 2,
            check=False,
        )
        printed.append(Example(one.command, settled(run.stdout)))
    assert printed == [one._replace(output=settled(one.output)) for one in examples()]
