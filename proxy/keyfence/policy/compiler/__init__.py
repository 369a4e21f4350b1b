"""The model to the tables that run: services numbered, patterns one automaton, requirements resolved."""
