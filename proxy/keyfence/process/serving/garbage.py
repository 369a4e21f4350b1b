"""Keeps garbage collections away while many objects are made that stay: modules, and the tables of a policy.

Rule: a collection looks at every object and stops every client. Here it would find nothing.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """No collection begins in the body."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """The same, and later collections skip the objects that exist now: those of the modules."""
    with without_collections():
        yield
        gc.freeze()
