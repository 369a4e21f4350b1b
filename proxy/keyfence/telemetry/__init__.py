"""Counters and metrics, the tally, the decision log, and lines for operators."""

from .counters import Counters
from .telemetry import Telemetry

__all__ = ["Counters", "Telemetry"]
