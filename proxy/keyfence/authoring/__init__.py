"""Offline work on a policy: lint, tests, explain, diff, replay, and drafts made from a report."""
