"""One client's session, without I/O: it reads requests, has each one decided, and sends it on or refuses
it."""
