"""What a command touches to a verdict: the evaluator, and the decision cache in front of it."""
