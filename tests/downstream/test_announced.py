"""The addresses that a Sentinel listener names."""

from __future__ import annotations

from pathlib import Path

from keyfence.downstream.announced import primaries_of
from keyfence.net.addresses import Bound
from keyfence.session.sentinel.facts import Primary
from tests.config.test_sentinel import load


def test_the_default_has_the_port_that_was_bound(tmp_path: Path) -> None:
    several = '[{name: a}, {name: b, address: "[fd00::1]:1", others: "h:2"}]'
    settings = load(
        tmp_path,
        '{listen: "[::1]:0", service: web}',
        '{listen: "127.0.0.1:0", service: app}',
        f'{{listen: "127.0.0.1:26379", service: app, sentinel: {several}}}',
    )
    bound = [Bound(name, []) for name in ("[::1]:5001", "127.0.0.1:5002", "127.0.0.1:26379")]
    first, _, sentinel = settings.listeners
    assert primaries_of(settings, sentinel, bound) == [
        Primary("a", "127.0.0.1", 5002, []),
        Primary("b", "fd00::1", 1, [("h", 2)]),
    ]
    assert primaries_of(settings, first, bound) == []
