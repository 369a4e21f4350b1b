# cython: annotation_typing=False
"""The counters that each read and each write touches: bytes.

Rule: plain integers and nothing else, so that counting costs an addition where it is compiled.
"""

from __future__ import annotations


class Traffic:
    """Bytes, in all four directions."""

    def __init__(self) -> None:
        self.client_in = 0  # read from clients
        self.client_out = 0  # written to clients
        self.upstream_in = 0  # read from upstreams
        self.upstream_out = 0  # written to upstreams
