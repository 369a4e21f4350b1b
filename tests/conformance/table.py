"""docs/conformance.md's tables, from results: `python -m tests.conformance.table FILE… [--page]`.

Rule: the page says nothing about a proxy that its results do not say. `--page` writes the tables there, and
without files they are made of the results of that page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.conformance.check import GROUPS, Outcome, Result
from tests.conformance.report import Run, read
from tests.servers import PROJECT

PAGE = PROJECT / "docs" / "conformance.md"
RESULTS = Path(__file__).with_name("results")
_BEGIN, _END = "<!-- tables -->\n", "<!-- end of the tables -->\n"
_MARKS = {Outcome.PASSED: "✓", Outcome.FAILED: "✗", Outcome.NOT_SUPPORTED: "no", Outcome.NOT_CHECKED: ""}
_LONGEST = 150  # characters of what came


def tables(runs: Sequence[Run]) -> str:
    """All of the page that the results say."""
    runs = sorted(
        runs,
        key=lambda run: (not run.name.startswith("Redis"), not run.name.startswith("keyfence"), run.name),
    )
    return "\n".join([*_sums(runs), *_checks(runs), *_failures(runs)]) + "\n"


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _sums(runs: Sequence[Run]) -> Iterator[str]:
    """How many checks of each group passed, of those that were made."""
    yield _row(["checks that passed", *(run.name for run in runs)])
    yield "|---|" + "---|" * len(runs)
    for group in GROUPS:
        yield _row([group, *(_share([one for one in run.results if one.group == group]) for run in runs)])
    yield _row(["together", *(_share(run.results) for run in runs)])
    for name, outcome in (("failed", Outcome.FAILED), ("not supported", Outcome.NOT_SUPPORTED)):
        yield _row([name, *(sum(one.outcome is outcome for one in run.results) for run in runs)])
    yield _row(["before", *(run.server for run in runs)])
    yield _row(["date", *(run.date for run in runs)])


def _share(results: Sequence[Result]) -> str:
    made = [one for one in results if one.outcome is not Outcome.NOT_CHECKED]
    return f"{sum(one.outcome is Outcome.PASSED for one in made)} of {len(made)}" if made else ""


def _checks(runs: Sequence[Run]) -> Iterator[str]:
    """A table for each group, a row for each check."""
    for group in GROUPS:
        sentences = dict.fromkeys(one.sentence for run in runs for one in run.results if one.group == group)
        marks = [{one.sentence: _MARKS[one.outcome] for one in run.results} for run in runs]
        yield f"\n## {group[0].upper()}{group[1:]}\n"
        yield _row(["", *(run.name for run in runs)])
        yield "|---|" + ":-:|" * len(runs)
        for sentence in sentences:
            yield _row([sentence, *(of_run.get(sentence, "") for of_run in marks)])


def _failures(runs: Sequence[Run]) -> Iterator[str]:
    """What was expected and what came, for each check that failed. Those that ended alike are one row."""
    yield "\n## What failed\n"
    for run in runs:
        alike: dict[tuple[str, str], list[str]] = {}
        for one in run.results:
            if one.outcome is Outcome.FAILED:
                came = "the end of the connection" if "the end of the connection" in one.came else one.came
                alike.setdefault((one.expected, came), []).append(one.sentence)
        if not alike:
            yield f"**{run.name}**: nothing.\n"
            continue
        yield f"**{run.name}**:\n"
        yield "| check | expected | came |\n|---|---|---|"
        for (expected, came), sentences in alike.items():
            more = f", and {len(sentences) - 1} others" if len(sentences) > 1 else ""
            yield _row([sentences[0] + more, _code(expected), _code(came)])
        yield ""


def _code(text: str) -> str:
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return "`" + text.replace("`", "'").replace("|", "¦") + "`"


def with_tables(page: str, runs: Sequence[Run]) -> str:
    """The page with these tables."""
    before, _, rest = page.partition(_BEGIN)
    after = rest.partition(_END)[2]
    return f"{before}{_BEGIN}\n{tables(runs)}\n{_END}{after}"


def main(arguments: Sequence[str]) -> int:
    """Prints the tables, or writes them into the page. Returns the exit code."""
    parser = argparse.ArgumentParser(
        "python -m tests.conformance.table", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="what --json has written")
    parser.add_argument("--page", action="store_true", help=f"write them into {PAGE.relative_to(PROJECT)}")
    options = parser.parse_args(arguments)
    try:
        runs = [read(path) for path in options.files or sorted(RESULTS.glob("*.json"))]
        if options.page:
            PAGE.write_text(with_tables(PAGE.read_text(), runs))
        else:
            print(tables(runs), end="")
    except (OSError, ValueError) as error:
        print(f"conformance.table: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
