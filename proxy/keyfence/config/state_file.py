"""Where keyfence keeps what it learns, if the configuration does not say.

Rule: each configuration file has a file of its own, so two keyfences on one machine never share findings by
accident.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def state_file(config: str) -> Path:
    """The default findings store of a configuration file."""
    return _in_state(config, "findings.db", ".db")


def policy_copy(config: str) -> Path:
    """The copy of a policy that a server has, for the next start without the server."""
    return _in_state(config, "policy.yaml", ".policy.yaml")


def last_sequence(config: str) -> Path:
    """The sequence of the last signed policy that was in force."""
    copy = policy_copy(config)
    return copy.with_name(f"{copy.name}.sequence")


def last_candidate(config: str) -> Path:
    """The number of the last candidate of the fleet that was compared."""
    copy = policy_copy(config)
    return copy.with_name(f"{copy.name}.candidate")


def _in_state(config: str, name: str, suffix: str) -> Path:
    """A file in systemd's STATE_DIRECTORY, which has one service's files and wins; else in the user's state
    directory, as the XDG Base Directory Specification has it."""
    given = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if given:
        return Path(given) / name
    state = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(state) if state.startswith("/") else _home() / ".local" / "state"
    path = Path(config).absolute()
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:8]
    return folder / "keyfence" / f"{path.stem}-{digest}{suffix}"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # the system does not know the user, as in a container
        return Path("/")
