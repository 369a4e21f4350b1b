"""How the modes that an instance reports are described."""

from __future__ import annotations

import json
from pathlib import Path

from keyfence.process.reporting import MAX_MODES, _is_gone, described

GLASS = [{"until": 1.0, "rule": "", "service": "web"}]


def test_of_a_rule_the_mode_of_most_services_is_stated_once() -> None:
    matrix = {
        "scope.write": {"web": "enforce", "billing": "observe", "unknown": "observe"},
        "ttl.required": {"web": "observe", "billing": "observe", "unknown": "observe"},
    }
    assert json.loads(described(matrix, GLASS, 3)) == {
        "rules": {"scope.write": {"*": "observe", "web": "enforce"}, "ttl.required": {"*": "observe"}},
        "glass": GLASS,
        "waivers": 3,
        "is_part": False,
    }


def test_commands_that_pass_unread_have_no_modes() -> None:
    assert json.loads(described({}, (), 0)) == {"rules": {}, "glass": [], "waivers": 0, "is_part": False}


def test_what_is_too_long_is_cut_to_the_modes_of_most_services() -> None:
    many = {f"service-{number}": "enforce" if number % 2 else "observe" for number in range(9001)}
    text = described({"scope.write": many}, (), 0)
    assert len(text) < MAX_MODES
    assert json.loads(text) == {
        "rules": {"scope.write": {"*": "observe"}},
        "glass": [],
        "waivers": 0,
        "is_part": True,
    }


def test_a_socket_that_keyfence_may_not_look_at_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "folder").symlink_to(tmp_path / "folder")  # no user may enter it
    assert _is_gone(str(tmp_path / "keyfence.sock"))
    assert not _is_gone(str(tmp_path / "folder" / "keyfence.sock"))
    assert not _is_gone(str(tmp_path))
