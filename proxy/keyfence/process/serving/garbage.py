"""Keeps garbage collections away while many objects are made that stay: modules, and the tables of a policy.

Rule: a collection looks at every object and stops every client. Here it would find nothing.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_NEVER = 1_000_000_000  # collections of younger objects, until all objects are looked at


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """No collection begins in the body."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def with_small_collections() -> Iterator[None]:
    """Only collections of new objects begin in the body. For a process that serves clients: after a body
    without collections, the first one would look at all its objects at once."""
    before = gc.get_threshold()
    gc.set_threshold(before[0], before[1], _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """The same, and later collections skip the objects that exist now: those of the modules."""
    with without_collections():
        yield
        gc.freeze()
