"""One keyfence process: built, controlled, reloaded and ended."""
