"""The shapes of unregistered keys: `user:4711` and `user:42` have the same shape."""
