"""Policy files into compiled policies.

Rule: a policy is either whole or not there; every fault of the file is told at once.
"""

from __future__ import annotations

from pathlib import Path

from .compile import compile_policy
from .compiled import CompiledPolicy
from .model import PolicyModel
from .validate import validate
from .yaml_source import Source, read_source


def load_policy(path: str | Path, *, name_services: bool = True) -> CompiledPolicy:
    """Read, check and compile a policy file. Raises FileError.

    `name_services`: hints may name the services that do have a right.
    """
    return _compile(read_source(path), name_services=name_services)


def parse_policy(text: str, file: str = "<policy>") -> CompiledPolicy:
    """The same from text."""
    return _compile(Source(file, text))


def _compile(source: Source, *, name_services: bool = True) -> CompiledPolicy:
    return compile_policy(validate(PolicyModel, source), source, name_services=name_services)
