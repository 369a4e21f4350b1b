"""The text form of addresses."""

from __future__ import annotations


def host_port(host: str, port: int) -> str:
    """An address as written in URLs, with IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
