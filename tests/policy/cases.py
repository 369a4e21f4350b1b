"""Policy test files: `policy`, and `tests` with `service`, `command` and the verdict that is expected."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, NamedTuple

from proxy.policy.yaml_source import read_source

POLICIES = Path(__file__).parents[2] / "policies"


class Case(NamedTuple):
    """One line of a policy test file."""

    file: str
    line: int
    about: str
    service: str
    argv: list[bytes]
    verdict: str
    rules: list[str]  # all that are broken, where `whole`; else the first
    whole: bool
    entry: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.about}"


def read_cases(path: Path) -> tuple[Path, list[Case]]:
    """The policy that a test file is about, and its cases."""
    source = read_source(path)
    cases = [
        _case(path, source.place(("tests", number)).line, test)
        for number, test in enumerate(source.data["tests"])
    ]
    return path.parent / source.data["policy"], cases


def _case(path: Path, line: int, test: dict[str, Any]) -> Case:
    unknown = test.keys() - {"about", "service", "command", "verdict", "rule", "rules", "entry"}
    assert not unknown, f"{path}:{line}: unknown keys {unknown}"
    command = test["command"]
    words = shlex.split(command) if isinstance(command, str) else command
    verdict = test["verdict"]
    assert verdict in ("allow", "violation"), f"{path}:{line}: {verdict}"
    rules = test.get("rules", [test["rule"]] if "rule" in test else [])
    assert bool(rules) == (verdict == "violation"), (
        f"{path}:{line}: a violation names its rule, an allow doesn't"
    )
    return Case(
        path.name,
        line,
        test.get("about", str(command)),
        test["service"],
        [word.encode() for word in words],
        verdict,
        rules,
        "rules" in test,
        test.get("entry", ""),
    )
