from __future__ import annotations

import re

import pytest

from keyfence.downstream.closures import CLOSURES, closure_label
from keyfence.telemetry.counters import OTHER
from tests.servers import PROJECT

SOURCE = PROJECT / "proxy" / "keyfence"
_REASON = re.compile(r'closing = f?"([^"{]+)|(?:closed_for|give_up|_close|_close_at_once)\("([a-z_]+)"')


def reasons() -> set[str]:
    """Every reason that the source gives as a text."""
    files = [path for room in ("session", "downstream") for path in (SOURCE / room).rglob("*.py")]
    found = (_REASON.findall(path.read_text()) for path in files)
    return {first or second for pairs in found for first, second in pairs}


def test_the_source_gives_reasons() -> None:
    assert {"idle", "shutdown", "output"} <= reasons()


@pytest.mark.parametrize("reason", sorted(reasons()))
def test_every_reason_in_the_source_has_a_label(reason: str) -> None:
    assert closure_label(reason) != OTHER


def test_the_documentation_lists_every_label() -> None:
    text = (PROJECT / "docs" / "configuration.md").read_text()
    assert {one.label for one in CLOSURES} <= set(re.findall(r"`([a-z_]+)`", text))


def test_a_reason_that_the_table_does_not_have_is_other() -> None:
    assert closure_label("something new") == OTHER
