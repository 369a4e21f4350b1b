"""The commands that keyfence answers itself."""

from __future__ import annotations

import pytest

from keyfence.commands.extract import extract
from keyfence.commands.own import OWN_COMMANDS, OWN_NAMES, own_name
from keyfence.commands.table import COMMANDS


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        ([b"KEYFENCE", b"WHOAMI"], "KEYFENCE WHOAMI"),
        ([b"keyfence", b"whoami", b"x"], "KEYFENCE WHOAMI"),
        ([b"Keyfence", b"Show", b"Clients"], "KEYFENCE SHOW"),
        ([b"KEYFENCE"], "KEYFENCE"),
        ([b"KEYFENCE", b"NOSUCH"], "KEYFENCE"),
        ([b"KEYFENCE", b"\xff\xfe"], "KEYFENCE"),
        ([b"KEYFENCE WHOAMI"], ""),
        ([b"KEYFENCE\0", b"WHOAMI"], ""),
        ([b"KEYFENCES", b"WHOAMI"], ""),
        ([], ""),
    ],
)
def test_a_name_is_read_as_servers_read_names(argv: list[bytes], name: str) -> None:
    assert own_name(argv) == name


def test_to_the_table_they_are_unknown_commands() -> None:
    assert not {name.encode() for name in OWN_NAMES} & COMMANDS.keys()
    assert extract([b"KEYFENCE", b"WHOAMI"]).command is None


def test_each_has_a_meaning_that_fits_on_a_line() -> None:
    assert all(0 < len(own.meaning) <= 76 for own in OWN_COMMANDS.values())
