"""What each process that serves clients has: the runtime, what is in force, and the work of each second."""
