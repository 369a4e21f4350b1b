"""RESP as bytes: requests in, reply boundaries out. No I/O, no policy."""
