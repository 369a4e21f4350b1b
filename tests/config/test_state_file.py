"""Where keyfence keeps what it learns, if the configuration does not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyfence.config.state_file import state_file


def test_a_user_whom_the_system_does_not_know_has_a_place_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with any user id: keyfence starts, and says if the place cannot be written."""

    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("STATE_DIRECTORY", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    assert state_file("/etc/keyfence.yaml").parent == Path("/.local/state/keyfence")
