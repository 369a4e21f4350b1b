"""The command line: each command, what it prints, and the files it checks."""
