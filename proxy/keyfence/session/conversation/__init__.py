"""One client's conversation with Redis: requests, reply slots, connection and state. It evaluates nothing."""
