"""A verdict to a ruling: refused, observed, or waived."""
