"""Findings that outlive the process: a database, the states of findings, and the readiness of rules."""
