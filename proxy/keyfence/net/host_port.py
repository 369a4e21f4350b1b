"""Addresses as people and URLs write them."""

from __future__ import annotations


def host_port(host: str, port: int) -> str:
    """An address as people and URLs write it: IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
