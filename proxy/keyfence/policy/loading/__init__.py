"""From policy files to a compiled policy, or to the list of all their faults."""
