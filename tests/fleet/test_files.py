"""Changes of files are seen however they are made: in place, by renaming, by a swapped link, in two steps."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from keyfence.fleet import settling
from keyfence.fleet.files import WatchedFiles
from keyfence.policy.loading.load import read_policies
from keyfence.policy.source.files import Reading

POLICY = "policy: {name}\nservices: [web]\n"


def write(folder: Path, *names: str, text: str = POLICY) -> None:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / f"{name}.yaml").write_text(text.format(name=name))


def in_place(folder: Path) -> None:
    write(folder, "b", text=POLICY + "claims: ['a:']\n")


def renamed(folder: Path) -> None:
    (folder / ".b.new").write_text(POLICY.format(name="c"))
    os.replace(folder / ".b.new", folder / "b.yaml")


def added(folder: Path) -> None:
    write(folder, "c")


def removed(folder: Path) -> None:
    (folder / "b.yaml").unlink()


def same_size_and_time(folder: Path) -> None:
    file = folder / "b.yaml"
    before = file.stat()
    file.write_text(file.read_text().replace("web", "bew"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def watched(folder: Path) -> WatchedFiles:
    with Reading() as reading:
        read_policies(folder)
    return WatchedFiles(reading.seen())


def changed(files: WatchedFiles) -> bool:
    return asyncio.run(files.have_changed())


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "SETTLE_SECONDS", 0.0)


@pytest.mark.parametrize("change", [in_place, renamed, added, removed, same_size_and_time])
def test_a_change_of_a_folder_is_seen(change: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path, "a", "b")
    files = watched(tmp_path)
    assert not changed(files)
    change(tmp_path)
    assert not changed(files), "the first look only finds it"
    assert changed(files)


def test_the_swap_of_a_configmap_is_seen(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b")):
        write(tmp_path / f"..2026_{number}", "policy", text=POLICY.replace("{name}", name))
    (tmp_path / "..data").symlink_to("..2026_0")
    (tmp_path / "policy.yaml").symlink_to("..data/policy.yaml")
    files = watched(tmp_path)
    (tmp_path / "..data_tmp").symlink_to("..2026_1")
    os.replace(tmp_path / "..data_tmp", tmp_path / "..data")
    changed(files)
    assert changed(files)


def test_a_folder_that_is_away_for_a_moment_is_not_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "policy"
    write(folder, "a", "b")
    files = watched(folder)
    monkeypatch.setattr(settling, "SETTLE_SECONDS", 3600.0)
    os.rename(folder, tmp_path / "old")
    assert not changed(files)
    os.rename(tmp_path / "old", folder)
    assert not changed(files)
    monkeypatch.setattr(settling, "SETTLE_SECONDS", 0.0)
    assert not changed(files)


def test_other_files_in_the_folder_do_not_count(tmp_path: Path) -> None:
    write(tmp_path, "a", "b")
    files = watched(tmp_path)
    for name in (".a.yaml.swp", "a.test.yaml", "readme.md"):
        (tmp_path / name).write_text("x")
    changed(files)
    assert not changed(files)
