"""What would have to change so that a command passes: for `keyfence explain`."""
