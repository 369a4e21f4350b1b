"""What a command touches, from its argv alone. No I/O, no policy. Imports nothing of the project."""
