"""Finds everything that a command touches, from its argv alone. No I/O, no policy."""
