"""Sets of keys and values: expressions, patterns, globs, and the automaton that classifies a key."""
