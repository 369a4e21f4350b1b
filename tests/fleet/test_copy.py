"""The copy on disk is the last policy that was in force, of the server that is configured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keyfence.fleet import copy as copies
from keyfence.fleet.copy import Copy, confirm_copy, read_copy, write_copy

ONE = Copy(b"\xef\xbb\xbfpolicy: shop\r\n", '"one"', 1_000_000.0)


def test_it_comes_back_as_it_was_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "state" / "policy.yaml"
    write_copy(path, "server", ONE)
    assert read_copy(path, "server") == ONE
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
    confirm_copy(path, 2_000_000.0)
    assert read_copy(path, "server") == ONE._replace(confirmed=2_000_000.0)


def test_another_servers_copy_and_a_missing_one_are_none(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    assert read_copy(path, "server") is None
    write_copy(path, "server", ONE)
    assert read_copy(path, "other") is None
    (tmp_path / "policy.yaml.state").write_text("[")
    assert read_copy(path, "server") is None


def test_after_a_crash_between_its_files_the_etag_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    write_copy(path, "server", ONE)
    path.write_bytes(b"policy: newer\n")
    assert read_copy(path, "server") == Copy(b"policy: newer\n", "", ONE.confirmed)


def test_after_a_crash_between_its_files_there_is_a_signature_for_either_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "policy.yaml"
    one, two = (Copy(text, text.decode(), 1_000_000.0, b"signature of " + text) for text in (b"one", b"two"))
    write_copy(path, "server", one)
    assert read_copy(path, "server") == one
    assert (tmp_path / "policy.yaml.sig").read_bytes() == one.signature, "keyfence check reads it as a file"
    steps = [copies._write_state]

    def step(*given: Any) -> None:
        steps.pop()(*given)

    monkeypatch.setattr(copies, "_write_state", step)
    with pytest.raises(IndexError):  # at the last of its steps
        write_copy(path, "server", two)
    assert read_copy(path, "server") == two._replace(etag="")
    path.write_bytes(b"one")
    assert read_copy(path, "server") == one
