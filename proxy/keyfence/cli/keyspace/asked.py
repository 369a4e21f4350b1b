"""What the command line asks of an audit and of a migration.

Rule: these are the values of the options as they were checked, and nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

CONFIGURED = "config"  # --store: the findings store that the configuration names
RATE = 5000  # keys a second, of a Redis that others use


class Request(NamedTuple):
    """What `keyfence audit` is asked for."""

    source: str
    policy: str
    config: str
    rate: int  # keys a second; 0: no limit
    sample: float
    resume: str
    replica: bool
    databases: tuple[int, ...]
    store: str
    plan: str | None  # the kind of plan to write
    output: str
    form: str


class Move(NamedTuple):
    """What `keyfence migrate` is asked for."""

    plan: str
    url: str
    config: str
    dry_run: bool
    rate: int
    jobs: int
    resume: str
    log: str
    form: str


def is_file(source: str) -> bool:
    """Whether a source is an RDB file: `file:` and `${NAME}` lead to a URL."""
    return bool(source) and "://" not in source and "${" not in source and not source.startswith("file:")
