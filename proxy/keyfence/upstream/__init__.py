"""Connections to Redis, and an embedded Redis for when no upstream is configured."""
