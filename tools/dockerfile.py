"""Parses a Dockerfile into its instructions, for `tests/test_dockerfile.py` and `tools/clean_room.py`.

Rule: an unknown instruction is an error, so that no step is skipped silently. The parser knows the
instructions of the project's Dockerfile: FROM … AS, RUN, COPY [--from=], ENV, LABEL, WORKDIR, USER, EXPOSE,
HEALTHCHECK, STOPSIGNAL, ENTRYPOINT and CMD; the last two, and a health check's command, in their JSON form.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    """One instruction: its name in capitals, and the rest of its line."""

    name: str
    text: str


@dataclass(frozen=True)
class Copy:
    """The parts of a COPY. `stage` is the stage it copies from; "" means the build context."""

    stage: str
    sources: tuple[str, ...]
    target: str


@dataclass
class Stage:
    """One FROM and the instructions after it."""

    image: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def texts(self, name: str) -> list[str]:
        return [instruction.text for instruction in self.instructions if instruction.name == name]


KNOWN = {
    *("RUN", "COPY", "ENV", "LABEL", "WORKDIR", "USER", "EXPOSE"),
    *("HEALTHCHECK", "STOPSIGNAL", "ENTRYPOINT", "CMD"),
}


def parse(text: str) -> list[Stage]:
    """Returns the stages in order. Raises ValueError at an instruction that is not in KNOWN."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    stages: list[Stage] = []
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        name, _, rest = line.strip().partition(" ")
        if not name:
            continue
        name, rest = name.upper(), rest.strip()
        if name == "FROM":
            image, *alias = rest.split()
            stages.append(Stage(image, alias[1] if alias else str(len(stages))))
        elif name in KNOWN and stages:
            stages[-1].instructions.append(Instruction(name, rest))
        else:
            raise ValueError(f"unknown instruction: {line!r}")
    return stages


def read_copy(text: str) -> Copy:
    """Reads the arguments of COPY."""
    words = shlex.split(text)
    stage = ""
    while words[0].startswith("--"):
        option, _, value = words.pop(0).partition("=")
        if option != "--from":
            raise ValueError(f"unknown option of COPY: {option}")
        stage = value
    return Copy(stage, tuple(words[:-1]), words[-1])


def read_env(text: str) -> dict[str, str]:
    """Reads the arguments of ENV and LABEL: `NAME=VALUE …`."""
    return dict(word.split("=", 1) for word in shlex.split(text))


def read_command(text: str) -> list[str]:
    """Reads the JSON form of ENTRYPOINT and CMD."""
    command = json.loads(text)
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise ValueError(f"not a list of strings: {text}")
    return command


def read_health_check(text: str) -> list[str]:
    """Returns the command of a HEALTHCHECK."""
    return read_command(text.partition("CMD ")[2])


def load(path: Path) -> list[Stage]:
    return parse(path.read_text())
