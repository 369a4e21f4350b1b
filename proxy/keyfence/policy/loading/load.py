"""Loads policy files into compiled policies.

Rule: a policy is loaded as a whole or not at all, and all faults of its files are reported at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.compiler.pipeline import compile_policies
from keyfence.policy.diagnostics import Diagnostic, FileError, file_error
from keyfence.policy.source.files import POLICY_ENDS, policy_names
from keyfence.policy.source.model import PolicyModel
from keyfence.policy.source.validate import validate
from keyfence.policy.source.yaml import Source, read_source

from .recovery import Recovered


def policy_files(path: str | Path) -> list[Path]:
    """Returns the policy files at a path: the file itself, or those of a folder, in the order of their names.

    Test files and folders below the folder do not count. Raises FileError for a folder that has no policy
    files or cannot be read.
    """
    if not os.path.isdir(path):  # pathlib's is_dir raises for a name that is too long
        return [Path(path)]
    try:
        names = policy_names(str(path))
    except OSError as exc:
        raise file_error(str(path), f"cannot be read: {exc.strerror}") from None
    if not names:
        raise file_error(str(path), f"no policy in this folder; a policy is a file *{POLICY_ENDS[0]}")
    return [Path(path, name) for name in names]


def policy_name(path: str | Path, models: Sequence[PolicyModel]) -> str:
    """Returns a policy's name: the one in its file, or for several files the name of their folder."""
    return models[0].policy if len(models) == 1 else Path(path).resolve().name


def read_policies(path: str | Path) -> list[tuple[PolicyModel, Source]]:
    """Reads the files of a policy into models. Raises FileError with the faults of all files."""
    read: list[tuple[PolicyModel, Source]] = []
    faults: list[Diagnostic] = []
    for file in policy_files(path):
        try:
            source = read_source(file)
            read.append((validate(PolicyModel, source), source))
        except FileError as exc:
            faults += exc.diagnostics
    if faults:
        raise FileError(faults)
    return read


def policy_faults(path: str | Path) -> list[Diagnostic]:
    """Returns all errors of a policy, also those that the compiler does not reach because of earlier ones."""
    sources: list[Source] = []
    faults: list[Diagnostic] = []
    try:
        files = policy_files(path)
    except FileError as exc:
        return exc.diagnostics
    for file in files:
        try:
            sources.append(read_source(file, keep_going=True))
        except FileError as exc:
            faults += exc.diagnostics
    if not faults:
        return Recovered(*sources).errors
    # A file that cannot be read may define names that other files use, so only the others' form is checked.
    for source in sources:
        try:
            faults += source.faults
            validate(PolicyModel, source)
        except FileError as exc:
            faults += exc.diagnostics
    return faults


def load_policy(path: str | Path, *, name_services: bool = True) -> CompiledPolicy:
    """Loads a policy file, or a folder of files as one policy. Raises FileError with every fault.

    `name_services`: hints may name the services that have a right.
    """
    try:
        files = read_policies(path)
        name = policy_name(path, [model for model, _ in files])
        return compile_policies(files, name, name_services=name_services)
    except FileError as exc:
        raise FileError(policy_faults(path) or exc.diagnostics) from None


def parse_policy(text: str, file: str = "<policy>") -> CompiledPolicy:
    """Loads a policy from text. Raises FileError."""
    return parse_policies({file: text})


def parse_policies(texts: Mapping[str, str]) -> CompiledPolicy:
    """Loads a policy from the texts of its files, by their names. Raises FileError."""
    sources = [Source(file, text) for file, text in texts.items()]
    read = [(validate(PolicyModel, source), source) for source in sources]
    return compile_policies(read, read[0][0].policy)
