"""Counting and telling: metrics, decision log, reports. Imports the verdict type of `policy`."""

from proxy.telemetry.counters import Counters
from proxy.telemetry.telemetry import Telemetry

__all__ = ["Counters", "Telemetry"]
