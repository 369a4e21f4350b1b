"""The rows of the report in memory, as programs get them.

Rule: what the tally has, in its order. Only whether a script is registered by now is added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keyfence.policy.verdict import script_in
from keyfence.telemetry.tally import Tally


def report_rows(tally: Tally, registers: Callable[[str], bool] | None) -> Sequence[Mapping[str, Any]]:
    """Returns the rows of the report, the most frequent first. `registers` says whether the policy registers
    a script; None: there is no policy."""
    rows = tally.snapshot()
    return rows if registers is None else [_with_registration(row, registers) for row in rows]


def _with_registration(row: Mapping[str, Any], registers: Callable[[str], bool]) -> Mapping[str, Any]:
    """Returns a row; that of a script that the policy has registered since says so."""
    script = script_in(row["rule"], row["shape"])
    return {**row, "registered": True} if script and registers(script) else row
