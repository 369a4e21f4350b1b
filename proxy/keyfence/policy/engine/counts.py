# cython: annotation_typing=False
"""Counts of equal commands, and whether kept answers still hold: the values that the decision cache shares
with sessions, telemetry and the evaluator.

Rule: these are plain values. Telemetry gathers the counts from time to time and sets them to 0. A counter
that is not live is not used any more.
"""

from __future__ import annotations

from keyfence.policy.wording.prepared import Prepared

from .command_evidence import NONE, Evidence


class Admitted:
    """Counts admitted commands of one kind."""

    def __init__(self, name: str, evidence: Evidence = NONE) -> None:
        self.name = name  # of the command, in upper case
        self.evidence = evidence  # of each of them
        self.times = 0  # since telemetry last gathered the count
        self.is_gathered = False  # telemetry will gather it


class ViolationCounter:
    """Counts commands that break the same rules, independent of their keys and values."""

    def __init__(self, rows: object) -> None:
        """`rows` is where telemetry adds the findings of each command."""
        self.rows = rows
        self.times = 0  # since telemetry last gathered the count
        self.live = True  # False: evaluate and report the next command in full
        # The final shape of their keys, if no entry covers these; "": it is not known, or there is none.
        self.shape = ""
        self.outcome = 0  # each command's outcome for its key's time to live (`ttl.outcome`)
        self.refusal: Prepared | None = None  # the reply, if the commands are refused; None if they pass


class Validity:
    """Whether answers hold that were derived from one policy and one command table. All of them share it."""

    def __init__(self) -> None:
        self.is_current = True  # False: derive them anew
