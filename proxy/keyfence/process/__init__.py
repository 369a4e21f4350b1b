"""One keyfence process, from start to end: put together, controlled, reloaded, and its work each second."""
