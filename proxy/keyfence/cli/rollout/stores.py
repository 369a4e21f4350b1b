"""Findings stores that commands open themselves, without a running keyfence.

Rule: a store that cannot be read ends the command with one line. None is made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from keyfence.cli.terminal.output import fail
from keyfence.config.fields import parse_store, store_url

if TYPE_CHECKING:  # SQLAlchemy takes a fifth of a second to import
    from keyfence.findings.queries import Reader


@contextlib.contextmanager
def store_at(url: str) -> Iterator[Reader]:
    """Yields a reader of the store at a URL."""
    from sqlalchemy.exc import SQLAlchemyError

    from keyfence.findings.database import Database, StoreError, reason
    from keyfence.findings.queries import Reader

    try:
        database = Database(store_url(parse_store(url)), create=False)
    except (StoreError, ValueError) as exc:
        fail(str(exc))
    try:
        yield Reader(database)
    except SQLAlchemyError as exc:
        fail(f"the findings store {database.shown} cannot be read: {reason(exc)}")
    finally:
        database.close()
