"""The parts of every process that serves clients: runtime, loading, limits, background jobs."""
