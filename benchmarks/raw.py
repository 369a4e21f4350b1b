"""Raw figures in files: one line of JSON for each record, so that a series can go on later."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def write(path: Path, record: DataclassInstance) -> None:
    """Appends a record."""
    with path.open("a") as file:
        file.write(f"{json.dumps(dataclasses.asdict(record))}\n")


def lines_of(path: Path | None) -> list[str]:
    """The lines of a file; none, if there is no such file."""
    return path.read_text().splitlines() if path is not None and path.exists() else []
