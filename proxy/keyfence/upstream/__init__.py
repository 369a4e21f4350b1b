"""Connections to Redis, and a Redis of our own where none is named. Imports `wire`."""
