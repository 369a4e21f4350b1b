"""The checks, each group in a module; importing this room fills `check.CHECKS`."""

from tests.conformance.checks import (
    behind,
    blocking,
    connections,
    isolation,
    many_keys,
    messages,
    moving,
    protocol,
    sameness,
    scanning,
    scripts,
    server,
    transactions,
)

__all__ = [
    "behind",
    "blocking",
    "connections",
    "isolation",
    "many_keys",
    "messages",
    "moving",
    "protocol",
    "sameness",
    "scanning",
    "scripts",
    "server",
    "transactions",
]
