"""Reads from replicas: which replica a read may take, and when."""
