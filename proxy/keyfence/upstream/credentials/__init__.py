"""Logins at the upstream that change: where they come from, and when they are renewed."""
