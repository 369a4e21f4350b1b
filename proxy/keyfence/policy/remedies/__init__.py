"""Remedies: changes that make a refused command pass, for `keyfence explain`."""
