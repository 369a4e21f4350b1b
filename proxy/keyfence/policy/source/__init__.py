"""YAML to a model: read with positions, held against the schema. Compiles nothing."""
