"""One client's session, without I/O: it reads each request, has it decided, and sends it on or refuses it."""
