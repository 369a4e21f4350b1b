# cython: annotation_typing=False
"""The byte counters of a service, which every read and every write changes.

Rule: they are plain integers, so that counting is one addition in compiled code. `Counters.collect` takes
them over and sets them to 0.
"""

from __future__ import annotations


class Traffic:
    """Bytes in all four directions, since they were last collected."""

    def __init__(self) -> None:
        self.client_in = 0  # read from clients
        self.client_out = 0  # written to clients
        self.upstream_in = 0  # read from upstreams
        self.upstream_out = 0  # written to upstreams
