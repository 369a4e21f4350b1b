"""What the demo prints.

Rule: nothing is cut off. On a terminal that is too narrow for a table, a row becomes two
paragraphs. Without a terminal no line is wrapped.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from keyfence.policy.show import in_lines
from keyfence.policy.units import counted, plural
from keyfence.telemetry.tally import Row

from .player import Outcome

MAX_FAILURES_SHOWN = 20
PIPE_WIDTH = 400
_HEADINGS = ("service", "rule", "command", "entry or key shape", "count", "hint")


def console() -> Console:
    """Returns a console on standard output: coloured on a terminal, else PIPE_WIDTH columns wide."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(width=PIPE_WIDTH, no_color=True, highlight=False)


def say(out: Console, text: str, style: str = "", before: str = "") -> None:
    """Prints a text, wrapped between words. `before` begins each line; further lines are indented."""
    for line in in_lines(text, out.width - len(before), "", "  " if before else "") or [""]:
        out.print(Text(before + line, style), soft_wrap=True)


def print_found(out: Console, rows: Sequence[Row]) -> None:
    cells = [
        (
            row["service"],
            row["rule"],
            row["command"],
            row["shape"] or row["entry"] or "–",
            str(row["count"]),
            f"waived; {row['hint']}" if row["actions"].get("waived") else row["hint"],
        )
        for row in sorted(rows, key=lambda row: -row["count"])
    ]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right" if heading == "count" else "left", no_wrap=True)
    for row in cells:
        table.add_row(*map(Text, row))
    if out.measure(table, options=out.options.update(width=10_000)).maximum > out.width:
        _print_blocks(out, cells)
        return
    with out.capture() as captured:
        out.print(table)
    for line in captured.get().splitlines():  # rich fills the last column with spaces
        out.print(Text.from_ansi(line.rstrip(" ")), soft_wrap=True)


def _print_blocks(out: Console, cells: Sequence[Sequence[str]]) -> None:
    for service, rule, command, place, count, hint in cells:
        say(out, f"{service}  {rule}: {count}", "bold")
        say(out, f"{command} {place}; {hint}", "dim", "    ")


def print_got(out: Console, outcomes: Sequence[Outcome]) -> None:
    """Prints each mistake once, and every other command that got an error."""
    shown: dict[tuple[str, str], Outcome] = {}
    for outcome in outcomes:
        step = outcome.step
        if step.mistake or outcome.got != "OK":
            shown.setdefault((step.service, step.mistake or step.argv[0]), outcome)
    for outcome in list(shown.values())[:MAX_FAILURES_SHOWN]:
        say(out, outcome.step.mistake or "an error", "bold")
        say(out, f"{outcome.step.service}> {outcome.step.text}", "", "    ")
        say(out, outcome.got, "green" if outcome.passed else "red", "    ")


def print_passed(out: Console, outcomes: Sequence[Outcome], why: str = "") -> None:
    """Prints how many commands passed, and why mistakes did."""
    refused = [outcome for outcome in outcomes if not outcome.passed]
    mistakes = sum(bool(outcome.step.mistake) for outcome in outcomes if outcome.passed)
    text = f"{len(outcomes) - len(refused)} of {counted(len(outcomes), 'command')} passed"
    if mistakes:
        text += f", {counted(mistakes, 'mistake')} among them{why}"
    if refused:
        text += f"; {len(refused)} {plural(len(refused), 'was', 'were')} refused and never reached Redis"
    say(out, f"{text}.")
