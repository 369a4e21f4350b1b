"""The engine: the evaluator, which gives the verdict on a command, and the decision cache in front of it."""
