# cython: annotation_typing=False
"""Counts of commands that are alike, and answers that can be revoked: the values that the decision cache
shares with sessions, telemetry and the evaluator.

Rule: these are plain values. Telemetry takes over the counts from time to time and sets them to 0. A counter
that is not live is not used any more.
"""

from __future__ import annotations


class Admitted:
    """Counts admitted commands of one kind."""

    def __init__(self, name: str, evidence: object = None) -> None:
        self.name = name  # of the command, in upper case
        self.evidence = evidence  # `evidence.Evidence` of each of them; None: of none
        self.times = 0  # since telemetry has taken over the count
        self.is_gathered = False  # telemetry knows of it


class ViolationCounter:
    """Counts commands that break the same rules, whatever their keys and values."""

    def __init__(self, rows: object) -> None:
        """`rows` is where telemetry adds the findings of each command."""
        self.rows = rows
        self.times = 0  # since telemetry has taken over the count
        self.live = True  # False: evaluate and report the next command in full
        self.outcome = 0  # what each command means for its key's time to live (`ttl.outcome`)
        # If the commands are refused: the reply, split where the key stands in it. None if they pass.
        self.refusal: tuple[bytes, ...] | None = None


class Revocable:
    """An answer that holds as long as the policy and the command table that it was drawn from."""

    def __init__(self) -> None:
        self.is_current = True  # False: draw it anew
