"""What the command line asks of an audit.

Rule: these are the values of the options as they were checked, and nothing else.
"""

from __future__ import annotations

import dataclasses

CONFIGURED = "config"  # --store: the findings store that the configuration names
RATE = 5000  # keys a second, of a Redis that others use


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for."""

    source: str
    policy: str
    config: str
    rate: int | None  # keys a second; 0: no limit; None: the default for the source
    sample: float
    resume: str
    replica: bool
    databases: tuple[int, ...]
    store: str
    plans: bool
    output: str
    form: str


def is_file(source: str) -> bool:
    """Whether a source is an RDB file: `file:` and `${NAME}` lead to a URL."""
    return bool(source) and "://" not in source and "${" not in source and not source.startswith("file:")
