"""The commands that are sent in parts, as the configuration names them."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides
from tests.config.test_models import faults

UPSTREAM = 'policy: p\nupstream: {cluster: ["a:6379"], expose: single}\n'
KNOWN = "write some of MGET, DEL, EXISTS, TOUCH, UNLINK"


@pytest.mark.parametrize(
    ("text", "splits"),
    [
        ("split: {CubeMaster: [MGET, del]}", {"CubeMaster": {b"MGET", b"DEL"}}),
        ("split: {CubeMaster: MGET, '*': []}", {"CubeMaster": {b"MGET"}, "*": set()}),
        (
            "split: [MGET, DEL, UNLINK, EXISTS, TOUCH]",
            {"*": {b"MGET", b"DEL", b"UNLINK", b"EXISTS", b"TOUCH"}},
        ),
        ("split: MGET", {"*": {b"MGET"}}),
        ("", {}),
    ],
)
def test_a_service_names_its_commands(tmp_path: Path, text: str, splits: dict[str, set[bytes]]) -> None:
    file = tmp_path / "keyfence.yaml"
    file.write_text(UPSTREAM + text)
    assert load_settings(str(file), Overrides()).splits == splits


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "split: {CubeMaster: [MGET, MSET]}",
            "3:28: MSET sets all keys or none, and in parts it would not be atomic; remove it, and give keys "
            "that are set together one hash tag",
        ),
        ("split: {CubeMaster: [GET]}", f"3:22: 'GET' cannot be sent in parts; {KNOWN}"),
        ("split: {CubeMaster: ['']}", f"3:22: '' cannot be sent in parts; {KNOWN}"),
        (
            "split: {CubeMastr: MGET}",
            "3:20: 'CubeMastr' is not a service of the policy; did you mean CubeMaster?",
        ),
    ],
)
def test_what_cannot_be_sent_in_parts_is_told_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    assert faults(tmp_path, UPSTREAM + text) == ["keyfence.yaml:" + message]


@pytest.mark.parametrize(
    "upstream",
    ["redis://a", '{cluster: ["a:6379"], announce: {host: 127.0.0.1, ports: 7200-7299}}'],
)
def test_only_a_cluster_behind_one_address_takes_parts(tmp_path: Path, upstream: str) -> None:
    text = f"policy: p\nupstream: {upstream}\nsplit: [MGET]\n"
    assert faults(tmp_path, text) == [
        "keyfence.yaml:3:8: commands are sent in parts before a cluster behind one address only; add "
        "cluster: and expose: single to upstream, or remove split"
    ]
