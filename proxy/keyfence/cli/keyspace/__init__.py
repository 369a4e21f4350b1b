"""The commands about the keys that a Redis holds: audit them, and move the deprecated ones."""
