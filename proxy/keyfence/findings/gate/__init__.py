"""The gate of a pipeline: its sources, its judgement, its baselines, and its answer in every format."""
