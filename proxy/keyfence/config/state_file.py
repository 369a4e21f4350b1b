"""Where keyfence keeps what it learns, if the configuration does not say.

Rule: each configuration file has a file of its own, so two keyfences on one machine never share findings by
accident.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def state_file(config: str) -> Path:
    """The default findings store of a configuration file. systemd's STATE_DIRECTORY wins; else it is the
    user's state directory, as the XDG Base Directory Specification has it."""
    given = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if given:
        return Path(given) / "findings.db"
    state = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    path = Path(config).absolute()
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:8]
    return folder / "keyfence" / f"{path.stem}-{digest}.db"
