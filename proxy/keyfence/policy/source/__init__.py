"""The source form of a policy: YAML read with positions and validated into a model. It compiles nothing."""
