"""What `/metrics` serves: the table of all metrics, and their text."""
