"""Splits byte streams into pieces, for tests that must hold for any split."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from hypothesis import strategies as st


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    """Split `data` at these positions. The pieces joined are `data`."""
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def in_steps(data: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


# Many positions near the beginning, so that short streams are split too.
CUTS = st.lists(st.integers(0, 40) | st.integers(0, 2000), max_size=12)
