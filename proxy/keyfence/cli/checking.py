"""The work of `keyfence check`: it checks a policy, a folder of policies, or a configuration with its policy.

Rule: each fault is listed once, even if reading the configuration and checking its policy both find it.
"""

from __future__ import annotations

import os
from pathlib import Path

from keyfence.authoring.lint import check_policy
from keyfence.config.advice import advice, hidden_modes, unread_sessions
from keyfence.config.loading import load_policy_server, named_files
from keyfence.config.models import ConfigModel
from keyfence.config.settings import Overrides
from keyfence.config.state_file import policy_copy
from keyfence.policy.diagnostics import Diagnostic, FileError
from keyfence.policy.source.model import PolicyModel
from keyfence.policy.source.validate import other_kind
from keyfence.policy.source.yaml import read_source
from keyfence.policy.units import counted
from keyfence.process.serving.reload import Origin

Checked = tuple[list[Diagnostic], list[Diagnostic], str]  # errors, warnings, summary


def check_file(path: str | Path) -> Checked:
    """Returns the errors, warnings and summary of a file or folder.

    A bad file is an error, not an exception.
    """
    return _check_configuration(str(path)) if _is_configuration(path) else check_policy(path)


def _is_configuration(path: str | Path) -> bool:
    if os.path.isdir(path):
        return False
    try:
        data = read_source(path, keep_going=True).data
    except FileError:
        return False
    return other_kind(PolicyModel, data) is ConfigModel


def _check_configuration(path: str) -> Checked:
    try:
        settings, compiled = Origin(path).load()
    except FileError as exc:
        server, copy = _server_without_copy(path)
        if server:
            own = [one for one in exc.diagnostics if one.place.file != copy]
            unchecked = f"the policy of {server} is not checked: no copy of it is here"
            return own, [], f"{path}: {_errors(own)}; {unchecked}"
        found, policy = exc.diagnostics, named_files(path, Overrides())[0]
    else:
        found = advice(settings, compiled) + hidden_modes(settings) + unread_sessions(settings, compiled)
        policy = settings.policy
    if not policy:
        return found, [], f"{path}: {_errors(found)}"
    errors, warnings, summary = check_policy(policy)
    own = [one for one in found if one not in errors]
    faults = [one for one in own if one.level == "error"]
    advised = [one for one in own if one.level == "warning"]
    own_summary = _errors(faults) + (f", {counted(len(advised), 'warning')}" if advised else "")
    return [*faults, *errors], [*advised, *warnings], f"{path}: {own_summary}\n{summary}"


def _server_without_copy(path: str) -> tuple[str, str]:
    """The server that has the policy, if there is no copy of it on this machine, and the name that the copy
    would have; "" otherwise."""
    try:
        server = load_policy_server(path, Overrides())
    except FileError:
        server = None
    copy = str(policy_copy(path))
    return (server.shown, copy) if server is not None and not os.path.exists(copy) else ("", "")


def _errors(found: list[Diagnostic]) -> str:
    return counted(len(found), "error")
