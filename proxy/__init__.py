"""keyfence: a Redis proxy that holds every key of every command against a written namespace policy."""

__version__ = "0.1.0"
