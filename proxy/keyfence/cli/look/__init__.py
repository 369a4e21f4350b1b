"""`keyfence look`: what is on a Redis, and which clients use it, without a policy."""
