"""Results as people and programs read them.

Rule: no line is longer than 80 columns.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from tests.conformance.check import Outcome, Result
from tests.conformance.run import groups
from tests.conformance.trial import Place

WIDTH = 80
_OUTCOME = 15  # columns


class Run(NamedTuple):
    """All results of one proxy."""

    name: str
    server: str  # behind it
    date: str
    results: list[Result]


def lines_of(result: Result) -> Iterator[str]:
    """A check's outcome and sentence; below them what was expected and what came, or why it is not so."""
    indent = " " * (_OUTCOME + 2)
    word = result.outcome.value if result.outcome is not Outcome.FAILED else "FAIL"
    yield from _wrapped(result.sentence, f"  {word:<{_OUTCOME}}", indent)
    if result.outcome is Outcome.FAILED:
        yield from _wrapped(result.expected, f"{indent}expected: ", f"{indent}  ")
        yield from _wrapped(result.came, f"{indent}came:     ", f"{indent}  ")
    elif result.came:
        yield from _wrapped(result.came, f"{indent}because: ", f"{indent}  ")


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    text = "".join(each if each.isprintable() else " " for each in text)
    return textwrap.wrap(
        text or "nothing", WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    )


def summary(results: Sequence[Result]) -> Iterator[str]:
    """A table: a line for each group, and their sums."""
    names = [outcome.value for outcome in Outcome]
    yield f"{'':24}" + "".join(f"{name:>14}" for name in names)
    for group, some in groups(results):
        yield f"{group:24}" + "".join(f"{_count(some, outcome):>14}" for outcome in Outcome)
    yield f"{'together':24}" + "".join(f"{_count(results, outcome):>14}" for outcome in Outcome)


def _count(results: Sequence[Result], outcome: Outcome) -> int:
    return sum(result.outcome is outcome for result in results)


def has_failed(results: Sequence[Result]) -> bool:
    return any(result.outcome is Outcome.FAILED for result in results)


def as_json(name: str, place: Place, results: Sequence[Result]) -> str:
    """A document with all results, which `table` reads."""
    document = {
        "name": name,
        "server": place.server,
        "date": datetime.now(UTC).date().isoformat(),
        "results": [result._asdict() | {"outcome": result.outcome.value} for result in results],
    }
    return as_lines(document)


def as_lines(document: dict[str, Any]) -> str:
    """The document with a line for each result, so that a difference between two runs is readable."""
    head = {name: value for name, value in document.items() if name != "results"}
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in document["results"])
    return json.dumps(head, ensure_ascii=False)[:-1] + f', "results": [\n{rows}\n]}}\n'


def read(path: Path) -> Run:
    """Reads such a document. Raises ValueError if the file holds none."""
    try:
        document = json.loads(path.read_text())
        results = [Result(**row | {"outcome": Outcome(row["outcome"])}) for row in document["results"]]
        return Run(document["name"], document["server"], document["date"], results)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no results of the conformance checks ({error})") from None
