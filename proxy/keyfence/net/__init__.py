"""Addresses, and the header by which a balancer names its client. Imports nothing of the project."""
