"""What unregistered keys look like: `user:4711` and `user:42` have one shape."""
