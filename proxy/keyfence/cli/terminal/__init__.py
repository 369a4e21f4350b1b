"""What all commands share: options, output, and how they read a running keyfence."""
