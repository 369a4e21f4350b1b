"""What one client has sent and awaits: its requests, reply slots, connection and state. It decides
nothing."""
