"""Clients' sockets: accepting connections, their limits, and the transport of one client."""
