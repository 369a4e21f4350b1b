"""Clients' sockets: accepting them, limits on them, and the transport of one client."""
