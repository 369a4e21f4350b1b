"""Turns a verdict into a ruling: each violation is refused, observed or waived."""
