"""Counting and telling: metrics, decision log, reports. Imports the verdict type of `policy`."""

from .counters import Counters
from .telemetry import Telemetry

__all__ = ["Counters", "Telemetry"]
