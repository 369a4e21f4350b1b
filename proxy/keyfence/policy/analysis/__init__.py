"""Offline work on a policy: lint, tests, explain, diff, replay, and the lists that a report becomes."""
