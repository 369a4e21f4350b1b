"""A client of a Sentinel listener: keyfence answers as a Sentinel that names keyfence itself."""
