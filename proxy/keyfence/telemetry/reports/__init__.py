"""The report as tables for people: by command, and by key."""
