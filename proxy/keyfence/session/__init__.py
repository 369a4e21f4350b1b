"""One client's session, without I/O: each request is read, authorized, and then sent on or refused."""
