"""Counters and metrics, the decision log, reports, and lines for operators."""

from .counters import Counters
from .telemetry import Telemetry

__all__ = ["Counters", "Telemetry"]
