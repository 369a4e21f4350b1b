"""Counting and telling: metrics, decision log, reports. Imports the verdict type of `policy`."""
