from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from keyfence.audit import checkpoint as module
from keyfence.audit.checkpoint import Checkpoint, CheckpointError, write_whole

WORK = {"server": ["a"], "policy revision": "r1"}


def at(path: Path, **work: object) -> Checkpoint:
    return Checkpoint(str(path), "audit", {**WORK, **work})


def test_what_was_kept_is_read_again(tmp_path: Path) -> None:
    one = at(tmp_path / "state")
    assert one.load() is None
    one.save({"at": [1, "17"], "keys": 3})
    assert at(tmp_path / "state").load() == {"at": [1, "17"], "keys": 3}
    one.remove()
    assert not list(tmp_path.iterdir())


def test_without_a_file_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one = Checkpoint("", "audit", WORK)
    one.save({"keys": 3})
    assert one.load() is None
    assert not one.is_due
    one.remove()
    assert not list(tmp_path.iterdir())


def test_a_file_is_for_its_owner_only(tmp_path: Path) -> None:
    at(tmp_path / "state").save({})
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("other", "name"), [({"server": ["b"]}, "server"), ({"policy revision": "r2"}, "policy revision")]
)
def test_a_file_of_other_work_is_refused(tmp_path: Path, other: dict[str, object], name: str) -> None:
    at(tmp_path / "state").save({})
    with pytest.raises(CheckpointError, match=rf"of other work: its {name} is not the same; remove it"):
        at(tmp_path / "state", **other).load()


def test_a_file_of_another_command_is_refused(tmp_path: Path) -> None:
    at(tmp_path / "state").save({})
    with pytest.raises(CheckpointError, match="is of keyfence audit, version 1; name another file"):
        Checkpoint(str(tmp_path / "state"), "migrate", WORK).load()


@pytest.mark.parametrize("text", ["", "{}", "[]", "nonsense", '{"keyfence": {}, "state": {}}', "\xff"])
def test_any_other_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "state").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"state (is not a file of keyfence audit|cannot be read)"):
        at(tmp_path / "state").load()


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be written: no such file or directory"):
        at(tmp_path / "nowhere" / "state").save({})


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = at(tmp_path / "state")
    one.save({"keys": 1})

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "replace", fails)
    with pytest.raises(CheckpointError, match="no space left"):
        one.save({"keys": 2})
    assert one.load() == {"keys": 1}
    assert os.listdir(tmp_path) == ["state"]


def test_a_checkpoint_is_due_after_some_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    one = at(tmp_path / "state")
    assert not one.is_due
    now += module.SECONDS
    assert one.is_due
    one.save({})
    assert not one.is_due


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with path.open() as reader:
        write_whole(str(path), json.dumps({}))
        assert reader.read() == "before"
    assert path.read_text() == "{}"
